package meter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/transaction"
	"queenmq/internal/pg"
)

// engine answers as a test wants.
type engine struct {
	verdicts []push.Verdict
	result   *pop.Result
	results  []ack.Result
	outcome  transaction.Outcome
	err      error
}

func (e *engine) Push(context.Context, push.Request) ([]push.Verdict, error) {
	return e.verdicts, e.err
}

func (e *engine) Pop(context.Context, pop.Request) (*pop.Result, error) { return e.result, e.err }

func (e *engine) Ack(context.Context, uuid.UUID, string, []ack.Item) []ack.Result {
	return e.results
}

func (e *engine) Extend(context.Context, uuid.UUID, string, int) (pg.Renewal, error) {
	return pg.Renewal{Renewed: 7}, e.err
}

func (e *engine) Run(context.Context, uuid.UUID, string, []transaction.Operation, []string) (transaction.Outcome, error) {
	return e.outcome, e.err
}

func countsOf(m *Meter, name string) Counts {
	for _, queue := range m.Queues() {
		if queue.Name == name {
			return queue.Counts()
		}
	}
	return Counts{}
}

func TestPushesCountInEveryQueueTheyName(t *testing.T) {
	t.Parallel()
	m := New()
	e := &engine{verdicts: []push.Verdict{{Status: push.StatusQueued}, {Status: push.StatusDuplicate}, {Status: push.StatusBuffered}, {Status: push.StatusFailed}}}
	verdicts, err := m.Pusher(e).Push(t.Context(), push.Request{Items: []push.Item{{Queue: "a"}, {Queue: "a"}, {Queue: "b"}, {Queue: "a"}}})
	require.NoError(t, err)
	require.Equal(t, e.verdicts, verdicts)
	require.Equal(t, Counts{PushRequests: 1, PushMessages: 2}, m.Total())
	require.Equal(t, Counts{PushRequests: 1, PushMessages: 1}, countsOf(m, "a"))
	require.Equal(t, Counts{PushRequests: 1, PushMessages: 1}, countsOf(m, "b"))

	e.verdicts, e.err = nil, errors.New("stopped")
	_, err = m.Pusher(e).Push(t.Context(), push.Request{Items: []push.Item{{Queue: "a"}}})
	require.ErrorIs(t, err, e.err)
	require.Equal(t, Counts{PushRequests: 2, PushMessages: 1}, countsOf(m, "a"))
}

func TestPopsCountWhereTheirMessagesCameFrom(t *testing.T) {
	t.Parallel()
	m := New()
	e := &engine{}
	for _, kind := range []pop.Kind{pop.Queue, pop.Partition, pop.Discovery} {
		_, err := m.Popper(e).Pop(t.Context(), pop.Request{Kind: kind, Queue: "a"})
		require.NoError(t, err)
	}
	require.Equal(t, Counts{PopRequests: 3, PopEmpty: 3}, m.Total())
	require.Equal(t, Counts{PopRequests: 2, PopEmpty: 2}, countsOf(m, "a"))

	e.result = &pop.Result{Partitions: []pop.Batch{{Queue: "x", Messages: 2}, {Queue: "x", Messages: 3}, {Queue: "y", Messages: 4}}}
	_, err := m.Popper(e).Pop(t.Context(), pop.Request{Kind: pop.Discovery})
	require.NoError(t, err)
	require.Equal(t, Counts{PopRequests: 1, PopMessages: 5}, countsOf(m, "x"))
	require.Equal(t, Counts{PopRequests: 1, PopMessages: 4}, countsOf(m, "y"))
	e.result, e.err = nil, errors.New("away")
	_, err = m.Popper(e).Pop(t.Context(), pop.Request{Queue: "z"})
	require.ErrorIs(t, err, e.err)
	require.Equal(t, Counts{PopRequests: 5, PopMessages: 9, PopEmpty: 3}, m.Total())
}

func TestAcksCountByWhatTheConsumerSaid(t *testing.T) {
	t.Parallel()
	m := New()
	e := &engine{results: []ack.Result{{Success: true, Queue: "a"}, {Success: true, Queue: "a"}, {Success: false, Queue: "a"}, {Success: true, DeadLetter: true, Queue: "b"}, {Success: false}}}
	items := []ack.Item{{Status: "completed"}, {Status: "failed"}, {Status: "completed"}, {Status: "dlq"}, {Status: "ok"}}
	require.Equal(t, e.results, m.Acker(e).Ack(t.Context(), pg.DefaultTenant, "g", items))
	require.Equal(t, Counts{AckRequests: 1, AckMessages: 5, AckOK: 1, AckFailed: 4, DeadLetters: 1}, m.Total())
	require.Equal(t, Counts{AckRequests: 1, AckMessages: 3, AckOK: 1, AckFailed: 2}, countsOf(m, "a"))
	require.Len(t, m.Queues(), 2, "an unknown partition is of no queue")
	renewal, err := m.Acker(e).Extend(t.Context(), pg.DefaultTenant, "l", 1)
	require.NoError(t, err)
	require.Equal(t, 7, renewal.Renewed)
}

func TestTransactionsCountWhenTheyCommit(t *testing.T) {
	t.Parallel()
	m := New()
	e := &engine{err: errors.New("rolled back")}
	operations := []transaction.Operation{
		{Push: &push.Item{Queue: "a"}},
		{Push: &push.Item{Queue: "a"}},
		{Push: &push.Item{Queue: "b"}},
		{Ack: &transaction.AckOperation{Item: ack.Item{Status: "completed"}}},
		{Ack: &transaction.AckOperation{Item: ack.Item{Status: "failed"}}},
	}
	_, err := m.Transactor(e).Run(t.Context(), pg.DefaultTenant, "", operations, nil)
	require.ErrorIs(t, err, e.err)
	require.Equal(t, Counts{}, m.Total())
	e.err = nil
	e.outcome.Results = []transaction.Result{{}, {Duplicate: true}, {}, {}, {DeadLetter: true}}
	_, err = m.Transactor(e).Run(t.Context(), pg.DefaultTenant, "", operations, nil)
	require.NoError(t, err)
	require.Equal(t, Counts{Transactions: 1, PushMessages: 2, AckMessages: 2, AckOK: 1, AckFailed: 1, DeadLetters: 1}, m.Total())
	require.Equal(t, Counts{Transactions: 1, PushMessages: 1}, countsOf(m, "a"))
	require.Equal(t, Counts{Transactions: 1, PushMessages: 1}, countsOf(m, "b"))
}

func TestQueuesAreBounded(t *testing.T) {
	t.Parallel()
	m := New()
	for i := range maxQueues + 100 {
		if queue := m.queue(pg.DefaultTenant, fmt.Sprint(i)); queue == nil {
			require.GreaterOrEqual(t, i, maxQueues)
		}
	}
	require.Len(t, m.Queues(), maxQueues)
	for _, queue := range m.Queues() {
		m.Forget(queue)
		m.Forget(queue)
	}
	require.Empty(t, m.Queues())
	require.NotNil(t, m.queue(pg.DefaultTenant, "again"))
	require.NotSame(t, m.queue(pg.DefaultTenant, "again"), m.queue(uuid.New(), "again"), "tenants are told apart")
}

// Counting while queues come and go misses nothing in the totals, and nothing per queue as long as the queue stays.
func TestCountingIsConcurrent(t *testing.T) {
	t.Parallel()
	m := New()
	e := &engine{verdicts: []push.Verdict{{Status: push.StatusQueued}}}
	var group sync.WaitGroup
	const workers, rounds = 8, 2000
	for worker := range workers {
		group.Go(func() {
			for i := range rounds {
				queue := "stays"
				if i%4 == 0 {
					queue = fmt.Sprint(worker, i)
				}
				_, _ = m.Pusher(e).Push(context.Background(), push.Request{Items: []push.Item{{Queue: queue}}})
				if i%8 == 0 {
					for _, q := range m.Queues() {
						if q.Name != "stays" {
							m.Forget(q)
						}
						if i%512 != 0 {
							break
						}
					}
				}
			}
		})
	}
	group.Wait()
	require.EqualValues(t, workers*rounds, m.Total().PushMessages)
	require.EqualValues(t, workers*rounds*3/4, countsOf(m, "stays").PushMessages)
}

func TestLag(t *testing.T) {
	t.Parallel()
	m := New()
	now := time.Now()
	require.EqualValues(t, 1500, m.age(now, now.Add(-1500*time.Millisecond)))
	require.Zero(t, m.age(now, now.Add(time.Hour)), "a clock that is behind makes no message younger than new")
	m.SetClockOffset(time.Second)
	require.EqualValues(t, 2500, m.age(now, now.Add(-1500*time.Millisecond)))
	queue := m.queue(pg.DefaultTenant, "q")
	queue.sampleLag(10, 3)
	queue.sampleLag(40, 1)
	require.Equal(t, []int64{70, 4}, []int64{queue.Counts().LagSum, queue.Counts().LagCount})
	require.EqualValues(t, 40, queue.TakeLagMax())
	require.Zero(t, queue.TakeLagMax())
	queue.sampleLag(5, 1)
	queue.ReturnLagMax(40)
	require.EqualValues(t, 40, queue.TakeLagMax())
}

func TestCountingTakesNoMemory(t *testing.T) {
	m := New()
	e := &engine{verdicts: make([]push.Verdict, 100), results: make([]ack.Result, 100)}
	items, acks := make([]push.Item, 100), make([]ack.Item, 100)
	for i := range items {
		items[i].Queue, e.results[i].Queue = "q", "q"
	}
	pusher, acker, request := m.Pusher(e), m.Acker(e), push.Request{Items: items}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = pusher.Push(context.Background(), request)
		acker.Ack(context.Background(), pg.DefaultTenant, "g", acks)
	}))
}

func BenchmarkPush(b *testing.B) {
	m := New()
	pusher, request := m.Pusher(&engine{verdicts: make([]push.Verdict, 100)}), push.Request{Items: make([]push.Item, 100)}
	for i := range request.Items {
		request.Items[i].Queue = "orders"
	}
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			_, _ = pusher.Push(context.Background(), request)
		}
	})
}
