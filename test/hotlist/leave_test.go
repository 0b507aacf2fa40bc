package hotlist

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// Clients leave at random moments of their pops. Afterwards no partition is kept for them, and everything is delivered.
func TestClientsThatLeaveKeepNothing(t *testing.T) {
	t.Parallel()
	const partitions, leavers = 20, 400
	database := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 12})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	list := ready.NewHotList(ready.HotConfig{})
	gates, slots := ready.NewHot(list), admission.New(admission.Config{PoolSize: 12})
	pops, acks := pop.New(pop.Config{}, db, gates, slots), ack.New(ack.Config{}, db, gates, slots)
	pusher := push.New(push.Config{}, db, slots, func(tenant uuid.UUID, queue, partition string, _ uuid.UUID, n int) {
		gates.Stored(tenant, queue, partition, n)
	})
	ctx, stop := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	for _, run := range []func(context.Context) error{pops.Run, list.Run, pusher.Run, acks.Run} {
		loops.Go(func() { _ = run(ctx) })
	}
	defer loops.Wait()
	defer stop()
	request := func(wait time.Duration) pop.Request {
		return pop.Request{Tenant: pg.DefaultTenant, Queue: "orders", Group: "g", Batch: 3, MaxPartitions: 2, Wait: wait > 0, Timeout: wait, LeaseSeconds: 60}
	}

	var delivered atomic.Int64
	complete := func(result *pop.Result) {
		for i := range result.Partitions {
			delivered.Add(int64(result.Partitions[i].Messages))
		}
		result.Abandon(context.WithoutCancel(ctx)) // given back: all of it must come again
	}
	var clients sync.WaitGroup
	for i := range leavers {
		clients.Go(func() {
			leaving, leave := context.WithTimeout(ctx, time.Duration(rand.IntN(30_000))*time.Microsecond)
			defer leave()
			if result, err := pops.Pop(leaving, request(time.Minute)); err == nil && result != nil {
				complete(result)
			}
		})
		if i%8 == 0 {
			_, err := pusher.Push(ctx, push.Request{Tenant: pg.DefaultTenant, Items: []push.Item{
				{Queue: "orders", Partition: fmt.Sprint(rand.IntN(partitions)), Payload: []byte("1")},
			}})
			require.NoError(t, err)
		}
	}
	clients.Wait()
	require.Zero(t, list.Stats().InFlight, "a partition is kept for a client that left")
	require.Zero(t, gates.Waiting(pg.DefaultTenant, "orders"))
	require.Zero(t, slots.Stats().InFlight)

	// What was claimed by a statement that its client abandoned is held until its lease ends; end those.
	pool := database.Pool(t)
	_, err = pool.Exec(ctx, `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() WHERE worker_id IS NOT NULL`)
	require.NoError(t, err)
	var stored, seen int64
	require.NoError(t, pool.QueryRow(ctx, `SELECT sum(last_offset + 1)::bigint FROM queen.log_partitions`).Scan(&stored))
	for seen < stored {
		req := request(5 * time.Second)
		req.AutoAck = true
		result, err := pops.Pop(ctx, req)
		require.NoError(t, err)
		require.NotNil(t, result, "%d of %d messages were delivered", seen, stored)
		seen += int64(result.Messages())
		result.Release()
	}
	require.Equal(t, stored, seen)
}
