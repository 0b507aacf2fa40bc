package upkeep_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/meter"
	"queenmq/internal/engine/push"
	"queenmq/internal/pg"
	"queenmq/internal/upkeep"
)

// ledger is a collector's store that a test can break; it adds up what was stored.
type ledger struct {
	mu      sync.Mutex
	broken  error // every write
	noQueue error // queue metrics only
	taken   bool  // the second has its worker sample
	worker  pg.WorkerSample
	queues  map[string]pg.QueueSample
	flushes int
	metrics json.RawMessage
	parked  []pg.QueueSample
}

func (l *ledger) DatabaseTime(context.Context) (time.Time, error) { return time.Now(), l.broken }
func (l *ledger) Stats() pg.PoolStats                             { return pg.PoolStats{Max: 9, Idle: 2, InUse: 1} }

func (l *ledger) InsertWorkerMetrics(_ context.Context, s pg.WorkerSample) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil || l.taken {
		return false, l.broken
	}
	l.worker.PushRequests += s.PushRequests
	l.worker.PushMessages += s.PushMessages
	l.worker.AckOK += s.AckOK
	l.worker.AckFailed += s.AckFailed
	l.flushes++
	return true, nil
}

func (l *ledger) InsertSystemMetrics(_ context.Context, _ string, _ int, _ string, _ int, metrics json.RawMessage) error {
	l.metrics = metrics
	return l.broken
}

func (l *ledger) AddQueueMetrics(_ context.Context, samples []pg.QueueSample) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil || l.noQueue != nil {
		return errors.Join(l.broken, l.noQueue)
	}
	for _, s := range samples {
		sum := l.queues[s.Queue]
		sum.PushRequests += s.PushRequests
		sum.PushMessages += s.PushMessages
		sum.AckOK += s.AckOK
		sum.Parked += s.Parked
		l.queues[s.Queue] = sum
	}
	return nil
}

func (l *ledger) SetParked(_ context.Context, _ string, _ int, samples []pg.QueueSample) error {
	l.parked = samples
	return l.broken
}

// traffic answers every push and ack with a success.
type traffic struct{}

func (traffic) Push(_ context.Context, r push.Request) ([]push.Verdict, error) {
	verdicts := make([]push.Verdict, len(r.Items))
	for i := range verdicts {
		verdicts[i].Status = push.StatusQueued
	}
	return verdicts, nil
}

func (traffic) Ack(_ context.Context, _ uuid.UUID, _ string, items []ack.Item) []ack.Result {
	results := make([]ack.Result, len(items))
	for i := range results {
		results[i] = ack.Result{Success: true, Queue: "q0"}
	}
	return results
}

func (traffic) Extend(context.Context, uuid.UUID, string, int) (pg.Renewal, error) {
	return pg.Renewal{}, nil
}

func nobodyParked(func(uuid.UUID, string, int)) {}

func TestCollectorLosesNothing(t *testing.T) {
	t.Parallel()
	store, counted := &ledger{queues: map[string]pg.QueueSample{}}, meter.New()
	pusher, acker := counted.Pusher(traffic{}), counted.Acker(traffic{})
	collector := upkeep.NewCollector(upkeep.CollectorConfig{Hostname: "h", Interval: time.Minute}, store, counted, nobodyParked, discard)
	requests, messages := int64(0), int64(0)
	work := func() {
		for i := range 3 {
			items := make([]push.Item, i+1)
			for j := range items {
				items[j].Queue = fmt.Sprint("q", i)
			}
			_, err := pusher.Push(t.Context(), push.Request{Tenant: pg.DefaultTenant, Items: items})
			require.NoError(t, err)
			requests, messages = requests+1, messages+int64(i+1)
		}
		acker.Ack(t.Context(), pg.DefaultTenant, "g", []ack.Item{{Status: "completed"}, {Status: "failed"}})
	}
	away := errors.New("away")
	for round, f := range []func(){
		func() {}, func() { store.broken = away }, func() {}, func() {}, func() { store.broken = nil },
		func() { store.noQueue = away }, func() { store.noQueue = nil }, func() { store.taken = true }, func() { store.taken = false }, func() {},
	} {
		f()
		work()
		err := collector.Step(t.Context())
		require.Equal(t, store.broken != nil || store.noQueue != nil, err != nil, "round %d: %v", round, err)
	}
	require.Equal(t, []int64{requests, messages, 10, 10}, []int64{store.worker.PushRequests, store.worker.PushMessages, store.worker.AckOK, store.worker.AckFailed})
	require.Equal(t, 10-3-1, store.flushes)
	perQueue := int64(0)
	for _, sample := range store.queues {
		perQueue += sample.PushMessages
	}
	require.Equal(t, messages, perQueue)
	require.EqualValues(t, 10, store.queues["q0"].AckOK)
	require.NoError(t, collector.Step(t.Context()))
	require.Equal(t, messages, store.worker.PushMessages, "a flush without traffic adds nothing")

	var system struct {
		Memory, Database map[string]map[string]int64
		SharedState      map[string]any `json:"shared_state"`
	}
	require.NoError(t, json.Unmarshal(store.metrics, &system))
	require.Equal(t, map[string]int64{"avg": 9, "min": 9, "max": 9, "last": 9}, system.Database["pool_size"])
	require.Positive(t, system.Memory["rss_bytes"]["last"])
	require.Contains(t, system.SharedState, "sidecar_ops")
}

// A broker that stops stores what it counted last, and its samplers end with it.
func TestCollectorFlushesOnceMoreWhenItStops(t *testing.T) {
	t.Parallel()
	store, counted := &ledger{queues: map[string]pg.QueueSample{}}, meter.New()
	sampled := make(chan struct{}, 100)
	parked := func(f func(uuid.UUID, string, int)) {
		f(pg.DefaultTenant, "waited", 3)
		sampled <- struct{}{}
	}
	collector := upkeep.NewCollector(upkeep.CollectorConfig{Hostname: "h", Interval: time.Hour}, store, counted, parked, discard)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- collector.Run(ctx) }()
	<-sampled
	<-sampled
	_, err := counted.Pusher(traffic{}).Push(t.Context(), push.Request{Tenant: pg.DefaultTenant, Items: []push.Item{{Queue: "q"}}})
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-ended)
	require.EqualValues(t, 1, store.worker.PushMessages)
	require.EqualValues(t, 3, store.queues["waited"].Parked, "an average of the seconds, not their sum")
	require.Len(t, store.parked, 1)
	require.GreaterOrEqual(t, collector.LoopLag(), time.Duration(0))
}

// Two brokers on one database: what both flush into the same minute adds up, and everybody reads it.
func TestTwoBrokersFlushTheSameMinute(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.push(t, "q0", 1, 0)
	c.exec(t, `DELETE FROM queen.queue_lag_metrics`)
	var group sync.WaitGroup
	faults := make(chan error, 20)
	for broker := range 2 {
		counted := meter.New()
		collector := upkeep.NewCollector(upkeep.CollectorConfig{Hostname: fmt.Sprint("host-", broker), Port: 1, Interval: time.Minute}, c, counted, nobodyParked, discard)
		group.Go(func() {
			for range 10 {
				_, err := counted.Pusher(traffic{}).Push(t.Context(), push.Request{Tenant: pg.DefaultTenant, Items: []push.Item{{Queue: "q0"}, {Queue: "q0"}, {Queue: "no such queue"}}})
				faults <- errors.Join(err, collector.Step(t.Context()))
			}
		})
	}
	group.Wait()
	for range 20 {
		require.NoError(t, <-faults)
	}
	require.EqualValues(t, 40, c.number(t, `SELECT sum(push_message_count) FROM queen.queue_lag_metrics`))
	require.EqualValues(t, 20, c.number(t, `SELECT sum(push_request_count) FROM queen.queue_lag_metrics`))
	require.EqualValues(t, 2, c.number(t, `SELECT count(DISTINCT hostname) FROM queen.worker_metrics`))
	metrics, err := c.ClusterMetrics(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, c.number(t, `SELECT sum(push_message_count) FROM queen.worker_metrics`), metrics.Totals.PushMessages)
	require.Len(t, metrics.Queues, 1)
	require.Nil(t, metrics.Queues[0].AvgLag)
}
