package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

// Of three brokers one applies retention. When it is killed another goes on.
func TestRetentionHasOneLeader(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	brokers := make([]*stack.Process, 3)
	for i := range brokers {
		brokers[i] = stack.StartProcess(t, database.ConnString(), "RETENTION_INTERVAL=200", "DB_POOL_SIZE=10", fmt.Sprint("QUEEN_SERVER_ID=broker-", i))
	}
	pool := database.Pool(t)
	client := wire.NewFailoverClient([]string{brokers[0].URL, brokers[1].URL, brokers[2].URL}, 8)
	defer client.Close()
	require.NoError(t, client.Configure(t.Context(), "aging", map[string]any{"retentionEnabled": true, "retentionSeconds": 1, "completedRetentionSeconds": 1}))
	ages := func() bool {
		_, err := client.Push(t.Context(), []wire.PushItem{{Queue: "aging", Payload: json.RawMessage(`1`)}})
		require.NoError(t, err)
		return assertEventually(func() bool {
			var left int
			err := pool.QueryRow(t.Context(), `SELECT count(*) FROM queen.log_segments`).Scan(&left)
			return err == nil && left == 0
		}, 30*time.Second)
	}
	require.True(t, ages(), "retention works")
	// Each cycle is led by whoever gets the lock, so that more than one broker may have applied retention last, one after another.
	leader := func(but int) int {
		for i, broker := range brokers {
			if i != but && isLeader(broker) {
				return i
			}
		}
		return -1
	}
	dead := -1
	require.Eventually(t, func() bool {
		dead = leader(-1)
		return dead >= 0
	}, 30*time.Second, 20*time.Millisecond)
	brokers[dead].Kill()
	require.Eventually(t, func() bool { return leader(dead) >= 0 }, 15*time.Second, 20*time.Millisecond, "another broker leads")
	require.True(t, ages(), "retention goes on")
}

// Statistics are computed by one broker at a time. When it is killed in the middle of it - its session holds the lock and waits for a table -
// another goes on, and the figures become what is stored.
func TestStatisticsHaveOneLeader(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	const interval = time.Second
	brokers := make([]*stack.Process, 3)
	for i := range brokers {
		brokers[i] = stack.StartProcess(t, database.ConnString(), fmt.Sprint("STATS_INTERVAL_MS=", interval.Milliseconds()), "DB_POOL_SIZE=10", fmt.Sprint("QUEEN_SERVER_ID=broker-", i))
	}
	pool := database.Pool(t)
	client := wire.NewFailoverClient([]string{brokers[0].URL, brokers[1].URL, brokers[2].URL}, 8)
	defer client.Close()
	stored := 0
	counted := func() bool {
		items := make([]wire.PushItem, 7)
		for i := range items {
			items[i] = wire.PushItem{Queue: "counted", Payload: json.RawMessage(`1`)}
		}
		_, err := client.Push(t.Context(), items)
		require.NoError(t, err)
		stored += len(items)
		return assertEventually(func() bool {
			var total int
			err := pool.QueryRow(t.Context(), `SELECT total_messages FROM queen.stats WHERE stat_type = 'queue'`).Scan(&total)
			return err == nil && total == stored
		}, 30*time.Second)
	}
	require.True(t, counted(), "statistics are computed")

	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `LOCK TABLE queen.stats IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	leader := func() (names []string) {
		err := pool.QueryRow(t.Context(), `SELECT COALESCE(array_agg(a.application_name), '{}') FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
			WHERE l.locktype = 'advisory' AND l.objid = $1 AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`, pg.StatsLock).Scan(&names)
		require.NoError(t, err)
		require.LessOrEqual(t, len(names), 1, "one at a time")
		return names
	}
	led := func(by func(i int) bool) (who int, found bool) {
		found = assertEventually(func() bool {
			for _, name := range leader() {
				for i := range brokers {
					if strings.Contains(name, fmt.Sprint("broker-", i)) && by(i) {
						who = i
						return true
					}
				}
			}
			return false
		}, 30*time.Second)
		return who, found
	}
	dead, found := led(func(int) bool { return true })
	require.True(t, found, "a broker leads")
	brokers[dead].Kill()
	_, found = led(func(i int) bool { return i != dead })
	require.True(t, found, "another broker leads, although nobody told the dead one's session")
	require.NoError(t, tx.Rollback(t.Context()))
	require.True(t, counted(), "statistics are computed as before")
}

// isLeader reads the figure of one broker; a dead one does not lead.
func isLeader(broker *stack.Process) bool {
	response, err := http.Get(broker.URL + "/metrics/prometheus")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return err == nil && strings.Contains(string(text), "\nqueen_retention_leader 1\n")
}

func assertEventually(condition func() bool, limit time.Duration) bool {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		if condition() {
			return true
		}
		time.Sleep(20 * time.Millisecond) // poll of a condition, bounded by the deadline
	}
	return false
}
