package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

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
		f, kept, err := s.recoverFile(ctx, entry)
		switch {
		case ctx.Err() != nil:
			return // they stay as they are
		case err != nil:
			s.lose(ctx, entry, err)
		case kept:
			files = append(files, f)
		}
	}
	s.dropPlaces(files)
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

const (
	// readAttempts is how often a file that cannot be read is tried before it is left for the next start, readPause the time between.
	readAttempts = 5
	readPause    = 200 * time.Millisecond
)

// recoverFile completes a file that was open and counts it. kept is false when nothing is in it. What fails is tried a few times: a disk
// that is full or hiccups must not cost the order of a partition.
func (s *Spool) recoverFile(ctx context.Context, entry string) (f file, kept bool, err error) {
	base, isOpen := strings.CutSuffix(entry, openSuffix)
	base = strings.TrimSuffix(base, completeSuffix)
	for attempt := range readAttempts {
		if attempt > 0 {
			select {
			case <-time.After(readPause):
			case <-ctx.Done():
				return file{}, false, ctx.Err()
			}
		}
		if isOpen {
			kept, err = s.repair(ctx, base)
			if err == nil && !kept {
				return file{}, false, nil
			}
			if err != nil {
				continue
			}
			isOpen = false
		}
		if f, err = s.count(base); err == nil {
			return f, true, nil
		}
	}
	return file{}, false, err
}

// lose reports a file that could not be read, and leaves it where it is.
func (s *Spool) lose(ctx context.Context, entry string, err error) {
	s.cfg.Log.ErrorContext(ctx, "a file of the file buffer cannot be read: its messages wait for the next start, and later ones may be stored before them",
		slog.String("file", filepath.Join(s.cfg.Dir, entry)), slog.Any("error", err))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost++
	s.failed++
}

// dropPlaces deletes the places of files that are gone.
func (s *Spool) dropPlaces(files []file) {
	bases, _, err := s.dir.list("", placeSuffix)
	if err != nil {
		return // they are small, and there is another start
	}
	for _, base := range bases {
		if !slices.ContainsFunc(files, func(f file) bool { return f.base == base }) {
			if _, err := s.dir.files.readFile(s.dir.file(base, completeSuffix)); errors.Is(err, fs.ErrNotExist) {
				_ = s.dir.files.remove(s.dir.file(base, placeSuffix))
			}
		}
	}
}

// repair cuts the tail off a file that was open when the broker ended, and completes it. kept is false when nothing is left.
func (s *Spool) repair(ctx context.Context, base string) (kept bool, err error) {
	path := s.dir.file(base, openSuffix)
	data, err := s.dir.files.readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // renamed by an earlier attempt
	}
	if err != nil {
		return false, err
	}
	stretches := 0
	length, _ := scan(data, false, func(found) error { stretches++; return nil }) // the visitor does not fail
	if stretches == 0 {
		return false, s.dir.files.remove(path)
	}
	f, err := s.dir.files.open(path)
	if err != nil {
		return false, err
	}
	if cut := len(data) - length; cut > 0 {
		s.cfg.Log.InfoContext(ctx, "the tail of an interrupted write was cut off a file of the file buffer; its push was not answered",
			slog.String("file", base), slog.Int("bytes", cut))
		err = f.Truncate(int64(length))
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return false, err
	}
	if err := s.dir.files.rename(path, s.dir.file(base, completeSuffix)); err != nil {
		return false, err
	}
	return true, s.dir.files.syncDirectory(s.dir.path)
}

// count enters the records of a complete file into the account, from the place on up to which it is stored already. What is no record is
// dealt with when the file is stored.
func (s *Spool) count(base string) (file, error) {
	data, err := s.dir.files.readFile(s.dir.file(base, completeSuffix))
	if err != nil {
		return file{}, err
	}
	place := s.dir.place(base, data)
	records := make(map[laneKey]int)
	type known struct {
		key     idKey
		message uuid.UUID
	}
	var ids []known
	seen := make(map[idKey]struct{})
	_, _ = scanFrom(data, place, func(f found) error { // the visitor does not fail
		if f.fault != nil {
			return nil
		}
		at := keyOf(&f.message)
		records[at]++
		if hasOwnID(&f.message) {
			key := s.ids.key(at, f.message.TransactionID)
			if _, again := seen[key]; !again { // of several records the first is the one that will be stored
				seen[key] = struct{}{}
				ids = append(ids, known{key, f.message.ID})
			}
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, n := range records {
		s.enterLocked(key, n)
	}
	for _, id := range ids {
		if _, there := s.ids.get(id.key); !there { // an older file has it
			s.ids.put(id.key, keptID{message: id.message})
		}
	}
	s.bytes += int64(len(data))
	return file{base, int64(len(data)), place}, nil
}

// countFailed counts what earlier runs set aside.
func (s *Spool) countFailed(ctx context.Context) {
	bases, _, err := s.dir.list(failedDir, completeSuffix)
	if err != nil {
		s.cfg.Log.ErrorContext(ctx, "what was set aside of the file buffer cannot be listed", slog.Any("error", err))
		return
	}
	n := int64(0)
	for _, base := range bases {
		data, err := s.dir.files.readFile(filepath.Join(s.dir.path, failedDir, base+completeSuffix))
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
