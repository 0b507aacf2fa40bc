package sql_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A handover is one lease that a push is to make.
type handover struct {
	segment, take int32 // from 1
	group, worker string
	lease         int32
}

// pushHandover stores one segment in each of the partitions, whose ids are ascending, and returns the leases made.
func pushHandover(t tester, q querier, parcels []parcel, ids []uuid.UUID, leases []handover) (bases []int64, leased []int32) {
	t.Helper()
	n := len(leases)
	segments, takes, seconds, groups, workers := make([]int32, n), make([]int32, n), make([]int32, n), make([]string, n), make([]string, n)
	for i, l := range leases {
		segments[i], takes[i], seconds[i], groups[i], workers[i] = l.segment, l.take, l.lease, l.group, l.worker
	}
	args := append(pushArguments(false, nil, parcels)[:8], ids, nil, segments, takes, groups, workers, seconds)
	require.NoError(t, q.QueryRow(context.Background(), `SELECT o_base, o_leased FROM queen.log_push_handover_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`, args...).
		Scan(&bases, &leased))
	return bases, leased
}

// TestHandoverIsTheClaimThatFollows: whatever state a cursor and its queue are in, a lease made by the commit of a push is the one that a claim
// right behind the push would have made, and without one the cursor is as it was.
func TestHandoverIsTheClaimThatFollows(t *testing.T) {
	t.Parallel()
	log := newPopLog(t)
	made, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		tx, err := log.Begin(ctx)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(ctx) }()
		queue := scalar[uuid.UUID](t, tx, `INSERT INTO queen.queues (name, dedup_window_seconds, delayed_processing, window_buffer, max_deliveries)
			VALUES ('q', 0, $1, $2, $3) RETURNING id`,
			rapid.SampledFrom([]int{0, 0, 0, 0, 5}).Draw(t, "delay"), rapid.SampledFrom([]int{0, 0, 0, 0, 5}).Draw(t, "window"), rapid.SampledFrom([]int{0, 2}).Draw(t, "max deliveries"))
		partition := scalar[uuid.UUID](t, tx, `INSERT INTO queen.log_partitions (queue_id, name) VALUES ($1, 'p') RETURNING id`, queue)
		before := rapid.IntRange(0, 2).Draw(t, "stored before")
		for i := range before {
			bases, _ := pushHandover(t, tx, []parcel{{queue: "q", partition: "p", ids: ids(fmt.Sprint("old", i, "a"), fmt.Sprint("old", i, "b"))}}, []uuid.UUID{partition}, nil)
			require.Equal(t, []int64{int64(2 * i)}, bases)
		}
		head := int64(2*before) - 1
		offset := rapid.Int64Range(max(head-2, -1), head)
		if rapid.IntRange(0, 9).Draw(t, "cursor") > 0 {
			optional := func(name string) *int64 {
				if rapid.Bool().Draw(t, name) {
					return nil
				}
				return new(rapid.Int64Range(max(head-2, -1), head+1).Draw(t, name+" at"))
			}
			_, err := tx.Exec(ctx, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, worker_id, lease_expires_at, batch_end, attempt_offset, attempt_count, isolate_end)
				VALUES ($1, 'g', $2, $3, clock_timestamp() + make_interval(secs => $4::int), $5, $6, $7, $8)`, partition,
				rapid.OneOf(rapid.Just(head), offset).Draw(t, "committed"), rapid.SampledFrom([]*string{nil, nil, new("other"), new("__retry__")}).Draw(t, "holder"),
				rapid.SampledFrom([]*int{nil, new(-100), new(100)}).Draw(t, "expires"), optional("batch end"), optional("attempt"), rapid.IntRange(0, 3).Draw(t, "attempts"), optional("isolated"))
			require.NoError(t, err)
		}
		was := popRows(t, tx, queue, "g")
		segment := []parcel{{queue: "q", partition: "p", ids: ids("new1", "new2", "new3")}}
		take := rapid.Int32Range(0, 4).Draw(t, "take")
		_, err = tx.Exec(ctx, `SAVEPOINT pushed`)
		require.NoError(t, err)
		bases, leased := pushHandover(t, tx, segment, []uuid.UUID{partition}, []handover{{1, take, "g", "w", 60}})
		require.Equal(t, []int64{head + 1}, bases)
		got := popRows(t, tx, queue, "g")
		if len(leased) == 0 {
			refused++
			require.Empty(t, cmp.Diff(was, got))
			return
		}
		made++
		require.Equal(t, []int32{1}, leased)

		_, err = tx.Exec(ctx, `ROLLBACK TO SAVEPOINT pushed`)
		require.NoError(t, err)
		pushHandover(t, tx, segment, []uuid.UUID{partition}, nil)
		segments, verdicts := popReady(t, tx, "q", []string{"p"}, popCall{budget: take})
		require.Equal(t, "took", verdicts[0].verdict)
		require.Equal(t, []taken{{"p", head + 1, 0, int64(min(take, 3)), "blob of new1"}}, segments)
		want := popRows(t, tx, queue, "g")
		// What lies behind the cursor isolates nothing any more.
		for _, rows := range []map[string]popRow{want, got} {
			row := rows["p"]
			row.IsolateEnd = nil
			rows["p"] = row
		}
		require.Empty(t, cmp.Diff(want, got))
	})
	require.Positive(t, made)
	require.Positive(t, refused)
}

// A cursor that somebody holds is not waited for: the push would stand still with its partitions locked.
func TestHandoverWaitsForNobody(t *testing.T) {
	t.Parallel()
	log := newPopLog(t)
	queue := log.queue(t, "q", popQueue{})
	log.exec(t, `UPDATE queen.queues SET dedup_window_seconds = 0`)
	partitions := make([]uuid.UUID, 2)
	for i := range partitions {
		partitions[i] = scalar[uuid.UUID](t, log, `INSERT INTO queen.log_partitions (queue_id, name) VALUES ($1, $2) RETURNING id`, queue, fmt.Sprint("p", i))
		log.cursor(t, partitions[i], "g", -1, "", 0)
		log.cursor(t, partitions[i], "h", -1, "", 0)
	}
	if partitions[0].String() > partitions[1].String() {
		partitions[0], partitions[1] = partitions[1], partitions[0]
	}
	held, err := log.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = held.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = held.Exec(t.Context(), `SELECT FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = 'g' FOR UPDATE`, partitions[0])
	require.NoError(t, err)

	names := scalar[[]string](t, log, `SELECT array_agg(name ORDER BY id) FROM queen.log_partitions`)
	parcels := []parcel{{queue: "q", partition: names[0], ids: ids("1")}, {queue: "q", partition: names[1], ids: ids("2")}}
	tx, err := log.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `SET LOCAL lock_timeout = '10s'`)
	require.NoError(t, err)
	_, leased := pushHandover(t, tx, parcels, partitions, []handover{{1, 9, "g", "w", 60}, {1, 9, "h", "w", 60}, {2, 9, "g", "w", 60}, {2, 9, "nobody", "w", 60}})
	require.ElementsMatch(t, []int32{2, 3}, leased)
}

func TestPlanHandoverLooksRowsUp(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	session := log.session(t)
	manyConsumers(t, log)
	for _, change := range []string{`UPDATE queen.queues SET dedup_window_seconds = 0`, `UPDATE queen.log_consumers SET worker_id = NULL, batch_end = NULL`} {
		_, err := log.Exec(t.Context(), change)
		require.NoError(t, err)
	}
	const width = 64
	rows, err := log.Query(t.Context(), `SELECT id, name FROM queen.log_partitions ORDER BY id LIMIT $1`, width)
	require.NoError(t, err)
	var partitions []uuid.UUID
	var parcels []parcel
	var leases []handover
	var id uuid.UUID
	var name string
	_, err = pgx.ForEachRow(rows, []any{&id, &name}, func() error {
		partitions = append(partitions, id)
		parcels = append(parcels, parcel{queue: "consumers", partition: name, ids: ids(name)})
		leases = append(leases, handover{int32(len(leases) + 1), 1, "g", "w", 60})
		return nil
	})
	require.NoError(t, err)
	for _, table := range []string{"queen.log_consumers", "queen.queues", "queen.log_partitions"} {
		got := measure(t, session.Conn, table, func(tx pgx.Tx) {
			_, leased := pushHandover(t, tx, parcels, partitions, leases)
			require.Len(t, leased, width)
		})
		require.Zero(t, got.seqScans, table)
		require.LessOrEqual(t, got.rows, 8*width, table)
	}
}
