package push

import (
	"bytes"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

func TestPack_GroupsInOrderAndDropsRepeats(t *testing.T) {
	t.Parallel()
	trace := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	items := []Item{
		item("b", "1", "first"), item("a", "", "2"), item("b", "1", "again"),
		{Queue: "other", Partition: "b", TransactionID: "1", Payload: []byte("4")},
		item("b", "2", "5"),
	}
	items[4].TraceID = trace
	b, err := Pack(nil, nil, testTenant, "alice", items)
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 0, 2, 0}, b.SegmentOf)
	require.Equal(t, []Status{StatusQueued, StatusQueued, StatusDuplicate, StatusQueued, StatusQueued}, statuses(b.Verdicts))
	require.Equal(t, b.Verdicts[0].MessageID, b.Verdicts[2].MessageID)
	require.Equal(t, b.Verdicts[1].MessageID.String(), b.Verdicts[1].TransactionID)
	require.Negative(t, bytes.Compare(b.Verdicts[0].MessageID[:], b.Verdicts[4].MessageID[:]))

	require.Len(t, b.Segments, 3)
	s := b.Segments[0]
	require.Equal(t, "orders", s.Queue)
	require.Equal(t, "b", s.Partition)
	require.Equal(t, testTenant, s.Tenant)
	require.Equal(t, 2, s.Count)
	require.EqualValues(t, -1, s.Verified)
	require.True(t, s.Plain)
	require.Equal(t, []pg.FrameTrace{{Frame: 1, ID: trace.UUID}}, s.Traces)
	h1, h2 := segment.Hash("1"), segment.Hash("2")
	require.Equal(t, append(h1[:], h2[:]...), s.Hashes)
	frames, err := segment.Unpack(s.Blob)
	require.NoError(t, err)
	defer frames.Release()
	require.Equal(t, segment.Frame{ID: b.Verdicts[0].MessageID, TransactionID: "1", ProducerSub: "alice", Payload: []byte("first")}, frames.At(0))
	require.Equal(t, b.Verdicts[4].MessageID, frames.At(1).ID)

	ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	b.Stored([]pg.PushVerdict{{PartitionID: ids[0], Depth: 2, Limit: 9, Remaining: 7}, {PartitionID: ids[1]}, {PartitionID: ids[2]}})
	require.Equal(t, ids[0], b.Verdicts[2].PartitionID)
	require.EqualValues(t, 7, b.Verdicts[4].Remaining)
	require.Equal(t, ids[2], b.Verdicts[3].PartitionID)
}

func TestPack_NothingAndTooMuch(t *testing.T) {
	t.Parallel()
	b, err := Pack(nil, nil, testTenant, "", nil)
	require.NoError(t, err)
	require.Empty(t, b.Segments)
	_, err = Pack(nil, nil, testTenant, "", []Item{item("p", "a", "1"), item("p", string(bytes.Repeat([]byte("x"), 70000)), "1")})
	require.ErrorIs(t, err, segment.ErrTooLarge)
	require.ErrorContains(t, err, "item 1")
}
