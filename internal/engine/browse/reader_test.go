package browse

import (
	"context"
	"fmt"
	"strings"
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

func TestDamagedSegmentTakesNothingFromTheOthers(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	partition := s.push(pg.DefaultTenant, "p", "a", "b")
	s.push(pg.DefaultTenant, "p", "c", "d")
	s.push(pg.DefaultTenant, "p", "e")
	s.exec(`UPDATE queen.log_segments SET blob = '\x00'::bytea WHERE base_offset = 2`)
	// A segment that holds another number of messages than it was stored with is whole, and wrong.
	s.exec(`UPDATE queen.log_segments SET blob = (SELECT blob FROM queen.log_segments WHERE base_offset = 4) WHERE base_offset = 0`)
	page, err := s.List(t.Context(), pg.DefaultTenant, pg.MessageFilter{Limit: 10})
	require.NoError(t, err)
	var names, faults []string
	for _, m := range page.Messages {
		names, faults = append(names, m.TransactionID), append(faults, m.Unreadable)
		require.Equal(t, m.Unreadable == "", m.Available)
	}
	require.Equal(t, []string{"e", "", "", "", "e"}, names)
	require.Equal(t, []string{"", "", ""}, []string{faults[0], faults[4], page.Next})
	require.Contains(t, faults[1], segment.ErrMalformed.Error())
	require.Equal(t, faults[1], faults[2])
	require.Equal(t, "the segment holds 1 messages, not message 1 that it was stored with", faults[3])

	m, found, err := s.Find(t.Context(), pg.DefaultTenant, partition, "c")
	require.NoError(t, err)
	require.True(t, found, "the index knows it")
	require.Equal(t, []any{int64(2), false}, []any{m.Offset, m.Available})
	require.Contains(t, m.Unreadable, segment.ErrMalformed.Error())

	part, found, err := s.Partition(t.Context(), pg.DefaultTenant, partition, 0, 4)
	require.NoError(t, err)
	require.True(t, found)
	require.Len(t, part.Messages, 4)
	require.EqualValues(t, 4, part.Next)
	for i, readable := range []bool{true, false, false, false} {
		require.Equal(t, []any{int64(i), readable, !readable}, []any{part.Messages[i].Offset, part.Messages[i].Available, part.Messages[i].Unreadable != ""})
	}

	s.exec(`DELETE FROM queen.log_txns`)
	m, found, err = s.Find(t.Context(), pg.DefaultTenant, partition, "e")
	require.NoError(t, err)
	require.True(t, found, "the search passes over what is damaged")
	require.Equal(t, int64(4), m.Offset)
	_, _, err = s.Find(t.Context(), pg.DefaultTenant, partition, "c")
	require.ErrorIs(t, err, segment.ErrMalformed, "what is not found may lie in what cannot be read")
}

func TestOtherTenantsSeeNothing(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.push(uuid.New(), "p", "a")
	page, err := s.List(t.Context(), pg.DefaultTenant, pg.MessageFilter{Limit: 10})
	require.NoError(t, err)
	require.Empty(t, page.Messages)
}

// A partition is read from any offset on, in both directions of counting, in parts of any size, and only by its tenant.
func TestPartitionIsReadByOffset(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	id := s.push(pg.DefaultTenant, "p", "0", "1", "2")
	s.push(pg.DefaultTenant, "p", "3")
	s.push(pg.DefaultTenant, "p", "4", "5", "6", "7")
	read := func(from int64, limit int) (ids []string, next int64) {
		t.Helper()
		part, found, err := s.Partition(t.Context(), pg.DefaultTenant, id, from, limit)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, []any{"q", "p", int64(8)}, []any{part.Queue, part.Partition, part.End})
		for _, m := range part.Messages {
			require.Equal(t, m.TransactionID, fmt.Sprint(m.Offset))
			require.Equal(t, `{ "id":"`+m.TransactionID+`", "big":12345678901234567890 }`, string(m.Payload))
			require.False(t, m.CreatedAt.IsZero())
			ids = append(ids, m.TransactionID)
		}
		return ids, part.Next
	}
	for _, row := range []struct {
		from int64
		want string
		next int64
	}{{0, "[0 1 2]", 3}, {1, "[1 2 3]", 4}, {4, "[4 5 6]", 7}, {6, "[6 7]", 8}, {8, "[]", 8}, {800, "[]", 8}, {-2, "[6 7]", 8}, {-5, "[3 4 5]", 6}, {-99, "[0 1 2]", 3}} {
		ids, next := read(row.from, 3)
		require.Equal(t, row.want, fmt.Sprint(ids), "from %d", row.from)
		require.Equal(t, row.next, next, "from %d", row.from)
	}
	for size := 1; size <= 9; size++ {
		var all []string
		for next := int64(0); next < 8; {
			var ids []string
			ids, next = read(next, size)
			all = append(all, ids...)
		}
		require.Equal(t, "[0 1 2 3 4 5 6 7]", fmt.Sprint(all), "parts of %d", size)
	}
	s.exec("DELETE FROM queen.log_segments WHERE base_offset = 3; UPDATE queen.log_partitions SET log_start = 2")
	ids, _ := read(0, 9)
	require.Equal(t, "[2 4 5 6 7]", fmt.Sprint(ids), "what retention has passed is left out, and a gap is stepped over")
	_, found, err := s.Partition(t.Context(), uuid.New(), id, 0, 9)
	require.NoError(t, err)
	require.False(t, found)
}

// The payloads of one part are bounded whatever its limit is.
func TestPartsEndByBytes(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	var id uuid.UUID
	for i := range 4 {
		frames := []segment.Frame{{ID: segment.NewID(), TransactionID: fmt.Sprint(i), Payload: []byte(`"` + strings.Repeat("x", 9<<20) + `"`)}}
		blob, hashes, err := segment.Pack(frames)
		require.NoError(t, err)
		verdicts, err := s.db.PushMulti(t.Context(), []pg.Segment{{Tenant: pg.DefaultTenant, Queue: "q", Partition: "p", Count: 1, Hashes: hashes, Verified: -1, Blob: blob, Plain: true}}, pg.PushOptions{})
		require.NoError(t, err)
		id = verdicts[0].PartitionID
	}
	part, _, err := s.Partition(t.Context(), pg.DefaultTenant, id, 0, 100)
	require.NoError(t, err)
	require.Len(t, part.Messages, 2)
	require.EqualValues(t, 2, part.Next)
}
