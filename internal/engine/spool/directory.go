package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	placeSuffix    = ".pos"
	reasonSuffix   = ".txt"
	failedDir      = "failed"
	lockName       = "lock"
)

// A directory is where the files lie. It is locked while it is open.
type directory struct {
	path  string
	files fileSystem
	lock  io.Closer
	last  name // of the newest file there is or was
}

// A name says when a file was begun. The order of the names is the order of the records, whatever the clock does.
type name struct {
	millis   int64
	sequence int
}

// The largest parts of a name.
const (
	maxMillis   = 9_999_999_999_999
	maxSequence = 99_999_999
)

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
func openDirectory(files fileSystem, path string) (*directory, error) {
	if err := files.makeDirectory(path); err != nil {
		return nil, err
	}
	lock, err := files.lock(filepath.Join(path, lockName))
	if err != nil {
		return nil, err
	}
	d := &directory{path: path, files: files, lock: lock}
	if err := errors.Join(d.probe(), files.makeDirectory(filepath.Join(path, failedDir))); err != nil && !isFull(err) {
		d.close()
		return nil, err
	}
	return d, nil
}

// probe proves that files can be made.
func (d *directory) probe() error {
	path := filepath.Join(d.path, "probe")
	if err := d.files.remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a start that was interrupted
		return err
	}
	return errors.Join(writeWhole(d.files, path, []byte("queen")), d.files.remove(path))
}

// isFull tells whether an error will go away when somebody makes room.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

func (d *directory) close() { _ = d.lock.Close() } // the lock ends with it

// list returns the files of the directory by suffix, oldest first, and those that have the suffix and no name that could be put in an order. A
// file that was moved back from failed has a number behind its name.
func (d *directory) list(below, suffix string) (bases, strange []string, err error) {
	names, err := d.files.list(filepath.Join(d.path, below))
	if below != "" && errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil // there was no room to make it
	}
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range names {
		base, has := strings.CutSuffix(entry, suffix)
		if !has {
			continue
		}
		if _, ok := nameOf(base); ok {
			bases = append(bases, base)
		} else {
			strange = append(strange, entry)
		}
	}
	slices.Sort(bases)
	return bases, strange, nil
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

var errNamesEnd = errors.New("there is no file name left behind that of the newest file, whose date is absurd: store or move that file first")

// next returns the name of a new file, which sorts behind all others also when the clock was set back.
func (d *directory) next(now time.Time) (string, error) {
	n := name{millis: min(max(now.UnixMilli(), 0), maxMillis)}
	if n.millis <= d.last.millis {
		n = name{d.last.millis, d.last.sequence + 1}
	}
	if n.sequence > maxSequence {
		n = name{millis: n.millis + 1}
	}
	if n.millis > maxMillis {
		return "", errNamesEnd
	}
	d.last = n
	return n.String(), nil
}

func (d *directory) file(base, suffix string) string { return filepath.Join(d.path, base+suffix) }

// remove deletes a complete file. That the deletion survives a power cut is not waited for: storing the file again is harmless.
func (d *directory) remove(base string) error {
	if err := d.files.remove(d.file(base, completeSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = d.files.remove(d.file(base, placeSuffix)) // without its file it is deleted at the next start
	return nil
}

// setAside writes what cannot be stored to the directory "failed", with the reason beside it, and returns when both are on disk. The number
// goes behind the name; what lies there already in the same words is not written again, and what lies there in others stays.
func (d *directory) setAside(base string, number int, contents []byte, reason string) error {
	below := filepath.Join(d.path, failedDir)
	if err := d.files.makeDirectory(below); err != nil {
		return err
	}
	for ; ; number++ {
		path := filepath.Join(below, fmt.Sprintf("%s.%d", base, number))
		there, err := d.files.readFile(path + completeSuffix)
		switch {
		case err == nil && bytes.Equal(there, contents):
			return nil // an earlier run came this far
		case err == nil:
			continue
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
		if err := replace(d.files, path+reasonSuffix, []byte(reason+"\n")); err != nil {
			return err
		}
		return replace(d.files, path+completeSuffix, contents)
	}
}
