package push

import (
	"context"
	"errors"
	"slices"
	"time"

	"queenmq/internal/engine/admission"
	"queenmq/internal/pg"
)

const (
	// inboxSize lets callers go on while the shard is busy; beyond it they wait, which is the back-pressure.
	inboxSize = 256
	// maxDrain bounds how many deliveries one pass takes in before it looks at everything else again.
	maxDrain = 1024

	// worthwhileSegments and worthwhileBytes (uncompressed) are what pays for a commit of its own.
	worthwhileSegments = 32
	worthwhileBytes    = 256 << 10
	// mostUsual bounds what one slow flush adds to the average.
	mostUsual = 100 * time.Millisecond
)

// A shard owns the groups of its keys. Only its goroutine touches its fields after run has started.
type shard struct {
	pusher   *Pusher
	inbox    chan []unit
	finished chan *flush
	granted  chan *admission.Slot

	groups   map[groupKey]*group
	arrivals arrivals
	// inFlight are the flushes under way, oldest first.
	inFlight []*flush
	// usual is how long a flush takes, averaged over the last few.
	usual  time.Duration
	waiter *admission.Waiter // outstanding request for a slot
}

func newShard(p *Pusher) *shard {
	return &shard{
		pusher:   p,
		inbox:    make(chan []unit, inboxSize),
		finished: make(chan *flush, p.cfg.MaxInFlight), // room for every flush: none waits to hand back
		granted:  make(chan *admission.Slot, 1),
		groups:   make(map[groupKey]*group),
	}
}

// run is the shard's loop. It ends after stop is closed, when everything taken is finished.
func (s *shard) run(ctx context.Context, stop <-chan struct{}) {
	tick := time.NewTimer(time.Hour)
	tick.Stop()
	defer tick.Stop()
	stopping := false
	for {
		var slot *admission.Slot
		select {
		case units := <-s.inbox:
			s.append(units)
		case f := <-s.finished:
			s.complete(f)
		case slot = <-s.granted:
			s.waiter = nil
		case <-tick.C:
		case <-stop:
			stopping, stop = true, nil
		}
		s.drain()
		if s.dispatch(ctx, slot) {
			tick.Reset(s.pusher.cfg.Hold)
		} else {
			tick.Stop()
		}
		if stopping && len(s.inFlight) == 0 && len(s.groups) == 0 && len(s.inbox) == 0 {
			s.abandonWaiter()
			return
		}
	}
}

// drain takes in what has already arrived, so that it shares the next flush.
func (s *shard) drain() {
	for range maxDrain {
		select {
		case units := <-s.inbox:
			s.append(units)
		case f := <-s.finished:
			s.complete(f)
		default:
			return
		}
	}
}

// append mints the message ids and puts the units to their groups: arrival, ids and offsets have one order.
func (s *shard) append(units []unit) {
	for _, u := range units {
		for _, p := range u.parts {
			p.mint()
		}
		g := s.groups[u.key]
		if g == nil {
			g = &group{key: u.key}
			s.groups[u.key] = g
		}
		g.waiting = append(g.waiting, u)
		for _, p := range u.parts {
			s.arrivals.bytes += p.bytes
		}
		if len(g.waiting) == 1 {
			s.arrivals.push(g)
		}
	}
}

// dispatch starts flushes while there is a ready group, room for a flush, and a slot; slot is one in hand or nil. It
// reports whether it must be called again after the hold time, because something that tells nobody could change the answer.
func (s *shard) dispatch(ctx context.Context, slot *admission.Slot) (again bool) {
	for s.arrivals.ready > 0 && len(s.inFlight) < s.pusher.cfg.MaxInFlight {
		if !s.worthwhile() {
			again = true
			break
		}
		if slot == nil {
			var ok bool
			if slot, ok = s.pusher.slots.TryAcquire(admission.Push); !ok {
				if s.waiter == nil {
					s.waiter = s.pusher.slots.Request(admission.Push, s.granted)
				}
				return true
			}
		}
		s.start(ctx, slot)
		slot = nil
	}
	if slot != nil {
		slot.Release()
	}
	return again
}

// worthwhile decides whether what is ready goes now or waits for company. With nothing under way it goes at once. Beside
// other flushes it must be enough to pay for a commit of its own: a commit costs the database as much as ten to thirty
// segments, so that many small ones at a time keep it busy with nothing but commits. A flush that takes long, because it
// waits for a lock for example, is no reason to wait.
func (s *shard) worthwhile() bool {
	if s.arrivals.ready >= worthwhileSegments || s.arrivals.bytes >= worthwhileBytes {
		return true
	}
	patience := max(s.pusher.cfg.Hold, 2*s.usual)
	for _, f := range s.inFlight {
		if time.Since(f.started) < patience {
			return false
		}
	}
	return true
}

// start bundles the ready groups that arrived first and flushes them.
func (s *shard) start(ctx context.Context, slot *admission.Slot) {
	f := &flush{pusher: s.pusher, shard: s, slot: slot, started: time.Now()}
	bytes := 0
	for g, taken := s.arrivals.first, 0; g != nil && taken < s.pusher.cfg.BundleMax && bytes < maxBundleBytes; {
		next := g.next
		// A bounded queue decides per request: its flush carries nothing else.
		if !g.inFlight && (!g.key.bounded || taken == 0) {
			segments, n := g.take()
			if len(g.waiting) == 0 {
				s.arrivals.remove(g)
			} else {
				s.arrivals.ready--
			}
			g.inFlight = true
			f.segments = append(f.segments, segments...)
			bytes += n
			taken++
			if g.key.bounded {
				break
			}
		}
		g = next
	}
	s.arrivals.bytes -= bytes
	s.inFlight = append(s.inFlight, f)
	go f.run(ctx)
}

// complete frees the groups of f and then tells the callers. The slot is already released.
func (s *shard) complete(f *flush) {
	s.inFlight = slices.DeleteFunc(s.inFlight, func(other *flush) bool { return other == f })
	s.usual += (min(time.Since(f.started), mostUsual) - s.usual) / 8
	for _, w := range f.segments {
		s.abandonRest(w)
		g := w.group
		if !g.inFlight {
			continue // a bounded queue has several segments in one group
		}
		g.inFlight = false
		if len(g.waiting) == 0 {
			delete(s.groups, g.key)
		} else {
			s.arrivals.ready++
		}
	}
	for _, w := range f.segments {
		for _, r := range w.runs {
			r.part.finish(r.to - r.from)
		}
		if w.abandoned > 0 {
			w.runs[len(w.runs)-1].part.finish(w.abandoned)
		}
		w.free()
	}
}

// abandonRest fails what a request has behind the segment w of the same partition when w failed: stored now, it would stand before the
// messages of w, which are kept on disk or come again. It does not when the fault is in the data of w, which never will be stored.
func (s *shard) abandonRest(w *work) {
	if w.failure == nil || errors.Is(w.failure, pg.ErrBadData) {
		return
	}
	last := w.runs[len(w.runs)-1]
	p, g := last.part, w.group
	if p.taken == len(p.items) {
		return
	}
	for _, item := range p.items[p.taken:] {
		v := &p.call.verdicts[item]
		if v.TransactionID == "" {
			v.TransactionID = v.MessageID.String()
		}
		v.fail(w.failure)
		s.arrivals.bytes -= itemBytes(&p.call.items[item])
	}
	w.abandoned = len(p.items) - p.taken
	p.taken = len(p.items)
	g.drop(1)
	if len(g.waiting) == 0 {
		s.arrivals.remove(g)
	}
}

// abandonWaiter takes back an outstanding request for a slot.
func (s *shard) abandonWaiter() {
	if s.waiter == nil {
		return
	}
	if !s.waiter.Cancel() {
		(<-s.granted).Release()
	}
	s.waiter = nil
}
