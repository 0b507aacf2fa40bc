package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"queenmq/internal/pg"
)

const (
	// carryPause is how long a partition that could not be stored in time is left alone at least, and carryShare how many times as long as
	// the last attempt took: others are stored meanwhile.
	carryPause = 5 * time.Second
	carryShare = 4
	// mostCarriedLanes, mostCarriedBytes and mostCarried bound what is carried on. Beyond, everything waits: so many partitions at a time are
	// no exception, and what is carried is in memory.
	mostCarriedLanes = 16
	mostCarriedBytes = 32 << 20
	mostCarried      = 20_000
)

// A carry holds records whose partitions cannot be stored in time, because somebody holds their locks for example, while what lies behind them
// on the disk is stored. They stay in their files, which are kept until all of them are stored; a broker that ends meanwhile stores again
// what lies behind the first of them. It belongs to the goroutine that drains.
type carry struct {
	records []carried // in order within each partition
	bytes   int
	lanes   map[laneKey]int
	fault   error // of the last attempt
	retryAt time.Time
	strange int // attempts in a row without progress that should have made some
	// current is the file in progress, nil while nothing of it is carried; ended are files of which nothing else is left.
	current *carriedFile
	ended   []*carriedFile
}

type carriedFile struct {
	file    file
	records int // carried
}

type carried struct {
	found
	of *carriedFile
}

// isSlow says that a partition could not be stored in time.
func isSlow(err error) bool {
	return errors.Is(err, pg.ErrTimeout) || errors.Is(err, pg.ErrLockTimeout)
}

// mayCarry tells whether a partition's records are carried, or could be.
func (c *carry) mayCarry(at laneKey) bool {
	_, already := c.lanes[at]
	return len(c.records) < mostCarried && c.bytes < mostCarriedBytes && (already || len(c.lanes) < mostCarriedLanes)
}

// holds tells whether records of a partition are carried, so that later ones must not pass them.
func (c *carry) holds(at laneKey) bool { return c.lanes[at] > 0 }

// add carries a record of the file in progress. It is copied: the file's bytes are given up before.
func (c *carry) add(f found, in file) {
	if c.current == nil {
		c.current = &carriedFile{file: in}
	}
	if len(c.records) == 0 {
		c.retryAt = time.Now().Add(carryPause)
	}
	raw := bytes.Clone(f.raw)
	if body, _, err := nextRecord(raw); err == nil {
		if message, err := decodeRecord(body); err == nil {
			f.raw, f.message = raw, message
		}
	}
	if c.lanes == nil {
		c.lanes = make(map[laneKey]int)
	}
	c.lanes[keyOf(&f.message)]++
	c.current.records++
	c.bytes += len(f.raw)
	f.base = in.base
	c.records = append(c.records, carried{f, c.current})
}

// carrySlow carries what is left of the chunk of the partitions that could not be stored in time, if it may.
func (s *Spool) carrySlow(slow map[laneKey]bool, fault error) bool {
	c, p := &s.carry, &s.progress
	lanes := len(c.lanes)
	for at := range slow {
		if !c.holds(at) {
			lanes++
		}
	}
	if lanes > mostCarriedLanes || len(c.records)+len(p.left) > mostCarried+chunkRecords {
		return false
	}
	c.fault = fault
	left := p.left[:0:0]
	for _, f := range p.left {
		if slow[keyOf(&f.message)] {
			c.add(f, p.file)
		} else {
			left = append(left, f)
		}
	}
	p.left = left
	return true
}

// retryCarried stores what is carried when its time has come, a chunk at most. What cannot be stored in time stays carried, which is no error.
func (s *Spool) retryCarried(ctx context.Context, store Store) (stored int, err error) {
	c := &s.carry
	if err := s.endCarried(); err != nil {
		return 0, err
	}
	if len(c.records) == 0 || time.Now().Before(c.retryAt) || ctx.Err() != nil { // whoever stops does not wait for them
		return 0, nil
	}
	n, size := 0, 0
	for n < len(c.records) && n < chunkRecords && (n == 0 || size+len(c.records[n].raw) <= chunkBytes) {
		size += len(c.records[n].raw)
		n++
	}
	batch := c.records[:n:n]
	chunk := progress{carried: true, left: make([]found, n), strange: c.strange}
	of := make(map[*byte]carried, n) // by the copy of the record
	for i, one := range batch {
		chunk.left[i] = one.found
		of[&one.raw[0]] = one
	}
	began := time.Now()
	whole := s.progress
	s.progress = chunk
	for len(s.progress.left) > 0 && err == nil && ctx.Err() == nil {
		var some int
		some, err = s.storeChunk(ctx, store)
		stored += some
	}
	left := s.progress.left
	c.strange = s.progress.strange
	s.progress = whole
	c.retryAt = time.Now().Add(max(carryPause, carryShare*time.Since(began)))
	if err == nil && n < len(c.records) {
		c.retryAt = time.Now() // the next chunk of them
	}
	kept := make([]carried, 0, len(c.records)-n+len(left))
	for _, f := range left {
		kept = append(kept, of[&f.raw[0]])
		delete(of, &f.raw[0])
	}
	for _, one := range of {
		one.of.records--
		c.bytes -= len(one.raw)
		if at := keyOf(&one.message); c.lanes[at] > 1 {
			c.lanes[at]--
		} else {
			delete(c.lanes, at)
		}
	}
	c.records = append(kept, c.records[n:]...)
	if isSlow(err) {
		c.fault, err = err, nil
	}
	return stored, errors.Join(err, s.endCarried())
}

// endFile says that the file in progress has been read to its end. It reports whether the file stays for what is carried of it.
func (s *Spool) endFile() bool {
	c := &s.carry
	of := c.current
	c.current = nil
	if of == nil || of.records == 0 {
		return false
	}
	c.ended = append(c.ended, of)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = s.complete[1:]
	s.progress = progress{}
	return true
}

// endCarried deletes the files of which nothing is carried any more.
func (s *Spool) endCarried() error {
	c := &s.carry
	for i := 0; i < len(c.ended); {
		of := c.ended[i]
		if of.records > 0 {
			i++
			continue
		}
		if err := s.dir.remove(of.file.base); err != nil {
			return fmt.Errorf("delete a stored file of the file buffer: %w", err)
		}
		c.ended = append(c.ended[:i:i], c.ended[i+1:]...)
		s.mu.Lock()
		s.bytes -= of.file.bytes
		s.settleQuietLocked()
		s.mu.Unlock()
	}
	return nil
}
