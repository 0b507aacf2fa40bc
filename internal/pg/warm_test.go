package pg_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

func TestWarmSessionsHaveMetTheDataPathAndLeaveNothing(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 2, Warm: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.Ping(t.Context()))

	// Procedures that a session has compiled keep their plans: it shows in what it has prepared.
	var prepared int
	require.NoError(t, db.Prepared(t.Context(), &prepared))
	require.Equal(t, 4, prepared, "two pushes, claim and acknowledgment")
	for _, table := range []string{"queues", "log_partitions", "log_segments", "log_txns", "log_consumers", "consumer_groups_metadata"} {
		var rows int
		require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM queen.`+table).Scan(&rows))
		require.Zero(t, rows, table)
	}
	verdicts, err := db.PushMulti(t.Context(), []pg.Segment{{Tenant: uuid.UUID{15: 1}, Queue: "q", Partition: "p", Count: 1, Hashes: make([]byte, 16), Verified: -1, Blob: []byte{1}}}, pg.PushOptions{})
	require.NoError(t, err)
	require.Equal(t, pg.PushQueued, verdicts[0].Status)
}

func TestWarmingADatabaseWithoutSchemaIsHarmless(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 2, Warm: true})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.Ping(t.Context()))
	require.NoError(t, db.ApplySchema(t.Context()))
	var prepared int
	require.NoError(t, db.Prepared(t.Context(), &prepared))
	require.Equal(t, 4, prepared, "sessions from before the schema are replaced")
}
