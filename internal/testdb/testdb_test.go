package testdb_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDatabasesAreIsolated(t *testing.T) {
	t.Parallel()
	one, two := testdb.New(t), testdb.New(t, testdb.TimeZone("Asia/Kolkata"))
	require.NotEqual(t, one.Name, two.Name)
	_, err := one.Pool(t).Exec(t.Context(), "CREATE TABLE only_here (n int)")
	require.NoError(t, err)

	var exists bool
	var zone string
	require.NoError(t, two.Pool(t).QueryRow(t.Context(), "SELECT to_regclass('only_here') IS NOT NULL, current_setting('TimeZone')").Scan(&exists, &zone))
	require.False(t, exists, "databases share tables")
	require.Equal(t, "Asia/Kolkata", zone)
}

func TestNewEmptyHasNoSchema(t *testing.T) {
	t.Parallel()
	var exists bool
	require.NoError(t, testdb.NewEmpty(t).Pool(t).QueryRow(t.Context(), "SELECT to_regnamespace('queen') IS NOT NULL").Scan(&exists))
	require.False(t, exists)
}

func TestServerKeepsCommittedDataOverAKill(t *testing.T) {
	t.Parallel()
	server := testdb.StartServer(t, testdb.ServerOptions{Settings: map[string]string{"max_connections": "10"}})
	database := testdb.OnServer(server, "postgres")
	pool := database.Pool(t)
	_, err := pool.Exec(t.Context(), "CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)")
	require.NoError(t, err)

	server.Kill(t)
	require.Eventually(t, func() bool { return pool.Ping(t.Context()) != nil }, 10*time.Second, 5*time.Millisecond)
	server.Start(t)

	var n int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT n FROM kept").Scan(&n))
	require.Equal(t, 7, n)
}
