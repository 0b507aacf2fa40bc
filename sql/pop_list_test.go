package sql_test

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// decodeBase64 reads base64 with line breaks.
func decodeBase64(t tester, text string) string {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "\n", ""))
	require.NoError(t, err)
	return string(raw)
}

func TestPopListVerdicts(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	l.partition(t, id, "full", twoRuns()...)
	l.cursor(t, l.partition(t, id, "leased", twoRuns()...), "g", 1, "somebody", time.Hour)
	l.cursor(t, l.partition(t, id, "mine", twoRuns()...), "g", 1, "w", time.Hour)
	l.cursor(t, l.partition(t, id, "drained", twoRuns()...), "g", 7, "", 0)
	gone := l.partition(t, id, "gone")
	l.exec(t, `UPDATE queen.log_partitions SET last_offset = 9, log_start = 10 WHERE id = $1`, gone)

	segments, meta, states := popList(t, l, "q", []string{"leased", "unknown", "full", "mine", "drained", "gone", "full"}, popCall{budget: 9})
	require.Equal(t, []taken{{"full", 0, 0, 5, blobOf("full", 0)}, {"full", 5, 0, 3, blobOf("full", 5)}}, segments)
	require.Len(t, meta.Partitions, 1)
	require.Equal(t, "q", meta.Partitions[0].Queue)
	require.Equal(t, 1, meta.Partitions[0].Attempt)

	expiry := scalar[time.Time](t, l, `SELECT lease_expires_at FROM queen.log_consumers WHERE worker_id = 'somebody'`).UTC()
	require.Equal(t, popState{P: "leased", S: "leased", Until: &expiry}, states[0])
	require.Equal(t, popState{P: "unknown", S: "empty"}, states[1])
	require.Equal(t, popState{P: "full", S: "took", LastOff: ptr(int64(7))}, states[2])
	requireSoon(t, "mine", states[3])
	require.Equal(t, popState{P: "drained", S: "empty"}, states[4])
	require.Equal(t, popState{P: "gone", S: "empty"}, states[5], "sealed")
	requireSoon(t, "full", states[6])
	require.Len(t, states, 7)
	require.Equal(t, int64(9), popRows(t, l, id, "g")["gone"].Committed)
}

// requireSoon asserts that a verdict asks to look again 250 ms after the call.
func requireSoon(t tester, name string, s popState) {
	t.Helper()
	require.Equal(t, name, s.P)
	require.Equal(t, "leased", s.S)
	require.NotNil(t, s.Until)
	require.WithinDuration(t, time.Now().Add(250*time.Millisecond), *s.Until, 30*time.Second)
}

func TestPopListReachesNoFurtherThanBudgetAndCap(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		l.cursor(t, l.partition(t, id, name, run{base: 0, count: 3}), "g", -1, "", 0)
		l.cursor(t, scalar[[16]byte](t, l, `SELECT id FROM queen.log_partitions WHERE name = $1`, name), "h", -1, "", 0)
	}
	segments, _, states := popList(t, l, "q", names, popCall{budget: 4})
	require.Equal(t, []taken{{"a", 0, 0, 3, blobOf("a", 0)}, {"b", 0, 0, 1, blobOf("b", 0)}}, segments)
	require.Len(t, states, 2)
	rows := popRows(t, l, id, "g")
	require.Equal(t, popRow{Committed: -1}, rows["c"])
	require.Equal(t, popRow{Committed: -1}, rows["d"])

	segments, _, states = popList(t, l, "q", names, popCall{group: "h", maxPartitions: 3})
	require.EqualValues(t, 9, messages(segments))
	require.Len(t, states, 3)

	for _, unlimited := range []any{0, -5, (*int)(nil)} {
		l.exec(t, `UPDATE queen.log_consumers SET worker_id = NULL`)
		segments, _, states = popList(t, l, "q", names, popCall{group: "h", maxPartitions: unlimited})
		require.EqualValues(t, 12, messages(segments))
		require.Len(t, states, 4)
	}
}

// A small claim must not keep other consumers away from partitions it cannot use.
func TestPopListLocksOnlyWhatItsBudgetNeeds(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	names := make([]string, 20)
	for i := range names {
		names[i] = string(rune('a' + i))
		l.cursor(t, l.partition(t, id, names[i], run{base: 0, count: 10}), "g", -1, "", 0)
	}
	tx, err := l.Begin(context.Background())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	segments, _, _ := popList(t, tx, "q", names, popCall{budget: 15, worker: "w1"})
	require.EqualValues(t, 15, messages(segments))
	segments, _, _ = popList(t, l, "q", names, popCall{budget: 1000, worker: "w2"})
	require.EqualValues(t, 180, messages(segments), "18 of 20 partitions are free for the second consumer while the first is not committed")
}

func TestPopListGivesTheMomentOfVisibility(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	created := func(partition string, base int64) time.Time {
		return scalar[time.Time](t, l, `SELECT s.created_at FROM queen.log_segments s JOIN queen.log_partitions p ON p.id = s.partition_id
			WHERE p.name = $1 AND s.base_offset = $2`, partition, base).UTC()
	}
	id := l.queue(t, "delayed", popQueue{Delay: 100})
	pid := l.partition(t, id, "young", run{0, 2, 300 * time.Second}, run{2, 2, 40 * time.Second}, run{4, 2, 30 * time.Second})
	l.cursor(t, pid, "g", 2, "", 0)
	l.partition(t, id, "behind a gap", run{7, 2, 20 * time.Second})
	l.cursor(t, l.partition(t, id, "drained", run{0, 2, time.Second}), "g", 1, "", 0)
	_, _, states := popList(t, l, "delayed", []string{"young", "behind a gap", "drained"}, popCall{})
	require.Equal(t, []popState{
		{P: "young", S: "leased", Until: ptr(created("young", 2).Add(100 * time.Second))},
		{P: "behind a gap", S: "leased", Until: ptr(created("behind a gap", 7).Add(100 * time.Second))},
		{P: "drained", S: "empty"},
	}, states)

	id = l.queue(t, "window", popQueue{Window: 100})
	l.partition(t, id, "busy", run{0, 2, 300 * time.Second}, run{2, 2, 40 * time.Second})
	_, _, states = popList(t, l, "window", []string{"busy"}, popCall{})
	require.Equal(t, []popState{{P: "busy", S: "leased", Until: ptr(created("busy", 2).Add(100 * time.Second))}}, states)
	segments, _, _ := popList(t, l, "window", []string{"busy"}, popCall{skipWindow: true})
	require.EqualValues(t, 4, messages(segments))
}

func TestPopListOfNothing(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	l.partition(t, id, "p", twoRuns()...)
	for name, candidates := range map[string][]string{"null": nil, "empty": {}, "unknown": {"nope"}} {
		segments, meta, states := popList(t, l, "q", candidates, popCall{})
		require.Empty(t, segments, name)
		require.Empty(t, meta.Partitions, name)
		require.Len(t, states, len(candidates), name)
	}
	segments, _, states := popList(t, l, "no such queue", []string{"p"}, popCall{})
	require.Empty(t, segments)
	require.Empty(t, states)
	require.Equal(t, 1, scalar[int](t, l, `SELECT count(*) FROM queen.queues`), "nothing is provisioned")
	require.Zero(t, scalar[int](t, l, `SELECT count(*) FROM queen.consumer_groups_metadata`), "nobody is registered")
	require.Zero(t, scalar[int](t, l, `SELECT count(*) FROM queen.log_consumers`))
}

// Delayed messages make a claim promise more than it can give. What it then looks at further is more than it can use.
func TestPopListLooksFurtherWhenThePromiseFails(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{Delay: 100})
	old, young := run{0, 3, 300 * time.Second}, run{0, 3, time.Second}
	for name, r := range map[string]run{"young1": young, "young2": young, "old1": old, "old2": old} {
		l.cursor(t, l.partition(t, id, name, r), "g", -1, "", 0)
	}
	gone := l.partition(t, id, "gone")
	l.cursor(t, gone, "g", -1, "", 0)
	l.exec(t, `UPDATE queen.log_partitions SET last_offset = 9, log_start = 10 WHERE id = $1`, gone)
	segments, _, states := popList(t, l, "q", []string{"young1", "young2", "old1", "gone", "old2"}, popCall{maxPartitions: 1})
	require.Equal(t, []taken{{"old1", 0, 0, 3, blobOf("old1", 0)}}, segments)
	require.Len(t, states, 3)
	rows := popRows(t, l, id, "g")
	require.Equal(t, popRow{Committed: -1}, rows["gone"], "behind the cap: left as it was")
	require.Equal(t, popRow{Committed: -1}, rows["old2"])
}

// More messages than one claim promised: the estimate rests on log_start, and a scan cut short by it is repeated in full.
func TestPopListSurvivesAWrongLogStart(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	for _, name := range []string{"a", "b", "c"} {
		pid := l.partition(t, id, name, run{base: 5000, count: 3}, run{base: 5003, count: 3})
		l.exec(t, `UPDATE queen.log_partitions SET log_start = 0 WHERE id = $1`, pid)
	}
	segments, _, _ := popList(t, l, "q", []string{"a", "b", "c"}, popCall{budget: 9})
	require.EqualValues(t, 9, messages(segments))
}

func TestHasPendingAndReseed(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	ctx := context.Background()
	id := l.queue(t, "q", popQueue{})
	l.queue(t, "idle", popQueue{})
	pending := func(queue, group string) bool {
		return scalar[bool](t, l, `SELECT queen.log_has_pending_v1($1, $2)`, queue, group)
	}
	require.False(t, pending("no such queue", "g"))
	require.False(t, pending("q", "g"))
	l.partition(t, id, "empty")
	require.False(t, pending("q", "g"), "a partition without messages")
	a := l.partition(t, id, "a", twoRuns()...)
	require.True(t, pending("q", "g"), "no cursor yet")
	require.False(t, pending("idle", "g"))
	l.cursor(t, a, "g", 7, "", 0)
	require.False(t, pending("q", "g"))
	require.True(t, pending("q", "h"))
	l.cursor(t, a, "g", 6, "w", time.Hour)
	require.True(t, pending("q", "g"), "leased messages count")
	require.False(t, scalar[bool](t, l, `SELECT queen.log_has_pending_v1('q', 'g', gen_random_uuid())`), "another tenant")

	want := map[string]bool{"a": true}
	for _, name := range []string{"b", "c", "d", "e"} {
		l.partition(t, id, name, twoRuns()...)
		want[name] = true
	}
	l.cursor(t, l.partition(t, id, "drained", twoRuns()...), "g", 7, "", 0)
	l.exec(t, `UPDATE queen.log_partitions SET last_write_at = now() - interval '1 h' WHERE name IN ('a', 'b')`)
	walk := func(sql string, extra ...any) map[string]bool {
		found, after := map[string]bool{}, [16]byte{}
		for {
			rows, err := l.Query(ctx, sql, append([]any{after}, extra...)...)
			require.NoError(t, err)
			n := 0
			for rows.Next() {
				var next [16]byte
				var name string
				require.NoError(t, rows.Scan(&next, &name))
				require.Greater(t, string(next[:]), string(after[:]), "ascending by id")
				require.False(t, found[name])
				found[name], after = true, next
				n++
			}
			require.NoError(t, rows.Err())
			require.LessOrEqual(t, n, 2)
			if n == 0 {
				return found
			}
		}
	}
	require.Equal(t, want, walk(`SELECT r_id, r_name FROM queen.log_hotlist_reseed_v1('q', 'g', $1, 2)`))
	require.Equal(t, want, walk(`SELECT r_id, r_name FROM queen.log_hotlist_reseed_v1('q', 'g', $1, 0)`), "a limit below one acts as one")
	require.Empty(t, walk(`SELECT r_id, r_name FROM queen.log_hotlist_reseed_v1('idle', 'g', $1, 2)`))
	require.Equal(t, map[string]bool{"c": true, "d": true, "e": true},
		walk(`SELECT r_id, r_name FROM queen.log_hotlist_reseed_window_v1('q', 'g', $1, 2, $2, now() - interval '1 min')`, defaultTenant))
}
