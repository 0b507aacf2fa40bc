package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// tieName is the file that names the database which a directory belongs to.
const tieName = "database"

// ErrOtherDatabase says that the directory holds messages for another database. Nothing was stored.
var ErrOtherDatabase = errors.New("the file buffer holds messages for another database")

// errUntied says that nobody has said yet which database the messages would go to.
var errUntied = errors.New("the file buffer is not tied to a database yet")

// A tie is to which database the directory belongs. The spool's mutex guards it.
type tie struct {
	done bool
	// unwritten is the text that is to be written to the directory, which could not be done because the disk is full.
	unwritten []byte
}

// Tie says which database the messages go to, before the first of them does: database is its identity, about how people find it. A directory
// that holds nothing takes any database. One that does and was tied to another fails with [ErrOtherDatabase]; one of an earlier version,
// which was tied to none, belongs to this one from now on. It waits until the files of an earlier run are counted when it must know
// whether there are any.
func (s *Spool) Tie(ctx context.Context, database uuid.UUID, about string) error {
	path := filepath.Join(s.cfg.Dir, tieName)
	text, err := s.dir.files.readFile(path)
	before, rest, _ := strings.Cut(string(text), "\n")
	rest = strings.TrimSpace(rest)
	switch {
	case err == nil && before == database.String():
		s.take(nil)
		return nil
	case errors.Is(err, fs.ErrNotExist):
		if s.inherited {
			s.cfg.Log.InfoContext(ctx, "the file buffer was not tied to a database: its messages go to this one", slog.String("directory", s.cfg.Dir),
				slog.String("database", about), slog.String("identity", database.String()))
		}
	case err != nil:
		return fmt.Errorf("read to which database the file buffer belongs: %w", err)
	default:
		holds, err := s.holds(ctx)
		if err != nil {
			return err
		}
		if holds != "" {
			return fmt.Errorf("%w: %s holds %s, and belongs to the database with the identity %s (%s); this is %s (%s). "+
				"Start a broker on that database until the buffer is empty, or name another directory in FILE_BUFFER_DIR. "+
				"If the messages shall go to this database all the same, delete the file %s",
				ErrOtherDatabase, s.cfg.Dir, holds, orUnknown(before), orUnknown(rest), database, about, path)
		}
		s.cfg.Log.InfoContext(ctx, "the file buffer is empty and belongs to another database from now on", slog.String("directory", s.cfg.Dir),
			slog.String("database", about), slog.String("identity", database.String()))
	}
	contents := fmt.Appendf(nil, "%s\n%s\n", database, strings.ReplaceAll(about, "\n", " "))
	if err := replace(s.dir.files, path, contents); err != nil {
		if !isFull(err) {
			return fmt.Errorf("tie the file buffer to its database: %w", err)
		}
		s.take(contents) // before anything is kept, see keepTie
		return nil
	}
	s.take(nil)
	return nil
}

func orUnknown(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

// holds says what the directory holds, "" when it is nothing.
func (s *Spool) holds(ctx context.Context) (string, error) {
	select {
	case <-s.scanned:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	bases, _, err := s.dir.list(failedDir, completeSuffix)
	if err != nil {
		return "", fmt.Errorf("list what was set aside: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var what []string
	if s.pending > 0 {
		what = append(what, fmt.Sprintf("%d messages that wait", s.pending))
	}
	if s.lost > 0 {
		what = append(what, fmt.Sprintf("%d files that cannot be read", s.lost))
	}
	if len(s.complete) > 0 && len(what) == 0 {
		what = append(what, fmt.Sprintf("%d damaged files", len(s.complete)))
	}
	if len(bases) > 0 {
		what = append(what, fmt.Sprintf("%d files that were set aside (in %s)", len(bases), failedDir))
	}
	return strings.Join(what, " and "), nil
}

func (s *Spool) take(unwritten []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tie = tie{done: true, unwritten: unwritten}
}

func (s *Spool) tied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tie.done
}

// keepTie writes what Tie found no room for. Only the writer calls it, before it keeps anything.
func (s *Spool) keepTie() error {
	s.mu.Lock()
	unwritten := s.tie.unwritten
	s.mu.Unlock()
	if unwritten == nil {
		return nil
	}
	if err := replace(s.dir.files, filepath.Join(s.cfg.Dir, tieName), unwritten); err != nil {
		return err
	}
	s.take(nil)
	return nil
}
