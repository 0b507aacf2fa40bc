package streams_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/queen"
	"queenmq/queen/streams"
	"queenmq/test/stack"
)

// TestMain runs the tests, or, in a process that a test started to kill it, one runner.
func TestMain(m *testing.M) {
	if name := os.Getenv("STREAMS_TEST_RUNNER"); name != "" {
		runAlone(name)
		return
	}
	stack.RunShared(m)
}

func connect(t testing.TB) *queen.Client {
	t.Helper()
	client, err := queen.Connect(stack.Shared().URL, queen.WithRetryBudget(30*time.Second))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// An order is a message of these tests.
type order struct {
	Shop  string `json:"shop"`
	At    int64  `json:"at"` // epoch ms
	Cents int64  `json:"cents"`
}

func (o order) when() time.Time { return time.UnixMilli(o.At) }

// push stores orders in one partition, in order.
func push(t testing.TB, client *queen.Client, queue, partition string, orders ...order) {
	t.Helper()
	for part := range slices.Chunk(orders, 2000) {
		items := make([]queen.Item, len(part))
		for i, o := range part {
			payload, err := json.Marshal(o)
			require.NoError(t, err)
			items[i] = queen.Item{Queue: queue, Partition: partition, Payload: payload}
		}
		_, err := client.Push(t.Context(), items...)
		require.NoError(t, err)
	}
}

// run starts a runner, which must end without an error before the test does, and returns a function that ends it earlier.
func run(t testing.TB, client *queen.Client, name string, query streams.Query, options ...streams.RunnerOption) (*streams.Runner, func()) {
	t.Helper()
	options = append([]streams.RunnerOption{streams.Logger(slog.New(slog.DiscardHandler))}, options...)
	runner, err := streams.NewRunner(client, name, query, options...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			t.Fatal("the runner does not end")
		}
	}
	t.Cleanup(stop)
	return runner, stop
}

// collect reads a queue as a group of its own until it has n messages, and makes sure that no further one comes within the wait.
func collect(t testing.TB, client *queen.Client, queue string, n int, wait time.Duration) []queen.Message {
	t.Helper()
	var all []queen.Message
	deadline := time.Now().Add(2 * time.Minute)
	for len(all) < n && time.Now().Before(deadline) {
		batch, err := client.Pop(t.Context(), queue, queen.PopOptions{Group: "checker", Batch: 10_000, Partitions: -1, Wait: 2 * time.Second, Start: queen.StartOldest})
		require.NoError(t, err)
		all = append(all, batch.Messages...)
		if len(batch.Messages) > 0 {
			_, err = client.Ack(t.Context(), batch.Completed()...)
			require.NoError(t, err)
		}
	}
	batch, err := client.Pop(t.Context(), queue, queen.PopOptions{Group: "checker", Batch: 10_000, Partitions: -1, Wait: wait})
	require.NoError(t, err)
	all = append(all, batch.Messages...)
	require.Len(t, all, n)
	return all
}

// windows decodes results and writes each as one line, sorted, so that two runs can be compared.
func windows(t testing.TB, messages []queen.Message) string {
	t.Helper()
	lines := make([]string, len(messages))
	for i, m := range messages {
		w, err := queen.Decode[streams.Window[int64]](m.Payload)
		require.NoError(t, err)
		lines[i] = fmt.Sprintf("%s|%s|%d|%d|%d|%v", m.Partition, w.Key, w.Start.UnixMilli(), w.End.UnixMilli(), w.Value, w.Late)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// totals is the query that the kill test runs, here and in processes of its own: sums per shop and second.
func totals(source, sink string, slow time.Duration) streams.Query {
	orders := streams.From[order](source).KeyBy(func(o order) string { return o.Shop }).EventTime(order.when)
	return streams.Sum(orders.Window(streams.Tumbling(time.Second), streams.AllowedLateness(500*time.Millisecond), streams.IdleAfter(3*time.Second)),
		func(o order) int64 {
			if slow > 0 && o.Cents%1000 == 0 {
				time.Sleep(slow)
			}
			return o.Cents
		}).To(sink)
}

// runAlone runs the query totals in a process that is going to be killed.
func runAlone(name string) {
	client, err := queen.Connect(os.Getenv("STREAMS_TEST_URL"))
	if err == nil {
		var runner *streams.Runner
		runner, err = streams.NewRunner(client, name, totals(os.Getenv("STREAMS_TEST_SOURCE"), os.Getenv("STREAMS_TEST_SINK"), 5*time.Millisecond),
			streams.Lease(2*time.Second), streams.BatchSize(500, 4))
		if err == nil {
			fmt.Println("running")
			err = runner.Run(context.Background())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
