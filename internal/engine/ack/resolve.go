package ack

import (
	"context"
	"encoding/hex"
	"log/slog"
	"slices"
	"time"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// resolve decides the group by its transaction ids.
func (s *Server) resolve(ctx context.Context, c *call, g *group) {
	request := g.request(c)
	verdict, err := s.commit(ctx, request)
	switch {
	case err != nil:
		c.fail(g, err)
		return
	case !verdict.OK:
		c.refuse(g, orElse(verdict.Error, textAckRejected))
		if verdict.Error == textInvalidLease {
			s.excuseRepeats(ctx, c, g, request)
		}
		return
	}
	var handOff DeadLetterOutcome
	if verdict.DeadLetter {
		handOff = s.FileDeadLetter(ctx, DeadLetterOrder{
			PartitionID: g.partition, Group: c.group, Worker: verdict.Worker, Offset: verdict.Offset, Nacks: nacks(g, c.items),
		})
	}
	explain(c, g, request.Statuses, verdict, handOff)
	if verdict.LeaseReleased || handOff.Filed {
		// A completion that ends the lease has reached the end of the batch; every other status ends it before.
		covered := !handOff.Filed && !slices.ContainsFunc(request.Statuses, isSignal)
		s.leaseEnded(c, g, covered, verdict.RedeliverIn)
	}
}

// excuseRepeats makes completions of messages that are completed a success without effect, although their lease is over: an ack whose
// answer got lost is sent again, and the first one ended the lease. What cannot be found out stays refused.
func (s *Server) excuseRepeats(ctx context.Context, c *call, g *group, request pg.HashAck) {
	var hashes [][]byte
	for k, status := range request.Statuses {
		if !isSignal(status) {
			hashes = append(hashes, request.Hashes[k])
		}
	}
	if len(hashes) == 0 {
		return
	}
	slot, err := s.slots.Acquire(ctx, admission.Ack)
	if err != nil {
		return
	}
	defer slot.Release()
	found, err := s.db.CompletedBefore(ctx, request.PartitionID, request.Group, hashes)
	if err != nil {
		s.log.WarnContext(ctx, "cannot tell a repeated ack from a late one", slog.String("partition_id", request.PartitionID.String()), slog.Any("error", err))
		return
	}
	completed := make(map[string]bool, len(found))
	for _, hash := range found {
		completed[string(hash)] = true
	}
	for k, i := range g.indexes {
		if !isSignal(request.Statuses[k]) && completed[string(request.Hashes[k])] {
			result := &c.results[i]
			result.Success, result.Noop, result.Error = true, true, ""
		}
	}
}

// request is what the database is asked to resolve.
func (g *group) request(c *call) pg.HashAck {
	n := len(g.indexes)
	request := pg.HashAck{
		PartitionID: g.partition, Group: c.group, Worker: g.leaseID, Hashes: make([][]byte, 0, n), Statuses: make([]string, 0, n),
	}
	for hash := range slices.Chunk(g.hashes, segment.HashBytes) {
		request.Hashes = append(request.Hashes, hash)
	}
	for _, i := range g.indexes {
		request.Statuses = append(request.Statuses, Status(c.items[i].Status))
		delay, _ := c.items[i].RedeliveryDelay() // prepare has refused those out of bounds
		request.DelaysMs = AppendDelay(request.DelaysMs, len(request.Statuses), delay)
	}
	return request
}

// commit resolves by hash, under the row lock, authoritatively.
func (s *Server) commit(ctx context.Context, request pg.HashAck) (pg.HashAckResult, error) {
	done, err := s.turns.take(ctx, batchKey{request.PartitionID, request.Group})
	if err != nil {
		return pg.HashAckResult{}, err
	}
	defer done()
	slot, err := s.slots.Acquire(ctx, admission.Ack)
	if err != nil {
		return pg.HashAckResult{}, err
	}
	defer slot.Release()
	defer s.fuser.timed(time.Now())
	return s.db.AckByHash(ctx, request)
}

// explain writes the outcome of every item of a group that was carried out.
func explain(c *call, g *group, statuses []string, verdict pg.HashAckResult, handOff DeadLetterOutcome) {
	noop, stale, unresolved := count(verdict.Noop), count(verdict.Stale), count(verdict.Unresolved)
	// From the back: of several items with one hash the first ones took the messages there were, the last ones found none.
	for k := len(g.indexes) - 1; k >= 0; k-- {
		result, status := &c.results[g.indexes[k]], statuses[k]
		result.LeaseReleased = verdict.LeaseReleased || handOff.Filed
		hash := [segment.HashBytes]byte(g.hashes[k*segment.HashBytes:])
		switch {
		case take(unresolved, hash):
			result.Error = textUnresolvable
		case isSignal(status) && take(stale, hash):
			result.Error = textStale
		case !isSignal(status) && take(noop, hash):
			result.Success, result.Noop = true, true
		case isSignal(status) && verdict.SignalIgnored:
			result.Error = textNoLeasedBatch
		default:
			result.Success = true
		}
	}
	if !verdict.DeadLetter {
		return
	}
	for _, i := range handOff.Named {
		if handOff.Filed {
			c.results[i].DeadLetter = true
		} else {
			c.results[i].Success, c.results[i].Error, c.results[i].Cause = false, handOff.Error, handOff.Cause
		}
	}
}

// count turns a list of hashes in hex into how often each occurs. What is not a hash is none of ours.
func count(hexes []string) map[[segment.HashBytes]byte]int {
	if len(hexes) == 0 {
		return nil
	}
	counted := make(map[[segment.HashBytes]byte]int, len(hexes))
	for _, text := range hexes {
		if raw, err := hex.DecodeString(text); err == nil && len(raw) == segment.HashBytes {
			counted[[segment.HashBytes]byte(raw)]++
		}
	}
	return counted
}

// take uses one occurrence of the hash up, if there is one left.
func take(counted map[[segment.HashBytes]byte]int, hash [segment.HashBytes]byte) bool {
	if counted[hash] == 0 {
		return false
	}
	counted[hash]--
	return true
}

func orElse(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}
