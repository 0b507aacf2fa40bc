package pgtx_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"queenmq/queen"
)

// TestBesideBrokers: workers that move messages from one queue to another in their own transactions, and workers that do the same through
// a broker, share the work. Every message arrives once and in order, and nobody deadlocks.
func TestBesideBrokers(t *testing.T) {
	t.Parallel()
	client, db := broker(t)
	q := newClient(t, db)
	const partitions, each = 6, 30
	var all []queen.Item
	for n := range each {
		for p := range partitions {
			all = append(all, queen.Item{Queue: "beside.source", Partition: fmt.Sprint(p), Payload: fmt.Append(nil, n)})
		}
	}
	_, err := client.Push(t.Context(), all...)
	require.NoError(t, err)
	moved := func(batch *queen.Batch) []queen.Item {
		var next []queen.Item
		for _, m := range batch.Messages {
			next = append(next, queen.Item{Queue: "beside.sink", Partition: m.Partition, Payload: m.Payload})
		}
		return next
	}
	ways := []func(batch *queen.Batch) error{
		func(batch *queen.Batch) error {
			return commit(t.Context(), db, func(tx pgx.Tx) error {
				if _, err := q.PushTx(t.Context(), tx, moved(batch)...); err != nil {
					return err
				}
				return q.AckTx(t.Context(), tx, batch.Completed()...)
			})
		},
		func(batch *queen.Batch) error {
			_, err := client.Transaction().Ack(batch.Completed()...).Push(moved(batch)...).Commit(t.Context())
			return err
		},
	}
	var workers sync.WaitGroup
	for w := range 8 {
		workers.Go(func() {
			for {
				batch, err := client.Pop(t.Context(), "beside.source", queen.PopOptions{Group: "movers", Batch: 7, Partitions: 3, Wait: time.Second, Lease: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				if len(batch.Messages) == 0 {
					return
				}
				if err := ways[w%2](batch); err != nil && !errors.Is(err, queen.ErrLeaseLost) {
					t.Error(err)
					return
				}
			}
		})
	}
	workers.Wait()
	got := map[string][]string{}
	for {
		batch, err := client.Pop(t.Context(), "beside.sink", queen.PopOptions{Batch: 10_000, Partitions: -1})
		require.NoError(t, err)
		if len(batch.Messages) == 0 {
			break
		}
		for _, m := range batch.Messages {
			got[m.Partition] = append(got[m.Partition], string(m.Payload))
		}
		_, err = client.Ack(t.Context(), batch.Completed()...)
		require.NoError(t, err)
	}
	var want []string
	for n := range each {
		want = append(want, fmt.Sprint(n))
	}
	require.Len(t, got, partitions)
	for p := range got {
		require.Equal(t, want, got[p], "partition %s", p)
	}
}
