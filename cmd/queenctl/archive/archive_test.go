package archive

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// write adds messages [from, to) of a partition that ends at until.
func write(t *testing.T, w *Writer, partition string, from, to, until int64) {
	t.Helper()
	require.NoError(t, w.Begin(Range{Queue: "q", Partition: partition, PartitionID: partition, From: from, Until: until}))
	for offset := from; offset < to; offset++ {
		_, err := w.Add(&Message{Queue: "q", Partition: partition, Offset: offset, TransactionID: fmt.Sprint(partition, offset), Data: fmt.Appendf(nil, "{\n\"n\": %d}", offset)})
		require.NoError(t, err)
	}
}

func contents(t *testing.T, dir string) (all []string) {
	t.Helper()
	r, err := Open(dir)
	require.NoError(t, err)
	for _, e := range r.Chunks() {
		require.NoError(t, r.Chunk(e, func(m Message) error {
			all = append(all, fmt.Sprintf("%s%d=%s", m.Partition, m.Offset, m.Data))
			return nil
		}))
	}
	return all
}

func expected(partition string, from, to int) (all []string) {
	for n := from; n < to; n++ {
		all = append(all, fmt.Sprintf("%s%d={\n\"n\": %d}", partition, n, n))
	}
	return all
}

// A backup that is given up at any moment goes on behind the last chunk that the index names.
func TestWriterGoesOn(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "backup")
	w, err := Create(dir)
	require.NoError(t, err)
	require.NoError(t, w.AddFile(QueuesFile, []byte("version: 1\n")))
	write(t, w, "a", 0, 3, 5)
	require.NoError(t, w.Flush())
	write(t, w, "a", 3, 5, 5) // never flushed
	require.NoError(t, w.Close())

	// A killed run leaves more: a torn line, a half-written file, a chunk that the index does not name.
	index, err := os.OpenFile(filepath.Join(dir, indexFile), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = index.WriteString(`{"file":"000003.nd`)
	require.NoError(t, errors.Join(err, index.Close()))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".part-1"), []byte("half"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "000003.ndjson.gz"), []byte("unnamed"), 0o600))

	w, err = Create(dir)
	require.NoError(t, err)
	require.False(t, w.Complete())
	require.True(t, w.Has(QueuesFile))
	next, until, begun := w.Reached("a")
	require.Equal(t, []any{int64(3), int64(5), true}, []any{next, until, begun})
	_, _, begun = w.Reached("b")
	require.False(t, begun)
	write(t, w, "a", 3, 5, 5)
	write(t, w, "b", 7, 9, 9)
	require.NoError(t, w.Finish())
	require.NoError(t, w.Close())
	require.Equal(t, append(append(expected("a", 0, 3), expected("a", 3, 5)...), expected("b", 7, 9)...), contents(t, dir))
	left, err := filepath.Glob(filepath.Join(dir, ".part-*"))
	require.NoError(t, err)
	require.Empty(t, left)

	r, err := Open(dir)
	require.NoError(t, err)
	require.True(t, r.Complete)
	require.EqualValues(t, 7, r.Messages())
	w, err = Create(dir)
	require.NoError(t, err)
	require.True(t, w.Complete())
	require.NoError(t, w.Close())
	_, err = Create(t.TempDir())
	require.NoError(t, err, "an empty directory will do")
	foreign := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "thesis.txt"), nil, 0o600))
	_, err = Create(foreign)
	require.ErrorContains(t, err, "holds no backup")
}

// Every changed byte of every file is found.
func TestDamageIsFound(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "backup")
	w, err := Create(dir)
	require.NoError(t, err)
	require.NoError(t, w.AddFile(QueuesFile, []byte("version: 1\n")))
	require.NoError(t, w.AddFile(GroupsFile, []byte(`{"group":"g","queue":"q","partition":"a","consumed":1,"total":2}`+"\n")))
	write(t, w, "a", 0, 2, 2)
	require.NoError(t, w.Finish())
	require.NoError(t, w.Close())
	check := func() error {
		r, err := Open(dir)
		if err != nil {
			return err
		}
		if !r.Complete {
			return errors.New("cut short")
		}
		return r.Verify(func(Entry) {})
	}
	require.NoError(t, check())
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 4)
	for _, file := range files {
		path := filepath.Join(dir, file.Name())
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		for i := range whole {
			changed := bytes.Clone(whole)
			changed[i] ^= 0x20
			require.NoError(t, os.WriteFile(path, changed, 0o600))
			require.Error(t, check(), "%s, byte %d", file.Name(), i)
		}
		for _, cut := range []int{0, len(whole) / 2, len(whole) - 1} {
			require.NoError(t, os.WriteFile(path, whole[:cut], 0o600))
			require.Error(t, check(), "%s cut to %d bytes", file.Name(), cut)
		}
		require.NoError(t, os.WriteFile(path, whole, 0o600))
	}
	r, err := Open(dir)
	require.NoError(t, err)
	positions, err := r.Positions()
	require.NoError(t, err)
	require.Equal(t, []Position{{"g", "q", "a", 1, 2}}, positions)
	require.NoError(t, os.Remove(filepath.Join(dir, "000003.ndjson.gz")))
	require.ErrorIs(t, check(), ErrDamaged)
}

// A message comes out of its line as it went in, whatever white space its payload has.
func TestLinesKeepBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.Rune()).Draw(t, "text")
		space := rapid.SampledFrom([]string{"", " ", "\n", "\r\n", "\t"}).Draw(t, "space")
		trace := rapid.SampledFrom([]*string{nil, new("t")}).Draw(t, "trace")
		m := Message{
			Queue: text, Partition: text, Offset: rapid.Int64().Draw(t, "offset"), ID: "i", TransactionID: text, TraceID: trace, CreatedAt: "c",
			Data: []byte(`{"a":` + space + `"\ud800<&",` + space + `"n":1e400}`),
		}
		line, err := m.Line()
		if err != nil || bytes.ContainsAny(line, "\r\n") {
			t.Fatalf("%q: %v", line, err)
		}
		back, err := ParseMessage(line)
		if err != nil {
			t.Fatal(err)
		}
		if valid := strings.ToValidUTF8(text, "\ufffd"); back.Queue != valid || back.TransactionID != valid || back.Offset != m.Offset || !bytes.Equal(back.Data, m.Data) || (back.TraceID == nil) != (trace == nil) {
			t.Fatalf("%+v became %+v", m, back)
		}
	})
	for _, bad := range []string{"", "{}", `{"data":`, `[]`} {
		_, err := ParseMessage([]byte(bad))
		require.Error(t, err, bad)
	}
}
