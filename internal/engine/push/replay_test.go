package push

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// accepted is a message that was answered for.
func accepted(tenant uuid.UUID, sub, queue, partition, transaction, payload string) Accepted {
	return Accepted{
		Tenant: tenant, ProducerSub: sub, ID: segment.NewID(),
		Item: Item{Queue: queue, Partition: partition, TransactionID: transaction, Payload: []byte(payload)},
	}
}

// stored reads every frame of a partition.
func stored(t *testing.T, database *testdb.Database, queue, partition string) (ids []uuid.UUID, text []string) {
	t.Helper()
	rows, err := database.Pool(t).Query(t.Context(), `SELECT s.blob FROM queen.log_segments s JOIN queen.log_partitions p ON p.id = s.partition_id
		JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 AND p.name = $2 ORDER BY s.base_offset`, queue, partition)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var blob []byte
		require.NoError(t, rows.Scan(&blob))
		frames, err := segment.Unpack(blob)
		require.NoError(t, err)
		for i := range frames.Len() {
			f := frames.At(i)
			ids = append(ids, f.ID)
			text = append(text, fmt.Sprintf("%s %s %v %s", f.TransactionID, f.ProducerSub, f.Encrypted, f.Payload))
		}
		frames.Release()
	}
	return ids, text
}

func TestReplayStoresWhatWasPromised(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 4})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	_, err = database.Pool(t).Exec(t.Context(), `SELECT queen.configure_queue_v1('full', '{"maxSize":1}'::jsonb)`)
	require.NoError(t, err)
	p := New(Config{}, db, admission.New(admission.Config{}), nil)
	tenant := uuid.New()
	sealed := accepted(pg.DefaultTenant, "bob", "q", "p", "3", `"envelope"`)
	sealed.Sealed = true
	messages := []Accepted{
		accepted(pg.DefaultTenant, "ann", "q", "p", "1", `1`),
		accepted(pg.DefaultTenant, "bob", "q", "p", "2", `2`),
		accepted(tenant, "bob", "q", "p", "1", `other`),
		sealed,
		accepted(pg.DefaultTenant, "ann", "q", "p", "1", `again`),
		accepted(pg.DefaultTenant, "", "full", "p", "1", `1`),
		accepted(pg.DefaultTenant, "", "full", "p", "2", `2`),
	}
	for round, want := range [][]Status{
		{StatusQueued, StatusQueued, StatusQueued, StatusQueued, StatusDuplicate, StatusQueued, StatusQueued},
		{StatusDuplicate, StatusDuplicate, StatusDuplicate, StatusDuplicate, StatusDuplicate, StatusDuplicate, StatusDuplicate},
	} {
		verdicts, err := p.Replay(t.Context(), messages)
		require.NoError(t, err)
		for i, v := range verdicts {
			require.Equal(t, want[i], v.Status, "round %d, message %d: %v", round, i, v.Err)
		}
	}
	ids, text := stored(t, database, "full", "p")
	require.Equal(t, []uuid.UUID{messages[5].ID, messages[6].ID}, ids, "room was promised")
	require.Len(t, text, 2)
	var both int
	require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM queen.queues WHERE name = 'q'`).Scan(&both))
	require.Equal(t, 2, both, "two tenants")
	_, err = p.Replay(canceled(t), messages)
	require.True(t, err == nil || errors.Is(err, context.Canceled))
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// What was accepted one after the other stays two messages where the queue does not de-duplicate, and is one message where it does.
func TestReplayKeepsRepeatsOnlyWithoutDeduplication(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 4})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	_, err = database.Pool(t).Exec(t.Context(), `SELECT queen.configure_queue_v1('free', '{"dedupWindowSeconds":0}'::jsonb)`)
	require.NoError(t, err)
	p := New(Config{}, db, admission.New(admission.Config{}), nil)
	for _, queue := range []string{"free", "strict"} {
		verdicts, err := p.Replay(t.Context(), []Accepted{
			accepted(pg.DefaultTenant, "", queue, "p", "x", "1"),
			accepted(pg.DefaultTenant, "", queue, "p", "x", "2"),
			accepted(pg.DefaultTenant, "bob", queue, "p", "x", "3"), // another call of the same segment
		})
		require.NoError(t, err)
		_, text := stored(t, database, queue, "p")
		if queue == "free" {
			require.Equal(t, []Status{StatusQueued, StatusQueued, StatusQueued}, statuses(verdicts))
			require.Equal(t, []string{"x  false 1", "x  false 2", "x bob false 3"}, text)
		} else {
			require.Equal(t, []Status{StatusQueued, StatusDuplicate, StatusDuplicate}, statuses(verdicts))
			require.Equal(t, []string{"x  false 1"}, text)
		}
	}
}

// Of what waits in the file buffer, only the partition fails whose lock somebody keeps.
func TestReplayPassesALockedPartition(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 4, LockTimeout: 50 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	p := New(Config{}, db, admission.New(admission.Config{}), nil)
	var messages []Accepted
	for _, partition := range []string{"a", "locked", "z"} {
		messages = append(messages, accepted(pg.DefaultTenant, "", "q", partition, "1", `1`))
	}
	_, err = p.Replay(t.Context(), messages) // makes the partitions
	require.NoError(t, err)
	for i := range messages {
		messages[i].TransactionID = "2"
	}
	tx, err := database.Pool(t).Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it may be over
	_, err = tx.Exec(t.Context(), `SELECT FROM queen.log_partitions WHERE name = 'locked' FOR UPDATE`)
	require.NoError(t, err)
	verdicts, err := p.Replay(t.Context(), messages)
	require.NoError(t, err)
	require.Equal(t, StatusQueued, verdicts[0].Status, verdicts[0].Err)
	require.ErrorIs(t, verdicts[1].Err, pg.ErrLockTimeout)
	require.Equal(t, StatusQueued, verdicts[2].Status, verdicts[2].Err)
	require.NoError(t, tx.Rollback(t.Context()))
	verdicts, err = p.Replay(t.Context(), messages)
	require.NoError(t, err)
	require.Equal(t, []Status{StatusDuplicate, StatusQueued, StatusDuplicate}, []Status{verdicts[0].Status, verdicts[1].Status, verdicts[2].Status})
}
