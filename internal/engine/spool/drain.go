package spool

import (
	"context"
	"fmt"
	"time"

	"queenmq/internal/engine/push"
)

// A Store stores messages that were accepted earlier; *push.Pusher is one.
type Store interface {
	Replay(ctx context.Context, messages []push.Accepted) ([]push.Verdict, error)
}

// progress is how far the oldest file is stored. What is lost of it with the process is stored again, which is harmless.
type progress struct {
	file    file
	data    []byte
	at      int      // where the next chunk begins
	left    []found  // of the chunk under way
	single  bool     // the chunk holds something that the database refuses: its partitions go message by message
	alone   bool     // the chunk holds something that brings the store down: message by message
	carried bool     // the chunk is of what is carried, see carry
	strange int      // attempts in a row without progress that should have made some
	note    diskFile // of the place; nil when it is not open

	unread   string // the file that could not be read the last times
	attempts int
}

// Drain stores what waits, oldest first, until nothing is left, and returns how many messages that were. An error says that the database
// cannot take the rest now; the next call goes on there. What it refuses for good is set aside and does not hold up the rest, and neither does
// a partition that cannot be stored in time: see carry. When ctx ends,
// what is being stored is seen through. Drain is for one goroutine at a time. Nothing is stored before the directory is tied to the
// database, see [Spool.Tie].
func (s *Spool) Drain(ctx context.Context, store Store) (stored int, err error) {
	if !s.tied() {
		return 0, errUntied
	}
	defer s.progress.closePlace()
	for ctx.Err() == nil {
		n, err := s.retryCarried(ctx, store)
		stored += n
		if err != nil {
			return stored, err
		}
		more, err := s.nextFile(ctx)
		if err == nil && !more && len(s.carry.records) > 0 {
			if !time.Now().Before(s.carry.retryAt) {
				continue
			}
			err = s.carry.fault
		}
		if err != nil || !more {
			return stored, err
		}
		n, err = s.drainFile(ctx, store)
		stored += n
		if err != nil {
			return stored, err
		}
	}
	return stored, ctx.Err()
}

// nextFile makes the oldest complete file the one in progress, completing the open one when there is no other. It returns false when there
// is nothing to store, or not yet.
func (s *Spool) nextFile(ctx context.Context) (bool, error) {
	if s.progress.data != nil {
		return true, nil
	}
	s.mu.Lock()
	counted, waiting := s.counted, s.pending > 0
	var oldest *file
	if len(s.complete) > 0 {
		oldest = &s.complete[0]
	}
	s.mu.Unlock()
	switch {
	case !counted:
		return false, nil
	case oldest == nil && !waiting:
		// Nothing asks the database on our behalf: the next push does.
		s.recovered()
		return false, nil
	case oldest == nil:
		if err := s.rotateNow(ctx); err != nil {
			return false, err
		}
		s.mu.Lock()
		if len(s.complete) > 0 {
			oldest = &s.complete[0]
		}
		s.mu.Unlock()
		if oldest == nil {
			return false, nil // still being written
		}
	}
	data, err := s.dir.files.readFile(s.dir.file(oldest.base, completeSuffix))
	if err != nil {
		return false, s.unreadable(ctx, oldest.base, err)
	}
	s.progress = progress{file: *oldest, data: data, at: oldest.place}
	return true, nil
}

// unreadable notes that the oldest file cannot be read, and leaves it for the next start when that does not pass: what is behind it must not
// wait for ever.
func (s *Spool) unreadable(ctx context.Context, base string, err error) error {
	p := &s.progress
	if p.unread != base {
		p.unread, p.attempts = base, 0
	}
	if p.attempts++; p.attempts < readAttempts {
		return fmt.Errorf("read a file of the file buffer: %w", err)
	}
	s.lose(ctx, base+completeSuffix, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes -= s.complete[0].bytes
	s.complete = s.complete[1:]
	s.progress = progress{}
	return nil
}

// rotateNow completes the open file.
func (s *Spool) rotateNow(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case s.rotate <- done:
		<-done
		return nil
	case <-s.stopped:
		return push.ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drainFile stores the file in progress and deletes it.
func (s *Spool) drainFile(ctx context.Context, store Store) (stored int, err error) {
	p := &s.progress
	for {
		if err := ctx.Err(); err != nil && (len(p.left) > 0 || p.at < len(p.data)) {
			return stored, err
		}
		if len(p.left) == 0 {
			n, err := s.retryCarried(ctx, store)
			stored += n
			if err != nil {
				return stored, err
			}
			p.single, p.alone = false, false
			if err := s.cutChunk(ctx); err != nil {
				return stored, err
			}
			if len(p.left) == 0 {
				break
			}
		}
		n, err := s.storeChunk(ctx, store)
		stored += n
		if err != nil {
			return stored, err
		}
		if of := s.carry.current; len(p.left) == 0 && p.at < len(p.data) && (of == nil || of.records == 0) {
			s.markPlace()
		}
	}
	p.closePlace()
	if s.endFile() {
		return stored, nil
	}
	if err := s.dir.remove(p.file.base); err != nil {
		return stored, fmt.Errorf("delete a stored file of the file buffer: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = s.complete[1:]
	s.bytes -= p.file.bytes
	s.progress = progress{}
	s.settleQuietLocked()
	return stored, nil
}
