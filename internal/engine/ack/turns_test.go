package ack

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

// Acks that wait for one row must not keep the acks of all others waiting.
func TestARowThatIsLockedHoldsFewSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, _ := setup(t, Config{})
		locked := make(chan struct{})
		db.ack = func(ctx context.Context, a pg.HashAck) (pg.HashAckResult, error) {
			if a.Group != "locked" {
				return pg.HashAckResult{OK: true}, nil
			}
			select {
			case <-locked:
				return pg.HashAckResult{OK: true}, nil
			case <-ctx.Done():
				return pg.HashAckResult{}, ctx.Err()
			}
		}
		ack := func(ctx context.Context, group string) Result {
			return server.Ack(ctx, tenant, group, []Item{{TransactionID: "a", PartitionID: partition.String(), Status: Completed}})[0]
		}
		var waiting sync.WaitGroup
		results := make([]Result, 200)
		for i := range results {
			waiting.Go(func() { results[i] = ack(t.Context(), "locked") })
		}
		synctest.Wait()
		require.Equal(t, turnsAtOnce, server.slots.Stats().InFlight)
		for i := range 100 {
			require.True(t, ack(t.Context(), fmt.Sprintf("free %d", i)).Success)
		}
		close(locked)
		waiting.Wait()
		for _, r := range results {
			require.True(t, r.Success)
		}
		require.Empty(t, server.turns.waiting)
	})
}

func TestTurnsEndWithTheirCaller(t *testing.T) {
	t.Parallel()
	var order turns
	key := batchKey{uuid.New(), "g"}
	var held []func()
	for range turnsAtOnce {
		done, err := order.take(t.Context(), key)
		require.NoError(t, err)
		held = append(held, done)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := order.take(ctx, key)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for _, done := range held {
		done()
	}
	require.Empty(t, order.waiting)
}
