package pop

import (
	"context"
	"errors"
	"time"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
)

const (
	// maxCandidates is the most partitions one claim names.
	maxCandidates = 64
	// maxRounds is how many claims in a row may find nothing although the hot list promised something. Each settles what it tried, so
	// that the list runs out of wrong beliefs long before.
	maxRounds = 16
	// relook is about how long a parked pop stays without a look. The hot list wakes it for everything that this broker knows or hears
	// of; this is for the case that the loop that asks the database stands still.
	relook = 30 * time.Second
	// brokenPause is how long a partition that begins with a segment that cannot be read is left alone.
	brokenPause = time.Second
)

// serveReady serves a queue pop from the hot list: it parks in the crowd of its ring, where it costs no statement and no timer but its
// deadline's.
func (s *Server) serveReady(ctx context.Context, p *poll) (*Result, error) {
	l := &p.look
	if p.deadline.IsZero() {
		result, _, err := s.lookReady(ctx, l, p.deadline)
		return result, err
	}
	p.settle()
	defer p.quit()
	for {
		if p.parked {
			p.parked = false
			if result, over, err := s.leave(ctx, p); over {
				return result, err
			}
		}
		result, ring, err := s.lookUntil(ctx, l, p.deadline)
		if errors.Is(err, errLookTooLate) {
			return nil, nil
		}
		if result != nil || err != nil {
			return result, err
		}
		p.place.Settle()
		p.longest = min(jitter(relook), time.Until(p.deadline))
		if p.longest <= 0 {
			return nil, nil
		}
		if ring == nil {
			return s.serveSearching(ctx, &p.Request, l, p.deadline)
		}
		l.room.release()
		p.place.Enlistable = l.enlistable
		ring.Park(p.place)
		p.parked = true
		if p.Suspends {
			return nil, &SuspendedError{s, p}
		}
		p.why = s.park(ctx, p.place.Woken, p.longest)
	}
}

// leave ends the parking of a poll, and tells whether it is over.
func (s *Server) leave(ctx context.Context, p *poll) (result *Result, over bool, err error) {
	if !p.place.Serve(answerGrace) {
		return nil, true, ctx.Err() // too late; whoever enlisted it gives back what comes
	}
	p.place.Leave()
	if result, err := s.accept(ctx, &p.handed); result != nil || err != nil {
		return result, true, err
	}
	switch p.why {
	case callerLeft:
		return nil, true, ctx.Err()
	case stopping:
		return nil, true, nil
	case woken, elapsed:
	}
	return nil, s.closed(), nil
}

// lookUntil looks once, until a moment after the deadline. Its context ends with it: thousands of parked pops would keep theirs.
func (s *Server) lookUntil(ctx context.Context, l *look, deadline time.Time) (*Result, *ready.Ring, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline.Add(answerGrace), errLookTooLate)
	defer cancel()
	return s.lookReady(ctx, l, deadline)
}

// lookReady looks once at what the hot list names. A nil ring says that there is none and that the database was searched. A zero deadline is
// that of a pop that does not wait.
func (s *Server) lookReady(ctx context.Context, l *look, deadline time.Time) (*Result, *ready.Ring, error) {
	if result, err := s.register(ctx, l); result != nil || err != nil {
		return result, nil, err
	}
	settings, err := s.queueSettings(ctx, l.Tenant, l.Queue)
	if err != nil {
		return nil, nil, err
	}
	if err := s.setLease(ctx, l); err != nil {
		return nil, nil, err
	}
	ring := s.hot.Ring(l.Tenant, l.Queue, l.Group)
	if ring == nil {
		result, err := s.attemptQueue(ctx, l)
		return result, nil, err
	}
	deferral := ready.Deferral{
		Delay: time.Duration(settings.DelayedProcessing) * time.Second, Window: time.Duration(settings.WindowBuffer) * time.Second,
	}
	ring.SetDeferral(deferral)
	l.enlistable = !l.AutoAck && deferral == (ready.Deferral{}) && settings.MinPopWait == 0
	l.SkipWindow = deferral.Window > 0 // the ring holds messages back for the window from when it hears of them
	walked := false
	if ring.IsCold() {
		if walked, err = s.walk(ctx, ring, 1); err != nil {
			return nil, ring, err
		}
	}
	for round := 0; round < maxRounds; {
		if !ring.HasReady() {
			if walked || !ring.NeedsWalk() {
				break
			}
			if walked, err = s.walk(ctx, ring, 1); err != nil {
				return nil, ring, err
			}
			continue // a page may have had nothing, and then the next one is looked at
		}
		if round == 0 {
			s.fill(ctx, ring, l.Budget, time.Duration(settings.MinPopWait)*time.Millisecond, deadline)
		}
		var result *Result
		if round == 0 && s.cfg.FusedPops > 1 && !l.AutoAck && deferral == (ready.Deferral{}) {
			result, err = s.claimTogether(ctx, l, ring)
		} else {
			result, err = s.claimReady(ctx, l, ring, candidates(l.MaxPartitions, ring.Ready(), round))
		}
		if result != nil || err != nil {
			return result, ring, err
		}
		round++
	}
	return nil, ring, nil
}

// candidates is how many partitions to name for a pop that wants at most most of them (0: no cap). Spare ones stand in for those that turn
// out empty or taken. They are out of reach of other pops meanwhile, so a pop of one partition has none when the ring has few; after a
// claim that found nothing there are many.
func candidates(most, listed, round int) int {
	if most <= 0 || most > maxCandidates {
		return maxCandidates
	}
	switch {
	case round > 0:
		most *= 8
	case most > 1 || listed >= 4:
		most *= 2
	}
	return min(most, maxCandidates)
}

// fill waits until the ring is known to have a whole batch, for at most minWait, when it has less than that. A pop whose queue asks for it
// gets fewer and fuller batches.
func (s *Server) fill(ctx context.Context, ring *ready.Ring, batch int, minWait time.Duration, deadline time.Time) {
	if minWait <= 0 || batch <= 1 || deadline.IsZero() {
		return
	}
	if have := ring.Estimate(batch); have == 0 || have >= batch {
		return
	}
	began := time.Now()
	minWait = min(minWait, deadline.Sub(began))
	again := time.NewTicker(max(minWait/20, time.Millisecond))
	defer again.Stop()
	over := time.NewTimer(minWait)
	defer over.Stop()
	for ring.Estimate(batch) < batch {
		select {
		case <-again.C:
			continue
		case <-over.C:
		case <-ctx.Done():
		case <-s.stopped:
		}
		break
	}
	s.counts.fills.Add(1)
	s.counts.fillMicros.Add(time.Since(began).Microseconds())
}

// claimReady claims from at most limit partitions of the ring under a Pop slot, and tells the ring what became of each. The partitions are
// taken after the slot was granted: nobody else can have them meanwhile.
func (s *Server) claimReady(ctx context.Context, l *look, ring *ready.Ring, limit int) (*Result, error) {
	if err := s.makeRoom(ctx, l, 0); err != nil {
		return nil, err
	}
	slot, err := s.slots.Acquire(ctx, admission.Pop)
	if err != nil {
		return nil, context.Cause(ctx) // Acquire fails with nothing else
	}
	defer slot.Release()
	out := ring.Take(limit, l.Budget)
	l.Candidates = out.Names()
	if len(l.Candidates) == 0 {
		return nil, nil
	}
	// Whatever happens from here on, also a panic: an entry that is taken and never settled would not be served again.
	defer out.Return()
	s.counts.targeted.Add(1)

	request := l.PopRequest
	request.MaxBytes = l.room.bytes
	request.SkipWindow = l.SkipWindow && !out.Found()
	var claimed pg.Claim
	var found unacknowledged
	if l.AutoAck {
		claimed, found, err = s.claimUnacknowledged(ctx, l, request, s.db.PopReady)
	} else if claimed, err = s.timed(ctx, request, s.db.PopReady); err == nil {
		_, err = s.shorten(ctx, l, &claimed) // what is given back counts as not reached
	}
	if err != nil {
		for _, b := range found.broken { // the others are served in the meantime
			out.Pause(b.partition.Partition, brokenPause)
		}
		return nil, err
	}
	checkIn(&out, claimed, func(int) *look { return l })
	slot.Release() // decoding needs no slot, and giving a lease back takes one of its own
	if l.AutoAck {
		return s.acknowledged(l, found), nil
	}
	return s.deliver(ctx, l, claimed)
}

// checkIn tells the ring what a claim found; claimer is the pop that each candidate is for.
func checkIn(out *ready.CheckOut, claimed pg.Claim, claimer func(candidate int) *look) {
	reached := make([]bool, len(out.Names()))
	took := 0
	for _, state := range claimed.States {
		i := state.Index
		reached[i] = true
		switch state.Verdict {
		case pg.CandidateTook:
			segments := claimed.Partitions[took].Segments
			took++
			last := segments[len(segments)-1]
			left := state.LastOffset - (last.Base + int64(last.StartIndex+last.Take) - 1)
			if l := claimer(i); l.AutoAck {
				out.Consumed(i, left)
			} else {
				out.Leased(i, l.Worker, time.Duration(l.LeaseSeconds)*time.Second, left)
			}
		case pg.CandidateDeferred:
			out.Deferred(i, state.Wait)
		case pg.CandidateEmpty:
			out.Empty(i)
		case pg.CandidateLeased:
			out.HeldByOther(i, state.Wait)
		case pg.CandidateRaced:
			out.Raced(i, state.Wait)
		}
	}
	for i := len(reached) - 1; i >= 0; i-- { // from the back: each goes in front of those that wait
		if !reached[i] {
			out.NotReached(i)
		}
	}
}
