package push

import (
	"fmt"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// A Bundle is the pushes of one transaction, ready to be stored together with its acks.
type Bundle struct {
	// Segments has one element per (queue, partition), in order of first appearance.
	Segments []pg.Segment
	// Verdicts are parallel to the items and say what holds when the transaction commits: StatusQueued, or StatusDuplicate
	// with the leader's message id for a repeat inside the transaction.
	Verdicts []Verdict
	// SegmentOf is parallel to the items: the index into Segments.
	SegmentOf []int
}

// Pack groups items by partition, drops repeats of a transaction id (the first one leads), mints message ids in order and
// packs one segment per partition. It is the push path without fusion, for callers that commit by themselves. A nil packer
// is the default level. sealerOf returns what encrypts the payloads of a queue, nil for none; a nil sealerOf encrypts nothing.
// It fails with [segment.ErrTooLarge] when a message does not fit; payloads are not used after it returns.
func Pack(
	packer *segment.Packer, sealerOf func(queue string) Sealer, tenant uuid.UUID, producerSub string, items []Item,
) (*Bundle, error) {
	if packer == nil {
		packer = segment.DefaultPacker()
	}
	c := newCall(Request{Tenant: tenant, ProducerSub: producerSub, Items: items})
	b := &Bundle{
		Segments:  make([]pg.Segment, 0, len(c.parts)),
		Verdicts:  c.verdicts,
		SegmentOf: make([]int, len(items)),
	}
	for n, p := range c.parts {
		p.mint()
		w := &work{tenant: tenant, queue: p.queue, partition: p.partition, runs: []run{{p, 0, len(p.items)}}}
		if sealerOf != nil {
			w.sealer = sealerOf(p.queue)
		}
		w.prepare()
		var refused error
		err := w.pack(packer, func(r ref, err error) { refused = fmt.Errorf("item %d: %w", r.item, err) })
		if refused != nil {
			return nil, refused
		}
		if err != nil {
			return nil, fmt.Errorf("pack segment: %w", err)
		}
		b.Segments = append(b.Segments, w.segment())
		for _, i := range p.items {
			c.verdicts[i].Status = StatusQueued
			b.SegmentOf[i] = n
		}
	}
	for _, f := range c.followers {
		b.SegmentOf[f.item] = b.SegmentOf[f.leader]
	}
	c.resolveFollowers()
	return b, nil
}

// Stored completes the verdicts with what the database answered for Segments, in the same order.
func (b *Bundle) Stored(verdicts []pg.PushVerdict) {
	for i, n := range b.SegmentOf {
		if n >= len(verdicts) {
			continue
		}
		v := &b.Verdicts[i]
		v.PartitionID = verdicts[n].PartitionID
		v.Depth, v.Limit, v.Remaining = verdicts[n].Depth, verdicts[n].Limit, verdicts[n].Remaining
	}
}
