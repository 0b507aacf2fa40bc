package pg_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString()})
	require.NoError(t, err)
	t.Cleanup(db.Close)

	before, err := db.Inspect(t.Context())
	require.NoError(t, err)
	require.Zero(t, before.SchemaVersion)
	require.Equal(t, "schema.sql", before.Missing[0])
	require.NotEmpty(t, before.ServerVersion)
	require.Positive(t, before.MaxConnections)
	require.Positive(t, before.RoundTrip)
	require.Less(t, before.ClockOffset.Abs(), time.Minute)
	require.Contains(t, before.Risky, "fsync=off", "the test server is fast and forgetful")

	require.NoError(t, db.ApplySchema(t.Context()))
	after, err := db.Inspect(t.Context())
	require.NoError(t, err)
	require.Equal(t, pg.SchemaVersion, after.SchemaVersion)
	require.Empty(t, after.Missing)

	_, err = database.Pool(t).Exec(t.Context(), "UPDATE queen.schema_version SET version = version + 1")
	require.NoError(t, err)
	newer, err := db.Inspect(t.Context())
	require.ErrorIs(t, err, pg.ErrNewerSchema)
	require.Equal(t, pg.SchemaVersion+1, newer.SchemaVersion)
}
