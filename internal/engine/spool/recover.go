package spool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// recover completes and counts the files of an earlier run, oldest first. Until it is done every push is buffered: nobody knows yet which
// partitions have records that it must not overtake.
func (s *Spool) recover(ctx context.Context) {
	s.countFailed(ctx)
	s.mu.Lock()
	earlier := s.earlier
	s.mu.Unlock()
	if len(earlier) == 0 {
		return
	}
	var files []file
	for _, entry := range earlier {
		if ctx.Err() != nil {
			return // they stay as they are
		}
		base, isOpen := strings.CutSuffix(entry, openSuffix)
		base = strings.TrimSuffix(base, completeSuffix)
		if isOpen {
			if kept, err := s.repair(ctx, base); err != nil {
				s.cfg.Log.ErrorContext(ctx, "a file of the file buffer could not be completed and waits for the next start", slog.String("file", base), slog.Any("error", err))
				continue
			} else if !kept {
				continue
			}
		}
		f, err := s.count(base)
		if err != nil {
			s.cfg.Log.ErrorContext(ctx, "a file of the file buffer cannot be read and waits for the next start", slog.String("file", base), slog.Any("error", err))
			continue
		}
		files = append(files, f)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = append(files, s.complete...) // older than what this run completed
	s.earlier, s.counted = nil, true
	close(s.scanned)
	s.settleQuietLocked()
	if s.pending > 0 {
		s.cfg.Log.InfoContext(ctx, "messages wait in the file buffer", slog.Int64("messages", s.pending), slog.Int("files", len(s.complete)))
	}
}

// repair cuts the tail off a file that was open when the broker ended, and completes it. kept is false when nothing is left.
func (s *Spool) repair(ctx context.Context, base string) (kept bool, err error) {
	path := s.dir.file(base, openSuffix)
	data, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	stretches := 0
	length, _ := scan(data, false, func(found) error { stretches++; return nil }) // the visitor does not fail
	if stretches == 0 {
		return false, os.Remove(path)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	if cut := len(data) - length; cut > 0 {
		s.cfg.Log.InfoContext(ctx, "the tail of an interrupted write was cut off a file of the file buffer; its push was not answered",
			slog.String("file", base), slog.Int("bytes", cut))
		err = f.Truncate(int64(length))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return false, err
	}
	return true, s.dir.complete(base)
}

// count enters the records of a complete file into the account. What is no record is dealt with when the file is stored.
func (s *Spool) count(base string) (file, error) {
	data, err := os.ReadFile(s.dir.file(base, completeSuffix))
	if err != nil {
		return file{}, err
	}
	records := make(map[laneKey]int)
	type known struct {
		key     idKey
		message uuid.UUID
	}
	var ids []known
	_, _ = scan(data, true, func(f found) error { // the visitor does not fail
		if f.fault == nil {
			records[keyOf(&f.message)]++
			if hasOwnID(&f.message) {
				ids = append(ids, known{s.ids.key(keyOf(&f.message), f.message.TransactionID), f.message.ID})
			}
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, n := range records {
		s.enterLocked(key, n)
	}
	seen := make(map[idKey]struct{}, len(ids))
	for _, id := range ids { // of several records the first is the one that will be stored
		if _, again := seen[id.key]; !again {
			seen[id.key] = struct{}{}
			s.ids.put(id.key, keptID{message: id.message})
		}
	}
	s.bytes += int64(len(data))
	return file{base, int64(len(data))}, nil
}

// countFailed counts what earlier runs set aside.
func (s *Spool) countFailed(ctx context.Context) {
	bases, err := s.dir.list(failedDir, completeSuffix)
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "what was set aside of the file buffer cannot be listed", slog.Any("error", err))
		return
	}
	n := int64(0)
	for _, base := range bases {
		data, err := os.ReadFile(filepath.Join(s.dir.path, failedDir, base+completeSuffix))
		if err != nil {
			continue
		}
		_, _ = scan(data, true, func(found) error { n++; return nil }) // the visitor does not fail
	}
	if n > 0 {
		s.cfg.Log.WarnContext(ctx, fmt.Sprintf("messages that could not be stored lie in %s, each file with its reason beside it", filepath.Join(s.dir.path, failedDir)),
			slog.Int64("messages", n))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed += n
}
