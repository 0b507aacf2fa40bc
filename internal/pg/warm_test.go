package pg_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

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
	require.Equal(t, 5, prepared, "three pushes, claim and acknowledgment")
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
	require.Equal(t, 5, prepared, "sessions from before the schema are replaced")
}

// BenchmarkFirstCall measures the first push and the first claim of a session, cold and warmed, and the fourth: milliseconds of
// the cheapest of many sessions, which other programs of the machine disturb least. Opening the session is not counted.
func BenchmarkFirstCall(b *testing.B) {
	database := testdb.New(b)
	for name, warmed := range map[string]bool{"cold": false, "warm": true} {
		b.Run(name, func(b *testing.B) {
			least := map[string]time.Duration{}
			n := 0
			for b.Loop() {
				db, err := pg.Open(b.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 1, Warm: warmed})
				require.NoError(b, err)
				require.NoError(b, db.Ping(b.Context()))
				queue := fmt.Sprint(name, n)
				n++
				for i, call := range []string{"first", "second", "third", "fourth"} {
					hash := []byte(fmt.Sprintf("%16d", i))
					begin := time.Now()
					verdicts, err := db.PushMulti(b.Context(), []pg.Segment{{Tenant: uuid.UUID{15: 1}, Queue: queue, Partition: "p", Count: 1, Hashes: hash, Verified: -1, Blob: []byte{1}}}, pg.PushOptions{})
					pushed := time.Since(begin)
					require.NoError(b, err)
					require.Equal(b, pg.PushQueued, verdicts[0].Status)
					begin = time.Now()
					_, err = db.PopReady(b.Context(), pg.PopRequest{
						Tenant: uuid.UUID{15: 1}, Queue: queue, Group: call, Worker: "w", Budget: 1, LeaseSeconds: 1, MaxPartitions: 1, SubMode: "all",
						Candidates: []string{"p"},
					})
					popped := time.Since(begin)
					require.NoError(b, err)
					for of, took := range map[string]time.Duration{call + "-push-ms": pushed, call + "-claim-ms": popped} {
						if known, seen := least[of]; !seen || took < known {
							least[of] = took
						}
					}
				}
				db.Close()
			}
			for of, took := range least {
				if strings.HasPrefix(of, "second") || strings.HasPrefix(of, "third") {
					continue // these meet what the ones before left
				}
				b.ReportMetric(float64(took.Microseconds())/1e3, of)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
