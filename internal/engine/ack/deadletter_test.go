package ack

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// poisonStore answers every ack with the order to file offset 11, held by "holder".
func poisonStore(t *testing.T, db *fakeStore, payload string) {
	t.Helper()
	blob, _, err := segment.Pack([]segment.Frame{
		{ID: uuid.New(), TransactionID: "a", Payload: []byte("1")},
		{
			ID: messageID, TransactionID: "b", Payload: []byte(payload),
			TraceID: uuid.NullUUID{UUID: foreign, Valid: true},
		},
		{ID: uuid.New(), TransactionID: "c", Payload: []byte("3")},
	})
	require.NoError(t, err)
	db.segment = pg.StoredSegment{Base: 10, End: 12, Blob: blob}
	db.ack = func(context.Context, pg.HashAck) (pg.HashAckResult, error) {
		return pg.HashAckResult{OK: true, DeadLetter: true, Worker: "holder", Offset: 11}, nil
	}
}

func TestDeadLetterIsASnapshotOfTheMessage(t *testing.T) {
	t.Parallel()
	const payload = ` {"n":1234567890123456789012345678901234567890,"k":1,"k":"\u0000\ud800"} `
	server, db, gates := setup(t, Config{})
	poisonStore(t, db, payload)
	waiter := gates.Subscribe(tenant, "orders")
	defer waiter.Release()
	opened, _ := waiter.Arm()

	// Acknowledged without a lease while another consumer holds the batch: the letter is filed as that holder.
	got := server.Ack(t.Context(), tenant, "billing", []Item{
		{"a", partition.String(), "completed", "", "", nil},
		{"b", partition.String(), "failed", "", "boom", nil},
		{"c", partition.String(), "completed", "", "", nil},
	})
	done := Result{Success: true, LeaseReleased: true, Queue: "orders", Partition: "eu"}
	a, b, c := done, done, done
	a.TransactionID, b.TransactionID, c.TransactionID = "a", "b", "c"
	b.DeadLetter = true
	require.Empty(t, cmp.Diff([]Result{a, b, c}, got), "only the item that names the message is a dead letter")
	require.Empty(t, cmp.Diff([]pg.DeadLetter{{
		PartitionID: partition, Group: "billing", Worker: "holder", Offset: 11,
		MessageID:     uuid.NullUUID{UUID: messageID, Valid: true},
		TransactionID: "b", Payload: []byte(payload), TraceID: uuid.NullUUID{UUID: foreign, Valid: true}, Error: "boom",
	}}, db.letters))
	requireWoken(t, opened)
}

func TestDeadLetterReason(t *testing.T) {
	t.Parallel()
	item := func(id, status, text string) Item { return Item{id, partition.String(), status, "holder", text, nil} }
	cases := []struct {
		name  string
		items []Item
		want  string
	}{
		{"of the message", []Item{item("a", "failed", "first"), item("b", "failed", "mine")}, "mine"},
		{"the first of the group", []Item{item("a", "failed", ""), item("b", "failed", ""), item("c", "retry", "third"), item("d", "failed", "fourth")}, "third"},
		{"not of a completed item", []Item{item("a", "completed", "fine"), item("b", "dlq", "")}, "Retries exhausted"},
		{"none", []Item{item("b", "failed", "")}, "Retries exhausted"},
		{"unstorable", []Item{item("b", "failed", "a\x00\xff"+strings.Repeat("x", 2*MaxErrorBytes))}, "a\uFFFD\uFFFD" + strings.Repeat("x", MaxErrorBytes-7)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, _ := setup(t, Config{})
			poisonStore(t, db, "1")
			got := server.Ack(t.Context(), tenant, "g", c.items)
			require.Equal(t, c.want, db.letters[0].Error)
			for i, item := range c.items {
				require.Equal(t, item.TransactionID == "b", got[i].DeadLetter)
			}
		})
	}
}

func TestDeadLetterOfAMessageThatIsGone(t *testing.T) {
	t.Parallel()
	damages := map[string]func(db *fakeStore){
		"retention took the segment": func(db *fakeStore) { db.gone = true },
		"the segment is damaged":     func(db *fakeStore) { db.segment.Blob = []byte("garbage") },
		"the segment is too short":   func(db *fakeStore) { db.segment.Base = 1 },
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, db, _ := setup(t, Config{})
			poisonStore(t, db, "1")
			damage(db)
			got := server.Ack(t.Context(), tenant, "g", []Item{
				{"x", partition.String(), "retry", "holder", "", nil},
				{"y", partition.String(), "failed", "holder", "why", nil},
				{"z", partition.String(), "failed", "holder", "other", nil},
			})
			require.Empty(t, cmp.Diff([]pg.DeadLetter{{PartitionID: partition, Group: "g", Worker: "holder", Offset: 11, Error: "why"}}, db.letters))
			require.Equal(t, []bool{false, true, false}, []bool{got[0].DeadLetter, got[1].DeadLetter, got[2].DeadLetter})
		})
	}
}

func TestDeadLetterThatCannotBeFiledIsHonest(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		breakIt func(db *fakeStore)
		want    string
	}{
		{"lease lost meanwhile", func(db *fakeStore) { db.file = pg.DeadLetterResult{Error: "invalid or expired lease"} }, "invalid or expired lease"},
		{"refused without a reason", func(db *fakeStore) { db.file = pg.DeadLetterResult{} }, "dlq rejected"},
		{"no connection", func(db *fakeStore) { db.fileErr = fmt.Errorf("file: %w", pg.ErrPoolTimeout) }, "pool"},
		{"database error on read", func(db *fakeStore) { db.segErr = errors.New("broken") }, "the acknowledgment was not committed; repeat it"},
		{"no holder", func(db *fakeStore) {
			db.ack = func(context.Context, pg.HashAck) (pg.HashAckResult, error) {
				return pg.HashAckResult{OK: true, DeadLetter: true, Offset: 11}, nil
			}
		}, "dlq rejected"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, _ := setup(t, Config{})
			poisonStore(t, db, "1")
			c.breakIt(db)
			got := server.Ack(t.Context(), tenant, "g", []Item{
				{"a", partition.String(), "completed", "holder", "", nil},
				{"b", partition.String(), "dlq", "holder", "", nil},
			})
			require.True(t, got[0].Success)
			require.Equal(t, db.segErr != nil || db.fileErr != nil, got[1].Cause != nil)
			got[1].Cause = nil
			require.Equal(t, Result{TransactionID: "b", Error: c.want, Queue: "orders", Partition: "eu"}, got[1])
		})
	}
}

// requireWoken fails when no wake came. Wakes are sent before the call that causes them returns.
func requireWoken(t *testing.T, opened <-chan struct{}) {
	t.Helper()
	select {
	case <-opened:
	default:
		t.Fatal("a lease ended or a message came, and nobody was woken")
	}
}
