package sql_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

const raiseFloor = `SELECT r_floor FROM queen.log_pop_raise_floor_v1('q', 'g')`

// pendingByWalk is what the full walk lists, in pages of one.
func pendingByWalk(t *testing.T, l popLog) (names []string) {
	t.Helper()
	after := "00000000-0000-0000-0000-000000000000"
	for {
		rows, err := l.Query(t.Context(), `SELECT r_id::text, r_name FROM queen.log_hotlist_reseed_v1('q', 'g', $1::uuid, 1)`, after)
		require.NoError(t, err)
		name := ""
		for rows.Next() {
			require.NoError(t, rows.Scan(&after, &name))
		}
		require.NoError(t, rows.Err())
		if name == "" {
			return names
		}
		names = append(names, name)
	}
}

func TestFloorHidesNothingThatIsPending(t *testing.T) {
	t.Parallel()
	l := popLog{testdb.New(t).Pool(t)}
	id := l.queue(t, "q", popQueue{})
	l.exec(t, `INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at)
		SELECT $1, 'p' || g, 9, clock_timestamp() - make_interval(hours => g) FROM generate_series(1, 20) g`, id)
	l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) SELECT p.id, 'g', CASE WHEN p.name IN ('p3', 'p7') THEN 5 ELSE 9 END FROM queen.log_partitions p`)
	l.exec(t, `INSERT INTO queen.log_segments SELECT p.id, 0, 9, p.last_write_at, 'x' FROM queen.log_partitions p`)
	floor := func() *time.Time {
		settle(t, l)
		return scalar[*time.Time](t, l, raiseFloor)
	}

	require.Nil(t, floor(), "the first call makes the row")
	first := floor()
	require.NotNil(t, first)
	require.WithinDuration(t, time.Now().Add(-7*time.Hour), *first, time.Minute, "the oldest pending write")
	require.ElementsMatch(t, []string{"p3", "p7"}, pendingByWalk(t, l))
	require.True(t, scalar[bool](t, l, `SELECT queen.log_has_pending_v1('q', 'g')`))
	l.exec(t, `UPDATE queen.log_consumers SET committed = 9`)
	require.WithinDuration(t, time.Now(), *floor(), time.Minute, "everything is drained")
	require.False(t, scalar[bool](t, l, `SELECT queen.log_has_pending_v1('q', 'g')`))
	require.Empty(t, pendingByWalk(t, l))

	l.exec(t, `UPDATE queen.log_partitions SET last_offset = 10, last_write_at = clock_timestamp() WHERE name = 'p20'`)
	require.Equal(t, []string{"p20"}, pendingByWalk(t, l), "a push")
	require.True(t, scalar[bool](t, l, `SELECT queen.log_has_pending_v1('q', 'g')`))
	l.exec(t, `SELECT queen.log_seek_partition_v1('g', 'q', 'p11', FALSE, '2001-01-01')`)
	require.ElementsMatch(t, []string{"p11", "p20"}, pendingByWalk(t, l), "a seek takes the floor away")
	require.Nil(t, scalar[*time.Time](t, l, `SELECT r_floor FROM queen.log_pop_raise_floor_v1('unknown', 'g')`))
}

// settle makes now a time before which no transaction that is under way had begun to write.
func settle(t *testing.T, l popLog) {
	t.Helper()
	begun := scalar[time.Time](t, l, `SELECT clock_timestamp()`)
	require.Eventually(t, func() bool {
		return scalar[bool](t, l, `SELECT queen.log_settled_at_v1() > $1`, begun)
	}, time.Minute, time.Millisecond)
}

// A transaction of a caller may push and go on for an hour: its messages are as old as the push when they are seen at last.
func TestFloorWaitsForTransactionsThatAreUnderWay(t *testing.T) {
	t.Parallel()
	names := func(t *testing.T, l popLog) (names []string) {
		t.Helper()
		_, meta := popWildcard(t, l, "q", popCall{lease: 300})
		for _, p := range meta.Partitions {
			names = append(names, p.Partition)
		}
		return names
	}
	for name, look := range map[string]func(*testing.T, popLog){
		"Raised": func(t *testing.T, l popLog) { l.exec(t, raiseFloor) },
		"Scanned": func(t *testing.T, l popLog) {
			require.Empty(t, names(t, l))
			l.exec(t, `UPDATE queen.consumer_watermarks SET updated_at = clock_timestamp() - interval '1 minute'`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := popLog{testdb.New(t).Pool(t)}
			id := l.queue(t, "q", popQueue{})
			l.exec(t, `INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at) VALUES ($1, 'p', 9, clock_timestamp() - interval '1 day')`, id)
			l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) SELECT id, 'g', 9 FROM queen.log_partitions`)
			underway, err := l.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = underway.Rollback(context.WithoutCancel(t.Context())) }()
			_, err = underway.Exec(t.Context(), `WITH pushed AS (
				UPDATE queen.log_partitions SET last_offset = 10, last_write_at = clock_timestamp() - interval '1 hour' RETURNING id, last_write_at)
				INSERT INTO queen.log_segments SELECT id, 10, 10, last_write_at, 'x' FROM pushed`)
			require.NoError(t, err)
			for range 4 {
				look(t, l)
			}
			require.NoError(t, underway.Commit(t.Context()))
			require.True(t, scalar[bool](t, l, `SELECT queen.log_has_pending_v1('q', 'g')`))
			require.Equal(t, []string{"p"}, pendingByWalk(t, l))
			settle(t, l)
			l.exec(t, raiseFloor)
			require.Equal(t, []string{"p"}, pendingByWalk(t, l), "the floor stays below what is pending")
			require.Equal(t, []string{"p"}, names(t, l))
		})
	}
}

// A seek that is under way when the floor is raised is either seen or takes the floor away.
func TestFloorAndSeekDoNotCross(t *testing.T) {
	t.Parallel()
	for name, raise := range map[string]string{
		"Raised":  raiseFloor,
		"Scanned": `SELECT meta FROM queen.log_pop_wildcard_bin_v1('q', 'g', 10, 60, 'w', FALSE, 1)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := popLog{testdb.New(t).Pool(t)}
			id := l.queue(t, "q", popQueue{})
			l.exec(t, `INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at) VALUES ($1, 'p', 9, clock_timestamp() - interval '1 day')`, id)
			l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) SELECT id, 'g', 9 FROM queen.log_partitions`)
			l.exec(t, `INSERT INTO queen.log_segments SELECT p.id, 0, 9, p.last_write_at, 'x' FROM queen.log_partitions p`)
			l.exec(t, raise)
			l.exec(t, `UPDATE queen.consumer_watermarks SET updated_at = clock_timestamp() - interval '1 minute'`)
			settle(t, l)
			seek, err := l.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = seek.Rollback(context.WithoutCancel(t.Context())) }()
			_, err = seek.Exec(t.Context(), `SELECT queen.log_seek_partition_v1('g', 'q', 'p', FALSE, '2001-01-01')`)
			require.NoError(t, err)
			raised := make(chan error, 1)
			go func() { _, err := l.Exec(t.Context(), raise); raised <- err }()
			require.Eventually(t, func() bool {
				return scalar[bool](t, l, `SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`)
			}, time.Minute, 10*time.Millisecond)
			require.NoError(t, seek.Commit(t.Context()))
			require.NoError(t, <-raised)
			require.Equal(t, []string{"p"}, pendingByWalk(t, l))
		})
	}
}
