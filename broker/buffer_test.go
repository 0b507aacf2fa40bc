package broker_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

// outage is a broker whose database server can be stopped.
func outage(t *testing.T, env map[string]string) (*run, *testdb.Server) {
	t.Helper()
	server := testdb.StartServer(t, testdb.ServerOptions{})
	env["DATABASE_URL"] = testdb.OnServer(server, "postgres").ConnString()
	return begin(t, env).ready(t), server
}

func TestBrokerWithoutBufferFailsPushesWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	r, server := outage(t, map[string]string{"FILE_BUFFER_DIR": filepath.Join(file, "below")})
	require.Contains(t, r.log.String(), "the file buffer cannot be used")
	server.Stop(t, "immediate")
	a, err := r.do("POST", r.URL()+"/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.Contains(t, a.body, `"code":"database_unavailable"`)
	server.Start(t)
	require.NoError(t, r.end(t))
}

func TestFullBufferIsAnsweredWithItsCode(t *testing.T) {
	t.Parallel()
	r, server := outage(t, map[string]string{"FILE_BUFFER_MAX_BYTES": "3000"})
	server.Stop(t, "immediate")
	statuses := map[int]int{}
	var last answer
	for range 40 {
		a, err := r.do("POST", r.URL()+"/api/v1/push", `{"items":[{"queue":"q","payload":"some text"}]}`)
		require.NoError(t, err)
		statuses[a.status]++
		last = a
	}
	require.Greater(t, statuses[http.StatusCreated], 3)
	require.Equal(t, http.StatusServiceUnavailable, last.status)
	require.Contains(t, last.body, `"code":"buffer_full"`)
	kept := statuses[http.StatusCreated]

	var state struct {
		BufferedMessages int
		BufferHealthy    bool
		BufferStats      struct {
			PendingCount int
			DBHealthy    bool
			FailedFiles  struct {
				Count      int
				TotalBytes int64
			}
		}
	}
	look := func() {
		a, err := r.do("GET", r.URL()+"/api/v1/system/maintenance", "")
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal([]byte(a.body), &state), a.body)
	}
	look()
	require.Equal(t, kept, state.BufferedMessages)
	require.Equal(t, kept, state.BufferStats.PendingCount)
	require.False(t, state.BufferHealthy || state.BufferStats.DBHealthy)
	require.Positive(t, state.BufferStats.FailedFiles.Count)
	require.Positive(t, state.BufferStats.FailedFiles.TotalBytes)

	server.Start(t)
	began := time.Now()
	require.Eventually(t, func() bool { look(); return state.BufferedMessages == 0 }, 30*time.Second, 10*time.Millisecond)
	t.Logf("stored %s after the start of the database", time.Since(began))
	require.True(t, state.BufferHealthy)
	a, err := r.do("GET", r.URL()+"/api/v1/pop/queue/q?batch=1000&consumerGroup=g", "")
	require.NoError(t, err)
	var batch struct{ Messages []any }
	require.NoError(t, json.Unmarshal([]byte(a.body), &batch))
	require.Len(t, batch.Messages, kept)
	require.NoError(t, r.end(t))
}
