package sql_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A readyVerdict is what log_pop_ready_v1 says about one candidate.
type readyVerdict struct {
	partition, verdict string
	lastOffset         *int64
	wait               time.Duration
}

// popReady calls log_pop_ready_v1; it has one verdict per candidate that it names.
func popReady(t tester, q pgxQuerier, queue string, partitions []string, c popCall) (segments []taken, verdicts []readyVerdict) {
	t.Helper()
	c = c.filled()
	rows, err := q.Query(context.Background(), `SELECT r_ord, r_verdict, r_last_offset, r_wait_ms, r_base, r_start, r_take, r_blob
		FROM queen.log_pop_ready_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		queue, c.group, partitions, c.budget, c.lease, c.worker, c.autoAck, c.maxPartitions, c.subMode, c.subFrom, c.skipWindow)
	require.NoError(t, err)
	var ord int
	var v readyVerdict
	var wait, base, start, take *int64
	var blob []byte
	last := 0
	_, err = pgx.ForEachRow(rows, []any{&ord, &v.verdict, &v.lastOffset, &wait, &base, &start, &take, &blob}, func() error {
		v.partition, v.wait = partitions[ord-1], 0
		if wait != nil {
			v.wait = time.Duration(*wait) * time.Millisecond
		}
		if v.verdict == "took" || v.verdict == "poison" {
			segments = append(segments, taken{v.partition, *base, *start, *take, string(blob)})
		} else {
			require.Nil(t, base)
			v.lastOffset = nil
		}
		if ord != last {
			verdicts = append(verdicts, v)
		}
		last = ord
		return nil
	})
	require.NoError(t, err)
	return segments, verdicts
}

// TestPopReadyEqualsTheList holds the pop of the hot list against log_pop_list_v1 on random states.
func TestPopReadyEqualsTheList(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		queue := fmt.Sprintf("q%d", n)
		s := drawEqualState(t)
		for i := range s.partitions {
			p := &s.partitions[i]
			p.staleStart = false
			if len(p.runs) == 0 {
				p.hasRow, p.committed = true, p.last // what is to be sealed has a test of its own
			}
			for k := range p.runs[min(1, len(p.runs)):] { // so have gaps
				p.runs[k+1].base = p.runs[k].base + p.runs[k].count
				p.last = p.runs[k+1].base + p.runs[k+1].count - 1
			}
			p.committed = min(p.committed, p.last)
		}
		c := popCall{
			group:         rapid.SampledFrom([]string{"g", "g", queueMode}).Draw(t, "group"),
			budget:        rapid.IntRange(0, 60).Draw(t, "budget"),
			maxPartitions: rapid.IntRange(0, 4).Draw(t, "max partitions"),
			autoAck:       rapid.Bool().Draw(t, "auto ack"),
			subMode:       rapid.SampledFrom([]string{"all", "new"}).Draw(t, "sub mode"),
			subFrom:       rapid.SampledFrom([]string{"", "", "now"}).Draw(t, "sub from"),
			skipWindow:    rapid.Bool().Draw(t, "skip window"),
		}.filled()
		names := []string{"unknown"}
		for _, p := range s.partitions {
			names = append(names, p.name)
		}
		candidates := rapid.Permutation(names).Draw(t, "order")[:rapid.IntRange(0, len(names)).Draw(t, "candidates")]
		id := s.write(t, l, queue, c.group)

		read := func(tx pgx.Tx, segments []taken, verdicts []readyVerdict) equalReady {
			return equalReady{Taken: segments, Verdicts: verdicts, Rows: popRows(t, tx, id, c.group)}
		}
		var got equalReady
		rolledBack(t, l, func(tx pgx.Tx) {
			segments, verdicts := popReady(t, tx, queue, candidates, c)
			got = read(tx, segments, verdicts)
		})
		var want equalReady
		rolledBack(t, l, func(tx pgx.Tx) {
			segments, meta, states := popList(t, tx, queue, candidates, c)
			want = read(tx, segments, nil)
			for _, state := range states {
				v := verdictOf(state)
				if slices.ContainsFunc(meta.Partitions, func(p popMetaPartition) bool { return p.Partition == state.P && p.Poison }) {
					v.verdict = "poison"
				}
				want.Verdicts = append(want.Verdicts, v)
			}
		})
		for _, p := range s.partitions { // cursors that a round of either created ahead of the budget
			for _, rows := range []map[string]popRow{want.Rows, got.Rows} {
				if row, made := rows[p.name]; made && !p.hasRow && row == (popRow{Committed: row.Committed}) {
					delete(rows, p.name)
				}
			}
		}
		same := cmp.Options{cmpopts.EquateEmpty(), cmp.AllowUnexported(readyVerdict{}), cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < 5*time.Second })}
		byPartition := func(a, b readyVerdict) int {
			return slices.Index(candidates, a.partition) - slices.Index(candidates, b.partition)
		}
		slices.SortFunc(got.Verdicts, byPartition)
		if diff := cmp.Diff(want, got, same); diff != "" {
			t.Fatalf("log_pop_list_v1 (-) and log_pop_ready_v1 (+) differ:\n%s\n%+v\n%+v %v", diff, s, c, candidates)
		}
	})
}

type equalReady struct {
	Taken    []taken
	Verdicts []readyVerdict
	Rows     map[string]popRow
}

// verdictOf translates a verdict of the list: it has one word for three reasons to come back later.
func verdictOf(state popState) readyVerdict {
	v := readyVerdict{partition: state.P, verdict: state.S, lastOffset: state.LastOff}
	if state.Until == nil {
		return v
	}
	v.wait = time.Until(*state.Until)
	switch {
	case v.wait < time.Second:
		v.verdict = "raced"
	case v.wait < 1000*time.Second:
		v.verdict = "deferred" // leases of other workers last an hour in the states drawn
	}
	return v
}

func TestPopReadyPassesAGapThatLogStartDoesNotKnow(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	pid := l.partition(t, id, "p", run{base: 100, count: 5}, run{base: 105, count: 5})
	l.exec(t, `UPDATE queen.log_partitions SET log_start = 0 WHERE id = $1`, pid)
	l.cursor(t, pid, "g", -1, "", 0)
	segments, verdicts := popReady(t, l, "q", []string{"p"}, popCall{budget: 7})
	require.Equal(t, []taken{{"p", 100, 0, 5, blobOf("p", 100)}, {"p", 105, 0, 2, blobOf("p", 105)}}, segments)
	require.Equal(t, []readyVerdict{{partition: "p", verdict: "took", lastOffset: ptr(int64(109))}}, verdicts)
}

func TestPopReadySealsWhatRetentionRemoved(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	pid := l.partition(t, id, "p", run{base: 0, count: 5})
	l.cursor(t, pid, "g", 1, "", 0)
	l.exec(t, `DELETE FROM queen.log_segments WHERE partition_id = $1`, pid)
	segments, verdicts := popReady(t, l, "q", []string{"p"}, popCall{})
	require.Empty(t, segments)
	require.Equal(t, []readyVerdict{{partition: "p", verdict: "empty"}}, verdicts)
	require.Equal(t, popRow{Committed: 4}, popRows(t, l, id, "g")["p"])

	// Beside a partition that yields it is left for the next call, and takes no partition of the cap.
	l.exec(t, `UPDATE queen.log_partitions SET log_start = last_offset + 1 WHERE id = $1`, pid)
	other := l.partition(t, id, "full", run{base: 0, count: 5})
	l.cursor(t, other, "g", -1, "", 0)
	l.cursor(t, pid, "g", 1, "", 0)
	_, verdicts = popReady(t, l, "q", []string{"p", "full"}, popCall{maxPartitions: 2})
	require.Equal(t, []readyVerdict{{partition: "full", verdict: "took", lastOffset: ptr(int64(4))}, {partition: "p", verdict: "raced", wait: 250 * time.Millisecond}}, verdicts)
}

// A claim that another pop overtook between the snapshot and the lock begins where that one ended, or is told to come back.
func TestPopReadyRereadsACursorThatMovedUnderTheLock(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	pid := l.partition(t, id, "p", run{base: 0, count: 400})
	l.cursor(t, pid, "g", -1, "", 0)
	register(t, l, id)
	const workers, each = 8, 10
	got := make(chan []taken, workers)
	failed := make(chan error, workers)
	for w := range workers {
		go func() {
			var mine []taken
			for range each {
				rows, err := l.Query(context.Background(), `SELECT r_base, r_start, r_take FROM queen.log_pop_ready_v1('q', 'g', '{p}', 5, 60, $1, TRUE, 1) WHERE r_verdict = 'took'`, uuid.NewString())
				if err == nil {
					var s taken
					_, err = pgx.ForEachRow(rows, []any{&s.Base, &s.Start, &s.Take}, func() error { mine = append(mine, s); return nil })
				}
				if err != nil {
					failed <- fmt.Errorf("worker %d: %w", w, err)
					return
				}
			}
			got <- mine
		}()
	}
	seen := map[int64]bool{}
	for range workers {
		select {
		case err := <-failed:
			t.Fatal(err)
		case mine := <-got:
			last := int64(-1)
			for _, s := range mine {
				for offset := s.Base + s.Start; offset < s.Base+s.Start+s.Take; offset++ {
					require.False(t, seen[offset], "offset %d was delivered twice", offset)
					require.Greater(t, offset, last, "one worker's offsets ascend")
					seen[offset], last = true, offset
				}
			}
		}
	}
	require.Equal(t, int64(len(seen))-1, popRows(t, l, id, "g")["p"].Committed, "nothing was skipped")
}

// Many pops in one call: each candidate is leased to its own worker, for its own time, up to its own budget.
func TestPopReadyServesManyWorkers(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	l.cursor(t, l.partition(t, id, "a", run{base: 0, count: 5}, run{base: 5, count: 5}), "g", -1, "", 0)
	l.partition(t, id, "new", run{base: 0, count: 5})
	l.cursor(t, l.partition(t, id, "held", run{base: 0, count: 5}), "g", -1, "other", time.Hour)
	l.cursor(t, l.partition(t, id, "drained", run{base: 0, count: 5}), "g", 4, "", 0)
	l.cursor(t, l.partition(t, id, "b", run{base: 0, count: 5}, run{base: 5, count: 5}), "g", 2, "", 0)
	rows, err := l.Query(t.Context(), `SELECT r_ord, r_verdict, r_base, r_start, r_take FROM queen.log_pop_ready_v1('q', 'g', '{held,b,drained,new,a}', 1000, 1,
		'', FALSE, 0, 'all', '', FALSE, $1, '{w1,w2,w3,w4,w5}', '{10,3,10,2,100}', '{10,20,30,40,500}')`, defaultTenant)
	require.NoError(t, err)
	type row struct {
		Ord               int
		Verdict           string
		Base, Start, Take *int64
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	n := func(v int64) *int64 { return &v }
	require.Equal(t, []row{
		{2, "took", n(0), n(3), n(2)},
		{2, "took", n(5), n(0), n(1)},
		{4, "took", n(0), n(0), n(2)},
		{5, "took", n(0), n(0), n(5)},
		{5, "took", n(5), n(0), n(5)},
		{1, "leased", nil, nil, nil},
		{3, "empty", nil, nil, nil},
	}, got)
	cursors := popRows(t, l, id, "g")
	for name, want := range map[string]struct {
		worker       string
		expires, end int64
	}{"a": {"w5", 500, 9}, "b": {"w2", 20, 5}, "new": {"w4", 40, 1}} {
		c := cursors[name]
		require.Equal(t, want.worker, *c.Worker, name)
		require.Equal(t, want.end, *c.BatchEnd, name)
		require.Equal(t, want.expires, *c.Expires, name)
	}
}

// Candidates of one worker share its budget, in their order. Those behind its end have no verdict: they are to be asked about again.
func TestPopReadySharesBudgets(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		l.cursor(t, l.partition(t, id, name, run{base: 0, count: 5}), "g", -1, "", 0)
	}
	l.cursor(t, l.partition(t, id, "drained", run{base: 0, count: 5}), "g", 4, "", 0)
	rows, err := l.Query(t.Context(), `SELECT r_ord, r_verdict, r_take FROM queen.log_pop_ready_v1('q', 'g', '{a,b,c,drained,d,e}', 1007, 1,
		'', FALSE, 0, 'all', '', FALSE, $1, '{w1,w1,w1,w1,w2,w2}', '{7,7,7,7,1000,1000}', '{10,10,10,10,10,10}')`, defaultTenant)
	require.NoError(t, err)
	type row struct {
		Ord     int
		Verdict string
		Take    *int64
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	require.NoError(t, err)
	n := func(v int64) *int64 { return &v }
	require.Equal(t, []row{{1, "took", n(5)}, {2, "took", n(2)}, {5, "took", n(5)}, {6, "took", n(5)}}, got)
	cursors := popRows(t, l, id, "g")
	require.Nil(t, cursors["c"].Worker)
	for name, worker := range map[string]string{"a": "w1", "b": "w1", "d": "w2", "e": "w2"} {
		require.Equal(t, worker, *cursors[name].Worker, name)
	}
}
