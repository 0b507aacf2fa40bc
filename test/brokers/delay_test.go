package brokers

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/test/wire"
)

// A failed message waits for redeliveryDelayMs, and then no longer: whoever is parked for it, at the broker that was told of the
// failure or at another one, gets it within a quarter of a second, by the clock of the database. The median is asked for, because a
// single delivery may fall into a pause of the machine.
func TestRedeliveryIsNeitherEarlyNorLate(t *testing.T) {
	t.Parallel()
	const delay, late, rounds = 400 * time.Millisecond, 250 * time.Millisecond, 5
	for name, request := range map[string]wire.PopRequest{
		"Queue":     {AnyPartition: true, Queue: "again.queue", Group: "billing", Batch: 10},
		"Partition": {Queue: "again.partition", Partition: "p1", Group: "billing", Batch: 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t)
			require.NoError(t, p.a.Configure(t.Context(), request.Queue, map[string]any{"redeliveryDelayMs": delay.Milliseconds(), "retryLimit": 1000}))
			push(t, p.a, request.Queue, "p1", "1")
			held, err := p.a.Pop(t.Context(), request)
			require.NoError(t, err)
			for where, client := range map[string]*wire.Client{"the same broker": p.a, "another broker": p.b} {
				var lateness []time.Duration
				for range rounds {
					// The poll is there before the failure, or comes while it waits.
					answer := make(chan popped, 1)
					parked := request
					parked.Wait, parked.Timeout = true, limit
					go func() {
						batch, err := client.Pop(context.WithoutCancel(t.Context()), parked)
						answer <- popped{batch: batch, err: err}
					}()
					m := held.Messages[0]
					results, err := p.a.Ack(t.Context(), request.Group, []wire.AckItem{{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Status: "failed"}})
					require.NoError(t, err)
					require.True(t, results[0].Success, results[0].Error)
					var due time.Time
					require.NoError(t, p.db.QueryRow(t.Context(), `SELECT lease_expires_at FROM queen.log_consumers WHERE partition_id = $1 AND worker_id = '__retry__'`, m.PartitionID).Scan(&due))
					got := <-answer
					require.NoError(t, got.err)
					require.NotNil(t, got.batch, "the long poll ended with nothing")
					held = got.batch
					var claimed time.Time
					require.NoError(t, p.db.QueryRow(t.Context(), `SELECT lease_acquired_at FROM queen.log_consumers WHERE partition_id = $1 AND worker_id = $2`, m.PartitionID, held.Messages[0].LeaseID).Scan(&claimed))
					require.False(t, claimed.Before(due), "it comes %s early", due.Sub(claimed))
					lateness = append(lateness, claimed.Sub(due))
				}
				slices.Sort(lateness)
				t.Logf("parked at %s: late by %v", where, lateness)
				require.LessOrEqual(t, lateness[rounds/2], late, "parked at %s", where)
			}
		})
	}
}
