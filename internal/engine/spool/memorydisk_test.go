package spool

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

var (
	errDisk = errors.New("the disk has failed")
	errDead = errors.New("this process has ended")
)

// A memoryDisk is a file system that fails and ends when told to, and knows what of its contents would survive a power cut.
type memoryDisk struct {
	mu sync.Mutex
	// calls are those so far. failAt is the one that fails, dieAt the first of those that find no process any more; 0 is never. A write that
	// fails or dies is half done.
	calls, failAt, dieAt int
	failWith             error
	// room is how many bytes there may be; 0 is no limit.
	room int

	directories map[string]bool
	files       map[string]*inode
	// forced are the names that survive a power cut for sure, changed those of a directory after each change since, in order.
	forced  map[string]*inode
	changed map[string][]map[string]*inode
	locked  map[string]bool
	trace   []string
}

type inode struct{ data, forced []byte }

func newMemoryDisk() *memoryDisk {
	return &memoryDisk{directories: map[string]bool{}, files: map[string]*inode{}, forced: map[string]*inode{}, changed: map[string][]map[string]*inode{}, locked: map[string]bool{}, failWith: errDisk}
}

// call counts a call and says whether it is to fail.
func (d *memoryDisk) call(what, path string) error {
	d.calls++
	d.trace = append(d.trace, what+" "+filepath.Base(path))
	switch {
	case d.dieAt > 0 && d.calls >= d.dieAt:
		return errDead
	case d.calls == d.failAt:
		return &fs.PathError{Op: what, Path: path, Err: d.failWith}
	}
	return nil
}

func (d *memoryDisk) dead() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dieAt > 0 && d.calls >= d.dieAt
}

// named changes the names of a directory.
func (d *memoryDisk) named(directory string, change func(names map[string]*inode)) {
	change(d.files)
	d.changed[directory] = append(d.changed[directory], d.below(directory))
}

func (d *memoryDisk) below(directory string) map[string]*inode {
	names := map[string]*inode{}
	for path, node := range d.files {
		if filepath.Dir(path) == directory {
			names[path] = node
		}
	}
	return names
}

func (d *memoryDisk) makeDirectory(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.directories[path] {
		return nil
	}
	if err := d.call("mkdir", path); err != nil {
		return err
	}
	d.directories[path] = true
	return nil
}

func (d *memoryDisk) create(path string) (diskFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("create", path); err != nil {
		return nil, err
	}
	if d.files[path] != nil {
		return nil, fs.ErrExist
	}
	node := &inode{}
	d.named(filepath.Dir(path), func(names map[string]*inode) { names[path] = node })
	return &memoryFile{d, node, path}, nil
}

func (d *memoryDisk) open(path string) (diskFile, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("open", path); err != nil {
		return nil, err
	}
	node := d.files[path]
	if node == nil {
		return nil, fs.ErrNotExist
	}
	return &memoryFile{d, node, path}, nil
}

func (d *memoryDisk) readFile(path string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("read", path); err != nil {
		return nil, err
	}
	node := d.files[path]
	if node == nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	return append([]byte{}, node.data...), nil
}

func (d *memoryDisk) list(path string) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("list", path); err != nil {
		return nil, err
	}
	var names []string
	for file := range d.files {
		if filepath.Dir(file) == path {
			names = append(names, filepath.Base(file))
		}
	}
	slices.Sort(names)
	return names, nil
}

func (d *memoryDisk) rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("rename", from); err != nil {
		return err
	}
	node := d.files[from]
	if node == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	d.named(filepath.Dir(to), func(names map[string]*inode) { delete(names, from); names[to] = node })
	return nil
}

func (d *memoryDisk) remove(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("remove", path); err != nil {
		return err
	}
	if d.files[path] == nil {
		return &fs.PathError{Op: "remove", Path: path, Err: fs.ErrNotExist}
	}
	d.named(filepath.Dir(path), func(names map[string]*inode) { delete(names, path) })
	return nil
}

func (d *memoryDisk) syncDirectory(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("sync directory", path); err != nil {
		return err
	}
	d.force(path, d.below(path))
	delete(d.changed, path)
	return nil
}

// force makes names those of a directory that survive.
func (d *memoryDisk) force(directory string, names map[string]*inode) {
	for path := range d.forced {
		if filepath.Dir(path) == directory {
			delete(d.forced, path)
		}
	}
	maps.Copy(d.forced, names)
}

type memoryLock struct {
	disk *memoryDisk
	path string
}

func (l *memoryLock) Close() error {
	l.disk.mu.Lock()
	defer l.disk.mu.Unlock()
	delete(l.disk.locked, l.path)
	return nil
}

func (d *memoryDisk) lock(path string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("lock", path); err != nil {
		return nil, err
	}
	if d.locked[path] {
		return nil, ErrInUse
	}
	d.locked[path] = true
	return &memoryLock{d, path}, nil
}

type memoryFile struct {
	disk *memoryDisk
	node *inode
	path string
}

func (f *memoryFile) WriteAt(p []byte, offset int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.disk.call("write", f.path)
	if err != nil {
		p = p[:len(p)/2]
	}
	if f.disk.room > 0 {
		used := 0
		for _, node := range f.disk.files {
			used += len(node.data)
		}
		if more := int(offset) + len(p) - len(f.node.data); used+more > f.disk.room {
			p, err = p[:max(len(p)-(used+more-f.disk.room), 0)], f.disk.failWith
		}
	}
	if end := int(offset) + len(p); end > len(f.node.data) {
		f.node.data = append(f.node.data, make([]byte, end-len(f.node.data))...)
	}
	f.node.data = slices.Clone(f.node.data)
	return copy(f.node.data[offset:], p), err
}

func (f *memoryFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.call("sync", f.path); err != nil {
		return err
	}
	f.node.forced = slices.Clone(f.node.data)
	return nil
}

func (f *memoryFile) Truncate(length int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.call("truncate", f.path); err != nil {
		return err
	}
	f.node.data = slices.Clone(f.node.data[:length])
	return nil
}

func (f *memoryFile) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.disk.call("close", f.path)
}

// heal ends all faults and the process that had the directory.
func (d *memoryDisk) heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failAt, d.dieAt, d.room = 0, 0, 0
	clear(d.locked)
}

// powerCut leaves what was forced to the disk and, of the rest, what the disk happened to have written: names up to some change, and of each
// file what was written, with room that was never written to, or nothing of it.
func (d *memoryDisk) powerCut(random *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, directory := range slices.Sorted(maps.Keys(d.changed)) {
		if n := random.IntN(len(d.changed[directory]) + 1); n > 0 {
			d.force(directory, d.changed[directory][n-1])
		}
	}
	clear(d.changed)
	d.files = map[string]*inode{}
	for _, path := range slices.Sorted(maps.Keys(d.forced)) {
		data := d.forced[path].survives(random)
		d.files[path] = &inode{data: data, forced: data}
	}
	d.forced = maps.Clone(d.files)
	clear(d.locked)
}

func (n *inode) survives(random *rand.Rand) []byte {
	if bytes.Equal(n.data, n.forced) || random.IntN(3) == 0 {
		return slices.Clone(n.forced)
	}
	same := 0
	for same < len(n.data) && same < len(n.forced) && n.data[same] == n.forced[same] {
		same++
	}
	data := slices.Clone(n.data[:same+random.IntN(len(n.data)-same+1)])
	if len(n.data) < len(n.forced) && same == len(n.data) && random.IntN(2) == 0 {
		return slices.Clone(n.forced) // the cut was not written
	}
	if random.IntN(2) == 0 {
		data = append(data, make([]byte, len(n.data)-len(data))...)
	}
	return data
}

// holding lists the names that have a suffix.
func (d *memoryDisk) holding(suffix string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for path := range d.files {
		if strings.HasSuffix(path, suffix) {
			names = append(names, path)
		}
	}
	slices.Sort(names)
	return names
}
