package bounds

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
	"queenmq/test/wire"
)

// heapBytes is what the heap of this process, and so of the broker in it, holds.
func heapBytes() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// watchHeap returns the most that the heap held until it is called.
func watchHeap() (peak func() uint64) {
	var most atomic.Uint64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		again := time.NewTicker(2 * time.Millisecond)
		defer again.Stop()
		for {
			if now := heapBytes(); now > most.Load() {
				most.Store(now)
			}
			select {
			case <-again.C:
			case <-stop:
				return
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-stopped
		return most.Load()
	}
}

// drain pops from the stored messages and reads the answer without keeping the payloads, which are runs of X. It returns nil when there was
// nothing.
func drain(t *testing.T, url string) *wire.Batch {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
		return nil
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil
	}
	var rest []byte
	piece := make([]byte, 64<<10)
	for {
		n, err := answer.Body.Read(piece)
		rest = append(rest, bytes.ReplaceAll(piece[:n], []byte("X"), nil)...)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Error(err)
			return nil
		}
	}
	var batch wire.Batch
	if err := json.Unmarshal(rest, &batch); err != nil {
		t.Error(err)
		return nil
	}
	return &batch
}

// 320 MiB of messages take a few KiB in the database, and 640 MiB in a broker that answers them all at once, for each of its clients. Bounded to
// 16 MiB, an answer takes 32 MiB, four of them 128 MiB, and the garbage collector lets the heap grow to twice that before it works: 512 MiB
// leaves as much again for the pushes before. Other tests of this process would be measured with it, so it runs alone.
func TestCompressibleMessagesDoNotExhaustTheBroker(t *testing.T) {
	const (
		messages  = 40
		heapBound = 512 << 20
	)
	s := stack.Start(t, map[string]string{"QUEEN_MAX_ANSWER_BYTES": "16777216", "QUEEN_MAX_INFLIGHT_BODY_BYTES": "33554432"})
	payload := json.RawMessage(fmt.Sprintf("%q", bytes.Repeat([]byte("X"), 8<<20-1<<10)))
	peak := watchHeap()
	for i := range messages {
		verdicts, err := s.Client.Push(t.Context(), []wire.PushItem{{Queue: "large", Partition: "p", TransactionID: fmt.Sprintf("m-%d", i), Payload: payload}})
		require.NoError(t, err)
		require.Equal(t, "queued", verdicts[0].Status)
	}
	payload = nil
	runtime.GC()

	var working sync.WaitGroup
	for c, query := range []string{"autoAck=true", "autoAck=true", "autoAck=false", "autoAck=false"} {
		working.Go(func() {
			group := fmt.Sprintf("g%d", c)
			for seen := 0; seen < messages; {
				batch := drain(t, s.URL+"/api/v1/pop/queue/large?batch=200&wait=true&timeout=20000&consumerGroup="+group+"&"+query)
				if batch == nil {
					t.Errorf("group %s stopped after %d messages", group, seen)
					return
				}
				acks := make([]wire.AckItem, 0, len(batch.Messages))
				for _, m := range batch.Messages {
					if want := fmt.Sprintf("m-%d", seen); m.TransactionID != want {
						t.Errorf("group %s got %s instead of %s", group, m.TransactionID, want)
						return
					}
					seen++
					acks = append(acks, wire.AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: batch.LeaseID})
				}
				if len(batch.Messages) != 2 {
					t.Errorf("%d messages in one answer: two fit into 16 MiB", len(batch.Messages))
				}
				if batch.LeaseID == "" {
					continue
				}
				results, err := s.Client.Ack(t.Context(), group, acks)
				if err != nil || !results[len(results)-1].LeaseReleased {
					t.Errorf("a whole answer is a whole batch: %v %+v", err, results)
					return
				}
			}
		})
	}
	working.Wait()
	require.Less(t, peak(), uint64(heapBound))
}

// Words that PostgreSQL takes for times are none here, whichever way the pop goes: a group that starts at the end of time would never get
// a message.
func TestSubscriptionFromTakesNoWordsForTimes(t *testing.T) {
	t.Parallel()
	for _, row := range stack.Switches[:2] {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			s := stack.Start(t, row.Settings)
			require.NoError(t, s.Client.Configure(t.Context(), "q", map[string]any{"namespace": "n"}))
			push := func(id string) {
				_, err := s.Client.Push(t.Context(), []wire.PushItem{{Queue: "q", Partition: "p", TransactionID: id, Payload: json.RawMessage("1")}})
				require.NoError(t, err)
			}
			push("first")
			pops := map[string]wire.PopRequest{
				"queue":     {Queue: "q", AnyPartition: true},
				"partition": {Queue: "q", Partition: "p"},
				"discovery": {Namespace: "n"},
			}
			words := []string{"infinity", "-infinity", "Infinity", "epoch", "tomorrow", "today", "yesterday", "allballs", "nonsense"}
			ids := func(r wire.PopRequest) (got []string) {
				batch, err := s.Client.Pop(t.Context(), r)
				require.NoError(t, err)
				if batch != nil {
					for _, m := range batch.Messages {
						got = append(got, m.TransactionID)
					}
				}
				return got
			}
			request := func(path, word string) wire.PopRequest {
				r := pops[path]
				r.Group, r.From, r.Batch, r.AutoAck = path+" "+word, word, 10, true
				return r
			}
			for path := range pops {
				for _, word := range words {
					got := ids(request(path, word))
					if path == "partition" {
						require.Equal(t, []string{"first"}, got, "%s %s: ignored, the mode decides", path, word)
					} else {
						require.Empty(t, got, "%s %s: counts as now", path, word)
					}
				}
			}
			push("second")
			for path := range pops {
				for _, word := range words {
					r := request(path, word)
					r.Wait, r.Timeout = true, 20*time.Second
					require.Equal(t, []string{"second"}, ids(r), "%s %s", path, word)
				}
			}
		})
	}
}

// Answers of two megabytes each for twelve clients at once, through every kind of pop, where there is room for one or two: everybody gets
// everything, in order and once, nobody waits for each other, and at the end no memory is counted any more.
func TestManyLargeAnswersShareABoundedRoom(t *testing.T) {
	t.Parallel()
	const groups, messages = 12, 5
	s := stack.Start(t, map[string]string{"QUEEN_MAX_INFLIGHT_ANSWER_BYTES": "12582912"})
	payload := json.RawMessage(fmt.Sprintf("%q", bytes.Repeat([]byte("X"), 2<<20)))
	for i := range messages {
		verdicts, err := s.Client.Push(t.Context(), []wire.PushItem{{Queue: "shared", Partition: "p", TransactionID: fmt.Sprintf("m-%d", i), Payload: payload}})
		require.NoError(t, err)
		require.Equal(t, "queued", verdicts[0].Status)
	}
	var working sync.WaitGroup
	for g := range groups {
		path := []string{
			"/api/v1/pop/queue/shared?autoAck=true", "/api/v1/pop/queue/shared?autoAck=false",
			"/api/v1/pop/queue/shared/partition/p?autoAck=false", "/api/v1/pop/queue/shared/partition/p?autoAck=true",
		}[g%4]
		working.Go(func() {
			group := fmt.Sprintf("g%d", g)
			for seen := 0; seen < messages; {
				batch := drain(t, s.URL+path+"&batch=100&wait=true&timeout=60000&consumerGroup="+group)
				if batch == nil {
					t.Errorf("%s for %s ended after %d messages", path, group, seen)
					return
				}
				acks := make([]wire.AckItem, 0, len(batch.Messages))
				for _, m := range batch.Messages {
					if want := fmt.Sprintf("m-%d", seen); m.TransactionID != want {
						t.Errorf("group %s got %s instead of %s", group, m.TransactionID, want)
						return
					}
					seen++
					acks = append(acks, wire.AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: batch.LeaseID})
				}
				if batch.LeaseID == "" {
					continue
				}
				results, err := s.Client.Ack(t.Context(), group, acks)
				if err != nil || !results[len(results)-1].LeaseReleased {
					t.Errorf("a whole answer is a whole batch: %v %+v", err, results)
					return
				}
			}
		})
	}
	working.Wait()
	var page []byte
	require.Eventually(t, func() bool { // an answer is counted until its handler has ended
		answer, err := http.Get(s.URL + "/metrics/prometheus")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		page, err = io.ReadAll(answer.Body)
		return err == nil && bytes.Contains(page, []byte("\nqueen_pop_answer_bytes 0\n"))
	}, time.Minute, 10*time.Millisecond, "memory is counted that nobody has")
	require.Regexp(t, `(?m)^queen_pop_answer_waits_total [1-9]`, string(page))
}
