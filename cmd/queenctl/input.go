package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

// open returns the reader of a file argument; "-" and none are stdin.
func (a *app) open(name string) (io.ReadCloser, error) {
	if name == "" || name == "-" {
		if a.stdinTerminal {
			a.remark("reading from the terminal; Ctrl-D ends the input")
		}
		return io.NopCloser(a.stdin), nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, usage("%w", err)
	}
	return file, nil
}

// readAll reads a whole file argument.
func (a *app) readAll(name string) ([]byte, error) {
	in, err := a.open(name)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(in)
	return text, errors.Join(err, in.Close())
}

// A lineReader reads lines of any length without their ends and knows their numbers. Empty lines are left out.
type lineReader struct {
	in     *bufio.Reader
	number int
}

func newLineReader(in io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(in, 256<<10)}
}

// next returns the next line that is not empty, or io.EOF. The line stays valid.
func (r *lineReader) next() ([]byte, error) {
	for {
		line, err := r.in.ReadBytes('\n')
		if len(line) > 0 {
			r.number++
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
			return line, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// countLines counts the lines of a regular file that are not empty, so that progress knows the end; 0 when in is none.
func countLines(in io.Reader) (int64, error) {
	file, ok := in.(*os.File)
	if !ok {
		return 0, nil
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0, nil //nolint:nilerr // a pipe has no size; progress goes without
	}
	start, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, nil //nolint:nilerr // as above
	}
	n := int64(0)
	for lines := newLineReader(file); ; n++ {
		if _, err := lines.next(); err != nil {
			if !errors.Is(err, io.EOF) {
				return 0, err
			}
			break
		}
	}
	if _, err := file.Seek(start, io.SeekStart); err != nil {
		return 0, fmt.Errorf("go back to the start of the input: %w", err)
	}
	return n, nil
}
