package pop

import (
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
)

// A Delivery describes one leased batch that is about to be sent: everything that the lease covers, nothing left out.
type Delivery struct {
	Tenant           uuid.UUID
	Queue, Partition string
	PartitionID      uuid.UUID
	Group, LeaseID   string
	// End is the offset of the last message, which is also where the leased batch ends.
	End int64
	// Hashes are the hashes of the transaction ids, segment.HashBytes each, in offset order.
	Hashes []byte
	// Lease is how long the batch is held; 0 is unknown here.
	Lease time.Duration
}

// announce reports the batches of r to whoever recognises their acks later. What is not wholly delivered is left out: its last
// message is not the end of its lease.
func (r *Result) announce(delivered func(Delivery)) {
	if delivered == nil || r.LeaseID == "" {
		return
	}
	for i := range r.Partitions {
		batch := &r.Partitions[i]
		if !batch.Whole {
			continue
		}
		delivered(Delivery{
			Tenant: r.tenant, Queue: batch.Queue, Partition: batch.Partition, PartitionID: batch.PartitionID,
			Group: r.Group, LeaseID: r.LeaseID, End: batch.End, Hashes: batch.hashes(), Lease: r.lease,
		})
	}
}

// hashes are the hashes of the transaction ids of the batch, one after the other.
func (b *Batch) hashes() []byte {
	hashes := make([]byte, 0, b.Messages*segment.HashBytes)
	for _, s := range b.slices {
		for i := s.start; i < s.start+s.take; i++ {
			hashes = segment.AppendHash(hashes, s.frames.View(i).TransactionID)
		}
	}
	return hashes
}
