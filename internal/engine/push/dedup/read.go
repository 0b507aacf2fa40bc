package dedup

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

var (
	// errOutOfDate ends a read whose entry started anew meanwhile.
	errOutOfDate = errors.New("dedup: the partition has changed")
	// errTooLarge ends a read that does not fit into the cache.
	errTooLarge = errors.New("dedup: the partition does not fit into the cache")
	// errRagged ends a read of rows that do not follow each other.
	errRagged = errors.New("dedup: the stored hashes have a gap")
)

// readLocked starts reading what e does not know, if nothing stands against it. The caller holds e.mu.
func (c *Cache) readLocked(e *entry) {
	if e.reading || time.Now().Before(e.suppressedTill) {
		return
	}
	select {
	case c.readers <- struct{}{}:
	default:
		return // all readers are busy; the next push asks again
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.reading.Add(1)
	}
	c.mu.Unlock()
	if closed {
		<-c.readers
		return
	}
	r := &reader{cache: c, entry: e, partition: e.partition, window: e.window, epoch: e.epoch, after: -1}
	if e.known {
		r.behind, r.after = true, e.history.upto
	}
	e.reading = true
	go func() {
		defer c.reading.Done()
		defer func() { <-c.readers }()
		r.run()
	}()
}

// A reader reads the window of one partition, or what lies behind its history.
type reader struct {
	cache     *Cache
	entry     *entry
	partition uuid.UUID
	window    time.Duration
	epoch     int
	behind    bool
	after     int64
	// fresh is the history of a full read.
	fresh history
	rows  int
}

func (r *reader) run() {
	r.cache.counters.reads.Add(1)
	ctx, cancel := context.WithTimeout(r.cache.ctx, r.cache.cfg.ReadTimeout)
	defer cancel()
	each := r.full
	if r.behind {
		each = r.gap
	}
	err := r.cache.source.WindowHashes(ctx, r.partition, r.after, r.window+margin, each)
	size := r.finish(err)
	r.cache.charge(r.entry, size)
}

// finish installs what was read and returns the size of the entry.
func (r *reader) finish(err error) int {
	e := r.entry
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reading = false
	switch {
	case e.epoch != r.epoch:
	case errors.Is(err, errRagged) && r.behind:
		e.restartLocked() // rows have left the window before they were read: only a full read says from when on
	case err != nil || r.rows == 0 && !r.behind:
		e.suppressedTill = time.Now().Add(suppressed)
		if errors.Is(err, errTooLarge) {
			e.suppressedTill = time.Now().Add(suppressedTooLarge)
		}
		r.cache.counters.suppressions.Add(1)
		if !e.known {
			e.dropPendingLocked()
		}
	case r.behind:
		e.drainLocked()
	default:
		e.known, e.history = true, r.fresh
		e.head = max(e.head, e.history.upto)
		e.drainLocked()
	}
	return e.sizeLocked()
}

// full takes one row of a read of the whole window.
func (r *reader) full(row *pg.WindowHashes) error {
	if r.rows == 0 {
		r.fresh = history{upto: row.Base - 1, since: row.Since}
		if row.Base == 0 {
			r.fresh.since = time.Time{}
		}
	}
	if err := check(row, r.fresh.upto); err != nil {
		return err
	}
	r.rows++
	r.fresh.add(row.End, row.CreatedAt, r.window, row.Hashes)
	if r.rows%64 == 0 && r.fresh.size() > r.cache.room() {
		return errTooLarge
	}
	return nil
}

// gap takes one row of what lies behind the history.
func (r *reader) gap(row *pg.WindowHashes) error {
	e := r.entry
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.epoch != r.epoch {
		return errOutOfDate
	}
	if row.End <= e.history.upto {
		return nil
	}
	if err := check(row, e.history.upto); err != nil {
		return err
	}
	e.history.add(row.End, row.CreatedAt, e.window, row.Hashes)
	return nil
}

func check(row *pg.WindowHashes, upto int64) error {
	if row.Base != upto+1 || int64(len(row.Hashes)) != hashBytes*(row.End-row.Base+1) {
		return errRagged
	}
	return nil
}

// room is how much a partition that is being read may take: never the last tenth, which growing partitions need.
func (c *Cache) room() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cfg.MaxBytes/10*9 - c.bytes
}

type counters struct {
	vouched, suspected, unknown, reads, suppressions, evictions atomic.Uint64
}

// Stats are the figures of a cache. All but Partitions and Bytes only grow.
type Stats struct {
	// Vouched counts segments that the database could take on trust, Suspected those with an id that may be known, Unknown
	// those of partitions that are not followed (yet).
	Vouched, Suspected, Unknown uint64
	// Reads counts the reads of partitions, Suppressions the partitions that did not fit or could not be read, Evictions
	// those that were forgotten to make room for others, or because their queue looks for no duplicates any more.
	Reads, Suppressions, Evictions uint64
	// Partitions are followed now, with Bytes of memory.
	Partitions, Bytes int
}

// Stats returns the figures, read one by one.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	partitions, bytes := len(c.entries), c.bytes
	c.mu.Unlock()
	return Stats{
		Vouched: c.counters.vouched.Load(), Suspected: c.counters.suspected.Load(), Unknown: c.counters.unknown.Load(),
		Reads: c.counters.reads.Load(), Suppressions: c.counters.suppressions.Load(), Evictions: c.counters.evictions.Load(),
		Partitions: partitions, Bytes: bytes,
	}
}
