package sql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A stepAnswer is any answer of a maintenance step.
type stepAnswer struct {
	Deleted  int    `json:"deleted"`
	LogStart *int64 `json:"new_log_start"`
	Txns     *int64 `json:"new_txns_start"`
	Done     bool   `json:"done"`
}

func (l pushLog) step(t *testing.T, sql string, args ...any) stepAnswer {
	t.Helper()
	answer, err := callJSON[stepAnswer](l, `SELECT queen.`+sql, args...)
	require.NoError(t, err)
	return answer
}

func at(offset int64) *int64 { return &offset }

// fill stores n segments of three messages, the i-th of them aged by (n - i) minutes.
func (l pushLog) fill(t *testing.T, queue string, n int) uuid.UUID {
	t.Helper()
	var id uuid.UUID
	for i := range n {
		id = l.queued(t, queue, "a", fmt.Sprint(i, "a"), fmt.Sprint(i, "b"), fmt.Sprint(i, "c"))
	}
	for _, table := range []string{"log_segments", "log_txns"} {
		l.exec(t, `UPDATE queen.`+table+` SET created_at = now() - make_interval(mins => $2 - base_offset::int / 3) WHERE partition_id = $1`, id, n)
	}
	l.exec(t, `UPDATE queen.log_partitions p SET oldest_live_at = (SELECT min(created_at) FROM queen.log_segments WHERE partition_id = p.id),
		oldest_txn_at = (SELECT min(created_at) FROM queen.log_txns WHERE partition_id = p.id) WHERE id = $1`, id)
	return id
}

func (l pushLog) committed(t *testing.T, id uuid.UUID, group string, offset int64) {
	t.Helper()
	l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) VALUES ($1, $2, $3)
		ON CONFLICT (partition_id, consumer_group) DO UPDATE SET committed = EXCLUDED.committed`, id, group, offset)
}

func (l pushLog) bases(t *testing.T, table string, id uuid.UUID) []int64 {
	t.Helper()
	return scan[[]int64](t, l, `SELECT COALESCE(array_agg(base_offset ORDER BY base_offset), '{}') FROM queen.`+table+` WHERE partition_id = $1`, id)
}

// oldestAgree asserts the invariant of the retention work list against the rows themselves.
func (l pushLog) oldestAgree(t *testing.T, id uuid.UUID) {
	t.Helper()
	require.True(t, scan[bool](t, l, `SELECT p.oldest_live_at IS NOT DISTINCT FROM (SELECT min(created_at) FROM queen.log_segments WHERE partition_id = p.id)
		AND p.oldest_txn_at IS NOT DISTINCT FROM (SELECT min(created_at) FROM queen.log_txns WHERE partition_id = p.id)
		FROM queen.log_partitions p WHERE id = $1`, id))
}

const minutesAgo = `now() - make_interval(secs => 30) - make_interval(mins => $2)`

func TestRetentionStep(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)

	t.Run("RuleOneDeletesByAgeConsumedOrNot", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "age", 6)
		got := log.step(t, `log_retention_step_v1($1, `+minutesAgo+`, NULL, 100)`, id, 3)
		require.Equal(t, stepAnswer{Deleted: 3, LogStart: at(9), Done: true}, got)
		require.Equal(t, []int64{9, 12, 15}, log.bases(t, "log_segments", id))
		require.EqualValues(t, 9, log.head(t, id).LogStart)
		log.oldestAgree(t, id)
		require.Equal(t, "retention 9", scan[string](t, log, `SELECT retention_type || ' ' || messages_deleted FROM queen.retention_history WHERE partition_id = $1`, id))
		require.Equal(t, stepAnswer{LogStart: at(9), Done: true}, log.step(t, `log_retention_step_v1($1, `+minutesAgo+`, NULL, 100)`, id, 3))
	})

	t.Run("StepsAreBoundedAndEndEmpty", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "steps", 5)
		var answers []stepAnswer
		for range 4 {
			answers = append(answers, log.step(t, `log_retention_step_v1($1, 'infinity', NULL, 2)`, id))
			log.oldestAgree(t, id)
		}
		require.Equal(t, []stepAnswer{
			{Deleted: 2, LogStart: at(6)}, {Deleted: 2, LogStart: at(12)}, {Deleted: 1, LogStart: at(15), Done: true}, {LogStart: at(15), Done: true},
		}, answers)
		require.Nil(t, log.head(t, id).OldestLive)
		log.queued(t, "steps", "a", "fresh")
		log.oldestAgree(t, id)
		require.Equal(t, []int64{15}, log.bases(t, "log_segments", id))
	})

	t.Run("RowsBelowOneActAsOne", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "one", 3)
		require.Equal(t, stepAnswer{Deleted: 1, LogStart: at(3)}, log.step(t, `log_retention_step_v1($1, 'infinity', NULL, NULL)`, id))
		require.Equal(t, stepAnswer{Deleted: 1, LogStart: at(6)}, log.step(t, `log_retention_step_v1($1, 'infinity', NULL, -4)`, id))
	})

	t.Run("NeverPassesSlowestGroup", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "completed", 6)
		completed := func() stepAnswer {
			t.Helper()
			return log.step(t, `log_retention_step_v1($1, NULL, 'infinity', 100)`, id)
		}
		require.Equal(t, stepAnswer{LogStart: at(0), Done: true}, completed()) // Nobody has read anything.
		log.committed(t, id, "slow", 7)
		log.committed(t, id, "fast", 17)
		require.Equal(t, stepAnswer{Deleted: 2, LogStart: at(6), Done: true}, completed()) // 8 lies inside a segment.
		require.Equal(t, "completed_retention", scan[string](t, log, `SELECT retention_type FROM queen.retention_history WHERE partition_id = $1`, id))
		log.committed(t, id, "__QUEUE_MODE__", -1)
		require.Equal(t, stepAnswer{LogStart: at(6), Done: true}, completed()) // Deleting is irreversible: every cursor counts.
		log.exec(t, `DELETE FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = '__QUEUE_MODE__'`, id)
		log.committed(t, id, "slow", 17)
		require.Equal(t, stepAnswer{Deleted: 1, LogStart: at(9), Done: true},
			log.step(t, `log_retention_step_v1($1, NULL, `+minutesAgo+`, 100)`, id, 3)) // But not what is younger than its own cutoff.
	})

	t.Run("TheRuleThatWentFurtherIsRecorded", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "both", 6)
		log.committed(t, id, "g", 11)
		require.Equal(t, stepAnswer{Deleted: 4, LogStart: at(12), Done: true},
			log.step(t, `log_retention_step_v1($1, `+minutesAgo+`, 'infinity', 100)`, id, 4))
		require.Equal(t, "completed_retention", scan[string](t, log, `SELECT retention_type FROM queen.retention_history WHERE partition_id = $1`, id))
	})

	t.Run("LeasesAreNoObstacle", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "leased", 3)
		log.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, batch_end, worker_id, lease_expires_at)
			VALUES ($1, 'g', 8, 'w', now() + interval '1 h')`, id)
		require.Equal(t, stepAnswer{Deleted: 3, LogStart: at(9), Done: true}, log.step(t, `log_retention_step_v1($1, 'infinity', NULL, 9)`, id))
	})

	t.Run("NullCutoffsAreOffAndUnknownPartitionsDone", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "nulls", 2)
		require.Equal(t, stepAnswer{LogStart: at(0), Done: true}, log.step(t, `log_retention_step_v1($1, NULL, NULL, 10)`, id))
		require.Equal(t, stepAnswer{LogStart: at(0), Done: true}, log.step(t, `log_evict_max_wait_step_v1($1, NULL, 10)`, id))
		require.Equal(t, stepAnswer{Done: true}, log.step(t, `log_retention_step_v1($1, 'infinity', NULL, 10)`, uuid.New()))
		require.Equal(t, stepAnswer{Done: true}, log.step(t, `log_txns_purge_step_v1($1, 'infinity', 10)`, uuid.New()))
	})

	t.Run("MaxWaitEvictionDeletesWhatNobodyRead", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "evict", 4)
		log.committed(t, id, "g", -1)
		require.Equal(t, stepAnswer{Deleted: 2, LogStart: at(6), Done: true}, log.step(t, `log_evict_max_wait_step_v1($1, `+minutesAgo+`, 10)`, id, 2))
		require.Equal(t, "max_wait_time_eviction", scan[string](t, log, `SELECT retention_type FROM queen.retention_history WHERE partition_id = $1`, id))
	})

	t.Run("TraceRowsGoWithTheirMessages", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "traces", 3)
		log.exec(t, `INSERT INTO queen.log_traced SELECT gen_random_uuid(), $1, i, now() FROM generate_series(0, 8) i`, id)
		log.step(t, `log_retention_step_v1($1, 'infinity', NULL, 2)`, id)
		require.Equal(t, []int64{6, 7, 8}, scan[[]int64](t, log, `SELECT array_agg("offset" ORDER BY 1) FROM (SELECT "offset" FROM queen.log_traced WHERE partition_id = $1 ORDER BY 1) x`, id))
	})

	t.Run("AFruitlessStepCorrectsAnEarlyWatermark", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "drift", 2)
		log.exec(t, `UPDATE queen.log_partitions SET oldest_live_at = 'epoch', oldest_txn_at = NULL WHERE id = $1`, id)
		log.step(t, `log_retention_step_v1($1, now() - interval '1 day', NULL, 10)`, id)
		log.step(t, `log_txns_purge_step_v1($1, now() - interval '1 day', 10)`, id)
		log.oldestAgree(t, id)
	})
}

func TestRetentionBoundaries(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	id := log.fill(t, "q", 5)
	for _, c := range []struct {
		name, call string
		want       int64
	}{
		{"FirstFreshSegment", `log_retention_boundary_v1($1, 0, now() - interval '210 s')`, 6},
		{"FromIsALowerBound", `log_retention_boundary_v1($1, 10, now() - interval '1 day')`, 12},
		{"EverythingStale", `log_retention_boundary_v1($1, 0, 'infinity')`, 15},
		{"NothingThere", `log_retention_boundary_v1($1, 40, 'infinity')`, 40},
		{"HorizonEndsTheSearch", `log_retention_boundary_windowed_v1($1, 0, 'infinity', 6)`, 6},
		{"FreshBeforeTheHorizon", `log_retention_boundary_windowed_v1($1, 0, now() - interval '210 s', 12)`, 6},
		{"NoHorizon", `log_retention_boundary_windowed_v1($1, 0, 'infinity', NULL)`, 15},
	} {
		require.Equal(t, c.want, scan[int64](t, log, `SELECT queen.`+c.call, id), c.name)
	}
}

func TestTxnsPurgeStep(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)

	t.Run("KeepsWhatAGroupStillHasToAck", func(t *testing.T) {
		t.Parallel()
		// What went wrong: hashes were purged by age alone, and a group that lagged more than the window could never ack by
		// transaction id, so that its batch came back for ever.
		id := log.fill(t, "floor", 6)
		purge := func() stepAnswer {
			t.Helper()
			return log.step(t, `log_txns_purge_step_v1($1, 'infinity', 100)`, id)
		}
		require.Equal(t, stepAnswer{Txns: at(0), Done: true}, purge()) // No cursor: anybody may still come.
		log.committed(t, id, "fast", 17)
		log.committed(t, id, "slow", 7)
		require.Equal(t, stepAnswer{Deleted: 2, Txns: at(6), Done: true}, purge())
		require.Equal(t, []int64{6, 9, 12, 15}, log.bases(t, "log_txns", id))
		log.oldestAgree(t, id)
		require.Len(t, log.bases(t, "log_segments", id), 6)

		// What retention removed needs no hash, whoever has not acked it.
		log.step(t, `log_retention_step_v1($1, 'infinity', NULL, 4)`, id)
		require.Equal(t, stepAnswer{Deleted: 2, Txns: at(12), Done: true}, purge())
		log.committed(t, id, "slow", 17)
		require.Equal(t, stepAnswer{Deleted: 2, Txns: at(18), Done: true}, purge())
		require.Nil(t, log.head(t, id).OldestTxn)
		require.Equal(t, stepAnswer{Txns: at(18), Done: true}, purge())
	})

	t.Run("AgeAndRowsBoundAStep", func(t *testing.T) {
		t.Parallel()
		id := log.fill(t, "age", 6)
		log.committed(t, id, "g", 17)
		const call = `log_txns_purge_step_v1($1, ` + minutesAgo + `, $3)`
		require.Equal(t, stepAnswer{Deleted: 2, Txns: at(6)}, log.step(t, call, id, 2, 2))
		require.Equal(t, stepAnswer{Deleted: 2, Txns: at(12), Done: true}, log.step(t, call, id, 2, 100))
		require.Equal(t, stepAnswer{Txns: at(12), Done: true}, log.step(t, call, id, 2, 100))
		require.Equal(t, stepAnswer{Txns: at(12), Done: true}, log.step(t, `log_txns_purge_step_v1($1, NULL, 100)`, id))
		log.oldestAgree(t, id)
		require.Zero(t, scan[int64](t, log, `SELECT count(*) FROM queen.retention_history WHERE partition_id = $1`, id))
	})
}

func TestPartitionCleanup(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	const cutoff = `now() - interval '1 day'`
	empty := func(t *testing.T, name string) uuid.UUID {
		t.Helper()
		id := log.queued(t, "q", name, "0")
		log.step(t, `log_retention_step_v1($1, 'infinity', NULL, 10)`, id)
		log.age(t, id, 48*time.Hour)
		return id
	}
	dead := func(t *testing.T, id uuid.UUID) bool {
		t.Helper()
		return scan[bool](t, log, `SELECT queen.log_partition_dead_v1($1, `+cutoff+`)`, id)
	}
	consumer := `INSERT INTO queen.log_consumers (partition_id, consumer_group, created_at, batch_end, lease_expires_at, lease_acquired_at)
		VALUES ($1, 'g', now() - interval '2 days', `
	var kept int
	for _, c := range []struct {
		name, change string
		dead         bool
	}{
		{"Empty", `SELECT $1::uuid`, true},
		{"OldCursor", consumer + `NULL, NULL, NULL)`, true},
		{"ExpiredLease", consumer + `5, now() - interval '25 h', now() - interval '26 h')`, true},
		{"Trace", `INSERT INTO queen.message_traces (partition_id, transaction_id, data) VALUES ($1, 'x', '{}')`, true},
		{"LiveLease", consumer + `5, now() + interval '1 h', now() - interval '26 h')`, false},
		{"BatchWithoutExpiry", consumer + `5, NULL, NULL)`, false},
		{"LeaseEndedLately", consumer + `NULL, now() - interval '1 h', NULL)`, false},
		{"PoppedLately", consumer + `NULL, NULL, now() - interval '1 h')`, false},
		{"NewGroup", `INSERT INTO queen.log_consumers (partition_id, consumer_group) VALUES ($1, 'new')`, false},
		{"DeadLetter", `INSERT INTO queen.log_dlq (id, partition_id, consumer_group, "offset") VALUES (gen_random_uuid(), $1, 'g', 0)`, false},
		{"StreamState", `WITH q AS (INSERT INTO queen_streams.queries (name, source_queue, config_hash) VALUES ('s', 'q', 'h') RETURNING id)
			INSERT INTO queen_streams.state (query_id, partition_id, key, value) SELECT id, $1, 'k', '{}' FROM q`, false},
		{"Segment", `INSERT INTO queen.log_segments VALUES ($1, 1, 1, now(), 'x')`, false},
		{"WrittenLately", `UPDATE queen.log_partitions SET last_write_at = now() WHERE id = $1`, false},
		{"CreatedLately", `UPDATE queen.log_partitions SET created_at = now() WHERE id = $1`, false},
	} {
		id := empty(t, c.name)
		log.exec(t, c.change, id)
		require.Equal(t, c.dead, dead(t, id), c.name)
		if !c.dead {
			kept++
		}
	}
	require.Nil(t, scan[*bool](t, log, `SELECT queen.log_partition_dead_v1($1, now())`, uuid.New()))
	require.Equal(t, stepAnswer{Done: true}, log.step(t, `log_partition_cleanup_step_v1(NULL, 10)`))

	gone := empty(t, "traced")
	log.exec(t, `INSERT INTO queen.log_traced VALUES (gen_random_uuid(), $1, 0, now())`, gone)
	require.Equal(t, stepAnswer{Deleted: 2}, log.step(t, `log_partition_cleanup_step_v1(`+cutoff+`, 2)`))
	require.Equal(t, stepAnswer{Deleted: 3, Done: true}, log.step(t, `log_partition_cleanup_step_v1(`+cutoff+`, NULL)`))
	require.EqualValues(t, kept, scan[int64](t, log, `SELECT count(*) FROM queen.log_partitions`))
	require.EqualValues(t, 5, scan[int64](t, log, `SELECT count(*) FROM queen.retention_history WHERE retention_type = '__partition_deleted__' AND messages_deleted = 0`))
	for _, table := range []string{"log_txns", "log_traced", "log_consumers"} {
		require.Zero(t, scan[int64](t, log, `SELECT count(*) FROM queen.`+table+` x WHERE NOT EXISTS
			(SELECT 1 FROM queen.log_partitions p WHERE p.id = x.partition_id)`), table)
	}
	reborn := log.push(t, parcel{queue: "q", partition: "traced", ids: ids("0")})[0]
	require.Equal(t, "queued", reborn.Status)
	require.NotEqual(t, gone, reborn.PartitionID)
	require.Zero(t, *reborn.BaseOffset)
}
