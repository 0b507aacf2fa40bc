package sql_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

type dueRow struct {
	ID                uuid.UUID
	Oldest            time.Time
	Cutoff, Completed *time.Time
}

func due(t *testing.T, q interface {
	querier
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, phase string, limit int, after *dueRow,
) []dueRow {
	t.Helper()
	var afterAt *time.Time
	var afterID *uuid.UUID
	if after != nil {
		afterAt, afterID = &after.Oldest, &after.ID
	}
	rows, err := q.Query(t.Context(), `SELECT * FROM queen.log_retention_due_v1($1, now(), $2, $3, $4)`, phase, limit, afterAt, afterID)
	require.NoError(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[dueRow])
	require.NoError(t, err)
	return list
}

func idsOf(rows []dueRow) []uuid.UUID {
	list := []uuid.UUID{}
	for _, row := range rows {
		list = append(list, row.ID)
	}
	return list
}

func TestRetentionDue(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	aged := func(queue, partition string, age time.Duration) uuid.UUID {
		id := log.queued(t, queue, partition, partition)
		log.age(t, id, age)
		return id
	}
	log.configure(t, "timed", `{"retentionEnabled":true,"retentionSeconds":3600}`)
	log.configure(t, "completed", `{"retentionEnabled":true,"completedRetentionSeconds":600}`)
	log.configure(t, "both", `{"retentionEnabled":true,"retentionSeconds":3600,"completedRetentionSeconds":600}`)
	log.configure(t, "off", `{"retentionEnabled":false,"retentionSeconds":1,"completedRetentionSeconds":1}`)
	log.configure(t, "maxwait", `{"retentionEnabled":false,"maxWaitTimeSeconds":600,"dedupWindowSeconds":0}`)
	log.configure(t, "window", `{"dedupWindowSeconds":86400}`)

	oldest := aged("timed", "a", 3*time.Hour)
	older := aged("completed", "a", 2*time.Hour)
	old := aged("both", "a", 30*time.Minute)
	aged("timed", "b", 30*time.Minute)
	aged("completed", "b", time.Minute)
	aged("off", "a", 240*time.Hour)
	waited := aged("maxwait", "a", 12*time.Minute)
	aged("maxwait", "b", time.Second)
	aged("window", "a", 2*time.Hour)
	log.configure(t, "empty", `{"retentionEnabled":true,"retentionSeconds":1}`)
	log.exec(t, `INSERT INTO queen.log_partitions (queue_id, name) SELECT id, 'never written' FROM queen.queues WHERE name = 'empty'`)

	t.Run("RulesWithTheirCutoffs", func(t *testing.T) {
		t.Parallel()
		list := due(t, log, "rules", 100, nil)
		require.Equal(t, []uuid.UUID{oldest, older, old}, idsOf(list))
		require.NotNil(t, list[0].Cutoff)
		require.Nil(t, list[0].Completed)
		require.Nil(t, list[1].Cutoff)
		require.NotNil(t, list[1].Completed)
		require.InDelta(t, 50*time.Minute, list[2].Completed.Sub(*list[2].Cutoff), float64(time.Millisecond))
	})
	t.Run("SidecarWindowIsNeverShorterThanFifteenMinutes", func(t *testing.T) {
		t.Parallel()
		list := idsOf(due(t, log, "txns", 100, nil))
		require.Contains(t, list, oldest)
		require.NotContains(t, list, waited, "dedup off: 900 seconds all the same")
		require.NotContains(t, list, old, "dedup window of an hour")
	})
	t.Run("MaxWaitAppliesWithoutRetention", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, []uuid.UUID{waited}, idsOf(due(t, log, "maxwait", 100, nil)))
	})
	t.Run("PagesAreDisjointAndComplete", func(t *testing.T) {
		t.Parallel()
		first := due(t, log, "rules", 2, nil)
		rest := due(t, log, "rules", 2, &first[1])
		require.Equal(t, []uuid.UUID{oldest, older, old}, append(idsOf(first), idsOf(rest)...))
	})
	t.Run("UnknownPhaseIsRefused", func(t *testing.T) {
		t.Parallel()
		_, err := log.Exec(t.Context(), `SELECT * FROM queen.log_retention_due_v1('other', now(), 1)`)
		require.ErrorContains(t, err, "QRETENTION unknown phase")
	})
}

// With 200,000 partitions of 1,000 queues, 1 % of them due, the work list reads the due rows through the partial index and not
// the partitions.
func TestRetentionDueReadsWhatIsDue(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	log := pushLog{db.Pool(t)}
	fillPartitions(t, log)
	reader := newPlanReader(t, db)
	for phase, index := range map[string]string{"rules": "idx_log_partitions_oldest_live", "txns": "idx_log_partitions_oldest_txn", "maxwait": "idx_log_partitions_oldest_live"} {
		plans := reader.call(t, `SELECT * FROM queen.log_retention_due_v1($1, now(), 5000)`, phase)
		blocks, indexes := requireIndexed(t, plans)
		require.True(t, indexes[index], "%s: %v", phase, indexes)
		rows := 0.0
		for _, p := range plans {
			p.Root.walk(func(n planNode) {
				if n.Relation == "log_partitions" {
					rows += n.Rows * n.Loops
				}
			})
		}
		require.InDelta(t, 2000, rows, 1000, phase)
		require.Less(t, blocks, 12_000, phase) // about three blocks a queue and one a row; the partitions are 25,000 blocks with their index
	}
}

// fillPartitions makes 1,000 queues of 200 partitions; two of each have old data.
func fillPartitions(t testing.TB, log pushLog) {
	t.Helper()
	log.exec(t, `INSERT INTO queen.queues (name, retention_enabled, retention_seconds, max_wait_time_seconds)
		SELECT 'q' || i, TRUE, 3600, 3600 FROM generate_series(1, 1000) i`)
	tx, err := log.Begin(t.Context())
	require.NoError(t, err)
	for _, sql := range []string{
		`SET LOCAL session_replication_role = replica`, // no foreign keys and triggers: they are not what is measured
		`INSERT INTO queen.log_partitions (queue_id, name, last_offset, oldest_live_at, oldest_txn_at)
		 SELECT q.id, 'p' || i, 0, x.at, x.at FROM queen.queues q, generate_series(1, 200) i,
		 LATERAL (SELECT now() - interval '1 s' * (CASE WHEN i % 100 = 0 THEN 7200 ELSE random() * 60 END)) x (at)`,
	} {
		_, err := tx.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit(t.Context()))
	log.exec(t, `ANALYZE queen.log_partitions, queen.queues`)
}

// BenchmarkRetentionDue compares the work list with the walk over all partitions that it replaces: 200,000 partitions, 1 % due.
//
//	go test ./sql -run '^$' -bench RetentionDue
func BenchmarkRetentionDue(b *testing.B) {
	log := pushLog{testdb.New(b).Pool(b)}
	fillPartitions(b, log)
	log.exec(b, `VACUUM ANALYZE queen.log_partitions`)
	b.Run("WorkList", func(b *testing.B) {
		for b.Loop() {
			require.EqualValues(b, 2000, scan[int64](b, log, `SELECT count(*) FROM queen.log_retention_due_v1('rules', now(), 5000)`))
		}
	})
	b.Run("FullWalk", func(b *testing.B) {
		for b.Loop() {
			require.EqualValues(b, 2000, scan[int64](b, log, `SELECT count(*) FROM (SELECT p.id, (SELECT min(c.committed) FROM queen.log_consumers c WHERE c.partition_id = p.id)
				FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
				WHERE q.retention_enabled AND p.oldest_live_at < now() - make_interval(secs => q.retention_seconds) ORDER BY p.oldest_live_at) x`))
		}
	})
	b.Run("WalkWithAStepEach", func(b *testing.B) { // what a broker without the watermarks has to do
		for b.Loop() {
			require.EqualValues(b, 200_000, scan[int64](b, log, `SELECT count(queen.log_retention_boundary_v1(p.id, p.log_start, now() - interval '1 h')) FROM queen.log_partitions p`))
		}
	})
}

func TestRetentionRepair(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	type repair struct {
		Last           *uuid.UUID
		Seen, Repaired int
		Done           bool
	}
	step := func(t *testing.T, after *uuid.UUID, rows int) repair {
		t.Helper()
		r, err := callJSON[repair](log, `SELECT queen.log_retention_repair_step_v1($1, $2)`, after, rows)
		require.NoError(t, err)
		return r
	}
	var all []uuid.UUID
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		all = append(all, log.queued(t, "q", name, name))
	}
	clean := step(t, nil, 100)
	require.Equal(t, 5, clean.Seen)
	require.Zero(t, clean.Repaired)
	require.True(t, clean.Done)

	log.exec(t, `UPDATE queen.log_partitions SET oldest_live_at = NULL WHERE id = $1`, all[0])
	log.exec(t, `UPDATE queen.log_partitions SET oldest_txn_at = now() + interval '1 h' WHERE id = $1`, all[1])
	log.exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1`, all[2])
	repaired, seen, steps := 0, 0, 0
	for after := (*uuid.UUID)(nil); ; steps++ {
		r := step(t, after, 2)
		repaired, seen = repaired+r.Repaired, seen+r.Seen
		if after = r.Last; r.Done {
			break
		}
	}
	require.Equal(t, []int{3, 5}, []int{repaired, seen})
	for _, id := range all {
		log.oldestAgree(t, id)
	}
	require.Nil(t, log.head(t, all[2]).OldestLive)
}

func TestDeadLetterRetention(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	file := func(queue, partition string, age time.Duration) {
		id := log.queued(t, queue, partition, partition+age.String())
		log.exec(t, `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", failed_at) VALUES ($1, 'g', 0, now() - $2::interval)`, id, age)
	}
	left := func() int64 { return scan[int64](t, log, `SELECT count(*) FROM queen.log_dlq`) }
	for _, age := range []time.Duration{time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour} {
		file("short", "a", age)
		file("short", "b", age)
		file("forever", "a", age)
	}
	require.True(t, log.step(t, `log_dlq_purge_step_v1(100)`).Done)
	require.EqualValues(t, 12, left(), "nothing says that dead letters end")
	require.NotContains(t, log.configure(t, "short", `{"dlqRetentionSeconds":5400}`).NotApplied, "dlqRetentionSeconds")
	first := log.step(t, `log_dlq_purge_step_v1(3)`)
	require.Equal(t, 3, first.Deleted)
	require.False(t, first.Done)
	second := log.step(t, `log_dlq_purge_step_v1(3)`)
	require.Equal(t, 1, second.Deleted)
	require.True(t, second.Done)
	require.EqualValues(t, 8, left())
	require.EqualValues(t, 4, scan[int64](t, log, `SELECT count(*) FROM queen.log_dlq d JOIN queen.log_partitions p ON p.id = d.partition_id JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'forever'`))
}

func TestRetainedBytes(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	id := log.queued(t, "q", "a", "1")
	log.queued(t, "q", "b", "2")
	log.queued(t, "other", "a", "3")
	log.exec(t, `UPDATE queen.log_segments SET blob = decode(repeat('00', 5000), 'hex') WHERE partition_id = $1`, id)
	log.exec(t, `INSERT INTO queen.stats (stat_type, stat_key, queue_id) SELECT 'queue', id::text, id FROM queen.queues`)
	updated, err := callJSON[map[string]int](log, `SELECT queen.log_refresh_retained_bytes_v1()`)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"queuesUpdated": 2}, updated)
	require.EqualValues(t, 5000+len("blob of 2"), scan[int64](t, log, `SELECT retained_bytes FROM queen.stats s JOIN queen.queues q ON q.id = s.queue_id WHERE q.name = 'q'`))
	updated, err = callJSON[map[string]int](log, `SELECT queen.log_refresh_retained_bytes_v1()`)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"queuesUpdated": 0}, updated, "unchanged rows are not written")
}

// What retention deletes before it was read is counted.
func TestRetentionCountsUnreadMessages(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	type counted struct{ Deleted, Messages, Unread int64 }
	step := func(id uuid.UUID) counted {
		t.Helper()
		c, err := callJSON[counted](log, `SELECT queen.log_retention_step_v1($1, now() - interval '90 s', NULL, 100)`, id)
		require.NoError(t, err)
		return c
	}
	nobody := log.fill(t, "nobody", 3) // of 3 segments with 3 messages each, 2 are older than 90 s
	require.Equal(t, counted{2, 6, 6}, step(nobody))
	slow := log.fill(t, "slow", 3)
	log.committed(t, slow, "fast", 8)
	log.committed(t, slow, "slow", 1)
	require.Equal(t, counted{2, 6, 4}, step(slow))
	done := log.fill(t, "done", 3)
	log.committed(t, done, "g", 8)
	require.Equal(t, counted{2, 6, 0}, step(done))
	fresh := log.fill(t, "fresh", 3)
	log.committed(t, fresh, "g", -1)
	require.Equal(t, counted{2, 6, 6}, step(fresh))
}
