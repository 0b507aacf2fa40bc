package spool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// A writer owns the open file.
type writer struct {
	spool   *Spool
	file    diskFile // nil between files
	base    string
	length  int64 // of everything that is good
	records int
	dirty   bool // written since the last sync
	renamed bool // the oldest stuck file has its new name, which is not forced to the disk yet
	// complained limits how often a disk that fails is logged.
	complained time.Time
}

// write commits what is appended until ctx ends.
func (s *Spool) write(ctx context.Context) {
	w := &writer{spool: s}
	flush := time.NewTicker(s.cfg.FlushInterval)
	defer flush.Stop()
	for {
		select {
		case first := <-s.requests:
			w.commit(s.gather(first))
		case done := <-s.rotate:
			w.complete()
			close(done)
		case <-flush.C:
			w.idle()
		case <-ctx.Done():
			// What arrived in time is still written.
			for {
				select {
				case first := <-s.requests:
					w.commit(s.gather(first))
					continue
				default:
				}
				break
			}
			w.complete()
			return
		}
	}
}

// gather takes what else waits, so that it shares the commit: the longer the disk takes, the more do.
func (s *Spool) gather(first *batch) []*batch {
	batches, records, bytes := []*batch{first}, first.records, len(first.bytes)
	for records < s.cfg.MaxBatch && bytes < batchBytes {
		select {
		case next := <-s.requests:
			batches, records, bytes = append(batches, next), records+next.records, bytes+len(next.bytes)
		default:
			return batches
		}
	}
	return batches
}

// commit writes batches and answers for all of them.
func (w *writer) commit(batches []*batch) {
	err := w.append(batches)
	if err != nil {
		w.undo()
		w.complain("the file buffer cannot be written", err)
		err = fmt.Errorf("%w: %w", ErrWrite, err)
	}
	for _, b := range batches {
		b.done <- err
	}
	if w.records >= w.spool.cfg.RecordsPerFile || w.length >= fileBytes {
		w.complete()
	}
}

func (w *writer) append(batches []*batch) error {
	if w.file == nil {
		if err := w.begin(); err != nil {
			return err
		}
	}
	length, records := w.length, w.records
	for _, b := range batches {
		if _, err := w.file.WriteAt(b.bytes, length); err != nil {
			return err
		}
		length += int64(len(b.bytes))
		records += b.records
	}
	w.dirty = true
	if w.spool.cfg.Sync == SyncAlways {
		if err := w.sync(); err != nil {
			return err
		}
	}
	w.length, w.records = length, records
	return nil
}

// begin makes the next file. Its name is on disk before a record of it is answered.
func (w *writer) begin() error {
	s := w.spool
	if err := s.keepTie(); err != nil {
		return err
	}
	base, err := s.nextName()
	if err != nil {
		return err
	}
	path := s.dir.file(base, openSuffix)
	f, err := s.dir.files.create(path)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(header), 0)
	if err == nil && s.cfg.Sync != SyncNever {
		if err = f.Sync(); err == nil {
			err = s.dir.files.syncDirectory(s.dir.path)
		}
	}
	if err != nil {
		_ = f.Close()
		_ = s.dir.files.remove(path) // it holds nothing
		return err
	}
	w.file, w.base, w.length, w.records = f, base, int64(len(header)), 0
	s.addBytes(w.length)
	return nil
}

// nextName is the name of the next file. Only the writer makes files.
func (s *Spool) nextName() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dir.next(time.Now())
}

func (s *Spool) addBytes(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += n
}

// undo cuts off what was written of a commit that failed, and gives the file up: after a failed sync nobody knows what the disk holds of
// it, so that nothing must be written behind it.
func (w *writer) undo() {
	if w.file == nil {
		return
	}
	if err := w.file.Truncate(w.length); err != nil {
		// The records behind the good ones were answered as failed and will be stored all the same, as after an answer that was lost.
		w.spool.cfg.Log.Warn("a failed write to the file buffer could not be undone", slog.String("file", w.base), slog.Any("error", err))
	}
	w.complete()
}

func (w *writer) sync() error {
	if !w.dirty {
		return nil
	}
	if err := w.file.Sync(); err != nil {
		return err
	}
	w.dirty = false
	return nil
}

// idle does what is due while nothing arrives.
func (w *writer) idle() {
	w.rename()
	if w.file == nil {
		return
	}
	if w.spool.cfg.Sync == SyncInterval {
		if err := w.sync(); err != nil {
			w.spool.cfg.Log.Error("the file buffer could not be forced to the disk", slog.String("file", w.base), slog.Any("error", err))
			w.complete()
		}
	}
}

// complete ends the open file, so that it can be stored. An empty one is deleted.
func (w *writer) complete() {
	if w.file == nil {
		return
	}
	s, f, base, length, records := w.spool, w.file, w.base, w.length, w.records
	w.file, w.dirty = nil, false
	var err error
	if s.cfg.Sync != SyncNever {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if records == 0 {
		_ = s.dir.files.remove(s.dir.file(base, openSuffix)) // found again and deleted at the next start
		s.addBytes(-length)
		return
	}
	if err != nil {
		s.cfg.Log.Error("a file of the file buffer could not be forced to the disk", slog.String("file", base), slog.Any("error", err))
	}
	s.mu.Lock()
	s.stuck = append(s.stuck, file{base: base, bytes: length})
	s.mu.Unlock()
	w.rename()
}

// rename gives complete files their new names, in order. What fails is tried again with the next file and while nothing arrives.
func (w *writer) rename() {
	s := w.spool
	for {
		s.mu.Lock()
		if len(s.stuck) == 0 {
			s.mu.Unlock()
			return
		}
		next := s.stuck[0]
		s.mu.Unlock()
		if !w.renamed {
			if err := s.dir.files.rename(s.dir.file(next.base, openSuffix), s.dir.file(next.base, completeSuffix)); err != nil {
				w.complain("a file of the file buffer could not be renamed", err)
				return
			}
			w.renamed = true
		}
		if err := s.dir.files.syncDirectory(s.dir.path); err != nil {
			w.complain("a file of the file buffer could not be renamed", err)
			return
		}
		w.renamed = false
		s.mu.Lock()
		s.stuck = s.stuck[1:]
		s.complete = append(s.complete, next)
		s.mu.Unlock()
	}
}

// complain logs a disk that fails, at most once a minute.
func (w *writer) complain(what string, err error) {
	if time.Since(w.complained) > time.Minute {
		w.complained = time.Now()
		w.spool.cfg.Log.Error(what, slog.String("directory", w.spool.cfg.Dir), slog.Any("error", err))
	}
}
