package spool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
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

// A Store stores messages that were accepted earlier; *push.Pusher is one.
type Store interface {
	Replay(ctx context.Context, messages []push.Accepted) ([]push.Verdict, error)
}

// progress is how far the oldest file is stored. It is lost with the process: the file is then stored again, which is harmless.
type progress struct {
	file    file
	data    []byte
	at      int     // where the next chunk begins
	left    []found // of the chunk under way
	strange int     // attempts in a row without progress that should have made some
}

// Drain stores what waits, oldest first, until nothing is left, and returns how many messages that were. An error says that the database
// cannot take the rest now; the next call goes on there. What it refuses for good is set aside and does not hold up the rest. Drain is
// for one goroutine at a time.
func (s *Spool) Drain(ctx context.Context, store Store) (stored int, err error) {
	for ctx.Err() == nil {
		more, err := s.nextFile(ctx)
		if err != nil || !more {
			return stored, err
		}
		n, err := s.drainFile(ctx, store)
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
	data, err := os.ReadFile(s.dir.file(oldest.base, completeSuffix))
	if err != nil {
		return false, fmt.Errorf("read a file of the file buffer: %w", err)
	}
	s.progress = progress{file: *oldest, data: data}
	return true, nil
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
		if len(p.left) == 0 {
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

var errChunkFull = errors.New("the chunk is full")

// cutChunk takes the next records of the file. Stretches that are none are set aside on the way.
func (s *Spool) cutChunk(ctx context.Context) error {
	p := &s.progress
	bytes, at := 0, p.at
	_, err := scanFrom(p.data, p.at, func(f found) error {
		if f.fault != nil {
			if err := s.setAside(ctx, f, f.fault.Error()); err != nil {
				return err
			}
		} else {
			if len(p.left) > 0 && (len(p.left) >= chunkRecords || bytes+len(f.raw) > chunkBytes) {
				return errChunkFull
			}
			p.left = append(p.left, f)
			bytes += len(f.raw)
		}
		at = f.end
		return nil
	})
	p.at = at
	if errors.Is(err, errChunkFull) {
		return nil
	}
	return err
}

// storeChunk stores what is left of the chunk. All records of a partition in it are one segment, so that they are stored in order or not at
// all.
func (s *Spool) storeChunk(ctx context.Context, store Store) (stored int, err error) {
	p := &s.progress
	messages := make([]push.Accepted, len(p.left))
	for i := range p.left {
		messages[i] = p.left[i].message
	}
	verdicts, err := store.Replay(ctx, messages)
	if err != nil {
		return 0, err
	}
	var left []found
	var failure error
	strange := false
	for i, f := range p.left {
		v := &verdicts[i]
		if v.Status == push.StatusQueued || v.Status == push.StatusDuplicate {
			stored++
			s.settled(f)
			continue
		}
		isStrange := errors.Is(v.Err, push.ErrInternal) || errors.Is(v.Err, pg.ErrVanished)
		if isRefused(v.Err) || isStrange && p.strange >= maxStrange {
			if err := s.setAside(ctx, f, v.Err.Error()); err != nil {
				return stored, err
			}
			s.settled(f)
			continue
		}
		left, failure, strange = append(left, f), v.Err, strange || isStrange
	}
	progressed := len(left) < len(p.left)
	p.left = left
	if errors.Is(failure, pg.ErrUnavailable) {
		s.Unhealthy()
	} else {
		s.recovered()
	}
	switch {
	case failure == nil || progressed:
		p.strange = 0
	case strange:
		p.strange++
	}
	return stored, failure
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
	base, _, _ := strings.Cut(s.progress.file.base, ".")
	if err := s.dir.setAside(base, contents, about+": "+reason); err != nil {
		return fmt.Errorf("set aside what cannot be stored: %w", err)
	}
	s.cfg.Log.ErrorContext(ctx, "something in the file buffer cannot be stored and was set aside", slog.String("file", base),
		slog.String("what", about), slog.String("reason", reason))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed++
	return nil
}
