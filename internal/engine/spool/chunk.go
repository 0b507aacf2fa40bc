package spool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

const (
	// chunkRecords and chunkBytes bound what one call of the store carries.
	chunkRecords = 1000
	chunkBytes   = 4 << 20
	// maxStrange is how often a record is tried whose failure should not last and is not the database's absence.
	maxStrange = 5
)

var (
	errChunkFull = errors.New("the chunk is full")
	errCarryFull = errors.New("no more can be carried")
)

// cutChunk takes the next records of the file. Stretches that are none are set aside on the way.
func (s *Spool) cutChunk(ctx context.Context) error {
	p := &s.progress
	bytes, at := 0, p.at
	advance := func(f found) error {
		at = f.end
		return nil
	}
	_, err := scanFrom(p.data, p.at, func(f found) error {
		if f.fault != nil {
			if err := s.setAside(ctx, f, f.fault.Error()); err != nil {
				return err
			}
		} else {
			if at := keyOf(&f.message); s.carry.holds(at) {
				if !s.carry.mayCarry(at) {
					return errCarryFull
				}
				s.carry.add(f, p.file)
				return advance(f)
			}
			if len(p.left) > 0 && (len(p.left) >= chunkRecords || bytes+len(f.raw) > chunkBytes) {
				return errChunkFull
			}
			p.left = append(p.left, f)
			bytes += len(f.raw)
		}
		return advance(f)
	})
	p.at = at
	switch {
	case errors.Is(err, errCarryFull) && len(p.left) == 0:
		return s.carry.fault // there is no way past them
	case errors.Is(err, errChunkFull), errors.Is(err, errCarryFull):
		return nil
	}
	return err
}

// storeChunk stores what is left of the chunk. All records of a partition in it are one segment, so that they are stored in order or not at
// all; when the database refuses one for good, they go one by one, so that only that which is at fault is set aside.
func (s *Spool) storeChunk(ctx context.Context, store Store) (stored int, err error) {
	p := &s.progress
	now, later := p.attempt()
	messages := make([]push.Accepted, len(now))
	company := make(map[laneKey]int)
	for i, at := range now {
		messages[i] = p.left[at].message
		company[keyOf(&messages[i])]++
	}
	verdicts, panicked, err := s.replay(context.WithoutCancel(ctx), store, messages)
	if err != nil {
		return 0, err
	}
	if panicked && len(now) > 1 {
		p.alone = true
		return 0, nil
	}
	keep := make([]bool, len(p.left))
	for _, at := range later {
		keep[at] = true
	}
	var failure error
	strange, refused := false, false
	slow, others := make(map[laneKey]bool), false // partitions that could not be stored in time; whether something else is left
	for i, at := range now {
		f, v := p.left[at], &verdicts[i]
		if v.Status == push.StatusQueued || v.Status == push.StatusDuplicate {
			stored++
			s.settled(f)
			continue
		}
		isStrange := errors.Is(v.Err, push.ErrInternal) || errors.Is(v.Err, pg.ErrVanished)
		final := isRefused(v.Err) || isStrange && p.strange >= maxStrange
		if final && company[keyOf(&f.message)] > 1 && !errors.Is(v.Err, segment.ErrTooLarge) { // that one is about this message
			refused, keep[at] = true, true
			continue
		}
		if final {
			if err := s.setAside(ctx, f, v.Err.Error()); err != nil {
				p.drop(keep, now[i:])
				return stored, err
			}
			s.settled(f)
			continue
		}
		keep[at], failure, strange = true, v.Err, strange || isStrange
		slow[keyOf(&f.message)], others = true, others || !isSlow(v.Err)
	}
	left := len(p.left)
	p.drop(keep, nil)
	s.storedSome(left - len(p.left))
	if refused {
		p.single = true
	}
	if errors.Is(failure, pg.ErrUnavailable) {
		s.Unhealthy()
	} else {
		s.recovered()
	}
	switch {
	case failure == nil || len(p.left) < left || refused:
		p.strange = 0
	case strange:
		p.strange++
	}
	if failure != nil && !others && !p.carried && s.carrySlow(slow, failure) {
		return stored, nil
	}
	return stored, failure
}

// replay is the store's, with a panic as a failure of all messages: one that brings the broker down would bring it down at every start.
func (s *Spool) replay(ctx context.Context, store Store, messages []push.Accepted) (verdicts []push.Verdict, panicked bool, err error) {
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		s.cfg.Log.ErrorContext(ctx, "panic while messages of the file buffer were stored", slog.Any("panic", cause), slog.String("stack", string(debug.Stack())))
		verdicts, panicked, err = make([]push.Verdict, len(messages)), true, nil
		for i := range verdicts {
			verdicts[i] = push.Verdict{Status: push.StatusFailed, Err: fmt.Errorf("%w: panic", push.ErrInternal)}
		}
	}()
	verdicts, err = store.Replay(ctx, messages)
	return verdicts, false, err
}

// attempt chooses which records of the chunk are stored now, and which after them: in order within each partition.
func (p *progress) attempt() (now, later []int) {
	first := make(map[laneKey]bool)
	for i := range p.left {
		at := keyOf(&p.left[i].message)
		if p.single && first[at] || p.alone && len(now) > 0 {
			later = append(later, i)
			continue
		}
		first[at] = true
		now = append(now, i)
	}
	return now, later
}

// drop takes out of the chunk what is not kept; also are kept in any case.
func (p *progress) drop(keep []bool, also []int) {
	for _, at := range also {
		keep[at] = true
	}
	var left []found
	for i := range p.left {
		if keep[i] {
			left = append(left, p.left[i])
		}
	}
	p.left = left
}

// isRefused says that storing the message will never succeed as things are.
func isRefused(err error) bool {
	return errors.Is(err, pg.ErrBadData) || errors.Is(err, segment.ErrTooLarge) || errors.Is(err, push.ErrEncryptionRequired) || errors.Is(err, push.ErrQueueFull)
}

// settled takes a record out of the account.
func (s *Spool) settled(f found) {
	at := keyOf(&f.message)
	s.mu.Lock()
	defer s.mu.Unlock()
	if hasOwnID(&f.message) {
		s.ids.remove(s.ids.key(at, f.message.TransactionID))
	}
	s.leaveLocked(at, 1)
	s.settleQuietLocked()
}

// setAside moves one stretch of the file in progress to the directory "failed".
func (s *Spool) setAside(ctx context.Context, f found, reason string) error {
	contents := append([]byte(header), f.raw...)
	about := "bytes that are no record"
	if f.fault == nil {
		about = fmt.Sprintf("message %s of queue %q, partition %q", f.message.ID, f.message.Queue, f.message.Partition)
	}
	in := s.progress.file.base
	if f.base != "" {
		in = f.base
	}
	base, _, _ := strings.Cut(in, ".")
	if err := s.dir.setAside(base, f.end-len(f.raw), contents, about+": "+reason); err != nil {
		return fmt.Errorf("set aside what cannot be stored: %w", err)
	}
	s.cfg.Log.ErrorContext(ctx, "something in the file buffer cannot be stored and was set aside", slog.String("file", base),
		slog.String("what", about), slog.String("reason", reason))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed++
	return nil
}
