package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/broker"
	"queenmq/internal/testdb"
)

// A broker runs in this process on a database of its own; it returns where it serves.
func startBroker(t *testing.T) string {
	t.Helper()
	env := map[string]string{"PORT": "0", "QUEEN_BIND_ADDR": "127.0.0.1", "DATABASE_URL": testdb.New(t).ConnString(), "FILE_BUFFER_DIR": t.TempDir()}
	cfg, err := broker.LoadConfig(func(name string) (string, bool) { text, set := env[name]; return text, set }, nil)
	require.NoError(t, err)
	b := broker.New(cfg)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	select {
	case <-b.Ready():
	case err := <-ended:
		ended <- nil
		require.FailNow(t, "the broker did not start", err)
	case <-time.After(time.Minute):
		require.FailNow(t, "the broker does not start")
	}
	return b.URL()
}

func TestFileComesOutAsItWentIn(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := options{url: startBroker(t), queue: `q/ü "x" %2F`, file: filepath.Join(t.TempDir(), "orders.jsonl"), records: 5000, out: &out}
	require.NoError(t, run(t.Context(), o))
	for _, group := range groups {
		require.Contains(t, out.String(), "group "+group+": 5000 records from 57 partitions, order and bytes as pushed")
	}
}

func TestMissingBrokerIsAnError(t *testing.T) {
	t.Parallel()
	o := options{url: "http://127.0.0.1:1", queue: "q", file: filepath.Join(t.TempDir(), "orders.jsonl"), records: 1, out: &bytes.Buffer{}}
	require.ErrorContains(t, run(t.Context(), o), "is the broker running?")
}

func TestRecordsAreTheSameEverywhere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "orders.jsonl")
	require.NoError(t, writeRecords(path, 5000))
	lines, err := readLines(path)
	require.NoError(t, err)
	require.Len(t, lines, 5000)
	hash := sha256.New()
	for _, l := range lines {
		require.True(t, json.Valid(l.payload), string(l.payload))
		_, _ = hash.Write(l.payload)
	}
	require.Equal(t, "2e2c35265df1c5159aa5c4e2821a7af3ac5153ca8fe6720a46a8518687cbc8c0", fmt.Sprintf("%x", hash.Sum(nil)))
	all := string(slices.Concat(payloads(lines)...))
	for _, fragment := range fragments {
		require.Contains(t, all, fragment)
	}
}

func payloads(lines []line) [][]byte {
	var all [][]byte
	for _, l := range lines {
		all = append(all, l.payload)
	}
	return all
}

func TestCompareFindsEveryDifference(t *testing.T) {
	t.Parallel()
	lines := []line{{"a", []byte(`{"n":1}`)}, {"b", []byte(`{"n":2}`)}, {"a", []byte(`{"n": 3}`)}}
	for _, row := range []struct {
		name     string
		received map[string][][]byte
		want     string
	}{
		{"Same", map[string][][]byte{"a": {lines[0].payload, lines[2].payload}, "b": {lines[1].payload}}, ""},
		{"Missing", map[string][][]byte{"a": {lines[0].payload}, "b": {lines[1].payload}}, "line 3"},
		{"OutOfOrder", map[string][][]byte{"a": {lines[2].payload, lines[0].payload}, "b": {lines[1].payload}}, "line 1 of the file was expected"},
		{"Reformatted", map[string][][]byte{"a": {lines[0].payload, []byte(`{"n":3}`)}, "b": {lines[1].payload}}, `received {"n":3}`},
		{"Twice", map[string][][]byte{"a": {lines[0].payload, lines[2].payload}, "b": {lines[1].payload, lines[1].payload}}, "1 records too many"},
		{"WrongPartition", map[string][][]byte{"a": {lines[0].payload, lines[2].payload}, "c": {lines[1].payload}}, `customer "b"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			err := compare(lines, row.received)
			if row.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, row.want)
		})
	}
}
