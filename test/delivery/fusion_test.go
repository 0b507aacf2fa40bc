package delivery

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/pop"
	"queenmq/internal/pg"
)

func popOf(partition string) pop.Request {
	req := queuePop()
	req.Kind, req.Partition = pop.Partition, partition
	return req
}

func TestStaleAckInASharedCommitFailsAlone(t *testing.T) {
	t.Parallel()
	e := setup(t)
	for _, partition := range []string{"a", "b", "c"} {
		e.push(partition, partition+"1", partition+"2")
	}
	a, b, c := e.pop(popOf("a")), e.pop(popOf("b")), e.pop(popOf("c"))
	_, err := e.sql.Exec(t.Context(), `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE worker_id = $1`, b.LeaseID)
	require.NoError(t, err)
	taken, err := pg.Open(t.Context(), pg.Options{ConnString: e.connString, MaxConns: 2}) // another broker, which ours knows nothing of
	require.NoError(t, err)
	t.Cleanup(taken.Close)
	claim, err := taken.PopSpecific(t.Context(), pg.PopRequest{
		Tenant: pg.DefaultTenant, Queue: "orders", Partition: "b", Group: "billing", Budget: 10, LeaseSeconds: 60, Worker: "thief", SubMode: "all",
	})
	require.NoError(t, err)
	require.Len(t, claim.Partitions, 1)

	results := e.ack(append(append(a.all("completed"), b.all("completed")...), c.all("completed")...)...)

	for i, result := range results {
		if i == 2 || i == 3 {
			require.Equal(t, "invalid or expired lease", result.Error)
			require.False(t, result.Success)
			continue
		}
		require.True(t, result.Success, "%+v", result)
		require.True(t, result.LeaseReleased)
	}
	require.EqualValues(t, 3, e.acks.Stats().Hits, "all three were recognised")
	require.EqualValues(t, 1, e.committed("a"))
	require.EqualValues(t, -1, e.committed("b"))
	require.EqualValues(t, 1, e.committed("c"))
	require.Equal(t, "thief", value[string](e, `SELECT worker_id FROM queen.log_consumers WHERE worker_id IS NOT NULL`), "the new holder keeps its batch")
}

func TestBackendLostInASharedCommitLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	e := setupAcks(t, pop.Config{Backoff: pop.Backoff{Initial: time.Hour}}, ack.Config{Shards: 1})
	const partitions = 5
	batches := make([]*delivered, partitions)
	for i := range batches {
		name := fmt.Sprint("p", i)
		e.push(name, name+"-1", name+"-2")
		batches[i] = e.pop(popOf(name))
	}
	// A transaction of somebody else holds the table, so that the commit is caught in the middle.
	blocker, err := e.sql.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), `LOCK TABLE queen.log_consumers IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)

	answers := make([][]ack.Result, partitions)
	var acking sync.WaitGroup
	for i := range batches {
		acking.Go(func() {
			answers[i] = e.acks.Ack(context.Background(), pg.DefaultTenant, "billing", batches[i].all("completed"))
		})
	}
	// The first commit carries some of them, the next one the rest: both lose their backend.
	done := make(chan struct{})
	go func() { acking.Wait(); close(done) }()
	require.Eventually(t, func() bool {
		_, err := e.sql.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE '%log_ack_batches_v1(%' AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()`)
		if err != nil {
			return false
		}
		select {
		case <-done:
			return true
		default:
			return false
		}
	}, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, blocker.Rollback(t.Context()))

	for i := range batches {
		for _, result := range answers[i] {
			require.Equal(t, "ack flush failed; lease will expire and redeliver", result.Error)
			require.False(t, result.Success)
		}
		require.EqualValues(t, -1, e.committed(fmt.Sprint("p", i)))
	}
	e.expire()
	for i := range batches {
		again := e.pop(popOf(fmt.Sprint("p", i)))
		require.Equal(t, batches[i].names(), again.names())
		e.acked(again.all("completed")...)
		require.EqualValues(t, 1, e.committed(fmt.Sprint("p", i)))
	}
}

func TestManyWholeAcksShareFewCommits(t *testing.T) {
	t.Parallel()
	e := setupAcks(t, pop.Config{Backoff: pop.Backoff{Initial: time.Hour}}, ack.Config{Shards: 1})
	const partitions = 200
	batches := make([]*delivered, partitions)
	for i := range batches {
		name := fmt.Sprint("p", i)
		e.push(name, name)
		batches[i] = e.pop(popOf(name))
	}
	// While the first commit waits for the table, all others come.
	blocker, err := e.sql.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), `LOCK TABLE queen.log_consumers IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	var acking sync.WaitGroup
	for _, batch := range batches {
		acking.Go(func() {
			for _, result := range e.acks.Ack(context.Background(), pg.DefaultTenant, "billing", batch.all("completed")) {
				if !result.Success || !result.LeaseReleased {
					t.Errorf("%+v", result)
				}
			}
		})
	}
	require.Eventually(t, func() bool { return e.acks.Stats().Hits == partitions }, 30*time.Second, time.Millisecond)
	require.NoError(t, blocker.Rollback(t.Context()))
	acking.Wait()
	stats := e.acks.Stats()
	require.EqualValues(t, partitions, stats.Rows)
	require.LessOrEqual(t, stats.Flushes, uint64(partitions/10), "one that waited, and the rest together, but for those that were recognised and not yet in line")
	require.Equal(t, partitions, value[int](e, `SELECT count(*)::int FROM queen.log_consumers WHERE committed = 0 AND worker_id IS NULL`))
}
