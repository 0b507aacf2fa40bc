package browse

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// A shelf is a database with messages in queue "q".
type shelf struct {
	t    *testing.T
	db   *pg.DB
	conn *pgx.Conn
	*Reader
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	database := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 4})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	conn, err := pgx.Connect(t.Context(), database.ConnString())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &shelf{t, db, conn, New(db, nil)}
}

func (s *shelf) push(tenant uuid.UUID, partition string, ids ...string) uuid.UUID {
	s.t.Helper()
	var frames []segment.Frame
	for _, id := range ids {
		frames = append(frames, segment.Frame{ID: segment.NewID(), TransactionID: id, Payload: []byte(`{ "id":"` + id + `", "big":12345678901234567890 }`)})
	}
	blob, hashes, err := segment.Pack(frames)
	require.NoError(s.t, err)
	verdicts, err := s.db.PushMulti(s.t.Context(), []pg.Segment{{Tenant: tenant, Queue: "q", Partition: partition, Count: len(ids), Hashes: hashes, Verified: -1, Blob: blob, Plain: true}}, pg.PushOptions{})
	require.NoError(s.t, err)
	require.Equal(s.t, pg.PushQueued, verdicts[0].Status)
	return verdicts[0].PartitionID
}

func (s *shelf) exec(statement string) {
	s.t.Helper()
	_, err := s.conn.Exec(s.t.Context(), statement)
	require.NoError(s.t, err)
}

func TestPagesShowEveryMessageOnceWhileOthersArrive(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	for i := range 5 {
		s.push(pg.DefaultTenant, "p", fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i))
	}
	seen := map[string]bool{}
	filter := pg.MessageFilter{Queue: "q", Limit: 4}
	for page := range 10 {
		found, err := s.List(t.Context(), pg.DefaultTenant, filter)
		require.NoError(t, err)
		for _, m := range found.Messages {
			require.True(t, m.Available)
			require.Equal(t, `{ "id":"`+m.TransactionID+`", "big":12345678901234567890 }`, string(m.Payload))
			require.False(t, seen[m.TransactionID], "%s came twice", m.TransactionID)
			seen[m.TransactionID] = true
		}
		if found.Next == "" {
			break
		}
		filter.After = found.Next
		s.push(pg.DefaultTenant, "p", fmt.Sprint("new", page))
	}
	require.Len(t, seen, 15)
}

func TestFindKnowsMessagesThatTheIndexForgot(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	partition := s.push(pg.DefaultTenant, "p", "a", "b", "c")
	for i := range scanAtOnce + 5 { // more than one step of the search
		s.push(pg.DefaultTenant, "p", fmt.Sprint("later", i))
	}
	check := func() {
		t.Helper()
		m, found, err := s.Find(t.Context(), pg.DefaultTenant, partition, "b")
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, []any{"b", int64(1), "q", "p"}, []any{m.TransactionID, m.Offset, m.Queue, m.Partition})
		require.Equal(t, `{ "id":"b", "big":12345678901234567890 }`, string(m.Payload))
	}
	check()
	s.exec(`DELETE FROM queen.log_txns`)
	check()
	for _, unknown := range []struct {
		tenant, partition uuid.UUID
		id                string
	}{{pg.DefaultTenant, partition, "nothing"}, {pg.DefaultTenant, uuid.New(), "b"}, {uuid.New(), partition, "b"}} {
		_, found, err := s.Find(t.Context(), unknown.tenant, unknown.partition, unknown.id)
		require.NoError(t, err)
		require.False(t, found)
	}
}

func TestEvictedMessagesHaveNoContent(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	partition := s.push(pg.DefaultTenant, "p", "a")
	s.exec(`DELETE FROM queen.log_segments`)
	page, err := s.List(t.Context(), pg.DefaultTenant, pg.MessageFilter{Limit: 10})
	require.NoError(t, err)
	require.Len(t, page.Messages, 1)
	require.Equal(t, Content{}, page.Messages[0].Content)
	_, found, err := s.Find(t.Context(), pg.DefaultTenant, partition, "a")
	require.NoError(t, err)
	require.False(t, found)
}

func TestDamagedSegmentIsAnErrorAndNotAnEmptyMessage(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	partition := s.push(pg.DefaultTenant, "p", "a")
	s.exec(`UPDATE queen.log_segments SET blob = '\x00'::bytea`)
	_, err := s.List(t.Context(), pg.DefaultTenant, pg.MessageFilter{Limit: 10})
	require.ErrorIs(t, err, segment.ErrMalformed)
	_, _, err = s.Find(t.Context(), pg.DefaultTenant, partition, "a")
	require.ErrorIs(t, err, segment.ErrMalformed)
}

func TestOtherTenantsSeeNothing(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.push(uuid.New(), "p", "a")
	page, err := s.List(t.Context(), pg.DefaultTenant, pg.MessageFilter{Limit: 10})
	require.NoError(t, err)
	require.Empty(t, page.Messages)
}
