package archive

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ChunkBytes is how much text a chunk holds before it is closed: the most that a killed backup has to read again.
const ChunkBytes = 4 << 20

// A Writer adds to a backup. It is for one goroutine.
type Writer struct {
	dir      string
	index    *os.File
	digest   hash.Hash // of the index so far
	entries  []Entry
	complete bool
	reached  map[string]Range // by partition id

	chunk *chunk
}

// A chunk is the file that is being written.
type chunk struct {
	file    *os.File
	digest  hash.Hash
	gzip    *gzip.Writer
	bytes   int64
	entry   Entry
	current *Range
}

// Create starts a backup in a directory, or goes on with the one that is there.
func Create(dir string) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	w := &Writer{dir: dir, digest: sha256.New(), reached: map[string]Range{}}
	text, err := os.ReadFile(filepath.Join(dir, indexFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		if others, err := os.ReadDir(dir); err != nil || hasForeign(others) {
			return nil, errors.Join(err, fmt.Errorf("%s is not empty and holds no backup", dir))
		}
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // what follows is the torn line of a killed run
	if err := w.resume(whole); err != nil {
		return nil, err
	}
	if w.index, err = os.OpenFile(filepath.Join(dir, indexFile), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if err := w.index.Truncate(int64(len(whole))); err != nil {
		return nil, errors.Join(err, w.index.Close())
	}
	if _, err := w.index.Seek(0, io.SeekEnd); err != nil {
		return nil, errors.Join(err, w.index.Close())
	}
	return w, nil
}

// hasForeign tells whether a directory without an index holds something that a backup killed at its start did not leave.
func hasForeign(entries []os.DirEntry) bool {
	for _, e := range entries {
		if e.Name() != QueuesFile && e.Name() != GroupsFile && !strings.HasPrefix(e.Name(), ".part-") && !strings.HasSuffix(e.Name(), ".ndjson.gz") {
			return true
		}
	}
	return false
}

func (w *Writer) resume(index []byte) error {
	for line := range bytes.Lines(index) {
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return damaged("line %d of the index is not readable", len(w.entries)+1)
		}
		if e.Complete {
			w.complete = true
			return nil
		}
		w.digest.Write(line)
		w.note(e)
	}
	return nil
}

func (w *Writer) note(e Entry) {
	w.entries = append(w.entries, e)
	for _, r := range e.Ranges {
		w.reached[r.PartitionID] = r
	}
}

// Complete reports that the backup was closed already.
func (w *Writer) Complete() bool { return w.complete }

// Has reports whether a file is part of the backup already.
func (w *Writer) Has(file string) bool {
	for _, e := range w.entries {
		if e.File == file {
			return true
		}
	}
	return false
}

// Messages is the number of messages that the backup holds, without the chunk that is being written.
func (w *Writer) Messages() (n int64) {
	for _, e := range w.entries {
		n += e.Messages
	}
	return n
}

// Reached returns where the backup of a partition goes on and ends; false when it has not begun.
func (w *Writer) Reached(partitionID string) (next, until int64, begun bool) {
	r, begun := w.reached[partitionID]
	return r.Next, r.Until, begun
}

// AddFile adds a file as a whole.
func (w *Writer) AddFile(name string, text []byte) error {
	file, err := os.CreateTemp(w.dir, ".part-*")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err := w.keep(file, name, err); err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	return w.record(Entry{File: name, SHA256: hex.EncodeToString(sum[:])})
}

// keep gives a finished file its name once its bytes are on disk.
func (w *Writer) keep(file *os.File, name string, err error) error {
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(w.dir, name))
	}
	if err == nil {
		err = syncDirectory(w.dir)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// record adds a line to the index and waits until it is on disk.
func (w *Writer) record(e Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	if _, err := w.index.Write(line); err != nil {
		return err
	}
	if err := w.index.Sync(); err != nil {
		return err
	}
	w.digest.Write(line)
	w.note(e)
	return nil
}

// Begin says that the messages that follow are of a partition, from an offset on, and where its backup ends.
func (w *Writer) Begin(r Range) error {
	if w.chunk == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	r.Next, r.Messages = r.From, 0
	w.chunk.entry.Ranges = append(w.chunk.entry.Ranges, r)
	w.chunk.current = &w.chunk.entry.Ranges[len(w.chunk.entry.Ranges)-1]
	return nil
}

func (w *Writer) open() error {
	file, err := os.CreateTemp(w.dir, ".part-*")
	if err != nil {
		return err
	}
	digest := sha256.New()
	w.chunk = &chunk{file: file, digest: digest, gzip: gzip.NewWriter(io.MultiWriter(file, digest))}
	return nil
}

// Add writes a message of the partition that Begin named. full says that the chunk should be closed with Flush.
func (w *Writer) Add(m *Message) (full bool, err error) {
	line, err := m.Line()
	if err != nil {
		return false, err
	}
	if _, err := w.chunk.gzip.Write(append(line, '\n')); err != nil {
		return false, err
	}
	w.chunk.bytes += int64(len(line)) + 1
	w.chunk.entry.Messages++
	w.chunk.current.Messages++
	w.chunk.current.Next = m.Offset + 1
	return w.chunk.bytes >= ChunkBytes, nil
}

// Skip notes that a partition was read up to an offset without a message there: retention took it.
func (w *Writer) Skip(next int64) { w.chunk.current.Next = next }

// Flush closes the chunk: from then on what it holds is part of the backup.
func (w *Writer) Flush() error {
	c := w.chunk
	if c == nil {
		return nil
	}
	w.chunk = nil
	if c.entry.Messages == 0 && !slices.ContainsFunc(c.entry.Ranges, func(r Range) bool { return r.Next > r.From }) {
		return errors.Join(c.file.Close(), os.Remove(c.file.Name())) // nothing to tell
	}
	name := fmt.Sprintf("%06d.ndjson.gz", len(w.entries)+1)
	if err := w.keep(c.file, name, c.gzip.Close()); err != nil {
		return err
	}
	c.entry.File, c.entry.SHA256 = name, hex.EncodeToString(c.digest.Sum(nil))
	return w.record(c.entry)
}

// Finish closes the backup.
func (w *Writer) Finish() error {
	if err := w.Flush(); err != nil {
		return err
	}
	line, err := json.Marshal(Entry{Complete: true, SHA256: hex.EncodeToString(w.digest.Sum(nil)), Messages: w.Messages()})
	if err != nil {
		return err
	}
	if _, err := w.index.Write(append(line, '\n')); err != nil {
		return err
	}
	w.complete = true
	if err := w.index.Sync(); err != nil {
		return err
	}
	return w.sweep()
}

// sweep removes what killed runs left behind.
func (w *Writer) sweep() error {
	left, err := filepath.Glob(filepath.Join(w.dir, ".part-*"))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// Close gives up the file that is being written and closes the index; the backup can be resumed, unless Finish was called.
func (w *Writer) Close() error {
	var err error
	if w.chunk != nil {
		err = errors.Join(w.chunk.file.Close(), os.Remove(w.chunk.file.Name()))
		w.chunk = nil
	}
	return errors.Join(err, w.index.Close())
}

func syncDirectory(dir string) error {
	file, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
