package chaos

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

// Brokers whose clocks are a year ahead and a year behind do what one with a good clock does: every deadline is the database's.
func TestBrokersWithWrongClocks(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	var clients []*wire.Client
	for i, shift := range []int{0, year, -year} {
		broker := stack.NewProcess(t, database.ConnString(), stack.ProcessOptions{Binary: stack.ShiftedClock, Env: []string{
			fmt.Sprintf("%s=%d", stack.ClockShift, shift), fmt.Sprint("QUEEN_SERVER_ID=broker-", i), "DB_POOL_SIZE=10", "RETENTION_INTERVAL=200", "METRICS_FLUSH_MS=1000",
		}})
		broker.Start(t)
		require.Contains(t, broker.Log(), map[int]string{0: "queen is ready", year: "the database's is -31", -year: "the database's is +31"}[shift], "the clock is as wrong as it should be")
		client := wire.NewClient(broker.URL, 8)
		t.Cleanup(client.Close)
		clients = append(clients, client)
	}
	pool := database.Pool(t)
	now := func() (at time.Time) {
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&at))
		return at
	}
	t.Run("pairs", func(t *testing.T) {
		for i, client := range clients {
			for j, other := range clients {
				if i != j {
					t.Run(fmt.Sprintf("%d and %d", i, j), func(t *testing.T) {
						t.Parallel()
						judgeClocks(t, client, other, fmt.Sprintf("clock.%d.%d", i, j), now)
					})
				}
			}
		}
	})
	// All three live, in the eyes of each; what they count is stored under the database's time; nothing was taken for old.
	for _, client := range clients {
		var list struct {
			Brokers []struct{ Alive bool }
		}
		_, err := client.Do(t.Context(), http.MethodGet, "/api/v1/system/brokers", nil, &list)
		require.NoError(t, err)
		require.Len(t, list.Brokers, 3)
		for _, one := range list.Brokers {
			require.True(t, one.Alive)
		}
	}
	require.Eventually(t, func() bool {
		var rows, strange int
		err := pool.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE abs(extract(epoch FROM clock_timestamp() - bucket_time)) > 3600) FROM queen.worker_metrics`).Scan(&rows, &strange)
		require.NoError(t, err)
		require.Zero(t, strange)
		return rows > 0
	}, 30*time.Second, 50*time.Millisecond)
	var stored int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT sum(last_offset + 1) FROM queen.log_partitions`).Scan(&stored))
	var segments int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT sum(end_offset - base_offset + 1) FROM queen.log_segments`).Scan(&segments))
	require.Equal(t, stored, segments, "retention deleted what is an hour from being old")
}

// judgeClocks runs a message through two brokers and compares every time with the database's clock.
func judgeClocks(t *testing.T, client, other *wire.Client, queue string, now func() time.Time) {
	t.Helper()
	pop := func(client *wire.Client, lease int) *wire.Batch {
		t.Helper()
		batch, err := client.Pop(t.Context(), wire.PopRequest{Queue: queue, AnyPartition: true, Group: "g", LeaseSeconds: lease, Batch: 10, Mode: "all"})
		require.NoError(t, err)
		return batch
	}
	require.NoError(t, client.Configure(t.Context(), queue, map[string]any{"dedupWindowSeconds": 60, "retentionEnabled": true, "retentionSeconds": 3600}))
	items := []wire.PushItem{{Queue: queue, Partition: "p", TransactionID: "t", Payload: json.RawMessage(`1`)}}
	began := now()
	for at, pusher := range []*wire.Client{client, other} {
		verdicts, err := pusher.Push(t.Context(), items)
		require.NoError(t, err)
		require.Equal(t, []string{"queued", "duplicate"}[at], verdicts[0].Status)
	}
	// A lease that one grants holds against the other until the database says that it is over, and not longer.
	batch := pop(client, 1)
	require.Len(t, batch.Messages, 1)
	created, err := time.Parse(time.RFC3339Nano, batch.Messages[0].CreatedAt)
	require.NoError(t, err)
	require.WithinRange(t, created, began.Add(-time.Second), now().Add(time.Second))
	extended, err := other.Extend(t.Context(), batch.LeaseID, 2)
	require.NoError(t, err)
	require.True(t, extended.Success)
	until, err := time.Parse(time.RFC3339Nano, *extended.NewExpiresAt)
	require.NoError(t, err)
	require.WithinRange(t, until, began.Add(time.Second), now().Add(3*time.Second))
	again := pop(other, 60)
	for again == nil {
		time.Sleep(50 * time.Millisecond) // the end of a lease tells nobody
		again = pop(other, 60)
	}
	require.False(t, now().Before(until), "claimed again before the lease was over")
	require.Less(t, now().Sub(until), 20*time.Second, "claimed again long after the lease was over")
	m := again.Messages[0]
	results, err := client.Ack(t.Context(), "g", []wire.AckItem{{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID}})
	require.NoError(t, err)
	require.True(t, results[0].Success)
	// A group that wants only what is new sees nothing old, and what is pushed from now on.
	fresh, err := other.Pop(t.Context(), wire.PopRequest{Queue: queue, AnyPartition: true, Group: "new", Mode: "new"})
	require.NoError(t, err)
	require.Nil(t, fresh)
	items[0].TransactionID = "u"
	_, err = client.Push(t.Context(), items)
	require.NoError(t, err)
	fresh, err = other.Pop(t.Context(), wire.PopRequest{Queue: queue, AnyPartition: true, Group: "new", Mode: "new", Wait: true, Timeout: 10 * time.Second})
	require.NoError(t, err)
	require.NotNil(t, fresh)
}
