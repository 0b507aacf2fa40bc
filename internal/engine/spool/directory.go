package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	openSuffix     = ".tmp"
	completeSuffix = ".buf"
	reasonSuffix   = ".txt"
	failedDir      = "failed"
	lockName       = "lock"
)

// A directory is where the files lie. It is locked while it is open.
type directory struct {
	path string
	lock *os.File
	last name // of the newest file there is or was
}

// A name says when a file was begun. The order of the names is the order of the records, whatever the clock does.
type name struct {
	millis   int64
	sequence int
}

func (n name) String() string { return fmt.Sprintf("queen-%013d-%08d", n.millis, n.sequence) }

// parseName reads the name of a file without its suffix.
func parseName(text string) (name, bool) {
	parts := strings.Split(text, "-")
	if len(parts) != 3 || parts[0] != "queen" || len(parts[1]) != 13 || len(parts[2]) != 8 {
		return name{}, false
	}
	millis, err1 := strconv.ParseInt(parts[1], 10, 64)
	sequence, err2 := strconv.Atoi(parts[2])
	n := name{millis, sequence}
	return n, err1 == nil && err2 == nil && n.String() == text
}

// ErrInUse says that another broker has the directory.
var ErrInUse = errors.New("another broker uses the directory: give each its own FILE_BUFFER_DIR")

// openDirectory makes the directory where needed, takes its lock and proves that it can be written to. A disk that is full now is no reason
// to refuse: what lies there can be stored all the same, and there may be room again before anything has to be kept.
func openDirectory(path string) (*directory, error) {
	if err := os.MkdirAll(filepath.Join(path, failedDir), 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := tryLock(lock); err != nil {
		_ = lock.Close()
		return nil, err
	}
	d := &directory{path: path, lock: lock}
	probe := filepath.Join(path, "probe")
	if err := errors.Join(os.WriteFile(probe, []byte("queen"), 0o600), os.Remove(probe)); err != nil && !isFull(err) {
		d.close()
		return nil, err
	}
	return d, nil
}

// isFull tells whether an error will go away when somebody makes room.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

func (d *directory) close() { _ = d.lock.Close() } // the lock ends with it

// list returns the files of the directory by suffix, oldest first. A file that was moved back from failed has a number behind its name.
func (d *directory) list(below, suffix string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(d.path, below))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if base, has := strings.CutSuffix(entry.Name(), suffix); has && entry.Type().IsRegular() {
			if _, ok := nameOf(base); ok {
				names = append(names, base)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

func nameOf(base string) (name, bool) {
	text, _, _ := strings.Cut(base, ".")
	return parseName(text)
}

// passed makes later names sort behind those of files that are there.
func (d *directory) passed(bases []string) {
	for _, base := range bases {
		if n, ok := nameOf(base); ok && n.after(d.last) {
			d.last = n
		}
	}
}

func (n name) after(other name) bool {
	return n.millis > other.millis || n.millis == other.millis && n.sequence > other.sequence
}

// next returns the name of a new file, which sorts behind all others also when the clock was set back.
func (d *directory) next(now time.Time) string {
	n := name{millis: now.UnixMilli()}
	if n.millis <= d.last.millis {
		n = name{d.last.millis, d.last.sequence + 1}
	}
	d.last = n
	return n.String()
}

func (d *directory) file(base, suffix string) string { return filepath.Join(d.path, base+suffix) }

// complete renames an open file whose contents are on disk.
func (d *directory) complete(base string) error {
	if err := os.Rename(d.file(base, openSuffix), d.file(base, completeSuffix)); err != nil {
		return err
	}
	return syncDirectory(d.path)
}

// remove deletes a complete file. That the deletion survives a power cut is not waited for: storing the file again is harmless.
func (d *directory) remove(base string) error {
	err := os.Remove(d.file(base, completeSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// setAside writes what cannot be stored to the directory "failed", with the reason beside it, and returns when both are on disk.
func (d *directory) setAside(base string, contents []byte, reason string) error {
	for i := 0; ; i++ {
		path := filepath.Join(d.path, failedDir, fmt.Sprintf("%s.%d", base, i))
		f, err := os.OpenFile(path+completeSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = f.Write(contents)
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			_ = os.Remove(path + completeSuffix) // half a copy is none; the original is still there
			return err
		}
		if err := os.WriteFile(path+reasonSuffix, []byte(reason+"\n"), 0o600); err != nil {
			return err
		}
		return syncDirectory(filepath.Join(d.path, failedDir))
	}
}

// syncDirectory makes renames and new files of a directory survive a power cut.
func syncDirectory(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
