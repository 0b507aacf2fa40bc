package pg_test

import (
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func offsets(page pg.MessagePage) []string {
	var out []string
	for _, m := range page.Messages {
		out = append(out, fmt.Sprintf("%s%d", m.Partition, m.Offset))
	}
	return out
}

func TestListMessages(t *testing.T) {
	t.Parallel()
	db, _ := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	p, r := consumed(t, db)
	list := func(f pg.MessageFilter) pg.MessagePage {
		t.Helper()
		page, err := db.ListMessages(ctx, tenant, f)
		require.NoError(t, err)
		return page
	}
	all := list(pg.MessageFilter{})
	require.Equal(t, []string{"r0", "p2", "p1", "p0"}, offsets(all), "newest first")
	require.Empty(t, all.Next)
	require.Equal(t, []any{false, 1, "bus"}, []any{all.HasQueueMode, all.BusGroups, all.ModeType})
	held := all.Messages[2]
	require.False(t, held.LeaseExpiresAt.IsZero())
	require.WithinDuration(t, time.Now(), held.CreatedAt, time.Minute)
	held.LeaseExpiresAt, held.CreatedAt = time.Time{}, time.Time{}
	require.Equal(t, pg.MessageEntry{
		PartitionID: p, Queue: "q", Partition: "p", Namespace: "ns", Task: "tk", Offset: 1, Hash: hash("2"), Status: "processing",
		QueueStatus: "pending", ConsumedBy: 0, TotalGroups: 1, Segment: pg.SegmentKey{PartitionID: p, Base: 0}, Frame: 1, SegmentFound: true,
	}, held)

	require.Equal(t, []string{"p0"}, offsets(list(pg.MessageFilter{Status: "completed"})))
	require.Equal(t, []string{"p1"}, offsets(list(pg.MessageFilter{Status: "processing"})))
	require.Equal(t, []string{"r0", "p2"}, offsets(list(pg.MessageFilter{Status: "pending"})))
	require.Equal(t, []string{"r0", "p2", "p1", "p0"}, offsets(list(pg.MessageFilter{Status: "pending", Group: "h"})), "judged by the group alone")
	require.Empty(t, offsets(list(pg.MessageFilter{Status: "dead_letter"})))
	require.Equal(t, []string{"p2"}, offsets(list(pg.MessageFilter{TransactionHash: hash("3")})))
	require.Equal(t, []string{"r0"}, offsets(list(pg.MessageFilter{Partition: "r"})))
	require.Empty(t, offsets(list(pg.MessageFilter{Queue: "%"})), "no wildcards")
	require.Empty(t, offsets(list(pg.MessageFilter{Namespace: "n_"})))
	require.Empty(t, offsets(list(pg.MessageFilter{To: "2020-01-01T00:00:00Z", From: "2019-01-01T00:00:00Z"})))
	require.Equal(t, []string{"p1", "p0"}, offsets(list(pg.MessageFilter{Offset: 2})))
	other, err := db.ListMessages(ctx, uuid.New(), pg.MessageFilter{})
	require.NoError(t, err)
	require.Empty(t, other.Messages)

	// Pages stay put while messages come in.
	first := list(pg.MessageFilter{Limit: 2})
	require.Equal(t, []string{"r0", "p2"}, offsets(first))
	push(t, db, segment("q", "r", "5"))
	second := list(pg.MessageFilter{Limit: 2, After: first.Next})
	require.Equal(t, []string{"p1", "p0"}, offsets(second))
	require.Empty(t, offsets(list(pg.MessageFilter{Limit: 2, After: second.Next})))
	for _, cursor := range []string{"x", "%", base64.RawURLEncoding.EncodeToString([]byte("2020-01-01T00:00:00.000000Z|1'")), base64.RawURLEncoding.EncodeToString([]byte("1|a"))} {
		_, err := db.ListMessages(ctx, tenant, pg.MessageFilter{After: cursor})
		require.ErrorIs(t, err, pg.ErrInvalidCursor, cursor)
	}
	_, err = db.ListMessages(ctx, tenant, pg.MessageFilter{From: "now"})
	require.ErrorIs(t, err, pg.ErrBadData)

	detail, found, err := db.FindMessage(ctx, tenant, p, hash("2"))
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, []any{int64(1), "q", "p", "processing", true, int64(0), 30, false}, []any{detail.Offset, detail.Queue, detail.Partition, detail.Status, detail.SegmentFound, detail.Segment.Base, detail.LeaseTime, detail.DeadLetter})
	require.Len(t, detail.Groups, 1)
	require.False(t, detail.Groups[0].Consumed)
	_, found, err = db.FindMessage(ctx, uuid.New(), p, hash("2"))
	require.NoError(t, err)
	require.False(t, found, "another tenant's id is unknown")
	_, found, err = db.FindMessage(ctx, tenant, p, hash("none"))
	require.NoError(t, err)
	require.False(t, found)
	detail, found, err = db.MessageAt(ctx, tenant, r, 0)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "pending", detail.Status)
	stored, err := db.SegmentsOf(ctx, []pg.SegmentKey{{PartitionID: p, Base: 0}, {PartitionID: p, Base: 1}, {PartitionID: r, Base: 0}, {PartitionID: p, Base: 0}})
	require.NoError(t, err)
	require.Len(t, stored, 2)
	require.Equal(t, "blob of 1,2", string(stored[pg.SegmentKey{PartitionID: p, Base: 0}].Blob))
	segments, err := db.NewestSegments(ctx, tenant, p, -1, 10)
	require.NoError(t, err)
	require.Equal(t, []int64{2, 0}, []int64{segments[0].Base, segments[1].Base})
	segments, err = db.NewestSegments(ctx, tenant, p, 2, 10)
	require.NoError(t, err)
	require.Len(t, segments, 1)
	segments, err = db.NewestSegments(ctx, uuid.New(), p, -1, 10)
	require.NoError(t, err)
	require.Empty(t, segments)
}

// A message that one group consumed and another did not is not completed; a stray pop without a group changes nothing.
func TestNamedGroupsOutrankQueueMode(t *testing.T) {
	t.Parallel()
	db, _ := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	push(t, db, segment("q", "p", "1", "2", "3"))
	take := func(group string, n int) {
		t.Helper()
		request := popRequest("q", "w")
		request.Partition, request.Group, request.Budget, request.AutoAck = "p", group, n, true
		_, err := db.PopSpecific(ctx, request)
		require.NoError(t, err)
	}
	depth := func() string {
		t.Helper()
		answer, err := db.QueueDepth(ctx, tenant, "q", "")
		return shape(t, answer, err)
	}
	statuses := func() (out []string) {
		t.Helper()
		page, err := db.ListMessages(ctx, tenant, pg.MessageFilter{})
		require.NoError(t, err)
		for _, m := range page.Messages {
			out = append(out, m.Status)
		}
		return out
	}
	take("__QUEUE_MODE__", 2)
	require.Contains(t, depth(), `"depth": 1`, "queue mode alone decides")
	require.Equal(t, []string{"pending", "completed", "completed"}, statuses())
	take("g", 1)
	require.Contains(t, depth(), `"depth": 2`)
	require.Equal(t, []string{"pending", "pending", "completed"}, statuses())
	take("h", 3)
	require.Contains(t, depth(), `"depth": 2`)
	take("g", 3)
	require.Contains(t, depth(), `"depth": 0`)
	require.Equal(t, []string{"completed", "completed", "completed"}, statuses())
}

func TestTraceMessages(t *testing.T) {
	t.Parallel()
	db, _ := kolkata(t)
	ctx, tenant, trace := t.Context(), pg.DefaultTenant, uuid.New()
	for i, queue := range []string{"a", "b"} {
		s := segment(queue, "p", fmt.Sprint(i), fmt.Sprint(i+10))
		s.Traces = []pg.FrameTrace{{Frame: 1, ID: trace}}
		push(t, db, s)
	}
	foreign := segment("a", "p", "x")
	foreign.Tenant, foreign.Traces = uuid.New(), []pg.FrameTrace{{ID: trace}}
	push(t, db, foreign)
	messages, err := db.TraceMessages(ctx, tenant, trace, 10)
	require.NoError(t, err)
	require.Len(t, messages, 2)
	require.Equal(t, []any{"a", "b", int64(1), "pending", true, int64(0)}, []any{messages[0].Queue, messages[1].Queue, messages[0].Offset, messages[0].Status, messages[0].SegmentFound, messages[0].Segment.Base})
	page, err := db.ListMessages(ctx, tenant, pg.MessageFilter{TraceID: uuid.NullUUID{UUID: trace, Valid: true}, Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "b", page.Messages[0].Queue)
	require.Equal(t, hash("11"), page.Messages[0].Hash)
	page, err = db.ListMessages(ctx, tenant, pg.MessageFilter{TraceID: uuid.NullUUID{UUID: trace, Valid: true}, Limit: 1, After: page.Next})
	require.NoError(t, err)
	require.Equal(t, "a", page.Messages[0].Queue)
	page, err = db.ListMessages(ctx, tenant, pg.MessageFilter{TraceID: uuid.NullUUID{UUID: trace, Valid: true}, Queue: "b", Status: "pending"})
	require.NoError(t, err)
	require.Len(t, page.Messages, 1)
}
