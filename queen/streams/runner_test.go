package streams_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/queen"
	"queenmq/queen/streams"
)

func TestRecordsAreFilteredMappedAndFannedOut(t *testing.T) {
	t.Parallel()
	client := connect(t)
	push(t, client, "ops.in", "p1", order{"a", 1, 10}, order{"b", 2, 20}, order{"a", 3, 30})
	cheap := streams.From[order]("ops.in").Filter(func(o order) bool { return o.Cents < 30 })
	named := streams.Map(cheap, func(o order) (string, error) { return o.Shop, nil })
	twice := streams.FlatMap(named, func(s string) ([]string, error) { return []string{s, s + s}, nil })
	run(t, client, "ops", twice.ToPartition("ops.out", func(s string) string { return "len" + fmt.Sprint(len(s)) }))
	got := map[string][]string{}
	for _, m := range collect(t, client, "ops.out", 4, time.Second) {
		got[m.Partition] = append(got[m.Partition], string(m.Payload))
	}
	require.Equal(t, map[string][]string{"len1": {`"a"`, `"b"`}, "len2": {`"aa"`, `"bb"`}}, got)
}

func TestPayloadsPassByteForByteWithTheirTrace(t *testing.T) {
	t.Parallel()
	client := connect(t)
	const payload, trace = `{"n":12345678901234567890.10, "a":1,"a":2}`, "0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731"
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	_, err := client.Push(t.Context(), queen.Item{Queue: "bytes.in", Partition: "x", Payload: []byte(payload), TraceID: trace, Traceparent: parent})
	require.NoError(t, err)
	run(t, client, "bytes", streams.From[json.RawMessage]("bytes.in").To("bytes.out"))
	got := collect(t, client, "bytes.out", 1, 0)[0]
	require.Equal(t, []string{payload, trace, parent, "x"}, []string{string(got.Payload), got.TraceID, got.Traceparent, got.Partition})
}

// Aggregates of one window, computed by every function there is.
func TestAggregates(t *testing.T) {
	t.Parallel()
	client := connect(t)
	push(t, client, "agg.in", "p", order{"s", 100, 5}, order{"s", 200, 1}, order{"s", 300, 6}, order{"s", 1_000, 100}, order{"s", 1_000_000, 0})
	cents := func(o order) int64 { return o.Cents }
	window := func() streams.Windowed[order] {
		return streams.From[order]("agg.in").EventTime(order.when).Window(streams.Tumbling(time.Second), streams.IdleAfter(-1))
	}
	for name, query := range map[string]streams.Query{
		"count": streams.Count(window()).To("agg.count"), "sum": streams.Sum(window(), cents).To("agg.sum"),
		"min": streams.Min(window(), cents).To("agg.min"), "max": streams.Max(window(), cents).To("agg.max"),
		"avg": streams.Avg(window(), cents).To("agg.avg"),
		"reduce": streams.Reduce(window(), func(a, b order) order {
			a.Cents = a.Cents*10 + b.Cents
			return a
		}).To("agg.reduce"),
		"aggregate": streams.Aggregate(window(), streams.Aggregator[order, []int64]{
			Name: "list", Add: func(acc []int64, o order) ([]int64, error) { return append(acc, o.Cents), nil },
		}).To("agg.aggregate"),
	} {
		run(t, client, "agg-"+name, query)
	}
	for name, want := range map[string]string{
		"count": `3`, "sum": `12`, "min": `1`, "max": `6`, "avg": `4`, "reduce": `{"shop":"s","at":100,"cents":516}`, "aggregate": `[5,1,6]`,
	} {
		got := collect(t, client, "agg."+name, 2, 0)
		first, err := queen.Decode[map[string]json.RawMessage](got[0].Payload)
		require.NoError(t, err)
		require.Equal(t, want, string(first["value"]), name)
		require.Equal(t, `"p"`, string(first["key"]), "without KeyBy the key is the partition")
		require.Equal(t, `"1970-01-01T00:00:00Z"`, string(first["windowStart"]))
	}
}

func TestWindowsOfIdlePartitionsAreClosedAndTheirStateIsFreed(t *testing.T) {
	t.Parallel()
	client := connect(t)
	push(t, client, "idle.in", "p", order{"a", 10, 1}, order{"b", 20, 2}, order{"a", 5_010, 4})
	query := streams.Sum(streams.From[order]("idle.in").EventTime(order.when).KeyBy(func(o order) string { return o.Shop }).
		Window(streams.Tumbling(time.Second), streams.IdleAfter(500*time.Millisecond)), func(o order) int64 { return o.Cents }).To("idle.out")
	runner, _ := run(t, client, "idle", query)
	require.Equal(t, "p|a|0|1000|1|false\np|a|5000|6000|4|false\np|b|0|1000|2|false", windows(t, collect(t, client, "idle.out", 3, time.Second)))
	require.Equal(t, []string{"control"}, stateKeys(t, client, "idle", "idle.in"))
	// What comes for a window that was closed for idleness is late.
	push(t, client, "idle.in", "p", order{"a", 5_020, 9}, order{"a", 7_000, 5}, order{"a", 9_000, 7})
	require.Equal(t, "p|a|7000|8000|5|false\np|a|9000|10000|7|false", windows(t, collect(t, client, "idle.out", 2, time.Second)))
	require.Equal(t, int64(1), runner.Stats().LateRecords)
}

// stateKeys lists the state rows of the partition p of a query's source.
func stateKeys(t testing.TB, client *queen.Client, name, source string) []string {
	t.Helper()
	batch, err := client.Pop(t.Context(), source, queen.PopOptions{Group: "state-" + name, Batch: 1, Start: queen.StartOldest})
	require.NoError(t, err)
	require.NotEmpty(t, batch.Messages)
	// A refused registration names the query's id.
	_, err = client.Do(t.Context(), http.MethodPost, "/streams/v1/queries", nil, fmt.Appendf(nil, `{"name":%q,"source_queue":%q,"config_hash":"another"}`, name, source))
	var refused *queen.Error
	require.ErrorAs(t, err, &refused)
	registered, err := queen.Decode[struct {
		ID string `json:"query_id"`
	}](refused.Body)
	require.NoError(t, err)
	id := registered.ID
	body, err := json.Marshal(map[string]any{"query_id": id, "partition_id": batch.Messages[0].PartitionID})
	require.NoError(t, err)
	response, err := client.Do(t.Context(), http.MethodPost, "/streams/v1/state/get", nil, body)
	require.NoError(t, err)
	state, err := queen.Decode[struct {
		Rows []struct {
			Key string `json:"key"`
		} `json:"rows"`
	}](response.Body)
	require.NoError(t, err)
	keys := make([]string, len(state.Rows))
	for i, row := range state.Rows {
		keys[i] = row.Key
	}
	return keys
}

func TestLateRecords(t *testing.T) {
	t.Parallel()
	client := connect(t)
	push(t, client, "late.in", "p", order{"a", 100, 1}, order{"a", 2_500, 2}, order{"a", 900, 4}, order{"a", 9_000, 8})
	query := func(sink string, options ...streams.WindowOption) streams.Query {
		options = append(options, streams.IdleAfter(-1))
		return streams.Sum(streams.From[order]("late.in").EventTime(order.when).Window(streams.Tumbling(time.Second), options...),
			func(o order) int64 { return o.Cents }).To(sink)
	}
	dropped, _ := run(t, client, "late-drop", query("late.drop"))
	run(t, client, "late-include", query("late.include", streams.IncludeLate()))
	run(t, client, "late-aside", query("late.aside", streams.LateTo("late.side")))
	allowed, _ := run(t, client, "late-allowed", query("late.allowed", streams.AllowedLateness(2*time.Second)))
	require.Equal(t, "p|p|0|1000|1|false\np|p|2000|3000|2|false", windows(t, collect(t, client, "late.drop", 2, time.Second)))
	require.Equal(t, "p|p|0|1000|1|false\np|p|0|1000|4|true\np|p|2000|3000|2|false", windows(t, collect(t, client, "late.include", 3, time.Second)))
	require.Equal(t, "p|p|0|1000|1|false\np|p|2000|3000|2|false", windows(t, collect(t, client, "late.aside", 2, time.Second)))
	require.JSONEq(t, `{"key":"p","at":"1970-01-01T00:00:00.9Z","value":{"shop":"a","at":900,"cents":4}}`, string(collect(t, client, "late.side", 1, 0)[0].Payload))
	require.Equal(t, "p|p|0|1000|5|false\np|p|2000|3000|2|false", windows(t, collect(t, client, "late.allowed", 2, time.Second)))
	require.Equal(t, int64(1), dropped.Stats().LateRecords)
	require.Zero(t, allowed.Stats().LateRecords)
}

func TestAChangedQueryIsRefused(t *testing.T) {
	t.Parallel()
	client := connect(t)
	push(t, client, "changed.in", "p", order{"a", 1, 1}, order{"a", 5_000, 1})
	query := func(size time.Duration) streams.Query {
		return streams.Count(streams.From[order]("changed.in").EventTime(order.when).Window(streams.Tumbling(size), streams.IdleAfter(-1))).To("changed.out")
	}
	_, stop := run(t, client, "changed", query(time.Second))
	collect(t, client, "changed.out", 1, 0)
	stop()
	for name, options := range map[string][]streams.RunnerOption{"operators": nil, "version": {streams.Version("2")}} {
		changed := query(time.Minute)
		if name == "version" {
			changed = query(time.Second)
		}
		runner, err := streams.NewRunner(client, "changed", changed, options...)
		require.NoError(t, err)
		require.ErrorIs(t, runner.Run(t.Context()), streams.ErrQueryChanged, name)
	}
	_, stop = run(t, client, "changed", query(time.Second)) // the old one still runs
	stop()
	_, stop = run(t, client, "changed", query(2*time.Second), streams.Reset())
	push(t, client, "changed.in", "p", order{"a", 8_100, 1}, order{"a", 11_000, 1})
	require.Equal(t, "p|p|8000|10000|1|false", windows(t, collect(t, client, "changed.out", 1, time.Second)), "the open window of one second is gone")
	stop()
}

func TestAGateHoldsBackAPartitionAndLosesNothing(t *testing.T) {
	t.Parallel()
	client := connect(t)
	const n = 40
	for _, p := range []string{"p1", "p2"} {
		orders := make([]order, n)
		for i := range orders {
			orders[i] = order{Shop: p, At: int64(i), Cents: int64(i % 2)}
		}
		push(t, client, "gate.in", p, orders...)
	}
	// What the filter drops must not confuse what has been settled.
	kept := streams.From[order]("gate.in").Filter(func(o order) bool { return o.Cents == 0 })
	runner, _ := run(t, client, "gate", kept.Gate(streams.Rate{Events: 10, Per: time.Second, Burst: 5}).To("gate.out"), streams.Lease(5*time.Second))
	started := time.Now()
	got := collect(t, client, "gate.out", n, 2*time.Second)
	// Of 20 records in each partition 5 pass at once and 15 at 10 a second.
	require.Greater(t, time.Since(started), 1400*time.Millisecond)
	last := map[string]int64{"p1": -1, "p2": -1}
	for _, m := range got {
		o, err := queen.Decode[order](m.Payload)
		require.NoError(t, err)
		require.Greater(t, o.At, last[m.Partition], "in order, and once")
		last[m.Partition] = o.At
	}
	require.Greater(t, runner.Stats().Held, int64(0))
	require.Equal(t, int64(2*n), runner.Stats().Messages)
}

func TestAFarGateGivesTheMessageBackWithADelay(t *testing.T) {
	t.Parallel()
	client := connect(t)
	push(t, client, "far.in", "p", order{"a", 1, 1}, order{"a", 2, 2})
	var open atomic.Bool
	runner, _ := run(t, client, "far", streams.From[order]("far.in").GateFunc(func(o order) time.Duration {
		if o.Cents == 2 && !open.Load() {
			return 1500 * time.Millisecond
		}
		return 0
	}).To("far.out"))
	collect(t, client, "far.out", 1, 0)
	require.Eventually(t, func() bool { return runner.Stats().Held > 0 }, time.Minute, 10*time.Millisecond)
	leases, err := client.Do(t.Context(), http.MethodGet, "/api/v1/leases", map[string][]string{"queue": {"far.in"}}, nil)
	require.NoError(t, err)
	require.NotContains(t, string(leases.Body), `"far.in"`, "nobody holds it while it waits")
	open.Store(true)
	collect(t, client, "far.out", 1, 0)
}

func TestFailingMessages(t *testing.T) {
	t.Parallel()
	client := connect(t)
	configure := []byte(`{"queue":"fail.in","options":{"retryLimit":1}}`)
	_, err := client.Do(t.Context(), http.MethodPost, "/api/v1/configure", nil, configure)
	require.NoError(t, err)
	push(t, client, "fail.in", "p", order{"a", 100, 1}, order{"bad", 200, 2}, order{"a", 300, 4}, order{"a", 5_000, 0})
	// The bad record has been counted already when the second function refuses it: that must be taken back.
	query := func(sink string) streams.Query {
		counted := streams.From[order]("fail.in").EventTime(order.when).Window(streams.Tumbling(time.Second), streams.IdleAfter(-1))
		return streams.Aggregate(counted, streams.Aggregator[order, int64]{Name: "sum", Add: func(n int64, o order) (int64, error) {
			if o.Shop == "bad" {
				return n + o.Cents, errors.New("it is bad")
			}
			return n + o.Cents, nil
		}}).To(sink)
	}
	rejecting, _ := run(t, client, "fail-reject", query("fail.rejected"))
	skipping, _ := run(t, client, "fail-skip", query("fail.skipped"), streams.OnFailure(streams.Skip))
	require.Equal(t, "p|p|0|1000|5|false", windows(t, collect(t, client, "fail.rejected", 1, time.Second)))
	require.Equal(t, "p|p|0|1000|5|false", windows(t, collect(t, client, "fail.skipped", 1, time.Second)))
	require.Equal(t, int64(1), skipping.Stats().Failed)
	require.GreaterOrEqual(t, rejecting.Stats().Failed, int64(1))
	dead, err := client.Do(t.Context(), http.MethodGet, "/api/v1/dlq", map[string][]string{"queue": {"fail.in"}}, nil)
	require.NoError(t, err)
	require.Contains(t, string(dead.Body), "query fail-reject: it is bad")

	stopping, err := streams.NewRunner(client, "fail-stop", query("fail.stopped"), streams.OnFailure(streams.Stop))
	require.NoError(t, err)
	require.ErrorContains(t, stopping.Run(t.Context()), "it is bad")
}

func TestPayloadsThatDoNotFitFail(t *testing.T) {
	t.Parallel()
	client := connect(t)
	_, err := client.Push(t.Context(),
		queen.Item{Queue: "fit.in", Payload: []byte(`"no order"`)},
		queen.Item{Queue: "fit.in", Payload: []byte(`{"at":99999999999999}`)}, // in the year 5138
		queen.Item{Queue: "fit.in", Payload: []byte(`{"at":1,"shop":"\u0000"}`)},
		queen.Item{Queue: "fit.in", Payload: []byte(`{"at":5,"cents":7}`)})
	require.NoError(t, err)
	runner, _ := run(t, client, "fit", streams.From[order]("fit.in").EventTime(order.when).KeyBy(func(o order) string { return o.Shop }).To("fit.out"), streams.OnFailure(streams.Skip))
	got := collect(t, client, "fit.out", 1, 0)
	require.JSONEq(t, `{"shop":"","at":5,"cents":7}`, string(got[0].Payload))
	require.Eventually(t, func() bool { return runner.Stats().Failed == 3 }, time.Minute, 10*time.Millisecond)
}

func TestForeachEndsAQuery(t *testing.T) {
	t.Parallel()
	client := connect(t)
	push(t, client, "each.in", "p", order{"a", 1, 1}, order{"a", 2, 2}, order{"a", 3, 3})
	var mu sync.Mutex
	var seen []int64
	failed := false
	runner, _ := run(t, client, "each", streams.From[order]("each.in").Foreach(func(_ context.Context, o order) error {
		mu.Lock()
		defer mu.Unlock()
		if o.Cents == 2 && !failed {
			failed = true
			return errors.New("once")
		}
		seen = append(seen, o.Cents)
		return nil
	}))
	require.Eventually(t, func() bool { return runner.Stats().Messages == 3 }, time.Minute, 10*time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	require.Subset(t, seen, []int64{1, 2, 3})
	require.True(t, slices.IsSorted(seen), "%v", seen)
}

func TestAFullSinkHoldsAQueryUp(t *testing.T) {
	t.Parallel()
	client := connect(t)
	_, err := client.Do(t.Context(), http.MethodPost, "/api/v1/configure", nil, []byte(`{"queue":"full.out","options":{"maxSize":2}}`))
	require.NoError(t, err)
	push(t, client, "full.in", "p", order{"a", 1, 1}, order{"a", 2, 2})
	runner, _ := run(t, client, "full", streams.From[order]("full.in").To("full.out"))
	require.Eventually(t, func() bool { return runner.Stats().Messages == 2 }, time.Minute, 10*time.Millisecond)
	push(t, client, "full.in", "p", order{"a", 3, 3}, order{"a", 4, 4})
	require.Never(t, func() bool { return runner.Stats().Messages > 2 }, time.Second, 50*time.Millisecond)
	batch, err := client.Pop(t.Context(), "full.out", queen.PopOptions{Group: "checker", Start: queen.StartOldest})
	require.NoError(t, err)
	require.Len(t, batch.Messages, 2)
	_, err = client.Ack(t.Context(), batch.Completed()...) // makes room at once
	require.NoError(t, err)
	require.Eventually(t, func() bool { return runner.Stats().Messages == 4 }, time.Minute, 10*time.Millisecond)
	collect(t, client, "full.out", 2, time.Second)
}

// One message that ends tens of thousands of windows needs several commits, and is settled by the last.
func TestManyWindowsCloseInBoundedCycles(t *testing.T) {
	t.Parallel()
	client := connect(t)
	const keys = 10_500
	orders := make([]order, keys, keys+1)
	for i := range orders {
		orders[i] = order{Shop: fmt.Sprint(i), At: 1, Cents: 1}
	}
	push(t, client, "many.in", "p", append(orders, order{Shop: "last", At: 5_000, Cents: 1})...)
	query := streams.Sum(streams.From[order]("many.in").EventTime(order.when).KeyBy(func(o order) string { return o.Shop }).
		Window(streams.Tumbling(time.Second), streams.IdleAfter(500*time.Millisecond)), func(o order) int64 { return o.Cents }).To("many.out")
	runner, _ := run(t, client, "many", query, streams.BatchSize(10_000, 1))
	got := collect(t, client, "many.out", keys+1, time.Second)
	seen := map[string]bool{}
	for _, m := range got {
		w, err := queen.Decode[streams.Window[int64]](m.Payload)
		require.NoError(t, err)
		require.False(t, seen[w.Key], "%s was emitted twice", w.Key)
		seen[w.Key] = true
	}
	require.Equal(t, int64(keys+1), runner.Stats().Messages)
	require.Equal(t, []string{"control"}, stateKeys(t, client, "many", "many.in"))
}

func TestMistakesInADescriptionAreNamed(t *testing.T) {
	t.Parallel()
	from := streams.From[order]("q")
	cents := func(o order) int64 { return o.Cents }
	for want, query := range map[string]streams.Query{
		"From needs":             streams.From[order]("").To("out"),
		"To needs":               from.To(""),
		"the size 0s":            streams.Count(from.Window(streams.Tumbling(0))).To("out"),
		"the step":               streams.Count(from.Window(streams.Sliding(time.Second, time.Minute))).To("out"),
		"the gap -1s":            streams.Count(from.Window(streams.Session(-time.Second))).To("out"),
		"the size 1.5µs":         streams.Count(from.Window(streams.Tumbling(1500 * time.Nanosecond))).To("out"),
		"Window needs":           streams.Count(from.Window(streams.Windows{})).To("out"),
		"the allowed lateness":   streams.Count(from.Window(streams.Tumbling(time.Second), streams.AllowedLateness(-1))).To("out"),
		"LateTo needs":           streams.Count(from.Window(streams.Tumbling(time.Second), streams.LateTo(""))).To("out"),
		"a query has one Window": streams.Count(streams.Sum(from.Window(streams.Tumbling(time.Second)), cents).Window(streams.Tumbling(time.Minute))).To("out"),
		"needs a Merge":          streams.Aggregate(from.Window(streams.Session(time.Second)), streams.Aggregator[order, int]{Name: "x", Add: func(n int, _ order) (int, error) { return n, nil }}).To("out"),
		"needs an Add":           streams.Aggregate(from.Window(streams.Tumbling(time.Second)), streams.Aggregator[order, int]{Name: "x"}).To("out"),
		"a rate needs":           from.Gate(streams.Rate{}).To("out"),
		"the query has no end":   {},
	} {
		_, err := streams.NewRunner(nil, "name", query)
		require.ErrorContains(t, err, want)
	}
	for want, option := range map[string]streams.RunnerOption{
		"workers": streams.Workers(0), "batch size": streams.BatchSize(0, 1), "the lease": streams.Lease(time.Millisecond),
	} {
		_, err := streams.NewRunner(nil, "name", from.To("out"), option)
		require.ErrorContains(t, err, want)
	}
	_, err := streams.NewRunner(nil, "", from.To("out"))
	require.ErrorContains(t, err, "needs a name")
}

func TestQueryReadsAsItsGroupFromItsStart(t *testing.T) {
	t.Parallel()
	client := connect(t)
	push(t, client, "start.in", "p", order{"a", 10, 1})
	push(t, client, "start.in", "p", order{"a", 20, 2})
	batch, err := client.Pop(t.Context(), "start.in", queen.PopOptions{Group: "looker", Batch: 10, Start: queen.StartOldest})
	require.NoError(t, err)
	require.Len(t, batch.Messages, 2)
	_, stop := run(t, client, "start", streams.From[order]("start.in").To("start.out"), streams.Group("readers"), streams.StartAt(queen.StartAt(batch.Messages[1].CreatedAt)))
	require.Equal(t, string(batch.Messages[1].Payload), string(collect(t, client, "start.out", 1, time.Second)[0].Payload))
	stop()
	rest, err := client.Pop(t.Context(), "start.in", queen.PopOptions{Group: "readers"})
	require.NoError(t, err)
	require.Empty(t, rest.Messages, "the group is the one that was named")
}
