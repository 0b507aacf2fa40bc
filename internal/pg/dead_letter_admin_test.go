package pg_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// letters files n dead letters in partition p of queue q, offsets from 0, and returns their ids by offset.
func letters(t testing.TB, db *pg.DB, database *testdb.Database, queue, partition, group string, n int) []uuid.UUID {
	t.Helper()
	id := push(t, db, segment(queue, partition, uuid.NewString())).PartitionID
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = uuid.New()
		exec(t, database, `INSERT INTO queen.log_dlq (id, partition_id, consumer_group, "offset", transaction_id, payload, payload_raw, error, failed_at)
			VALUES ($1, $2, $3, $4, $5, '{"n":1}', '{ "n":1}', 'order ' || $4::bigint || ' of "x" failed', clock_timestamp() - interval '1 h')`,
			ids[i], id, group, i, fmt.Sprintf("t%d", i))
	}
	return ids
}

// frame stands for a packed replay; the database compares hashes and does not look into blobs.
func frame(id uuid.UUID) (hashed, blob []byte) {
	return hash("dlq:" + id.String()), []byte("replay of " + id.String())
}

func TestDeadLetterList(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	partition := leased(t, db, "1", "2", "3")
	id := deadLetter(t, db, "g", "w", "1", `bad "thing" 17 at 0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731`, 0, partition)
	list := func(f pg.DeadLetterFilter) []pg.DeadLetterRow {
		t.Helper()
		page, err := db.ListDeadLetters(ctx, tenant, f)
		require.NoError(t, err)
		n, err := db.CountDeadLetters(ctx, tenant, f)
		require.NoError(t, err)
		require.Len(t, page.Rows, int(n))
		return page.Rows
	}
	row := list(pg.DeadLetterFilter{})[0]
	require.WithinDuration(t, time.Now(), row.FailedAt, time.Minute)
	require.NotEqual(t, uuid.Nil, row.MessageID)
	row.FailedAt, row.MessageID = time.Time{}, uuid.Nil
	require.Equal(t, pg.DeadLetterRow{
		ID: id, PartitionID: partition, Queue: "q", Partition: "p", Group: "g", TransactionID: "1",
		Payload: []byte(`{"big":12345678901234567890, "a" : 1}`), Error: `bad "thing" 17 at 0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731`,
	}, row, "payload bytes as they were")
	for name, f := range map[string]pg.DeadLetterFilter{
		"queue": {Queue: "q_"}, "partition": {Partition: "%"}, "group": {Group: "h"}, "transaction": {TransactionID: "2"}, "error": {Error: "b%d"},
		"from": {From: time.Now().Add(time.Hour).Format(time.RFC3339)}, "to": {To: "2020-01-01T00:00:00Z"}, "shape": {Shape: "bad"},
		"partition id": {PartitionID: uuid.NullUUID{UUID: uuid.New(), Valid: true}},
	} {
		require.Empty(t, list(f), name)
	}
	require.Len(t, list(pg.DeadLetterFilter{
		Queue: "q", Partition: "p", Group: "g", TransactionID: "1", Error: `"thing" 17`, Shape: "bad <text> <n> at <id>",
		From: "2020-01-01T00:00:00Z", To: "2100-01-01", PartitionID: uuid.NullUUID{UUID: partition, Valid: true},
	}), 1)
	answer, err := db.DeadLetterShapes(ctx, tenant, pg.DeadLetterFilter{Limit: 10})
	require.JSONEq(t, `{"groups":[{"shape":"bad <text> <n> at <id>","sample":"bad \"thing\" 17 at <id>","count":1,"queues":["q"],"firstFailedAt":"<time>","lastFailedAt":"<time>"}],
		"total":1,"shapes":1,"nextCursor":null}`, shape(t, answer, err))

	foreign, err := db.ListDeadLetters(ctx, uuid.New(), pg.DeadLetterFilter{})
	require.NoError(t, err)
	require.Empty(t, foreign.Rows)
	answer, err = db.DeleteDeadLetterAt(ctx, uuid.New(), partition, "1")
	require.JSONEq(t, `{"success":false,"partitionId":"<id>","transactionId":"1","message":"Message not found"}`, shape(t, answer, err))
	detail, found, err := db.FindMessage(ctx, tenant, partition, hash("1"))
	require.NoError(t, err)
	require.True(t, found)
	require.True(t, detail.DeadLetter)
	require.Equal(t, "dead_letter", detail.Status)
	answer, err = db.DeleteDeadLetterAt(ctx, tenant, partition, "1")
	require.JSONEq(t, `{"success":true,"partitionId":"<id>","transactionId":"1","message":"Message deleted successfully"}`, shape(t, answer, err))

	letters(t, db, database, "q", "p", "g", 5)
	first, err := db.ListDeadLetters(ctx, tenant, pg.DeadLetterFilter{Limit: 2})
	require.NoError(t, err)
	letters(t, db, database, "new", "p", "g", 3) // same time range, comes in between two pages
	exec(t, database, `UPDATE queen.log_dlq SET failed_at = clock_timestamp() WHERE partition_id <> $1`, partition)
	seen := map[int64]bool{}
	for page := first; ; {
		for _, row := range page.Rows {
			require.False(t, seen[row.Offset], "twice")
			seen[row.Offset] = true
		}
		if page.Next == "" {
			break
		}
		page, err = db.ListDeadLetters(ctx, tenant, pg.DeadLetterFilter{Limit: 2, After: page.Next})
		require.NoError(t, err)
	}
	require.Len(t, seen, 5, "a page neither skips nor repeats")
	_, err = db.ListDeadLetters(ctx, tenant, pg.DeadLetterFilter{After: "eA"})
	require.ErrorIs(t, err, pg.ErrInvalidCursor)
	n, err := db.DeleteDeadLetters(ctx, tenant, pg.DeadLetterFilter{Queue: "q"}, 4)
	require.NoError(t, err)
	require.EqualValues(t, 4, n)
	n, err = db.DeleteDeadLetters(ctx, tenant, pg.DeadLetterFilter{Queue: "q"}, 4)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
}

func TestMoveDeadLetter(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	ids := letters(t, db, database, "q", "p", "g", 4)
	trace := uuid.New()
	exec(t, database, `UPDATE queen.log_dlq SET trace_id = $1`, trace)
	letters(t, db, database, "q", "p", "h", 4) // of another group, at the same addresses
	move := func(i int, m pg.DeadLetterMove) pg.DeadLetterMoveResult {
		t.Helper()
		m.ID, m.Plain = ids[i], true
		m.Hash, m.Blob = frame(ids[i])
		result, err := db.MoveDeadLetter(ctx, tenant, m)
		require.NoError(t, err)
		return result
	}
	row, found, err := db.DeadLetterByID(ctx, tenant, ids[0])
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, []any{"q", "p", "g", "t0", `{ "n":1}`}, []any{row.Queue, row.Partition, row.Group, row.TransactionID, string(row.Payload)})
	_, found, err = db.DeadLetterByID(ctx, uuid.New(), ids[0])
	require.NoError(t, err)
	require.False(t, found)

	moved := move(0, pg.DeadLetterMove{})
	require.Equal(t, []any{pg.MoveMoved, "q", "p", int64(2), "g", "t0"}, []any{moved.Status, moved.Queue, moved.Partition, moved.BaseOffset, moved.Group, moved.OriginalTransactionID})
	require.Equal(t, pg.MoveGone, move(0, pg.DeadLetterMove{}).Status, "a repeat after a lost answer")
	traced, err := db.TraceMessages(ctx, tenant, trace, 10)
	require.NoError(t, err)
	require.Len(t, traced, 1, "the replay keeps the trace id")

	elsewhere, lane := "other", "lane"
	moved = move(1, pg.DeadLetterMove{Queue: &elsewhere, Partition: &lane})
	require.Equal(t, []any{pg.MoveMoved, "other", "lane"}, []any{moved.Status, moved.Queue, moved.Partition})

	hashed, blob := frame(ids[2])
	stored := pg.Segment{Tenant: tenant, Queue: "q", Partition: "p", Count: 1, Hashes: hashed, Blob: blob, Verified: -1, Plain: true}
	at := push(t, db, stored).BaseOffset
	duplicate := move(2, pg.DeadLetterMove{})
	require.Equal(t, []any{pg.MoveDuplicate, at}, []any{duplicate.Status, duplicate.Offset})
	configure(t, db, "q", `{"maxSize":1}`)
	require.Equal(t, pg.MoveFull, move(3, pg.DeadLetterMove{}).Status)
	configure(t, db, "q", `{"maxSize":0,"encryptionEnabled":true}`)
	require.Equal(t, pg.MoveConfig, move(3, pg.DeadLetterMove{}).Status)
	left, err := db.CountDeadLetters(ctx, tenant, pg.DeadLetterFilter{})
	require.NoError(t, err)
	require.EqualValues(t, 2+4, left, "refused rows stay, and those of the other group")
}

// Many movers of one row, in a queue that does not look for duplicates: exactly one message comes out.
func TestMoveDeadLetterOnce(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	configure(t, db, "q", `{"dedupWindowSeconds":0}`)
	id := letters(t, db, database, "q", "p", "g", 1)[0]
	var moved, gone atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			hashed, blob := frame(id)
			result, err := db.MoveDeadLetter(t.Context(), pg.DefaultTenant, pg.DeadLetterMove{ID: id, Hash: hashed, Blob: blob, Plain: true})
			if err != nil {
				t.Errorf("move: %v", err)
				return
			}
			switch result.Status {
			case pg.MoveMoved:
				moved.Add(1)
			case pg.MoveGone:
				gone.Add(1)
			default:
				t.Errorf("status %s", result.Status)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, moved.Load())
	require.EqualValues(t, 7, gone.Load())
	var stored int
	require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM queen.log_txns WHERE hashes = $1`, hash("dlq:"+id.String())).Scan(&stored))
	require.Equal(t, 1, stored)
}
