package pop

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

func hashesOf(transactionIDs ...string) []byte {
	var hashes []byte
	for _, id := range transactionIDs {
		hash := segment.Hash(id)
		hashes = append(hashes, hash[:]...)
	}
	return hashes
}

func TestWholeLeasedBatchesAreAnnounced(t *testing.T) {
	t.Parallel()
	middle := stored(t, 40, message(0), message(1), message(2), message(3))
	middle.StartIndex, middle.Take = 1, 2
	broken := stored(t, 12, message(5))
	broken.Blob = bytes.Repeat([]byte{1}, 30)
	whole, cut := uuid.New(), uuid.New()
	claim := pg.Claim{Partitions: []pg.ClaimedPartition{
		{Queue: "orders", Partition: "eu", PartitionID: whole, Segments: []pg.ClaimedSegment{stored(t, 30, message(9)), middle}},
		{Queue: "orders", Partition: "us", PartitionID: cut, Segments: []pg.ClaimedSegment{stored(t, 10, message(6)), broken}},
	}}
	for _, tc := range []struct {
		name  string
		req   Request
		lease time.Duration
		none  bool
	}{
		{name: "queue pop", req: Request{Queue: "orders"}, lease: 5 * time.Minute},
		{name: "own lease time", req: Request{Queue: "orders", LeaseSeconds: 7}, lease: 7 * time.Second},
		{name: "discovery leaves the lease to the queues", req: Request{Kind: Discovery, Task: "t"}},
		{name: "nothing is held after an auto-ack", req: Request{Queue: "orders", AutoAck: true}, none: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var announced []Delivery
			server, db, _ := setup(t, Config{Delivered: func(d Delivery) { announced = append(announced, d) }})
			db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
				if tc.req.AutoAck {
					return pg.Claim{Partitions: claim.Partitions[:1]}, nil
				}
				return claim, nil
			}
			tc.req.Tenant, tc.req.Group = tenant, "g"
			result, err := server.Pop(t.Context(), tc.req)
			require.NoError(t, err)
			defer result.Release()
			if tc.none {
				require.Empty(t, announced)
				return
			}
			require.Empty(t, cmp.Diff([]Delivery{{
				Tenant: tenant, Queue: "orders", Partition: "eu", PartitionID: whole, Group: "g", LeaseID: result.LeaseID,
				End: 42, Hashes: hashesOf("txn-9", "txn-1", "txn-2"), Lease: tc.lease,
			}}, announced), "the batch that was cut short does not end where its lease ends")
		})
	}
}

func TestAbandonedAnswerIsNotAnnounced(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	server, db, _ := setup(t, Config{Delivered: func(Delivery) { t.Error("announced to nobody") }})
	db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
		leave()
		return claimOf(stored(t, 0, message(1))), nil
	}
	_, err := server.Pop(ctx, Request{Tenant: tenant, Queue: "orders", Group: "g"})
	require.ErrorIs(t, err, context.Canceled)
}
