package pg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a pool on the database, closed when the test ends.
func open(t testing.TB, connString string, change ...func(*pg.Options)) *pg.DB {
	t.Helper()
	o := pg.Options{ConnString: connString, MaxConns: 16, ApplicationName: "queen test"}
	for _, f := range change {
		f(&o)
	}
	db, err := pg.Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db
}

// setup returns a fresh database with the schema and a pool on it.
func setup(t testing.TB, change ...func(*pg.Options)) (*pg.DB, *testdb.Database) {
	t.Helper()
	database := testdb.New(t)
	return open(t, database.ConnString(), change...), database
}

// eventually polls a condition that must become true soon.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, 20*time.Second, 10*time.Millisecond, what)
}
