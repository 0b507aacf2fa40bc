package sql_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/testdb"
)

// A hotPage is one page of log_hotlist_page_v1.
type hotPage struct {
	names []string
	// messages is how many all of them have together.
	messages int64
	// at and id are where it ended; at is nil after the last page.
	at *time.Time
	id *uuid.UUID
}

const hotListPage = `SELECT r_at, r_id, r_name, r_messages FROM queen.log_hotlist_page_v1('q', 'g', $1, $2, $3, $4, $5)`

func readHotPage(t tester, q pgxQuerier, window *float64, after hotPage, limit int) (page hotPage) {
	t.Helper()
	rows, err := q.Query(context.Background(), hotListPage, defaultTenant, window, after.at, after.id, limit)
	require.NoError(t, err)
	var at time.Time
	var id uuid.UUID
	var name *string
	var messages *int64
	_, err = pgx.ForEachRow(rows, []any{&at, &id, &name, &messages}, func() error {
		if name != nil {
			page.names = append(page.names, *name)
			page.messages += *messages
		} else {
			page.at, page.id = ptr(at), ptr(id)
		}
		return nil
	})
	require.NoError(t, err)
	return page
}

// Pages of any size, over partitions many of which were written to at the same moment, list what is pending exactly once.
func TestHotListPagesListWhatIsPending(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	rapid.Check(t, func(t *rapid.T) {
		tx, err := l.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(t.Context()) }()
		_, err = tx.Exec(t.Context(), `INSERT INTO queen.queues (id, name) VALUES ('00000000-0000-0000-0000-00000000000a', 'q'), (gen_random_uuid(), 'other')`)
		require.NoError(t, err)
		n := rapid.IntRange(0, 12).Draw(t, "partitions")
		for range n {
			age := rapid.IntRange(0, 3).Draw(t, "minutes")
			last := rapid.IntRange(-1, 2).Draw(t, "last")
			_, err := tx.Exec(t.Context(), `WITH p AS (INSERT INTO queen.log_partitions (queue_id, name, last_offset, log_start, last_write_at)
				SELECT q.id, gen_random_uuid(), $1, $6, date_trunc('minute', clock_timestamp()) - make_interval(mins => $2) FROM queen.queues q WHERE q.name = $3 RETURNING id)
				INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) SELECT id, $4, $5::int FROM p WHERE $5::int > -2`,
				last, age, rapid.SampledFrom([]string{"q", "q", "q", "other"}).Draw(t, "queue"), rapid.SampledFrom([]string{"g", "g", "h"}).Draw(t, "group"),
				rapid.IntRange(-2, last).Draw(t, "committed"), rapid.IntRange(0, last+1).Draw(t, "start"))
			require.NoError(t, err)
		}
		var window *float64
		if rapid.Bool().Draw(t, "windowed") {
			window = ptr(150.0)
		}
		want := scalar[[]string](t, tx, `SELECT COALESCE(array_agg(p.name ORDER BY p.name), '{}') FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
			LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = 'g'
			WHERE q.name = 'q' AND p.last_offset > COALESCE(c.committed, -1) AND ($1::float8 IS NULL OR p.last_write_at >= clock_timestamp() - make_interval(secs => $1))`, window)
		messages := scalar[int64](t, tx, `SELECT COALESCE(sum(p.last_offset - GREATEST(p.log_start - 1, COALESCE(c.committed, -1))), 0)::bigint
			FROM queen.log_partitions p LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = 'g' WHERE p.name = ANY ($1)`, want)
		got, page, counted := []string{}, hotPage{}, int64(0)
		limit := rapid.IntRange(1, 5).Draw(t, "limit")
		for pages := 0; ; pages++ {
			require.LessOrEqual(t, pages, n/limit, "a page looks at as many as it may")
			page = readHotPage(t, tx, window, page, limit)
			got, counted = append(got, page.names...), counted+page.messages
			if page.at == nil {
				break
			}
		}
		slices.Sort(got)
		require.Equal(t, want, got)
		require.Equal(t, messages, counted)
	})
}

// manyPartitions makes partitions of one queue that were all written to within the last minute; every tenth has a message for group g. The
// planner knows nothing of them.
func manyPartitions(t *testing.T, l popLog, n int) {
	t.Helper()
	id := l.queue(t, "q", popQueue{})
	l.exec(t, `INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at)
		SELECT $1, 'p' || g, 9, clock_timestamp() - make_interval(secs => g / ($2 / 50.0)) FROM generate_series(1, $2::int) g`, id, n)
	l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) SELECT id, 'g', CASE WHEN substr(name, 2)::int % 10 = 0 THEN 8 ELSE 9 END FROM queen.log_partitions`)
	l.exec(t, `INSERT INTO queen.log_segments SELECT id, 0, 9, clock_timestamp(), 'x' FROM queen.log_partitions`)
}

// A page of a walk reads so many partitions and not more, however many there are, were written to lately, or have messages.
func TestPlanHotListPageIsBounded(t *testing.T) {
	t.Parallel()
	const n, limit = 60_000, 2000
	db := testdb.New(t)
	l := popLog{db.Pool(t)}
	manyPartitions(t, l, n)
	r := newPlanReader(t, db)
	for _, window := range []*float64{nil, ptr(120.0)} {
		for page, pages, found := (hotPage{}), 0, 0; ; pages++ {
			if pages%16 == 3 {
				blocks, indexes := requireIndexed(t, r.call(t, hotListPage, defaultTenant, window, page.at, page.id, limit))
				t.Logf("page %d: %d blocks, %v", pages, blocks, indexes)
				require.LessOrEqual(t, blocks, 8*limit)
				require.Contains(t, indexes, "idx_log_partitions_queue_write")
			}
			page = readHotPage(t, l, window, page, limit)
			found += len(page.names)
			if page.at == nil {
				require.Equal(t, n/limit, pages)
				require.Equal(t, n/10, found)
				break
			}
		}
	}
	// The floor comes as far as one call looks, and then as far as the first pending partition.
	l.exec(t, `UPDATE queen.log_consumers SET committed = 9`)
	l.exec(t, `UPDATE queen.log_partitions SET last_write_at = last_write_at - interval '1 hour'`)
	l.exec(t, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group) SELECT id, 'g' FROM queen.queues`)
	settle(t, l)
	blocks, _ := requireIndexed(t, r.call(t, raiseFloor))
	require.LessOrEqual(t, blocks, 8*20_000)
	newest := scalar[time.Time](t, l, `SELECT max(last_write_at) FROM queen.log_partitions`)
	floor := scalar[time.Time](t, l, raiseFloor)
	require.Equal(t, floor, scalar[time.Time](t, l, raiseFloor), "the two minutes below are looked at again")
	goOn := func(before time.Time) (floor time.Time, more bool) {
		require.NoError(t, l.QueryRow(t.Context(), `SELECT * FROM queen.log_pop_raise_floor_v1('q', 'g', p_before => $1)`, before).Scan(&floor, &more))
		return floor, more
	}
	same, more := goOn(floor.Add(-time.Second))
	require.Equal(t, floor, same, "a floor that is not this one says nothing")
	calls := 1
	for ; more; calls++ {
		require.True(t, floor.Before(newest), "it stopped on the way")
		floor, more = goOn(floor)
	}
	require.True(t, floor.After(newest.Add(time.Minute)), "there are no more")
	require.LessOrEqual(t, calls, 2+n/20_000)
}

const statsStep = `SELECT r_queue, r_partitions, r_total, r_pending, r_processing, r_dead, r_lagging, r_most, r_next FROM queen.log_stats_step_v1($1, $2)`

// A step of the statistics reads so many partitions and not more, and the steps of a pass add up.
func TestPlanStatisticsStepIsBounded(t *testing.T) {
	t.Parallel()
	const n, limit = 60_000, 2000
	db := testdb.New(t)
	l := popLog{db.Pool(t)}
	manyPartitions(t, l, n)
	r := newPlanReader(t, db)
	var after uuid.UUID
	var sum [7]int64
	for steps := 0; ; steps++ {
		if steps%20 == 3 {
			blocks, indexes := requireIndexed(t, r.call(t, statsStep, after, limit))
			t.Logf("step %d: %d blocks, %v", steps, blocks, indexes)
			require.LessOrEqual(t, blocks, 15*limit)
		}
		var queue uuid.UUID
		var next *uuid.UUID
		var one [7]int64
		rows, err := l.Query(t.Context(), statsStep, after, limit)
		require.NoError(t, err)
		_, err = pgx.ForEachRow(rows, []any{&queue, &one[0], &one[1], &one[2], &one[3], &one[4], &one[5], &one[6], &next}, func() error {
			for i, figure := range one {
				sum[i] += figure
			}
			return nil
		})
		require.NoError(t, err)
		if next == nil {
			require.Equal(t, n/limit, steps)
			break
		}
		after = *next
	}
	require.Equal(t, [7]int64{n, 10 * n, n / 10, 0, 0, n / 10, int64(n / limit)}, sum)
}

// A new group of a queue with very many partitions: the pop that registers it makes so many cursors and not more, steps make the others, and
// each starts where the subscription says.
func TestSeedingInSteps(t *testing.T) {
	t.Parallel()
	const n, limit = 45_000, 5000
	db := testdb.New(t)
	l := popLog{db.Pool(t)}
	id := l.queue(t, "q", popQueue{})
	l.exec(t, `INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at)
		SELECT $1, 'p' || g, 9, clock_timestamp() - interval '1 hour' - make_interval(secs => g % 7) FROM generate_series(1, $2::int) g`, id, n)
	l.exec(t, `INSERT INTO queen.log_segments SELECT id, 0, 9, clock_timestamp() - interval '1 hour', 'x' FROM queen.log_partitions`)
	r := newPlanReader(t, db)
	for mode, start := range map[string]int64{"all": -1, "new": 9} {
		l.exec(t, `SELECT queen.log_pop_register_v1(ARRAY[$1::uuid], $2, $2, '', $3)`, id, mode, defaultTenant)
		count := func() int64 {
			return scalar[int64](t, l, `SELECT count(*) FROM queen.log_consumers WHERE consumer_group = $1 AND committed = $2`, mode, start)
		}
		require.EqualValues(t, 20_000, count(), mode)
		const step = `SELECT r_at, r_id FROM queen.log_pop_seed_v1('q', $1, $2, $3, $4, $5)`
		var at *time.Time
		var after *uuid.UUID
		for steps := 0; ; steps++ {
			require.LessOrEqual(t, steps, n/limit)
			if steps == 3 {
				blocks, indexes := requireIndexed(t, r.call(t, step, mode, defaultTenant, at, after, 1000))
				t.Logf("%s: %d blocks, %v", mode, blocks, indexes)
				require.LessOrEqual(t, blocks, 45*1000)
			}
			require.NoError(t, l.QueryRow(t.Context(), step, mode, defaultTenant, at, after, limit).Scan(&at, &after))
			if at == nil {
				break
			}
		}
		require.EqualValues(t, n, count(), mode)
	}
	require.Nil(t, scalar[*time.Time](t, l, `SELECT r_at FROM queen.log_pop_seed_v1('q', 'unknown', $1, NULL, NULL, 10)`, defaultTenant))
	require.Zero(t, scalar[int64](t, l, `SELECT count(*) FROM queen.log_consumers WHERE consumer_group = 'unknown'`))
}

// Plans that are made while a queue has many partitions and no group has read any, by the first claims of a first group, serve when it has.
func TestPlanOfClaimsBeforeTheFirstGroup(t *testing.T) {
	t.Parallel()
	const n, candidates = 20_000, 64
	db := testdb.New(t)
	l := popLog{db.Pool(t)}
	l.exec(t, `ALTER TABLE queen.log_consumers SET (autovacuum_enabled = off)`) // or its figures would come at some moment
	manyPartitions(t, l, n)
	l.exec(t, `TRUNCATE queen.log_consumers`)
	l.exec(t, `VACUUM (ANALYZE) queen.log_partitions, queen.log_consumers, queen.log_segments`)
	r := newPlanReader(t, db)
	const claim = `SELECT r_ord FROM queen.log_pop_ready_v1('q', 'g', $1, 1000, 60, 'w', false, 0)`
	names := make([]string, candidates)
	for i := range names {
		names[i] = fmt.Sprintf("p%d", i+1)
	}
	r.call(t, claim, names)
	l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) SELECT id, 'g', 8 FROM queen.log_partitions`)
	blocks, indexes := requireIndexed(t, r.call(t, claim, names))
	t.Logf("%d blocks, %v", blocks, indexes)
	require.LessOrEqual(t, blocks, 60*candidates)
	for _, p := range r.plans {
		p.Root.walk(func(node planNode) {
			require.LessOrEqual(t, node.Rows*node.Loops, 2.0*candidates, "rows of a %s on %s", node.Type, node.Relation)
		})
	}
}
