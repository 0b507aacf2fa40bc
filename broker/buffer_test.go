package broker_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/spool"
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

// A broker that is started on another database than the one that its file buffer was filled for says so and stores nothing, also when the
// database is away at the start.
func TestBufferIsNotStoredInAnotherDatabase(t *testing.T) {
	t.Parallel()
	server := testdb.StartServer(t, testdb.ServerOptions{})
	database := func(name string) map[string]string {
		return map[string]string{"DATABASE_URL": testdb.OnServer(server, name).ConnString()}
	}
	env := database("postgres")
	env["FILE_BUFFER_DIR"] = t.TempDir()
	r := begin(t, env).ready(t)
	_, err := testdb.OnServer(server, "postgres").Pool(t).Exec(t.Context(), "CREATE DATABASE other")
	require.NoError(t, err)
	server.Stop(t, "immediate")
	a, err := r.do("POST", r.URL()+"/api/v1/push", `{"items":[{"queue":"q","payload":"kept"}]}`)
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, a.status, a.body)
	require.Contains(t, a.body, `"buffered"`)
	require.NoError(t, r.end(t))

	wrong := database("other")
	wrong["FILE_BUFFER_DIR"] = env["FILE_BUFFER_DIR"]
	r = begin(t, wrong) // waits
	server.Start(t)
	err = r.result(t)
	require.ErrorIs(t, err, spool.ErrOtherDatabase)
	for _, says := range []string{"FILE_BUFFER_DIR", "1 messages that wait", "/postgres", "/other", "delete the file"} {
		require.ErrorContains(t, err, says)
	}
	require.NotContains(t, err.Error(), "\n")

	r = begin(t, env).ready(t)
	require.Eventually(t, func() bool { return len(r.payloads(t, "q")) == 1 }, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, r.end(t))
	r = begin(t, wrong).ready(t) // which is empty now
	require.NoError(t, r.end(t))
}
