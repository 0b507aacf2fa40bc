package sql_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestPush(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)

	t.Run("OffsetsAreDenseAcrossCalls", func(t *testing.T) {
		t.Parallel()
		first := log.push(t, parcel{queue: "dense", partition: "a", ids: ids("1", "2", "3")})[0]
		second := log.push(t, parcel{queue: "dense", partition: "a", ids: ids("4", "5")})[0]
		require.Equal(t, []int64{0, 3}, []int64{*first.BaseOffset, *second.BaseOffset})
		require.Equal(t, first.PartitionID, second.PartitionID)
		h := log.head(t, first.PartitionID)
		require.EqualValues(t, 4, h.LastOffset)

		type row struct {
			Base, End int64
			Blob      string
			Hashes    []byte
		}
		var rows []row
		found, err := log.Query(t.Context(), `SELECT s.base_offset, s.end_offset, convert_from(s.blob, 'UTF8'), t.hashes
			FROM queen.log_segments s JOIN queen.log_txns t USING (partition_id, base_offset, end_offset, created_at)
			WHERE partition_id = $1 ORDER BY 1`, first.PartitionID)
		require.NoError(t, err)
		for found.Next() {
			var r row
			require.NoError(t, found.Scan(&r.Base, &r.End, &r.Blob, &r.Hashes))
			rows = append(rows, r)
		}
		require.Empty(t, cmp.Diff([]row{{0, 2, "blob of 1", joinHashes(ids("1", "2", "3"))}, {3, 4, "blob of 4", joinHashes(ids("4", "5"))}}, rows))
	})

	t.Run("FirstPushCreatesQueueAndPartition", func(t *testing.T) {
		t.Parallel()
		for name, want := range map[string][2]string{
			"solo": {"solo", ""}, "space.job": {"space", "job"}, "a.b.c.d": {"a", "b"}, "tail.": {"tail", ""}, ".x": {"", "x"},
		} {
			log.queued(t, name, "Default", "1")
			var namespace, task string
			var lease, window int
			require.NoError(t, log.QueryRow(t.Context(), `SELECT namespace, task, lease_time, dedup_window_seconds FROM queen.queues
				WHERE name = $1`, name).Scan(&namespace, &task, &lease, &window))
			require.Equal(t, want, [2]string{namespace, task}, name)
			require.Equal(t, [2]int{60, 3600}, [2]int{lease, window}, name)
		}
	})

	t.Run("VerdictsComeInInputOrder", func(t *testing.T) {
		t.Parallel()
		var parcels []parcel
		for i := range 20 {
			parcels = append(parcels, parcel{queue: fmt.Sprintf("order%d", i%3), partition: fmt.Sprintf("p%d", 20-i), ids: ids(idOf(i))})
		}
		for i, v := range log.push(t, parcels...) {
			require.Equal(t, "queued", v.Status)
			name := scan[string](t, log, `SELECT q.name || '/' || p.name FROM queen.log_partitions p
				JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = $1`, v.PartitionID)
			require.Equal(t, parcels[i].queue+"/"+parcels[i].partition, name)
		}
	})

	t.Run("TimesAreUTCAndTheSegmentsOwn", func(t *testing.T) {
		t.Parallel()
		v := log.push(t, parcel{queue: "clock", partition: "a", ids: ids("1")})[0]
		stamp, err := time.Parse("2006-01-02T15:04:05.000000Z", v.CreatedAt)
		require.NoError(t, err)
		stored := scan[time.Time](t, log, `SELECT created_at FROM queen.log_segments WHERE partition_id = $1`, v.PartitionID)
		require.True(t, stamp.Equal(stored), "%s is not %s", stamp, stored)
		h := log.head(t, v.PartitionID)
		require.True(t, stored.Equal(*h.OldestLive) && stored.Equal(*h.OldestTxn))
	})

	t.Run("SegmentsOfAPartitionNeverGoBackInTime", func(t *testing.T) {
		t.Parallel()
		id := log.queued(t, "clockback", "a", "1")
		log.exec(t, `UPDATE queen.log_partitions SET last_write_at = now() + interval '1 hour' WHERE id = $1`, id)
		log.queued(t, "clockback", "a", "2")
		require.True(t, scan[bool](t, log, `SELECT s.created_at = p.last_write_at FROM queen.log_partitions p
			JOIN queen.log_segments s ON s.partition_id = p.id AND s.base_offset = 1 WHERE p.id = $1`, id))
	})

	t.Run("LastWriteMovesAtMostOncePerSecond", func(t *testing.T) {
		t.Parallel()
		id := log.queued(t, "quantum", "a", "1")
		const last = `SELECT last_write_at FROM queen.log_partitions WHERE id = $1`
		log.exec(t, `UPDATE queen.log_partitions SET last_write_at = clock_timestamp() + interval '30 s' WHERE id = $1`, id)
		before := scan[time.Time](t, log, last, id)
		log.queued(t, "quantum", "a", "2")
		require.Equal(t, before, scan[time.Time](t, log, last, id))
		log.exec(t, `UPDATE queen.log_partitions SET last_write_at = clock_timestamp() - interval '2 s' WHERE id = $1`, id)
		log.queued(t, "quantum", "a", "3")
		require.True(t, scan[bool](t, log, `SELECT p.last_write_at = s.created_at FROM queen.log_partitions p
			JOIN queen.log_segments s ON s.partition_id = p.id AND s.base_offset = 2 WHERE p.id = $1`, id))
	})

	t.Run("OldestColumnsKeepTheFirstStamp", func(t *testing.T) {
		t.Parallel()
		id := log.queued(t, "oldest", "a", "1")
		before := log.head(t, id)
		log.queued(t, "oldest", "a", "2")
		after := log.head(t, id)
		require.Equal(t, []*time.Time{before.OldestLive, before.OldestTxn}, []*time.Time{after.OldestLive, after.OldestTxn})
	})

	t.Run("TheEmptyPartitionNameIsAName", func(t *testing.T) {
		t.Parallel()
		id := log.queued(t, "unnamed", "", "1")
		require.Equal(t, id, log.queued(t, "unnamed", "", "2"))
		require.NotEqual(t, id, log.queued(t, "unnamed", "Default", "1"))
	})

	t.Run("TenantsDoNotShareQueues", func(t *testing.T) {
		t.Parallel()
		other := uuid.New()
		verdicts := log.push(t, parcel{queue: "shared", partition: "a", ids: ids("1")},
			parcel{tenant: other, queue: "shared", partition: "a", ids: ids("1")})
		require.Equal(t, []string{"queued", "queued"}, statuses(verdicts))
		require.NotEqual(t, verdicts[0].PartitionID, verdicts[1].PartitionID)
		require.Equal(t, other, scan[uuid.UUID](t, log, `SELECT q.tenant_id FROM queen.queues q
			JOIN queen.log_partitions p ON p.queue_id = q.id WHERE p.id = $1`, verdicts[1].PartitionID))
	})

	t.Run("TracesAreIndexedForStoredFramesOnly", func(t *testing.T) {
		t.Parallel()
		log.queued(t, "traced", "dup", "seen")
		log.queued(t, "traced", "a", "0")
		trace := uuid.New()
		traces := fmt.Sprintf(`[{"s":1,"i":1,"t":%[1]q},{"s":0,"i":0,"t":%[1]q},{"s":1,"i":0,"t":%[1]q},{"s":1,"i":1,"t":%[1]q}]`, trace)
		verdicts, err := callJSON[[]pushVerdict](log, pushMulti, pushArguments(false, &traces, []parcel{
			{queue: "traced", partition: "dup", ids: ids("seen")}, {queue: "traced", partition: "a", ids: ids("1", "2")},
		})...)
		require.NoError(t, err)
		require.Equal(t, []string{"duplicate", "queued"}, statuses(verdicts))
		require.Equal(t, []int64{1, 2}, scan[[]int64](t, log, `SELECT array_agg("offset" ORDER BY "offset") FROM queen.log_traced
			WHERE trace_id = $1 AND partition_id = $2`, trace, verdicts[1].PartitionID))
		require.EqualValues(t, 2, scan[int64](t, log, `SELECT count(*) FROM queen.log_traced WHERE trace_id = $1`, trace))

		for _, bad := range []string{`[{"s":1,"i":0,"t":"` + trace.String() + `"}]`, `[{"s":0,"i":1,"t":"` + trace.String() + `"}]`, `[{"s":0,"i":0}]`} {
			_, err := callJSON[[]pushVerdict](log, pushMulti, pushArguments(false, &bad, []parcel{{queue: "traced", partition: "b", ids: ids("1")}})...)
			requireSQLState(t, err, "QU003", "QPUSH bad trace")
		}
		require.Zero(t, scan[int64](t, log, `SELECT count(*) FROM queen.log_partitions WHERE name = 'b'
			AND queue_id = (SELECT id FROM queen.queues WHERE name = 'traced')`))
	})

	t.Run("PlainSegmentsOfAnEncryptedQueueAreSentBack", func(t *testing.T) {
		t.Parallel()
		id := log.queued(t, "secret", "a", "1")
		log.exec(t, `UPDATE queen.queues SET encryption_enabled = TRUE WHERE name = 'secret'`)
		verdicts := log.push(t, parcel{queue: "secret", partition: "a", ids: ids("2"), plain: true},
			parcel{queue: "open", partition: "a", ids: ids("2"), plain: true}, parcel{queue: "secret", partition: "b", ids: ids("2")})
		require.Equal(t, []string{"config", "queued", "queued"}, statuses(verdicts))
		require.Equal(t, id, verdicts[0].PartitionID)
		require.Zero(t, log.head(t, id).LastOffset)
		one, err := callJSON[pushVerdict](log, `SELECT queen.log_push_one_v1('secret', 'a', 1, $1, -1, 'x', p_plain => TRUE)`, hashOf("3"))
		require.NoError(t, err)
		require.Equal(t, "config", one.Status)
	})
}

func statuses(verdicts []pushVerdict) []string {
	out := make([]string, len(verdicts))
	for i, v := range verdicts {
		out[i] = v.Status
	}
	return out
}

func TestPushRefusesBadInput(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	id := log.queued(t, "known", "a", "1")
	args := func(change func(args []any)) []any {
		args := pushArguments(false, nil, []parcel{{queue: "known", partition: "a", ids: ids("2")}, {queue: "new", partition: "a", ids: ids("3")}})
		change(args)
		return args
	}
	for _, c := range []struct {
		name, state, text string
		args              []any
	}{
		{"StrideTooShort", "QU003", "QPUSH bad segment: 1", args(func(a []any) { a[3].([][]byte)[1] = hashOf("3")[:15] })},
		{"StrideOfOtherCount", "QU003", "QPUSH bad segment: 1", args(func(a []any) { a[2].([]int32)[1] = 2 })},
		{"CountZero", "QU003", "QPUSH bad segment: 0", args(func(a []any) { a[2].([]int32)[0] = 0; a[3].([][]byte)[0] = []byte{} })},
		{"CountNull", "QU003", "QPUSH bad segment: 0", args(func(a []any) { a[2] = []*int32{nil, new(int32)} })},
		{"HashesNull", "QU003", "QPUSH bad segment: 0", args(func(a []any) { a[3].([][]byte)[0] = nil })},
		{"EmptyBlob", "QU003", "QPUSH bad segment: 1", args(func(a []any) { a[5].([][]byte)[1] = []byte{} })},
		{"BlobNull", "QU003", "QPUSH bad segment: 1", args(func(a []any) { a[5].([][]byte)[1] = nil })},
		{"PartitionsMisaligned", "QU003", "QMULTI misaligned arrays (2 queues)", args(func(a []any) { a[1] = []string{"a"} })},
		{"CountsNull", "QU003", "QMULTI misaligned arrays (2 queues)", args(func(a []any) { a[2] = nil })},
		{"VerifiedMisaligned", "QU003", "QMULTI misaligned arrays (2 queues)", args(func(a []any) { a[4] = []int64{1, 2, 3} })},
		{"PlainMisaligned", "QU003", "QMULTI misaligned arrays (2 queues)", args(func(a []any) { a[7] = []bool{true} })},
		{"TenantsMisaligned", "QU003", "QMULTI misaligned tenants (1 vs 2 queues)", args(func(a []any) { a[6] = []uuid.UUID{defaultTenant} })},
		{"EmptyQueueName", "QU002", "QMULTI resolved 1 of 2 segments", args(func(a []any) { a[0].([]string)[1] = "" })},
		{"PartitionNameNull", "QU002", "QMULTI resolved 1 of 2 segments", args(func(a []any) { a[1] = []*string{new("a"), nil} })},
		{"QueueNameTooLong", "22001", "too long", args(func(a []any) { a[0].([]string)[1] = string(make256()) })},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := callJSON[[]pushVerdict](log, pushMulti, c.args...)
			requireSQLState(t, err, c.state, c.text)
		})
	}
	t.Cleanup(func() {
		// One bad segment fails the whole bundle.
		require.Zero(t, log.head(t, id).LastOffset)
		require.Zero(t, scan[int64](t, log, `SELECT count(*) FROM queen.queues WHERE name <> 'known'`))
	})

	t.Run("NothingToDo", func(t *testing.T) {
		t.Parallel()
		none, err := callJSON[[]pushVerdict](log, `SELECT queen.log_push_multi_v1('{}', '{}', '{}', '{}', '{}', '{}')`)
		require.NoError(t, err)
		require.Equal(t, []pushVerdict{}, none)
		none, err = callJSON[[]pushVerdict](log, `SELECT queen.log_push_multi_v1(NULL, NULL, NULL, NULL, NULL, NULL)`)
		require.NoError(t, err)
		require.Equal(t, []pushVerdict{}, none)
	})

	t.Run("OneElementForm", func(t *testing.T) {
		t.Parallel()
		_, err := callJSON[pushVerdict](log, `SELECT queen.log_push_one_v1('', 'a', 1, $1, -1, 'x')`, hashOf("1"))
		requireSQLState(t, err, "QU002", "QPUSH unknown queue/partition /a")
		_, err = callJSON[pushVerdict](log, `SELECT queen.log_push_one_v1('known', 'a', 2, $1, -1, 'x')`, hashOf("1"))
		requireSQLState(t, err, "QU003", "QPUSH bad segment")
		gone := uuid.New()
		_, err = callJSON[pushVerdict](log, `SELECT queen.log_push_one_v1('known', 'a', 1, $1, -1, 'x', p_pid => $2)`, hashOf("1"), gone)
		requireSQLState(t, err, "QU002", "QPUSH partition "+gone.String()+" vanished mid-push")
	})
}

func make256() []byte {
	name := make([]byte, 256)
	for i := range name {
		name[i] = 'n'
	}
	return name
}

func TestPushOneUsesWhatItIsGiven(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	id := log.queued(t, "q", "a", "1")
	one := func(sql string, args ...any) pushVerdict {
		t.Helper()
		v, err := callJSON[pushVerdict](log, `SELECT queen.log_push_one_v1(`+sql+`)`, args...)
		require.NoError(t, err)
		return v
	}
	v := one(`'other', 'names', 1, $1, -1, 'x', p_pid => $2`, hashOf("2"), id)
	require.Equal(t, id, v.PartitionID)
	require.EqualValues(t, 1, *v.BaseOffset)
	require.Zero(t, scan[int64](t, log, `SELECT count(*) FROM queen.queues WHERE name = 'other'`))

	require.Equal(t, "duplicate", one(`'q', 'a', 1, $1, -1, 'x'`, hashOf("2")).Status)
	require.Equal(t, "queued", one(`'q', 'a', 1, $1, -1, 'x', p_window => 0`, hashOf("2")).Status)
	require.Equal(t, "duplicate", one(`'q', 'a', 1, $1, NULL, 'x', $2, 60`, hashOf("2"), id).Status)
	log.exec(t, `UPDATE queen.queues SET dedup_window_seconds = 0`)
	require.Equal(t, "queued", one(`'q', 'a', 1, $1, -1, 'x'`, hashOf("2")).Status)
	require.Equal(t, "duplicate", one(`'q', 'a', 1, $1, -1, 'x', p_window => 60`, hashOf("2")).Status)
}

func TestSegmentAt(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	id := log.queued(t, "q", "a", "0", "1", "2")
	log.queued(t, "q", "a", "3")
	log.queued(t, "q", "a", "4", "5")
	log.exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset = 3`, id)
	at := func(offset int64) string {
		return scan[string](t, log, `SELECT COALESCE((SELECT r_base || '-' || r_end || ' ' || convert_from(r_blob, 'UTF8') || ' ' || (r_created <= now())
			FROM queen.log_segment_at_v1($1, $2)), 'none')`, id, offset)
	}
	require.Equal(t, []string{"0-2 blob of 0 true", "0-2 blob of 0 true", "none", "4-5 blob of 4 true", "none", "none"},
		[]string{at(0), at(2), at(3), at(5), at(6), at(-1)})
}
