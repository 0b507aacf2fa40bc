package sql_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// twoRuns is offsets 0..4 and 5..7.
func twoRuns() []run { return []run{{base: 0, count: 5}, {base: 5, count: 3}} }

// Every case runs through log_pop_v1 and, for two other groups, through a list that is long enough to be claimed as a set.
func TestPopSelection(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	plain := l.queue(t, "plain", popQueue{})
	delayed := l.queue(t, "delayed", popQueue{Delay: 100})

	type piece struct{ base, start, take int64 }
	for i, tc := range []struct {
		name      string
		queue     uuid.UUID
		runs      []run
		committed int64
		budget    any
		want      []piece
		batchEnd  int64
	}{
		{"FromTheBeginning", plain, twoRuns(), -1, 100, []piece{{0, 0, 5}, {5, 0, 3}}, 7},
		{"HeadStartsInsideItsSegment", plain, twoRuns(), 2, 100, []piece{{0, 3, 2}, {5, 0, 3}}, 7},
		{"HeadIsTheLastMessageOfItsSegment", plain, twoRuns(), 3, 100, []piece{{0, 4, 1}, {5, 0, 3}}, 7},
		{"HeadIsTheFirstMessageOfASegment", plain, twoRuns(), 4, 100, []piece{{5, 0, 3}}, 7},
		{"BudgetEndsInsideTheHead", plain, twoRuns(), 0, 2, []piece{{0, 1, 2}}, 2},
		{"BudgetEndsWithTheHead", plain, twoRuns(), 0, 4, []piece{{0, 1, 4}}, 4},
		{"BudgetEndsInsideTheSecondSegment", plain, twoRuns(), 0, 5, []piece{{0, 1, 4}, {5, 0, 1}}, 5},
		{"BudgetZeroActsAsOne", plain, twoRuns(), -1, 0, []piece{{0, 0, 1}}, 0},
		{"NegativeBudgetActsAsOne", plain, twoRuns(), -1, -7, []piece{{0, 0, 1}}, 0},
		{"NullBudgetActsAsOne", plain, twoRuns(), -1, nullInt{}, []piece{{0, 0, 1}}, 0},
		{"CursorBelowTheFirstLiveSegment", plain, []run{{base: 50, count: 4}}, 9, 3, []piece{{50, 0, 3}}, 52},
		{"BatchSpansAGap", plain, []run{{base: 0, count: 3}, {base: 20, count: 3}}, 0, 4, []piece{{0, 1, 2}, {20, 0, 2}}, 21},
		{"CursorInsideAGap", plain, []run{{base: 0, count: 3}, {base: 20, count: 3}}, 10, 9, []piece{{20, 0, 3}}, 22},
		{"BatchEndsBeforeTheFirstInvisibleMessage", delayed, []run{{0, 2, 300 * time.Second}, {2, 2, 200 * time.Second}, {4, 2, time.Second}}, 0, 9, []piece{{0, 1, 1}, {2, 0, 2}}, 3},
		{"InvisibleHead", delayed, []run{{0, 2, time.Second}, {2, 2, 0}}, 0, 9, nil, 0},
		{"InvisibleNextSegment", delayed, []run{{4, 2, time.Second}}, -1, 9, nil, 0},
		// created_at never decreases in offset order; were it to, an older segment behind an invisible one must wait: taking it
		// would move the cursor past messages nobody has seen.
		{"NothingIsTakenFromBehindAnInvisibleMessage", delayed, []run{{0, 2, time.Second}, {2, 2, 300 * time.Second}}, -1, 9, nil, 0},
		{"NothingBeyondTheEnd", plain, twoRuns(), 7, 9, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("p%d", i)
			pid := l.partition(t, tc.queue, name, tc.runs...)
			for _, group := range []string{"g", "set", "set auto"} {
				l.cursor(t, pid, group, tc.committed, "", 0)
			}
			queue := scalar[string](t, l, `SELECT name FROM queen.queues WHERE id = $1`, tc.queue)
			var want []taken
			for _, p := range tc.want {
				want = append(want, taken{name, p.base, p.start, p.take, blobOf(name, p.base)})
			}
			call := popCall{budget: tc.budget, worker: "w1"}
			if _, null := tc.budget.(nullInt); null {
				call.budget = (*int)(nil)
			}
			require.Empty(t, cmp.Diff(want, popOne(t, l, queue, name, call)))
			list := []string{"unknown", name, "unknown", "unknown"}
			call.group = "set"
			segments, _, _ := popList(t, l, queue, list, call)
			require.Empty(t, cmp.Diff(want, segments))
			call.group, call.autoAck = "set auto", true
			segments, _, _ = popList(t, l, queue, list, call)
			require.Empty(t, cmp.Diff(want, segments))

			leased, acked := popRow{Committed: tc.committed}, popRow{Committed: tc.committed}
			if tc.want != nil {
				first := tc.want[0].base + tc.want[0].start
				leased = popRow{
					Committed: tc.committed, BatchEnd: &tc.batchEnd, Worker: ptr("w1"), Expires: ptr(int64(60)), Acquired: ptr(int64(0)),
					AttemptOffset: &first, Attempts: 1,
				}
				acked = popRow{Committed: tc.batchEnd, Consumed: messages(segments)}
			}
			require.Equal(t, leased, popRows(t, l, tc.queue, "g")[name])
			require.Equal(t, leased, popRows(t, l, tc.queue, "set")[name])
			require.Equal(t, acked, popRows(t, l, tc.queue, "set auto")[name])
		})
	}
}

// nullInt marks a NULL budget in a table row, where nil means "default".
type nullInt struct{}

func TestPopOneReportsTheWholeSegment(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	l.partition(t, l.queue(t, "q", popQueue{}), "p", run{0, 5, time.Hour})
	var count int
	var created time.Time
	require.NoError(t, l.QueryRow(context.Background(), `SELECT r_msg_count, r_created_at FROM queen.log_pop_v1('q', 'p', 'g', 2, 60, 'w')`).Scan(&count, &created))
	require.Equal(t, 5, count)
	require.WithinDuration(t, time.Now().Add(-time.Hour), created, time.Minute)
}

func TestPopOneUnknownNamesWriteNothing(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	l.partition(t, l.queue(t, "q", popQueue{}), "p", twoRuns()...)
	require.Empty(t, popOne(t, l, "nope", "p", popCall{}))
	require.Empty(t, popOne(t, l, "q", "nope", popCall{}))
	var n int
	require.NoError(t, l.QueryRow(context.Background(), `SELECT count(*) FROM queen.log_pop_v1('q', 'p', 'g', 9, 60, 'w', p_tenant => gen_random_uuid())`).Scan(&n))
	require.Zero(t, n, "another tenant's queue of the same name")
	require.Zero(t, scalar[int](t, l, `SELECT count(*) FROM queen.log_consumers`))
}

func TestPopOneWindowBuffer(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{Window: 100})
	l.partition(t, id, "busy", run{0, 2, time.Hour}, run{2, 2, 50 * time.Second})
	l.partition(t, id, "quiet", run{0, 2, time.Hour}, run{2, 2, 150 * time.Second})
	l.partition(t, id, "empty")

	require.Empty(t, popOne(t, l, "q", "busy", popCall{}))
	require.Empty(t, popRows(t, l, id, "g"), "a debounced pop writes nothing, not even a first cursor")
	require.EqualValues(t, 4, messages(popOne(t, l, "q", "quiet", popCall{})))
	require.EqualValues(t, 4, messages(popOne(t, l, "q", "busy", popCall{skipWindow: true})))
	require.Empty(t, popOne(t, l, "q", "empty", popCall{}))
}

func TestPopOneFirstContact(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	// The session lives at +05:30 and the text says UTC without saying so: half an hour off would be seen.
	utc := func(age time.Duration) string { return time.Now().UTC().Add(-age).Format("2006-01-02 15:04:05") }
	kolkata := func(age time.Duration) string {
		return time.Now().Add(-age).In(time.FixedZone("", 19800)).Format(time.RFC3339)
	}
	runs := []run{{10, 2, 300 * time.Minute}, {12, 2, 200 * time.Minute}, {14, 2, 100 * time.Minute}}
	for i, tc := range []struct {
		name             string
		group            string
		record           string
		recordAge        time.Duration
		subMode, subFrom string
		want             int64
	}{
		{"All", "g", "", 0, "all", "", -1},
		{"New", "g", "", 0, "new", "", 15},
		{"FromNow", "g", "", 0, "all", "now", 15},
		{"FromATime", "g", "", 0, "all", utc(210 * time.Minute), 11},
		{"FromATimeWithOffset", "g", "", 0, "all", kolkata(210 * time.Minute), 11},
		{"FromADate", "g", "", 0, "new", "1999-01-31", 9},
		{"FromATimeBeforeEverything", "g", "", 0, "new", utc(900 * time.Minute), 9},
		{"FromATimeAfterEverything", "g", "", 0, "all", utc(time.Minute), 15},
		{"UnreadableStartIsIgnored", "g", "", 0, "all", "yesterdayish", -1},
		{"WordsAreNotTimes", "g", "", 0, "all", "infinity", -1},
		{"ImpossibleDateIsIgnored", "g", "", 0, "all", "2024-02-31T00:00:00Z", -1},
		{"UnreadableStartLeavesTheModeNew", "g", "", 0, "new", "2024-99-99", 15},
		{"RecordAllWinsOverNew", "g", "all", 0, "new", "now", 9},
		{"RecordTimestampWinsOverAll", "g", "timestamp", 210 * time.Minute, "all", "", 11},
		{"RecordNewTakesWhatCameAfterIt", "g", "new", 150 * time.Minute, "all", "", 13},
		{"RecordNewWithNothingAfterItStartsAtTheEnd", "g", "new", time.Minute, "all", "", 15},
		{"QueueModeIsNeverSeeded", queueMode, "new", time.Minute, "new", "now", -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			queue := fmt.Sprintf("q%d", i)
			id := l.queue(t, queue, popQueue{})
			l.partition(t, id, "p", runs...)
			if tc.record != "" {
				l.exec(t, `INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, subscription_mode, subscription_timestamp)
					VALUES ($1, $2, $3::text, CASE WHEN $3::text = 'all' THEN 'epoch' ELSE clock_timestamp() - $4::interval END)`, tc.group, id, tc.record, tc.recordAge)
			}
			got := popOne(t, l, queue, "p", popCall{group: tc.group, subMode: tc.subMode, subFrom: tc.subFrom})
			row, ok := popRows(t, l, id, tc.group)["p"]
			require.True(t, ok, "the cursor exists after first contact")
			require.Equal(t, tc.want, row.Committed)
			require.Equal(t, 15-max(tc.want, 9), messages(got), "delivers what lies behind the cursor")
		})
	}
}

func TestPopOneSeedDoesNotMoveAnExistingCursor(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	l.cursor(t, l.partition(t, id, "p", twoRuns()...), "g", 1, "", 0)
	require.EqualValues(t, 6, messages(popOne(t, l, "q", "p", popCall{subMode: "new", subFrom: "now"})))
}

func TestPopOneLeases(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	pid := l.partition(t, id, "p", twoRuns()...)
	row := func() popRow { return popRows(t, l, id, "g")["p"] }

	require.EqualValues(t, 3, messages(popOne(t, l, "q", "p", popCall{budget: 3, worker: "w1", lease: 300})))
	require.Equal(t, popRow{Committed: -1, BatchEnd: ptr(int64(2)), Worker: ptr("w1"), Expires: ptr(int64(300)), Acquired: ptr(int64(0)), AttemptOffset: ptr(int64(0)), Attempts: 1}, row())
	require.Empty(t, popOne(t, l, "q", "p", popCall{worker: "w2"}), "leased")
	require.Empty(t, popOne(t, l, "q", "p", popCall{worker: "w1"}), "leased to the caller itself")
	require.Equal(t, 1, row().Attempts)
	require.EqualValues(t, 8, messages(popOne(t, l, "q", "p", popCall{group: "other"})), "another group has its own cursor")

	l.exec(t, `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 ms', batch_retry_count = 2 WHERE partition_id = $1`, pid)
	require.EqualValues(t, 8, messages(popOne(t, l, "q", "p", popCall{worker: "w2"})), "an expired lease is free, and the new batch may be larger")
	require.Equal(t, ptr("w2"), row().Worker)
	require.Equal(t, 2, row().Attempts, "the same start again is the second attempt")
	require.Equal(t, 2, scalar[int](t, l, `SELECT batch_retry_count FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = 'g'`, pid), "expiry spends no retry budget")

	for name, free := range map[string]string{"no worker": `worker_id = NULL`, "no expiry": `lease_expires_at = NULL`} {
		l.exec(t, `UPDATE queen.log_consumers SET `+free+` WHERE partition_id = $1`, pid)
		require.EqualValues(t, 8, messages(popOne(t, l, "q", "p", popCall{worker: "w3"})), name)
	}
	require.Equal(t, 4, row().Attempts)

	l.cursor(t, pid, "g", 3, "", 0)
	require.EqualValues(t, 4, messages(popOne(t, l, "q", "p", popCall{})))
	require.Equal(t, 1, row().Attempts, "another start is a first attempt")
	require.Equal(t, ptr(int64(4)), row().AttemptOffset)
}

func TestPopOneAutoAck(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	pid := l.partition(t, id, "p", run{base: 0, count: 3}, run{base: 10, count: 3})
	l.cursor(t, pid, "g", 0, "old", -time.Hour)
	l.exec(t, `UPDATE queen.log_consumers SET attempt_offset = 1, attempt_count = 5, total_consumed = 100`)

	require.EqualValues(t, 4, messages(popOne(t, l, "q", "p", popCall{budget: 4, autoAck: true})))
	require.Equal(t, popRow{Committed: 11, AttemptOffset: ptr(int64(1)), Attempts: 5, Consumed: 104}, popRows(t, l, id, "g")["p"],
		"the cursor is at the batch end, the lease is gone, messages are counted and not offsets")
	require.EqualValues(t, 1, messages(popOne(t, l, "q", "p", popCall{autoAck: true})))
	require.Empty(t, popOne(t, l, "q", "p", popCall{autoAck: true}))
	require.Equal(t, int64(12), popRows(t, l, id, "g")["p"].Committed)
}

func TestPopOneCursorSeal(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	pid := l.partition(t, id, "gone")
	l.exec(t, `UPDATE queen.log_partitions SET last_offset = 41, log_start = 42 WHERE id = $1`, pid)
	l.cursor(t, pid, "g", 3, "old", -time.Hour)
	require.Empty(t, popOne(t, l, "q", "gone", popCall{worker: "w"}))
	row := popRows(t, l, id, "g")["gone"]
	require.Equal(t, int64(41), row.Committed, "everything was removed by retention: the cursor moves to the end")
	require.Equal(t, ptr("old"), row.Worker, "and nothing else changes")

	delayed := l.queue(t, "delayed", popQueue{Delay: 100})
	pid = l.partition(t, delayed, "young", run{0, 3, 0})
	l.cursor(t, pid, "g", -1, "", 0)
	require.Empty(t, popOne(t, l, "delayed", "young", popCall{}))
	require.Equal(t, popRow{Committed: -1}, popRows(t, l, delayed, "g")["young"], "invisible messages are not gone")
}

func TestPopSpecific(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	pid := l.partition(t, id, "p", run{0, 5, 90 * time.Minute}, run{5, 300, time.Minute})
	l.exec(t, `UPDATE queen.log_segments SET blob = decode(repeat('ab', 200), 'hex') WHERE base_offset = 5`)

	type wire struct {
		Segments    []popMetaSegment
		PartitionID string
		Attempt     *int
	}
	specific := func(partition, group string) wire {
		w, err := callJSON[wire](l, `SELECT queen.log_pop_specific_v1('q', $1, $2, 8, 60, 'w', false, 'all', '', $3)`, partition, group, defaultTenant)
		require.NoError(t, err)
		return w
	}
	got := specific("p", "json")
	require.Equal(t, pid.String(), got.PartitionID)
	require.Equal(t, ptr(0), got.Attempt)
	require.Len(t, got.Segments, 2)
	first, second := got.Segments[0], got.Segments[1]
	created, err := time.Parse("2006-01-02T15:04:05.000000Z", first.CreatedAt)
	require.NoError(t, err, "ISO with microseconds, UTC")
	require.WithinDuration(t, time.Now().Add(-90*time.Minute), created, time.Minute)
	require.Equal(t, []int64{0, 0, 5, 5}, []int64{first.Seq, first.StartOff, first.Take, first.MsgCount})
	require.Equal(t, []int64{5, 0, 3, 300}, []int64{second.Seq, second.StartOff, second.Take, second.MsgCount})
	require.Equal(t, blobOf("p", 0), decodeBase64(t, first.Blob))
	require.Contains(t, second.Blob, "\n", "the base64 of PostgreSQL is broken into lines")
	require.Len(t, decodeBase64(t, second.Blob), 200)

	require.Equal(t, wire{Segments: []popMetaSegment{}, PartitionID: pid.String(), Attempt: ptr(0)}, specific("p", "json"), "leased: no segments, but the id")
	require.Equal(t, wire{Segments: []popMetaSegment{}, Attempt: ptr(0)}, specific("nope", "json"))

	segments, meta := popSpecific(t, l, "q", "p", popCall{group: "bin", budget: 8})
	require.EqualValues(t, 8, messages(segments))
	require.Len(t, meta.Partitions, 1)
	require.Equal(t, popMetaPartition{
		Queue: "q", Partition: "p", PartitionID: pid, Attempt: 1,
		Segments: []popMetaSegment{{Seq: 0, Take: 5, CreatedAt: first.CreatedAt}, {Seq: 5, Take: 3, CreatedAt: second.CreatedAt}},
	}, meta.Partitions[0])
	l.exec(t, `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp()`)
	_, meta = popSpecific(t, l, "q", "p", popCall{group: "bin", budget: 1, lease: -1})
	require.Equal(t, 2, meta.Partitions[0].Attempt, "redelivered from the same start")
	_, meta = popSpecific(t, l, "q", "p", popCall{group: "bin", budget: 1, autoAck: true})
	require.Equal(t, 3, meta.Partitions[0].Attempt, "counted for an auto-ack too, though it is not stored")
	_, meta = popSpecific(t, l, "q", "p", popCall{group: "bin", budget: 1, autoAck: true})
	require.Equal(t, 1, meta.Partitions[0].Attempt)
	segments, meta = popSpecific(t, l, "q", "nope", popCall{})
	require.Empty(t, segments)
	require.Empty(t, meta.Partitions)
}
