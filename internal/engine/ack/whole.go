package ack

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// prepareKnown is prepare for a partition that is known from memory; false when it is not, and nothing has been decided then.
func (s *Server) prepareKnown(ctx context.Context, c *call, g *group) bool {
	partition, err := uuid.Parse(g.partitionID)
	if err != nil {
		return false
	}
	if _, known := s.owners.get(partition); !known {
		return false
	}
	return s.prepare(ctx, c, g)
}

// submit hands the group to a common commit when it completes exactly one delivered batch; fused tells when that is done. False
// leaves the group to be resolved.
func (s *Server) submit(c *call, g *group, fused *sync.WaitGroup) bool {
	completes := true
	g.hashes = make([]byte, 0, len(g.indexes)*segment.HashBytes)
	for _, i := range g.indexes {
		hash := segment.Hash(c.items[i].TransactionID)
		g.hashes = append(g.hashes, hash[:]...)
		completes = completes && Status(c.items[i].Status) == Completed
	}
	var batch *heldBatch
	if key := (batchKey{g.partition, c.group}); completes && g.leaseID != "" {
		batch = s.registry.take(key, g.leaseID, g.hashes)
	} else {
		s.registry.evict(key, g.leaseID)
	}
	if batch == nil {
		g.resolves = true
		return false
	}
	g.whole = &advance{
		PositionalAck: pg.PositionalAck{
			PartitionID: g.partition, Group: c.group, Worker: g.leaseID, End: batch.end, Count: batch.messages(),
		},
		finished: fused,
	}
	fused.Add(1)
	if !s.fuser.submit(g.whole) {
		s.completeAlone(g.whole)
	}
	return true
}

// completeAlone commits one whole batch by itself.
func (s *Server) completeAlone(a *advance) {
	defer a.finished.Done()
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	slot, err := s.slots.Acquire(ctx, admission.Ack)
	if err != nil {
		a.err = err
		return
	}
	defer slot.Release()
	defer s.fuser.timed(time.Now())
	results, err := s.db.AckMulti(ctx, []pg.PositionalAck{a.PositionalAck})
	a.err = err
	a.accepted = err == nil && len(results) == 1 && results[0].OK
}

// conclude writes the results of a group whose common commit is done. False means that the database refused it: the ids are to be
// resolved, which finds the honest answer.
func (s *Server) conclude(c *call, g *group) bool {
	switch {
	case g.whole.err != nil:
		c.fail(g, g.whole.err)
		return true
	case !g.whole.accepted:
		g.resolves = true
		return false
	}
	for _, i := range g.indexes {
		c.results[i].Success, c.results[i].LeaseReleased = true, true
	}
	s.leaseEnded(c, g, true, 0)
	return true
}
