package delivery

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
)

// setupHandover returns an engine with a hot list, and a pusher that hands messages over to its parked pops.
func setupHandover(t *testing.T) (*engine, func(partition string, names ...string)) {
	t.Helper()
	e := setupGates(t, ready.NewHot(ready.NewHotList(ready.HotConfig{})), pop.Config{Backoff: pop.Backoff{Initial: time.Hour}}, ack.Config{})
	pusher := push.New(push.Config{Handover: e.pops.Handover}, e.db, e.slots, func(tenant uuid.UUID, queue, partition string, _ uuid.UUID, n int) {
		e.gates.Stored(tenant, queue, partition, n)
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- pusher.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	e.configure(`{"dedupWindowSeconds":0}`)
	return e, func(partition string, names ...string) {
		t.Helper()
		items := make([]push.Item, len(names))
		for i, name := range names {
			items[i] = push.Item{Queue: "orders", Partition: partition, TransactionID: name, Payload: fmt.Appendf(nil, "%q", name)}
		}
		verdicts, err := pusher.Push(t.Context(), push.Request{Tenant: pg.DefaultTenant, Items: items})
		require.NoError(t, err)
		for _, v := range verdicts {
			require.Equal(t, push.StatusQueued, v.Status)
		}
	}
}

// settle makes group and partition known, and leaves nothing pending.
func (e *engine) settle(store func(partition string, names ...string)) {
	e.t.Helper()
	for _, name := range []string{"first", "second"} { // the first pop of a group searches the database
		store("p", name)
		d := e.pop(queuePop())
		require.Equal(e.t, []string{name}, d.names())
		e.acked(d.all("completed")...)
		require.Empty(e.t, e.pop(queuePop()).names())
	}
}

// What a parked pop gets from the commit of a push is leased, acknowledged, delivered again and filed like everything else.
func TestHandedOverIsLeased(t *testing.T) {
	t.Parallel()
	e, store := setupHandover(t)
	e.settle(store)
	claims := e.pops.Stats().Targeted

	parked := e.popParked(queuePop())
	store("p", "1", "2", "3")
	d := <-parked
	require.Equal(t, []string{"1", "2", "3"}, d.names())
	require.EqualValues(t, 1, e.pops.Stats().Handed)
	require.Equal(t, claims, e.pops.Stats().Targeted, "it needed no claim")
	require.Equal(t, d.LeaseID, value[string](e, `SELECT worker_id FROM queen.log_consumers`))

	waits := e.popParked(queuePop())
	store("p", "4") // behind a lease: nobody gets it
	require.Equal(t, 1, value[int](e, `SELECT count(*)::int FROM queen.log_consumers WHERE worker_id = $1`, d.LeaseID))
	for _, result := range e.acked(d.all("completed")...) {
		require.True(t, result.LeaseReleased)
	}
	d = <-waits
	require.Equal(t, []string{"4"}, d.names())
	require.EqualValues(t, 1, e.pops.Stats().Handed)
	e.acked(d.item(0, "failed"))
	again := e.pop(queuePop())
	require.Equal(t, []string{"4"}, again.names())
	e.acked(again.all("completed")...)

	parked = e.popParked(queuePop())
	store("p", "5")
	require.Equal(t, []string{"5"}, (<-parked).names())
	require.EqualValues(t, 2, e.pops.Stats().Handed)
	e.expire()
	var late *delivered
	require.Eventually(t, func() bool { late = e.pop(queuePop()); return len(late.Messages) > 0 }, 20*time.Second, 10*time.Millisecond, "its lease ran out")
	require.Equal(t, []string{"5"}, late.names())
	e.acked(late.all("completed")...)
	require.EqualValues(t, 6, e.committed("p"))
}

// A pop gets no more than it asked for; the rest is for the next one.
func TestHandedOverWithinTheBatch(t *testing.T) {
	t.Parallel()
	e, store := setupHandover(t)
	e.settle(store)
	req := queuePop()
	req.Batch = 2
	parked := e.popParked(req)
	store("p", "1", "2", "3")
	d := <-parked
	require.Equal(t, []string{"1", "2"}, d.names())
	require.EqualValues(t, 1, e.pops.Stats().Handed)
	require.Empty(t, e.pop(queuePop()).names())
	e.acked(d.all("completed")...)
	rest := e.pop(queuePop())
	require.Equal(t, []string{"3"}, rest.names())
	e.acked(rest.all("completed")...)
}

// What the queue holds back, and what is to be acknowledged by the pop itself, is not handed over.
func TestNotHandedOver(t *testing.T) {
	t.Parallel()
	e, store := setupHandover(t)
	e.settle(store)
	req := queuePop()
	req.AutoAck = true
	parked := e.popParked(req)
	store("p", "1")
	require.Equal(t, []string{"1"}, (<-parked).names())

	parked = e.popParked(queuePop())
	_, err := e.sql.Exec(t.Context(), `UPDATE queen.log_consumers SET committed = 1 WHERE consumer_group = 'billing'`)
	require.NoError(t, err)
	store("p", "2") // a seek that nobody was told of has put "1" before it
	require.Equal(t, []string{"1", "2"}, (<-parked).names())
	require.Zero(t, e.pops.Stats().Handed)
}
