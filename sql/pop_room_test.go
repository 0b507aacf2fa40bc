package sql_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// roomOf lowers the bound of a claim from 64 MiB to what a test can fill.
func roomOf(t *testing.T, l popLog, bytes int) {
	t.Helper()
	require.EqualValues(t, 64<<20, scalar[int64](t, l, `SELECT queen.log_pop_max_bytes_v1()`))
	l.exec(t, `CREATE OR REPLACE FUNCTION queen.log_pop_max_bytes_v1() RETURNS BIGINT LANGUAGE sql IMMUTABLE AS $$ SELECT `+
		scalar[string](t, l, `SELECT $1::int::text`, bytes)+`::BIGINT $$`)
	l.exec(t, `UPDATE queen.log_segments SET blob = convert_to(repeat('x', 40), 'utf8')`)
}

// A batch that PostgreSQL cannot return would fail on every try: however many messages are asked for, it ends with the segment
// that fills it, and the next one goes on from there.
func TestPopEndsWithTheSegmentThatFillsIt(t *testing.T) {
	t.Parallel()
	everyPop(t, func(t *testing.T, l popLog, pop func(q pgxQuerier, c popCall) []taken) {
		id := l.queue(t, "q", popQueue{Namespace: "ns"})
		p := l.partition(t, id, "p", run{0, 2, 0}, run{2, 2, 0}, run{4, 2, 0}, run{6, 2, 0}, run{8, 2, 0})
		l.cursor(t, p, "g", -1, "", 0)
		roomOf(t, l, 100)
		require.EqualValues(t, 6, messages(pop(l, popCall{})))
		require.EqualValues(t, 5, *popRows(t, l, id, "g")["p"].BatchEnd)
		l.cursor(t, p, "g", 5, "", 0)
		require.EqualValues(t, 4, messages(pop(l, popCall{})))

		l.cursor(t, p, "g", -1, "", 0)
		l.exec(t, `CREATE OR REPLACE FUNCTION queen.log_pop_max_bytes_v1() RETURNS BIGINT LANGUAGE sql IMMUTABLE AS $$ SELECT 1::BIGINT $$`)
		require.EqualValues(t, 2, messages(pop(l, popCall{autoAck: true})), "a first segment beyond the bound is taken all the same")
		require.EqualValues(t, 1, popRows(t, l, id, "g")["p"].Committed)
	})
}

func TestPopListReachesNoFurtherThanItsBytes(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		l.cursor(t, l.partition(t, id, name, run{0, 3, 0}, run{3, 3, 0}), "g", -1, "", 0)
	}
	roomOf(t, l, 100)
	segments, _, states := popList(t, l, "q", names, popCall{})
	require.EqualValues(t, 9, messages(segments), "two segments of a and one of b")
	require.Len(t, states, 2)
	rows := popRows(t, l, id, "g")
	require.EqualValues(t, 2, *rows["b"].BatchEnd)
	require.Equal(t, popRow{Committed: -1}, rows["c"])

	segments, _, _ = popList(t, l, "q", names, popCall{worker: "w2"})
	require.EqualValues(t, 9, messages(segments), "two segments of c and one of d")
}
