package pop

import (
	"context"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
)

// maxHandoverQueues is for how many queues of one commit it is asked whether pops wait.
const maxHandoverQueues = 16

// An offer is what a parked pop may be handed over. While the pop is enlisted it belongs to the handover.
type offer struct {
	look *look
	// room is for the answer. The pop takes it over together with the claim.
	room  hold
	claim pg.Claim

	// What may still be added.
	partitions, messages int
	content, needs       int64
	// unsure says that a commit which was to lease something failed: the database may have the lease nevertheless.
	unsure bool
}

// fits tells whether a part of a segment may be added.
func (o *offer) fits(content, needs int64) bool {
	return o.partitions > 0 && o.messages > 0 && content <= o.content && needs <= o.needs
}

// A handover lets one commit of pushes lease to parked pops what it stores, so that they need no claim: see [Server.Handover].
type handover struct {
	server   *Server
	segments []pg.Segment
	sides    []*handoverSide
	leases   []pg.Handover
	owners   []handoverOwner // parallel to leases
}

// A handoverSide is what is handed over to the pops of one ring. The last of them is the one that gets more.
type handoverSide struct {
	ring *ready.Ring
	out  ready.CheckOut
	pops []*ready.Parked
	// exhausted says that no more pops wait.
	exhausted bool
}

type handoverOwner struct {
	side  *handoverSide
	offer *offer
	entry int // of the check-out
}

// Handover looks for parked pops that may get the messages of segments which are about to be stored, and returns the leases that the commit
// is to make for them; without any, conclude is nil. Otherwise it is to be called exactly once: when the commit is done, after the hot list
// was told of the segments stored, with the verdicts and with what the commit noted in the leases; or with nil verdicts when it failed. Until
// then these pops, and the partitions, are nobody else's. The caller holds a slot until conclude returns; segments may not change before.
//
// A pop gets from a commit what it would have claimed right after it, when that is all there is: nothing else of these partitions is listed,
// taken or leased. It waits for the commit no longer than for a look of its own, see [answerGrace]; what comes too late is given back.
func (s *Server) Handover(segments []pg.Segment) (leases []pg.Handover, conclude func(context.Context, []pg.PushVerdict)) {
	if s.hot == nil || s.counts.parked.Load() == 0 || s.closed() {
		return nil, nil
	}
	h := &handover{server: s, segments: segments}
	type queue struct {
		tenant uuid.UUID
		name   string
		sides  []*handoverSide
	}
	var queues []queue
	for i := range segments {
		segment := &segments[i]
		at := len(queues) - 1
		for at >= 0 && (queues[at].name != segment.Queue || queues[at].tenant != segment.Tenant) {
			at--
		}
		if at < 0 {
			if len(queues) == maxHandoverQueues {
				continue
			}
			one := queue{tenant: segment.Tenant, name: segment.Queue}
			for _, ring := range s.hot.Crowded(segment.Tenant, segment.Queue) {
				one.sides = append(one.sides, &handoverSide{ring: ring, out: ring.CheckOut()})
			}
			queues = append(queues, one)
			at = len(queues) - 1
		}
		for _, side := range queues[at].sides {
			h.add(side, i)
		}
	}
	for _, one := range queues {
		h.sides = append(h.sides, one.sides...)
	}
	if len(h.leases) == 0 {
		h.conclude(context.Background(), nil)
		return nil, nil
	}
	return h.leases, h.conclude
}

// add asks for a lease on the i-th segment for a pop of the side, unless none may have it.
func (h *handover) add(side *handoverSide, i int) {
	segment := &h.segments[i]
	if side.exhausted || len(segment.Traces) > 0 || !side.out.Reserve(segment.Partition) {
		return
	}
	entry := len(side.out.Names()) - 1
	o := h.open(side, segment)
	if o == nil {
		side.out.Empty(entry)
		return
	}
	take := min(segment.Count, o.messages)
	content, all := needs(&pg.ClaimedSegment{Blob: segment.Blob, Take: take})
	o.partitions--
	o.messages -= take
	o.content -= content
	o.needs -= all
	h.leases = append(h.leases, pg.Handover{Segment: i, Take: take, Group: o.look.Group, Worker: o.look.Worker, LeaseSeconds: o.look.LeaseSeconds})
	h.owners = append(h.owners, handoverOwner{side, o, entry})
}

// open returns the offer that has room for the segment: that of the pop which was enlisted last, or of the next one.
func (h *handover) open(side *handoverSide, segment *pg.Segment) *offer {
	content, all := needs(&pg.ClaimedSegment{Blob: segment.Blob, Take: segment.Count})
	if n := len(side.pops); n > 0 {
		if o := offerOf(side.pops[n-1]); o.fits(content, all) {
			return o
		}
	}
	place := side.ring.Enlist()
	if place == nil {
		side.exhausted = true
		return nil
	}
	s, o := h.server, offerOf(place)
	side.pops = append(side.pops, place)
	o.partitions = 0 // of an earlier handover
	if s.room.enter(&o.room, queueKey{o.look.Tenant, o.look.Queue}) {
		o.partitions, o.messages, o.content, o.needs = wanted(o.look), o.look.Budget, s.cfg.MaxAnswerBytes, o.room.bytes
	}
	if !o.fits(content, all) {
		return nil
	}
	return o
}

func offerOf(p *ready.Parked) *offer { return p.Owner.(*offer) } //nolint:forcetypeassert // serveReady puts nothing else there

// conclude tells the rings what became of the partitions, and the pops what they have.
func (h *handover) conclude(ctx context.Context, verdicts []pg.PushVerdict) {
	for i := range h.leases {
		lease, owner := &h.leases[i], h.owners[i]
		if verdicts == nil || !lease.Leased {
			owner.offer.unsure = owner.offer.unsure || verdicts == nil
			owner.side.out.Empty(owner.entry) // a mark says better
			continue
		}
		segment, verdict, o := &h.segments[lease.Segment], &verdicts[lease.Segment], owner.offer
		owner.side.out.Stored(owner.entry)
		owner.side.out.Leased(owner.entry, lease.Worker, time.Duration(lease.LeaseSeconds)*time.Second, int64(segment.Count-lease.Take))
		o.claim.Partitions = append(o.claim.Partitions, pg.ClaimedPartition{
			// The names of the segment may be parts of a request that is gone before the answer of the pop.
			Queue: o.look.Queue, Partition: owner.side.out.Names()[owner.entry], PartitionID: verdict.PartitionID,
			Segments: []pg.ClaimedSegment{{Base: verdict.BaseOffset, Take: lease.Take, CreatedAt: verdict.CreatedAt, Blob: segment.Blob}},
		})
	}
	for _, side := range h.sides {
		for _, place := range side.pops {
			h.discharge(ctx, side.ring, place)
		}
		side.out.Return() // wakes for what was not handed over
	}
}

// discharge lets a pop go on with what it has.
func (h *handover) discharge(ctx context.Context, ring *ready.Ring, place *ready.Parked) {
	s, o := h.server, offerOf(place)
	if len(o.claim.Partitions) == 0 {
		o.room.release()
	}
	if ring.Discharge(place) {
		return
	}
	o.room.release()
	s.giveBack(ctx, o.look, o.claim.Partitions)
	for i := range o.claim.Partitions {
		p := &o.claim.Partitions[i]
		s.gates.Released(o.look.Tenant, p.Queue, p.Partition, o.look.Group, "")
	}
}

// accept makes the answer of a pop that was handed something over. Nil without an error means that there was nothing.
func (s *Server) accept(ctx context.Context, o *offer) (*Result, error) {
	if len(o.claim.Partitions) == 0 {
		if o.unsure { // whoever holds the next batch must not prolong, with its lease, one that nobody knows of
			o.look.Worker, o.unsure = newLease(), false
		}
		return nil, nil
	}
	l, claimed := o.look, o.claim
	l.room.release()
	l.room, o.room, o.claim = o.room, hold{}, pg.Claim{}
	s.counts.handed.Add(1)
	if _, err := s.fit(l, claimed.Partitions); err != nil { // it was measured before
		return nil, err
	}
	return s.deliver(ctx, l, claimed)
}
