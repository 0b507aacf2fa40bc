package sql_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// reads is what the current transaction has read of one table so far.
type reads struct{ seqScans, rows int }

func readsOf(t *testing.T, q querier, table string) (r reads) {
	t.Helper()
	require.NoError(t, q.QueryRow(context.Background(), `SELECT pg_stat_get_xact_numscans(c.oid), pg_stat_get_xact_tuples_returned(c.oid) +
			(SELECT COALESCE(sum(pg_stat_get_xact_tuples_returned(i.indexrelid)), 0) FROM pg_index i WHERE i.indrelid = c.oid)
		FROM pg_class c WHERE c.oid = $1::regclass`, table).Scan(&r.seqScans, &r.rows))
	return r
}

// measure runs a function in a transaction that is rolled back and returns what it read of a table.
func measure(t *testing.T, conn *pgx.Conn, table string, run func(tx pgx.Tx)) reads {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
	before := readsOf(t, tx, table)
	run(tx)
	after := readsOf(t, tx, table)
	return reads{after.seqScans - before.seqScans, after.rows - before.rows}
}

// longPartition has 10,000 sidecar rows of four messages each, id-0 to id-39999.
func longPartition(t *testing.T, log ackLog) uuid.UUID {
	t.Helper()
	partition := log.partition(t, log.queue(t, defaultTenant, "long"), stretch{0, []string{idOf(0), idOf(1), idOf(2), idOf(3)}})
	_, err := log.Exec(t.Context(), `
		INSERT INTO queen.log_txns
		SELECT $1, g * 4, g * 4 + 3, now(), (SELECT string_agg(decode(md5('id-' || g * 4 + i), 'hex'), '' ORDER BY i) FROM generate_series(0, 3) AS i)
		  FROM generate_series(1, 9999) AS g`, partition)
	require.NoError(t, err)
	_, err = log.Exec(t.Context(), `UPDATE queen.log_partitions SET last_offset = 39999 WHERE id = $1`, partition)
	require.NoError(t, err)
	return partition
}

func TestPlanAckByHashReadsOnlyTheLeasedSpan(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	session := log.session(t)
	items := func(from, to int) []item {
		var list []item
		for i := from; i <= to; i++ {
			list = append(list, item{idOf(i), "completed"})
		}
		return list
	}

	// The session caches its plans while the tables hold next to nothing.
	small := log.partition(t, log.queue(t, defaultTenant, "small"), decisionSegments()...)
	log.setCursor(t, small, "g", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"})
	for range 10 {
		_, err := ackByHash(session, small, "g", "w", []item{{"m1", "completed"}, {"m2", "other"}, {"unknown", ""}})
		require.NoError(t, err)
	}

	// Rows 9,900 to 9,909 are leased.
	partition := longPartition(t, log)
	log.setCursor(t, partition, "leased", cursor{Committed: 39_599, BatchEnd: new(int64(39_639)), Worker: "w", Lease: "live"})
	log.setCursor(t, partition, "free", cursor{Committed: 39_599})
	for _, tc := range []struct {
		name, group string
		items       []item
		rows        int
	}{
		{"WholeBatch", "leased", items(39_600, 39_639), 30},
		{"OneMessage", "leased", items(39_620, 39_620), 30},
		{"LateRepeatJustBelowTheCursor", "leased", items(39_590, 39_610), 80},
		{"LateRepeatFurtherBelow", "leased", items(39_000, 39_000), 800},
		{"NextMessageWithoutALease", "free", items(39_601, 39_601), 60},
		{"FarMessageWithoutALease", "free", items(39_999, 39_999), 500},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := measure(t, session.Conn, "queen.log_txns", func(tx pgx.Tx) {
				answer, err := ackByHash(tx, partition, tc.group, "", tc.items)
				require.NoError(t, err)
				require.Empty(t, answer.Unresolved)
			})
			require.Zero(t, got.seqScans)
			require.Positive(t, got.rows)
			require.LessOrEqual(t, got.rows, tc.rows)
		})
	}
}

// manyConsumers inserts 20,000 consumer rows: every tenth one leased by "w", the others by workers of their own.
func manyConsumers(t *testing.T, log ackLog) []string {
	t.Helper()
	queue := log.queue(t, defaultTenant, "consumers")
	_, err := log.Exec(t.Context(), `WITH p AS (INSERT INTO queen.log_partitions (queue_id, name) SELECT $1, 'p' || g FROM generate_series(1, 20000) AS g RETURNING id, name)
		INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, batch_end, worker_id, lease_expires_at, lease_acquired_at)
		SELECT id, 'g', -1, 8, CASE WHEN name LIKE 'p%777' THEN 'w' ELSE 'worker-' || name END, now() + interval '1 h', now() FROM p`, queue)
	require.NoError(t, err)
	rows, err := log.Query(t.Context(), `SELECT partition_id::text FROM queen.log_consumers ORDER BY random() LIMIT 200`)
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return ids
}

func TestPlanRenewLeaseUsesWorkerIndex(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	session := log.session(t)
	for range 10 {
		session.do(t, `SELECT queen.log_renew_lease_v1('w', 60)`)
	}
	manyConsumers(t, log)
	got := measure(t, session.Conn, "queen.log_consumers", func(tx pgx.Tx) {
		answer, err := callJSON[renewal](tx, `SELECT queen.log_renew_lease_v1('w', 7200)`)
		require.NoError(t, err)
		require.Equal(t, 20, answer.Renewed)
	})
	require.Zero(t, got.seqScans)
	require.LessOrEqual(t, got.rows, 100)
}

func TestPlanAckMultiLooksRowsUp(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	session := log.session(t)
	const call = `SELECT queen.log_ack_multi_v1($1, array_fill('g'::text, ARRAY[cardinality($1::text[])]), array_fill(8::bigint, ARRAY[cardinality($1::text[])]),
		array_fill(''::text, ARRAY[cardinality($1::text[])]), array_fill(1, ARRAY[cardinality($1::text[])]))`
	for range 10 {
		session.do(t, call, []string{uuid.NewString(), uuid.NewString()})
	}
	ids := manyConsumers(t, log)
	got := measure(t, session.Conn, "queen.log_consumers", func(tx pgx.Tx) {
		answer, err := callJSON[ackRows](tx, call, ids)
		require.NoError(t, err)
		require.Len(t, answer.Results, len(ids))
		require.True(t, answer.Results[0].OK)
	})
	require.Zero(t, got.seqScans)
	require.LessOrEqual(t, got.rows, 6*len(ids))
}

// The largest batch that a pop hands out, acknowledged by id in one call: alone, with every id the same, and late.
func TestAckByHashOfTenThousand(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "q")
	const n = 10_000
	distinct, same := make([]string, n), make([]string, n)
	items, twins := make([]item, n), make([]item, n)
	for i := range n {
		distinct[i], same[i] = idOf(i), "twin"
		items[(i*7919)%n], twins[i] = item{idOf(i), "completed"}, item{"twin", "completed"}
	}
	leased := cursor{Committed: -1, BatchEnd: new(int64(n - 1)), Worker: "w", Lease: "live"}
	for _, tc := range []struct {
		name  string
		ids   []string
		items []item
	}{{"DistinctIds", distinct, items}, {"OneIdForAll", same, twins}} {
		t.Run(tc.name, func(t *testing.T) {
			partition := log.partition(t, queue, stretch{0, tc.ids[:n/2]}, stretch{n / 2, tc.ids[n/2:]})
			log.setCursor(t, partition, "g", leased)
			got := log.ackByHash(t, partition, "g", "w", tc.items...)
			require.Equal(t, int64(n), got.Acked)
			require.True(t, *got.LeaseReleased)
			require.Len(t, log.ackByHash(t, partition, "g", "", tc.items...).Noop, n)
		})
	}
}
