package sql_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// connect opens a connection of its own, with plan caches of its own.
func (l pushLog) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), l.Config().ConnConfig.Copy())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// scansOf is how often the current transaction has scanned an index so far.
func scansOf(t *testing.T, q querier, index string) int {
	t.Helper()
	return scan[int](t, q, `SELECT pg_stat_get_xact_numscans($1::regclass)`, "queen."+index)
}

// TestPushPlans: a push reads the rows that it needs through the indexes made for it, also in a session that planned its
// statements while the tables were empty, and in one that plans them with statistics at hand.
func TestPushPlans(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	const width = 64
	bundle := func(round string, verified *int64) []parcel {
		parcels := make([]parcel, width)
		for i := range width {
			parcels[i] = parcel{queue: fmt.Sprint("q", i%20), partition: fmt.Sprint("p", 900-i), ids: ids(round+"x", round+"y"), verified: verified}
		}
		return parcels
	}
	early := log.connect(t)
	for i := range 10 {
		_, err := push(early, parcel{queue: "small", partition: "a", ids: ids(fmt.Sprint(i))}, parcel{queue: "small", partition: "b", ids: ids(fmt.Sprint(i))})
		require.NoError(t, err)
		_, err = push(early, parcel{queue: "small", partition: "a", ids: ids(fmt.Sprint("one", i))})
		require.NoError(t, err)
	}
	log.exec(t, `ANALYZE`)

	log.exec(t, `INSERT INTO queen.queues (name) SELECT 'q' || i FROM generate_series(0, 19) i`)
	log.exec(t, `INSERT INTO queen.log_partitions (queue_id, name) SELECT q.id, 'p' || i FROM queen.queues q, generate_series(1, 1000) i WHERE q.name LIKE 'q%'`)
	log.push(t, bundle("first", nil)...)
	// One partition keeps 10,000 sidecar rows, of which the window covers the last hundred.
	long := log.queued(t, "long", "a", "first")
	log.exec(t, `INSERT INTO queen.log_txns SELECT $1, i, i, now() - interval '2 h' * (i < 9900)::int, decode(md5('id-' || i), 'hex') FROM generate_series(1, 9999) i`, long)
	log.exec(t, `UPDATE queen.log_partitions SET last_offset = 9999 WHERE id = $1`, long)
	log.exec(t, `UPDATE queen.log_txns SET created_at = now() - interval '2 h' WHERE partition_id = $1 AND base_offset = 0`, long)

	// Dead versions, left by pushes that are rolled back here, are read too: the bounds tell a look-up from a scan, not more.
	for _, session := range []string{"PlannedWhenEmpty", "PlannedWithStatistics"} {
		conn := early
		if session == "PlannedWithStatistics" {
			log.exec(t, `ANALYZE`)
			conn = log.connect(t)
		}
		t.Run(session, func(t *testing.T) {
			for _, c := range []struct {
				name, table     string
				parcels         []parcel
				least, most     int
				index, notIndex string
			}{
				{"Queues", "queen.queues", bundle(session+"1", nil), width, 2 * width, "log_partitions_pkey", "queues_pkey"},
				{"Partitions", "queen.log_partitions", bundle(session+"2", nil), 3 * width, 20 * width, "log_partitions_queue_id_name_key", "idx_log_partitions_queue_write"},
				{"Sidecar", "queen.log_txns", bundle(session+"3", nil), 2 * width, 12 * width, "log_txns_pkey", "idx_log_partitions_queue_write"},
				{"VerifiedSidecar", "queen.log_txns", bundle(session+"4", new(int64(1))), 0, 0, "log_partitions_pkey", "log_txns_pkey"},
				{"OnePartition", "queen.log_partitions", bundle(session+"5", nil)[:1], 3, 30, "log_partitions_queue_id_name_key", "idx_log_partitions_queue_write"},
				{"OneSidecar", "queen.log_txns", bundle(session+"6", nil)[:1], 2, 20, "log_txns_pkey", "idx_log_partitions_queue_write"},
				{"RowsOutsideTheWindow", "queen.log_txns", []parcel{{queue: "long", partition: "a", ids: ids(session)}}, 100, 1000, "log_txns_pkey", "idx_log_partitions_queue_write"},
				{
					"RowsOutsideTheWindowForMany", "queen.log_txns",
					[]parcel{{queue: "long", partition: "a", ids: ids("id-9950", session)}, bundle(session+"7", nil)[3]},
					100, 1000, "log_txns_pkey", "idx_log_partitions_queue_write",
				},
				{
					"NewPartitions", "queen.log_partitions",
					[]parcel{{queue: "q1", partition: "new1", ids: ids("1")}, {queue: "q2", partition: "new2", ids: ids("1")}},
					6, 60, "log_partitions_queue_id_name_key", "idx_log_partitions_queue_write",
				},
			} {
				var scans [2]int
				got := measure(t, conn, c.table, func(tx pgx.Tx) {
					// The counters also hold what earlier transactions of the session did not report yet.
					before := [2]int{scansOf(t, tx, c.index), scansOf(t, tx, c.notIndex)}
					_, err := push(tx, c.parcels...)
					require.NoError(t, err)
					scans = [2]int{scansOf(t, tx, c.index) - before[0], scansOf(t, tx, c.notIndex) - before[1]}
				})
				require.Positive(t, scans[0], c.name)
				require.Zero(t, scans[1], c.name)
				require.Zero(t, got.seqScans, c.name)
				require.GreaterOrEqual(t, got.rows, c.least, c.name)
				require.LessOrEqual(t, got.rows, c.most, c.name)
			}
		})
	}
}

// TestPushKeepsPartitionUpdatesOffTheIndexes: in the steady state the allocator changes no indexed column, so that a busy partition
// writes no index entry for its own row (heap-only tuples).
func TestPushKeepsPartitionUpdatesOffTheIndexes(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	id := log.queued(t, "q", "a", "0")
	// The quantum of last_write_at must not end during the test.
	log.exec(t, `UPDATE queen.log_partitions SET last_write_at = now() + interval '1 h' WHERE id = $1`, id)
	log.exec(t, `VACUUM queen.log_partitions`)
	tx := log.begin(t)
	const pushes = 20
	for i := range pushes {
		_, err := push(tx, parcel{queue: "q", partition: "a", ids: ids(fmt.Sprint("n", i))})
		require.NoError(t, err)
	}
	updated := func(kind string) int {
		return scan[int](t, tx, `SELECT pg_stat_get_xact_tuples_`+kind+`('queen.log_partitions'::regclass)`)
	}
	require.Equal(t, pushes, updated("updated"))
	require.Equal(t, pushes, updated("hot_updated"))
}

// TestRetentionStepReadsWhatItDeletes: a step over a long stale backlog reads about as many segments as it deletes, whatever lies
// behind them and whenever its session planned it.
func TestRetentionStepReadsWhatItDeletes(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	conn := log.connect(t)
	steps := map[string]string{
		"queen.log_segments": `SELECT queen.log_retention_step_v1($1, 'infinity', 'infinity', 100)::text`,
		"queen.log_txns":     `SELECT queen.log_txns_purge_step_v1($1, 'infinity', 100)::text`,
	}
	small := log.fill(t, "small", 12)
	log.committed(t, small, "g", 100_000)
	log.exec(t, `ANALYZE`)
	for _, sql := range steps {
		for range 8 {
			scan[string](t, conn, sql, small)
		}
	}
	long := log.queued(t, "long", "a", "first")
	log.committed(t, long, "g", 100_000)
	log.exec(t, `INSERT INTO queen.log_segments SELECT $1, i, i, now(), 'x' FROM generate_series(1, 9999) i`, long)
	log.exec(t, `INSERT INTO queen.log_txns SELECT $1, i, i, now(), decode(md5('id-' || i), 'hex') FROM generate_series(1, 9999) i`, long)
	log.exec(t, `UPDATE queen.log_partitions SET last_offset = 9999 WHERE id = $1`, long)
	for table, sql := range steps {
		got := measure(t, conn, table, func(tx pgx.Tx) {
			answer, err := callJSON[stepAnswer](tx, sql, long)
			require.NoError(t, err)
			require.Equal(t, 100, answer.Deleted)
			require.False(t, answer.Done)
		})
		require.Zero(t, got.seqScans, table)
		require.Positive(t, got.rows, table)
		require.LessOrEqual(t, got.rows, 620, table)
	}
}
