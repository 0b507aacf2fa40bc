package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
