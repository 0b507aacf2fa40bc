package spool

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// A fileSystem is everything that a spool does to its directory. Tests put one in its place that fails, or loses what was not forced to the
// disk.
type fileSystem interface {
	// makeDirectory makes a directory and those above it that are missing; they survive a power cut.
	makeDirectory(path string) error
	// create makes a file for writing that is not there yet, open takes one that is.
	create(path string) (diskFile, error)
	open(path string) (diskFile, error)
	readFile(path string) ([]byte, error)
	// list returns the names of the regular files in a directory.
	list(path string) ([]string, error)
	rename(from, to string) error
	remove(path string) error
	// syncDirectory makes new, renamed and removed files of a directory survive a power cut.
	syncDirectory(path string) error
	// lock takes a file for this process until it is closed, or fails with ErrInUse.
	lock(path string) (io.Closer, error)
}

// A diskFile is an open file.
type diskFile interface {
	WriteAt(p []byte, offset int64) (int, error)
	Sync() error
	Truncate(length int64) error
	Close() error
}

// osFiles is the file system of the machine.
type osFiles struct{}

// makeDirectory lets nobody else into the directory. Those above it that it makes can be passed: the private PostgreSQL, which runs as
// another account, may have its files below the same one.
func (o osFiles) makeDirectory(path string) error { return o.makeDirectories(path, 0o700) }

func (o osFiles) makeDirectories(path string, mode os.FileMode) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: path, Err: errors.New("there is a file of that name")}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	above := filepath.Dir(path)
	if err := o.makeDirectories(above, 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return o.syncDirectory(above)
}

func (osFiles) create(path string) (diskFile, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
}

func (osFiles) open(path string) (diskFile, error)   { return os.OpenFile(path, os.O_RDWR, 0) }
func (osFiles) readFile(path string) ([]byte, error) { return os.ReadFile(path) }
func (osFiles) rename(from, to string) error         { return os.Rename(from, to) }
func (osFiles) remove(path string) error             { return os.Remove(path) }

func (osFiles) list(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.Type().IsRegular() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

func (osFiles) syncDirectory(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (osFiles) lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := tryLock(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// writeWhole writes a file that is not there yet and forces it to the disk. After a failure it is gone again.
func writeWhole(files fileSystem, path string, contents []byte) error {
	f, err := files.create(path)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(contents, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = files.remove(path)
	}
	return err
}

// replace makes a file hold contents, all of them or what it held before, whatever happens meanwhile.
func replace(files fileSystem, path string, contents []byte) error {
	next := path + ".new"
	if err := files.remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeWhole(files, next, contents); err != nil {
		return err
	}
	if err := files.rename(next, path); err != nil {
		_ = files.remove(next)
		return err
	}
	return files.syncDirectory(filepath.Dir(path))
}
