package pg_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// batchOf packs a batch as a runner does: one segment per destination partition.
func batchOf(task pg.Task, holder string, rows []pg.DeadLetterRow) pg.RedriveStep {
	step := pg.RedriveStep{Task: task.ID, Holder: holder}
	at := map[string]int{}
	for _, row := range rows {
		step.Rows = append(step.Rows, row.ID)
		if row.Payload == nil {
			continue
		}
		n, ok := at[row.Queue+"/"+row.Partition]
		if !ok {
			n = len(step.Segments)
			at[row.Queue+"/"+row.Partition] = n
			step.Segments = append(step.Segments, pg.Segment{Tenant: task.Tenant, Queue: row.Queue, Partition: row.Partition, Verified: -1, Plain: true})
			step.RowsOf = append(step.RowsOf, nil)
		}
		hashed, blob := frame(row.ID)
		s := &step.Segments[n]
		s.Count++
		s.Hashes, s.Blob = append(s.Hashes, hashed...), append(s.Blob, blob...)
		step.RowsOf[n] = append(step.RowsOf[n], row.ID)
	}
	return step
}

// redrive runs a task to its end as holder, in batches of limit, and returns the sums of its steps.
func redrive(t testing.TB, db *pg.DB, task pg.Task, holder string, limit int) (sum pg.TaskStep) {
	t.Helper()
	for range 1000 {
		rows, err := db.TaskBatch(context.Background(), task.ID, holder, limit)
		require.NoError(t, err)
		done, err := db.RedriveStep(context.Background(), batchOf(task, holder, rows))
		require.NoError(t, err)
		sum.Moved, sum.Duplicate, sum.Skipped = sum.Moved+done.Moved, sum.Duplicate+done.Duplicate, sum.Skipped+done.Skipped
		require.False(t, done.Lost)
		if done.Finished || done.Full {
			sum.Finished, sum.Full = done.Finished, done.Full
			return sum
		}
	}
	t.Fatal("the task does not end")
	return sum
}

func create(t testing.TB, db *pg.DB, n pg.NewTask) pg.Task {
	t.Helper()
	task, err := db.CreateTask(context.Background(), pg.DefaultTenant, n)
	require.NoError(t, err)
	require.Equal(t, "pending", task.State)
	return task
}

func claim(t testing.TB, db *pg.DB, holder string) (pg.Task, bool) {
	t.Helper()
	task, found, err := db.ClaimTask(context.Background(), holder, time.Minute)
	require.NoError(t, err)
	return task, found
}

// replays returns the dead letters whose replay is stored in a partition, in offset order.
func replays(t testing.TB, database *testdb.Database, partition string, ids []uuid.UUID) []uuid.UUID {
	t.Helper()
	rows, err := database.Pool(t).Query(context.Background(), `SELECT u.h FROM queen.log_txns t JOIN queen.log_partitions p ON p.id = t.partition_id
		CROSS JOIN LATERAL queen.log_unnest_hashes(t.hashes) u WHERE p.name = $1 ORDER BY t.base_offset + u.idx`, partition)
	require.NoError(t, err)
	defer rows.Close()
	var found []uuid.UUID
	for rows.Next() {
		var h []byte
		require.NoError(t, rows.Scan(&h))
		for _, id := range ids {
			if string(h) == string(hash("dlq:"+id.String())) {
				found = append(found, id)
			}
		}
	}
	require.NoError(t, rows.Err())
	return found
}

func TestRedriveKeepsOrderAndMovesOnce(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	a, b := letters(t, db, database, "q", "a", "g", 25), letters(t, db, database, "q", "b", "g", 7)
	letters(t, db, database, "q", "a", "h", 3)
	// The replay of one is stored already, and one has lost its message.
	hashed, blob := frame(a[4])
	push(t, db, pg.Segment{Tenant: pg.DefaultTenant, Queue: "q", Partition: "a", Count: 1, Hashes: hashed, Blob: blob, Verified: -1, Plain: true})
	exec(t, database, `UPDATE queen.log_dlq SET payload = NULL, payload_raw = NULL WHERE id = $1`, b[3])

	task := create(t, db, pg.NewTask{Kind: pg.TaskRedrive, Filter: pg.DeadLetterFilter{Queue: "q", Group: "g"}, CreatedBy: "me"})
	require.EqualValues(t, 32, task.Total)
	require.Equal(t, "me", task.CreatedBy)
	// What fails after the task was made is not part of it.
	late := letters(t, db, database, "q", "a", "g", 1)[0]
	exec(t, database, `UPDATE queen.log_dlq SET failed_at = clock_timestamp() WHERE id = $1`, late)

	claimed, found := claim(t, db, "broker-1")
	require.True(t, found)
	require.Equal(t, task.ID, claimed.ID)
	_, found = claim(t, db, "broker-2")
	require.False(t, found, "it is held")
	rows, err := db.TaskBatch(t.Context(), task.ID, "broker-1", 10)
	require.NoError(t, err)
	done, err := db.RedriveStep(t.Context(), batchOf(claimed, "broker-1", rows))
	require.NoError(t, err)
	require.False(t, done.Lost || done.Finished)

	// The broker dies. Another one continues; the first one, slow rather than dead, cannot do anything more.
	rows, err = db.TaskBatch(t.Context(), task.ID, "broker-1", 10)
	require.NoError(t, err)
	stale := batchOf(claimed, "broker-1", rows)
	exec(t, database, `UPDATE queen.tasks SET lease_until = clock_timestamp() - interval '1 s'`)
	_, found = claim(t, db, "broker-2")
	require.True(t, found)
	done, err = db.RedriveStep(t.Context(), stale)
	require.NoError(t, err)
	require.True(t, done.Lost)
	require.True(t, redrive(t, db, claimed, "broker-2", 6).Finished)

	ended, found, err := db.Task(t.Context(), pg.DefaultTenant, task.ID)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, []any{"done", int64(30), int64(1), int64(1), "q", "g"}, []any{ended.State, ended.Moved, ended.Duplicate, ended.Skipped, ended.Filter.Queue, ended.Filter.Group})
	require.False(t, ended.FinishedAt.IsZero())
	want := slices.Delete(slices.Clone(a), 4, 5)
	got := replays(t, database, "a", a)
	require.Equal(t, a[4], got[0], "the one that was there before")
	require.Equal(t, want, got[1:], "each once, in order")
	require.Equal(t, slices.Delete(slices.Clone(b), 3, 4), replays(t, database, "b", b))
	left, err := db.CountDeadLetters(t.Context(), pg.DefaultTenant, pg.DeadLetterFilter{})
	require.NoError(t, err)
	require.EqualValues(t, 3+1+2, left, "another group's, a late one, the two that could not be moved")
	_, found, err = db.Task(t.Context(), uuid.New(), task.ID)
	require.NoError(t, err)
	require.False(t, found)
	_, found = claim(t, db, "broker-3")
	require.False(t, found)
}

func TestRedriveWaitsForRoomAndCanBeCancelled(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	letters(t, db, database, "q", "a", "g", 10)
	configure(t, db, "q", `{"maxSize":6}`) // one message lies there
	task := create(t, db, pg.NewTask{Kind: pg.TaskRedrive})
	claimed, _ := claim(t, db, "w")
	sum := redrive(t, db, claimed, "w", 5)
	require.True(t, sum.Full)
	require.EqualValues(t, 5, sum.Moved)
	_, found := claim(t, db, "w")
	require.False(t, found, "not before the pause is over")
	seen, _, err := db.Task(t.Context(), pg.DefaultTenant, task.ID)
	require.NoError(t, err)
	require.Contains(t, seen.Error, "full")
	configure(t, db, "q", `{"maxSize":0}`)
	rows, err := db.TaskBatch(t.Context(), task.ID, "w", 2)
	require.NoError(t, err)
	step := batchOf(claimed, "w", rows)
	// A row that somebody deletes meanwhile undoes the step.
	exec(t, database, `DELETE FROM queen.log_dlq WHERE id = $1`, rows[0].ID)
	_, err = db.RedriveStep(t.Context(), step)
	require.ErrorIs(t, err, pg.ErrVanished)
	cancelled, found, err := db.CancelTask(t.Context(), pg.DefaultTenant, task.ID)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "cancelled", cancelled.State)
	done, err := db.RedriveStep(t.Context(), step)
	require.NoError(t, err)
	require.True(t, done.Lost)
	require.Len(t, replays(t, database, "a", []uuid.UUID{rows[0].ID, rows[1].ID}), 0)
	step.RowsOf[0][0], step.RowsOf[0][1] = step.RowsOf[0][1], step.RowsOf[0][0]
	_, err = db.RedriveStep(t.Context(), step)
	require.ErrorIs(t, err, pg.ErrBadData, "frames out of order")
}

func TestPurgeTaskAndTaskList(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	letters(t, db, database, "q", "a", "g", 10)
	letters(t, db, database, "other", "a", "g", 2)
	task := create(t, db, pg.NewTask{Kind: pg.TaskPurge, Filter: pg.DeadLetterFilter{Queue: "q", Shape: "order <n> of <text> failed"}, Rate: 4})
	_, found := claim(t, db, "w")
	require.True(t, found)
	done, err := db.PurgeStep(t.Context(), task.ID, "w", 4)
	require.NoError(t, err)
	require.EqualValues(t, 4, done.Deleted)
	_, found = claim(t, db, "w")
	require.False(t, found, "the rate asks for a second's pause")
	for !done.Finished {
		done, err = db.PurgeStep(t.Context(), task.ID, "w", 4)
		require.NoError(t, err)
		require.False(t, done.Lost)
	}
	create(t, db, pg.NewTask{Kind: pg.TaskPurge})
	tasks, next, err := db.ListTasks(t.Context(), pg.DefaultTenant, pg.TaskFilter{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "pending", tasks[0].State)
	tasks, next, err = db.ListTasks(t.Context(), pg.DefaultTenant, pg.TaskFilter{Limit: 1, Cursor: next})
	require.NoError(t, err)
	require.Empty(t, next, "the last page is the last one")
	require.Equal(t, []any{task.ID, "done", int64(10), 4}, []any{tasks[0].ID, tasks[0].State, tasks[0].Deleted, tasks[0].Rate})
	for name, tc := range map[string]struct {
		filter pg.TaskFilter
		want   int
	}{
		"kind": {pg.TaskFilter{Kind: pg.TaskPurge}, 2}, "other kind": {pg.TaskFilter{Kind: pg.TaskRedrive}, 0}, "active": {pg.TaskFilter{State: "active"}, 1},
		"state": {pg.TaskFilter{State: "done"}, 1}, "both": {pg.TaskFilter{Kind: pg.TaskPurge, State: "pending"}, 1}, "queue": {pg.TaskFilter{Queue: "nowhere"}, 0},
	} {
		tasks, _, err = db.ListTasks(t.Context(), pg.DefaultTenant, tc.filter)
		require.NoError(t, err)
		require.Len(t, tasks, tc.want, name)
	}
	_, _, err = db.ListTasks(t.Context(), pg.DefaultTenant, pg.TaskFilter{Cursor: "x"})
	require.ErrorIs(t, err, pg.ErrInvalidCursor)
	left, err := db.CountDeadLetters(t.Context(), pg.DefaultTenant, pg.DeadLetterFilter{})
	require.NoError(t, err)
	require.EqualValues(t, 2, left)
	_, err = db.CreateTask(t.Context(), pg.DefaultTenant, pg.NewTask{Kind: "other"})
	require.ErrorIs(t, err, pg.ErrBadData)
	_, err = db.CreateTask(t.Context(), pg.DefaultTenant, pg.NewTask{Kind: pg.TaskPurge, Filter: pg.DeadLetterFilter{From: "monday"}})
	require.ErrorIs(t, err, pg.ErrBadData)
}
