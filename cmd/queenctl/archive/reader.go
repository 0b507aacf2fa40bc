package archive

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A Reader reads a backup. It is for one goroutine.
type Reader struct {
	dir string
	// Entries are the files of the backup in their order.
	Entries []Entry
	// Complete tells whether the backup was closed; one that was not holds a part only.
	Complete bool
}

// Open reads the index of a backup and checks it.
func Open(dir string) (*Reader, error) {
	text, err := os.ReadFile(filepath.Join(dir, indexFile))
	if err != nil {
		return nil, fmt.Errorf("%s holds no backup: %w", dir, err)
	}
	r := &Reader{dir: dir}
	digest := sha256.New()
	for line := range bytes.Lines(text) {
		if line[len(line)-1] != '\n' {
			break // the torn line of a killed run
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil || r.Complete {
			return nil, damaged("line %d of the index is not readable", len(r.Entries)+1)
		}
		if e.Complete {
			r.Complete = true
			// Nothing but its own spelling vouches for the last line.
			written, err := json.Marshal(Entry{Complete: true, SHA256: hex.EncodeToString(digest.Sum(nil)), Messages: r.Messages()})
			if err != nil || string(written)+"\n" != string(line) {
				return nil, damaged("the index was changed")
			}
			continue
		}
		digest.Write(line)
		if e.File == "" || filepath.Base(e.File) != e.File {
			return nil, damaged("line %d of the index names no file", len(r.Entries)+1)
		}
		r.Entries = append(r.Entries, e)
	}
	return r, nil
}

// Messages is the number of messages in the backup.
func (r *Reader) Messages() (n int64) {
	for _, e := range r.Entries {
		n += e.Messages
	}
	return n
}

// File returns a file of the backup after checking its bytes.
func (r *Reader) File(name string) ([]byte, error) {
	for _, e := range r.Entries {
		if e.File == name {
			text, err := os.ReadFile(filepath.Join(r.dir, name))
			if err != nil {
				return nil, damaged("%w", err)
			}
			sum := sha256.Sum256(text)
			if hex.EncodeToString(sum[:]) != e.SHA256 {
				return nil, damaged("%s was changed", name)
			}
			return text, nil
		}
	}
	return nil, damaged("it has no %s", name)
}

// Chunk calls visit for each message of a file, after checking its bytes; false ends it.
func (r *Reader) Chunk(e Entry, visit func(Message) error) error {
	text, err := r.File(e.File)
	if err != nil {
		return err
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return damaged("%s: %w", e.File, err)
	}
	lines := bufio.NewReaderSize(unpacked, 256<<10)
	n := int64(0)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		if err != nil {
			return damaged("%s: %w", e.File, err)
		}
		m, err := ParseMessage(line)
		if err != nil {
			return damaged("%s, line %d: %w", e.File, n+1, err)
		}
		n++
		if err := visit(m); err != nil {
			return err
		}
	}
	if n != e.Messages {
		return damaged("%s holds %d messages instead of %d", e.File, n, e.Messages)
	}
	return nil
}

// Chunks are the entries that hold messages.
func (r *Reader) Chunks() []Entry {
	var chunks []Entry
	for _, e := range r.Entries {
		if e.File != QueuesFile && e.File != GroupsFile {
			chunks = append(chunks, e)
		}
	}
	return chunks
}

// Positions returns what each group has consumed.
func (r *Reader) Positions() ([]Position, error) {
	text, err := r.File(GroupsFile)
	if err != nil {
		return nil, err
	}
	var all []Position
	for line := range bytes.Lines(text) {
		var p Position
		if err := json.Unmarshal(line, &p); err != nil {
			return nil, damaged("%s: %w", GroupsFile, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// Verify checks every byte of the backup.
func (r *Reader) Verify(each func(Entry)) error {
	for _, e := range r.Entries {
		var err error
		if e.File == QueuesFile || e.File == GroupsFile {
			_, err = r.File(e.File)
		} else {
			err = r.Chunk(e, func(Message) error { return nil })
		}
		if err != nil {
			return err
		}
		each(e)
	}
	return nil
}
