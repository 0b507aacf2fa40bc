package spool

import (
	"errors"
	"io/fs"
	"path/filepath"
)

// noteSuffix is behind the names of notes.
const noteSuffix = ".note"

// Note returns a note that lies beside what is kept, nil when there is none. It may be called before Run.
func (s *Spool) Note(name string) ([]byte, error) {
	text, err := s.dir.files.readFile(filepath.Join(s.cfg.Dir, name+noteSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// SetNote replaces a note, and returns when it is on disk; nil deletes it. One call of a name at a time.
func (s *Spool) SetNote(name string, text []byte) error {
	path := filepath.Join(s.cfg.Dir, name+noteSuffix)
	if text != nil {
		return replace(s.dir.files, path, text)
	}
	if err := s.dir.files.remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.dir.files.syncDirectory(s.cfg.Dir)
}
