package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/queen"
)

const backedUp = 100_000

// payloadOf makes bytes that a careless tool would change: digits, order, escapes, white space with line breaks, repeated members.
func payloadOf(i int) json.RawMessage {
	switch i % 5 {
	case 0:
		return fmt.Appendf(nil, `{"n": %d, "big":99999999999999999999999.10,  "a":"\u0000\ud800<&>"}`, i)
	case 1:
		return fmt.Appendf(nil, "{\n\t\"n\":%d,\r\n\"n\":1E400}", i)
	case 2:
		return fmt.Appendf(nil, `[%d,"é\u00e9 ",{"z":1,"a":[]}]`, i)
	case 3:
		return fmt.Appendf(nil, `"text %d \\ \" \u001b"`, i)
	}
	return fmt.Appendf(nil, `{"n":%d,"filler":%q}`, i, bytes.Repeat([]byte("lorem ipsum "), 20))
}

// A record is what must be the same after a restore.
type record struct{ id, trace, parent, data string }

// stored reads every message of a broker, by queue and partition.
func stored(t *testing.T, client *queen.Client, queues ...string) map[string][]record {
	t.Helper()
	all := map[string][]record{}
	ask := func(path string, pairs ...string) []byte {
		answer, err := client.Do(t.Context(), "GET", path, values(pairs...), nil)
		require.NoError(t, err)
		return answer.Body
	}
	for _, queue := range queues {
		list, err := decode[struct{ Partitions []lane }](ask(queen.Path("api", "v1", "resources", "queues", queue, "partitions"), "limit", "1000"))
		require.NoError(t, err)
		for _, l := range list.Partitions {
			for next := int64(0); ; {
				p, err := decode[part](ask(queen.Path("api", "v1", "partitions", l.ID, "messages"), "offset", strconv.FormatInt(next, 10), "limit", "1000"))
				require.NoError(t, err)
				for _, m := range p.Messages {
					all[queue+"/"+l.Name] = append(all[queue+"/"+l.Name], record{m.TransactionID, orEmpty(m.TraceID), orEmpty(m.Traceparent), string(m.Data)})
				}
				if next = p.Next; next >= p.End {
					break
				}
			}
		}
	}
	return all
}

// pending reads what a group has still to consume, by partition.
func pending(t *testing.T, client *queen.Client, queue, group string) map[string]int64 {
	t.Helper()
	answer, err := client.Do(t.Context(), "GET", queen.Path("api", "v1", "resources", "queues", queue, "partitions"), values("group", group, "limit", "1000"), nil)
	require.NoError(t, err)
	list, err := decode[struct{ Partitions []lane }](answer.Body)
	require.NoError(t, err)
	out := map[string]int64{}
	for _, l := range list.Partitions {
		out[l.Name] = l.Messages.Pending
	}
	return out
}

// killWhen kills a process, as kill -9 does, once a condition holds; the process must not have ended by itself.
func (s *session) killWhen(condition func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) { // a poll of a foreign process
		if time.Now().After(deadline) {
			s.t.Fatalf("nothing to kill it at: %s", s.text())
		}
	}
	require.NoError(s.t, s.cmd.Process.Kill())
	code, text := s.end()
	require.Equal(s.t, -1, code, "it ended before it was killed: %s", text)
}

// 100,000 messages go through a backup that is killed and resumed, and a restore that is killed and resumed, and come out the same.
func TestBackupAndRestoreSurviveKills(t *testing.T) {
	t.Parallel()
	from, to := serve(t, nil), serve(t, nil)
	source, target := clientOf(t, from), clientOf(t, to)
	fill(t, source)
	before := stored(t, source, "orders", "logs")
	positions := pending(t, source, "orders", "billing")

	dir := filepath.Join(t.TempDir(), "backup")
	chunks := func() int {
		text, _ := os.ReadFile(filepath.Join(dir, "index.ndjson")) // not there yet
		return bytes.Count(text, []byte("\n")) - 2
	}
	for _, killed := range []int{1, 3} {
		piped(t, from, "backup", dir).killWhen(func() bool { return chunks() >= killed })
	}
	code, text := piped(t, from, "backup", dir).end()
	require.Equal(t, exitOK, code, text)
	require.Contains(t, text, "going on after")
	require.Regexp(t, `messages +100000\n`, text)
	left, err := filepath.Glob(filepath.Join(dir, ".part-*"))
	require.NoError(t, err)
	require.Empty(t, left, "what killed runs left behind is swept up")

	count := func() (n int64) {
		for _, queue := range []string{"orders", "logs"} {
			answer, err := target.Do(t.Context(), "GET", queen.Path("api", "v1", "resources", "queues", queue, "partitions"), values("limit", "1000"), nil)
			if err != nil {
				continue // not there yet
			}
			list, err := decode[struct{ Partitions []lane }](answer.Body)
			require.NoError(t, err)
			for _, l := range list.Partitions {
				n += l.Messages.Total
			}
		}
		return n
	}
	args := []string{"restore", dir, "--yes"}
	for _, killed := range []int64{5_000, 60_000} {
		piped(t, to, args...).killWhen(func() bool { return count() >= killed })
		args = []string{"restore", dir, "--yes", "--resume"}
	}
	code, text = piped(t, to, "restore", dir, "--yes").end()
	require.Equal(t, exitDiffers, code, text)
	require.Contains(t, text, "not empty")
	code, text = piped(t, to, args...).end()
	require.Equal(t, exitOK, code, text)
	require.Regexp(t, `messages +100000\n`, text)

	after := stored(t, target, "orders", "logs")
	require.Len(t, after, len(before))
	total := 0
	for lane, want := range before {
		require.Len(t, after[lane], len(want), lane)
		for i := range want {
			require.Equal(t, want[i], after[lane][i], "message %d of %s", i, lane)
			total++
		}
	}
	require.Equal(t, backedUp, total)
	require.Equal(t, "00-00000000000000000000000000000001-0000000000000001-01", after["orders/lane 0/ü"][0].parent)
	require.Equal(t, positions, pending(t, target, "orders", "billing"))
}

// fill makes two queues with options, 40 partitions, messages with awkward bytes, ids that repeat, and a group in the middle.
func fill(t *testing.T, client *queen.Client) {
	t.Helper()
	for _, body := range []string{
		`{"queue":"orders","namespace":"shop","options":{"leaseTime":77,"maxSize":90000}}`, `{"queue":"logs","options":{"dedupWindowSeconds":0}}`,
	} {
		_, err := client.Do(t.Context(), "POST", "/api/v1/configure", nil, []byte(body))
		require.NoError(t, err)
	}
	trace := uuid.NewString()
	const batch = 2000
	for start := 0; start < backedUp; start += batch {
		items := make([]queen.Item, batch)
		for i := range items {
			n := start + i
			items[i] = queen.Item{Queue: "orders", Partition: fmt.Sprintf("lane %d/ü", n%20), TransactionID: fmt.Sprintf("order-%d", n), Payload: payloadOf(n)}
			if n%2 == 1 {
				items[i].Queue, items[i].TransactionID = "logs", fmt.Sprintf("same-%d", n%batch) // ids repeat where nothing forbids it
			}
			if n%100 == 0 {
				items[i].TraceID, items[i].Traceparent = trace, fmt.Sprintf("00-%032x-%016x-01", n+1, n+1)
			}
		}
		results, err := client.Push(t.Context(), items...)
		require.NoError(t, err)
		require.Len(t, results, batch)
	}
	for range 3 {
		batch, err := client.Pop(context.WithoutCancel(t.Context()), "orders", queen.PopOptions{Group: "billing", Batch: 100})
		require.NoError(t, err)
		_, err = client.Ack(t.Context(), batch.Completed()...)
		require.NoError(t, err)
	}
}
