package pop

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// DefaultMaxAnswerBytes is how much one answer holds unless configured otherwise.
const DefaultMaxAnswerBytes = 64 << 20

// claimTries is how often an auto-ack pop claims in all until the answer is small enough. The last one asks for one message, which is
// always small enough.
const claimTries = 3

// An oversizedError rolls an auto-ack claim back whose content is too large for one answer.
type oversizedError struct {
	fits int // messages
}

func (e *oversizedError) Error() string {
	return fmt.Sprintf("the claim is larger than one answer may be; its first %d messages are not", e.fits)
}

// next is the budget of the claim after the n-th one, n from 1, that was too large.
func (e *oversizedError) next(n int) int {
	if n >= claimTries-1 {
		return 1
	}
	return e.fits
}

// A prefix is the part of a claim that one answer may hold: all segments of the first partitions, and some of the next one.
type prefix struct {
	partitions, segments int
	messages             int
	// needs is the room that it takes.
	needs int64
	whole bool // nothing is left out
}

// prefixWithin measures a claim before any of it is decompressed: segments are kept as long as their content has at most limit bytes
// together and they need at most so much room. The first one may have more content than the limit, or its messages would never be
// delivered.
func prefixWithin(claimed []pg.ClaimedPartition, limit, room int64) prefix {
	var p prefix
	var size int64
	for i := range claimed {
		p.partitions, p.segments = i, 0
		for j := range claimed[i].Segments {
			s := &claimed[i].Segments[j]
			content, all := needs(s)
			size += content
			if size > limit && p.messages > 0 || p.needs+all > room {
				return p
			}
			p.segments++
			p.messages += s.Take
			p.needs += all
		}
	}
	p.partitions, p.segments, p.whole = len(claimed), 0, true
	return p
}

// fit returns the part of a claim that is answered: what one answer may hold, or less when there is not so much room now. The pop's
// hold is then as large as that part needs. A [*noRoomError] says that not even the first segment fits.
func (s *Server) fit(l *look, claimed []pg.ClaimedPartition) (prefix, error) {
	p := prefixWithin(claimed, s.cfg.MaxAnswerBytes, math.MaxInt64)
	if p.messages > 0 {
		s.room.learn(queueKey{l.Tenant, l.Queue}, p.needs)
	}
	if l.room.resize(p.needs) {
		return p, nil
	}
	p = prefixWithin(claimed, s.cfg.MaxAnswerBytes, l.room.bytes)
	if p.messages == 0 {
		_, first := needs(&claimed[0].Segments[0])
		return p, &noRoomError{first}
	}
	l.room.resize(p.needs)
	return p, nil
}

// shorten ends a leased claim where the answer is full, in the database first, so that no message is leased that is not sent. It
// returns the partitions that were given back as a whole: all of them with a [*noRoomError]. The caller holds the slot of the claim. After any
// other error nothing stays leased either, as far as the database can be reached.
func (s *Server) shorten(ctx context.Context, l *look, claimed *pg.Claim) (returned []pg.ClaimedPartition, err error) {
	p, noRoom := s.fit(l, claimed.Partitions)
	if p.whole {
		return nil, nil
	}
	s.counts.shortened.Add(1)
	all := claimed.Partitions
	kept := slices.Clone(all[:p.partitions])
	cuts := make([]pg.LeaseCut, 0, len(all)-p.partitions)
	for _, rest := range all[p.partitions:] {
		cuts = append(cuts, pg.LeaseCut{PartitionID: rest.PartitionID, End: -1})
	}
	if p.segments > 0 {
		last := all[p.partitions].Segments[p.segments-1]
		cuts[0].End = last.Base + int64(last.StartIndex+last.Take) - 1
	}
	held, err := s.db.ShortenLeases(ctx, l.Group, l.Worker, cuts)
	if err != nil {
		s.giveBack(ctx, l, all)
		return nil, err
	}
	returned = all[p.partitions:]
	if p.segments > 0 && slices.Contains(held, cuts[0].PartitionID) {
		part := all[p.partitions]
		part.Segments = part.Segments[:p.segments:p.segments]
		kept, returned = append(kept, part), returned[1:]
	}
	claimed.Partitions = kept
	stillTaken := make(map[uuid.UUID]bool, len(kept))
	for i := range kept {
		stillTaken[kept[i].PartitionID] = true
	}
	took := 0
	claimed.States = slices.DeleteFunc(claimed.States, func(state pg.CandidateState) bool {
		if state.Verdict != pg.CandidateTook {
			return false
		}
		took++ // one for each partition claimed, in the same order
		return !stillTaken[all[took-1].PartitionID]
	})
	return returned, noRoom
}

// giveBack ends the leases of a claim that is not answered, under the slot that its caller holds.
func (s *Server) giveBack(ctx context.Context, l *look, partitions []pg.ClaimedPartition) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	for _, partition := range partitions {
		if err := s.db.ReleaseLease(ctx, partition.PartitionID, l.Group, l.Worker); err != nil {
			s.logKept(ctx, partition, l.Group, l.Worker, err)
		}
	}
}

// shortenEach is shorten for a common claim; owners names the pop of each candidate, ascending. A pop whose claim cannot be shortened fails,
// the others are answered.
func (s *Server) shortenEach(ctx context.Context, pops []*fusedPop, owners []int, claimed *pg.Claim) {
	kept := pg.Claim{Partitions: make([]pg.ClaimedPartition, 0, len(claimed.Partitions)), States: make([]pg.CandidateState, 0, len(claimed.States))}
	states, partitions := claimed.States, claimed.Partitions
	for len(states) > 0 {
		owner, n, took := owners[states[0].Index], 0, 0
		for ; n < len(states) && owners[states[n].Index] == owner; n++ {
			if states[n].Verdict == pg.CandidateTook {
				took++
			}
		}
		// All that is one pop's at once: its answer has one bound and one hold of the room.
		one := pg.Claim{Partitions: partitions[:took:took], States: slices.Clone(states[:n])}
		states, partitions = states[n:], partitions[took:]
		if took > 0 {
			if _, err := s.shorten(ctx, pops[owner].look, &one); err != nil {
				pops[owner].err = err
				one.Partitions = nil
				one.States = slices.DeleteFunc(one.States, func(state pg.CandidateState) bool { return state.Verdict == pg.CandidateTook })
			}
		}
		kept.Partitions, kept.States = append(kept.Partitions, one.Partitions...), append(kept.States, one.States...)
	}
	*claimed = kept
}

// claimSmaller runs a claiming statement. A claim that its Accept finds too large was rolled back, and is repeated for fewer messages.
func (s *Server) claimSmaller(
	ctx context.Context, r pg.PopRequest, statement func(context.Context, pg.PopRequest) (pg.Claim, error),
) (pg.Claim, error) {
	for n := 1; ; n++ {
		claimed, err := s.timed(ctx, r, statement)
		oversized, tooLarge := errors.AsType[*oversizedError](err)
		if !tooLarge || n == claimTries {
			return claimed, err
		}
		if n == 1 {
			s.counts.shortened.Add(1)
		}
		r.Budget = oversized.next(n)
	}
}
