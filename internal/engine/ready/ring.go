package ready

import (
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

const (
	// revisitSlack is added to the end of a lease, so that the look finds it over.
	revisitSlack = 300 * time.Millisecond
	// revisitMost is the longest that a leased partition is left alone: its lease may be ended through another broker.
	revisitMost = time.Second
)

// A Ring is what is believed about the partitions of one queue for one group. It exists from the group's first queue pop on.
// Methods are safe for concurrent use.
type Ring struct {
	list  *HotList
	table *table
	key   queueKey
	group string
	subs  []subring

	// ready and flying count entries over all sub-rings.
	ready, flying atomic.Int64
	// cursor is where the next take begins.
	cursor atomic.Uint32
	// used says that a pop asked for the ring since the last sweep; dropped that it is no longer in the list.
	used, dropped atomic.Bool

	crowd crowd
	walks walks
}

func newRing(list *HotList, t *table, key queueKey, group string) *Ring {
	r := &Ring{list: list, table: t, key: key, group: group, subs: make([]subring, list.cfg.Shards)}
	for i := range r.subs {
		r.subs[i].due.Store(never)
	}
	r.crowd.ring = r
	return r
}

// Tenant is whose queue it is.
func (r *Ring) Tenant() uuid.UUID { return r.key.tenant }

// Queue is the name of the ring's queue.
func (r *Ring) Queue() string { return r.key.queue }

// Group is the consumer group of the ring.
func (r *Ring) Group() string { return r.group }

// locate returns the sub-ring of a partition and its position there.
func (r *Ring) locate(index uint32) (sub *subring, position uint32) {
	n := uint32(len(r.subs)) //nolint:gosec // at most maxShards
	return &r.subs[index%n], index / n
}

// mark notes that a partition got count messages (0: unknown how many) and tells whether there is now something to do where
// there was nothing.
func (r *Ring) mark(index, count uint32, now int64) (became bool) {
	sub, position := r.locate(index)
	deferral := *r.table.deferral.Load()
	sub.mu.Lock()
	defer sub.mu.Unlock()
	e := sub.at(position)
	e.epoch++
	if e.note == drained {
		e.note = nothing
	}
	e.count += min(count, ^uint32(0)-e.count)
	full := r.list.cfg.WindowBatch > 0 && int64(e.count) >= int64(r.list.cfg.WindowBatch)
	switch {
	case e.state == idle && deferral.Delay > 0: // counted from before the commit: they are visible by then
		sub.time(position, now+int64(deferral.Delay))
	case e.state == idle && deferral.Window > 0 && !full:
		sub.time(position, now+int64(deferral.Window))
	case e.state == idle, e.state == timed && e.note == raced, e.state == timed && deferral.Delay == 0 && deferral.Window > 0 && full:
		e.note = nothing
		sub.link(position, false)
		r.ready.Add(1)
		return true
	}
	return false
}

// reseed notes that the database has count messages pending in a partition (0: unknown how many). For how long they have been there is not known:
// whether a delay or a window is over is for the next claim to say.
func (r *Ring) reseed(index, count uint32) (became bool) {
	sub, position := r.locate(index)
	deferral := *r.table.deferral.Load()
	sub.mu.Lock()
	defer sub.mu.Unlock()
	switch e := sub.at(position); {
	case e.state == timed && deferral == Deferral{}, e.state == idle:
		if e.state == idle {
			e.note = found
			if deferral.Window == 0 { // else the count says when the window is full
				e.count = count
			}
		}
		sub.link(position, false)
		r.ready.Add(1)
		return true
	case e.state == inFlight:
		e.epoch++
	}
	return false
}

// promote follows the end of a lease. covered is that lease when its whole batch was completed, else empty. It may come late: the partition may
// be leased again by then, and what the newest claim left says nothing about the end of an earlier one.
func (r *Ring) promote(index uint32, covered string) (became bool) {
	sub, position := r.locate(index)
	sub.mu.Lock()
	defer sub.mu.Unlock()
	e := sub.at(position)
	switch e.state {
	case timed:
		if covered != "" && e.count == 0 && e.note == drained && e.lease == leaseHash(covered) {
			e.state = idle
			return false
		}
		sub.link(position, false)
		r.ready.Add(1)
		return true
	case inFlight:
		e.epoch++
		e.note = ended
	case idle, listed:
	}
	return false
}

// overtake notes that the newest batch of a partition is not the one that was reported here, so that its end says nothing about
// what is left. free says that the claim left no lease behind: what is there can be had, whatever lease was waited for. What waits for a
// delay or a window goes on waiting.
func (r *Ring) overtake(index uint32, free bool) (became bool) {
	sub, position := r.locate(index)
	deferral := *r.table.deferral.Load()
	sub.mu.Lock()
	defer sub.mu.Unlock()
	e := sub.at(position)
	e.epoch++
	if e.note == drained {
		e.note = nothing
	}
	if free && e.state == timed && deferral == (Deferral{}) {
		e.note = nothing
		sub.link(position, false)
		r.ready.Add(1)
		return true
	}
	return false
}

// turn lists what is due and tells whether there was anything.
func (r *Ring) turn(now int64) bool {
	moved := 0
	for i := range r.subs {
		sub := &r.subs[i]
		if sub.due.Load() > now {
			continue
		}
		sub.mu.Lock()
		moved += sub.turn(now, &r.ready)
		sub.mu.Unlock()
	}
	return moved > 0
}

// HasReady tells whether a take would find something. It changes nothing.
func (r *Ring) HasReady() bool {
	now := r.list.now()
	for i := range r.subs {
		if r.subs[i].due.Load() <= now {
			return true
		}
	}
	return r.ready.Load() > 0 // in this order: what was due and is no more was counted before
}

// believed is about how many partitions something is believed about: they are listed, taken, or looked at again later.
func (r *Ring) believed() int {
	n := int(r.ready.Load() + r.flying.Load())
	for i := range r.subs {
		sub := &r.subs[i]
		sub.mu.Lock()
		n += len(sub.wheel)
		sub.mu.Unlock()
	}
	return n
}

// Ready returns how many partitions are listed, due ones not counted.
func (r *Ring) Ready() int { return int(r.ready.Load()) }

// Estimate returns how many messages the listed partitions are known to have, at most enough. A partition whose count is unknown
// counts as enough.
func (r *Ring) Estimate(enough int) int {
	total, now := 0, r.list.now()
	for i := range r.subs {
		sub := &r.subs[i]
		if sub.due.Load() <= now {
			return enough
		}
		sub.mu.Lock()
		for at := sub.head; at != 0 && total < enough; at = sub.entries[at-1].next {
			count := int(sub.entries[at-1].count)
			if count == 0 {
				count = enough
			}
			total = min(total+count, enough)
		}
		sub.mu.Unlock()
	}
	return total
}

// IsCurrent tells whether the ring is still the one of its group; one that was dropped hears of nothing new.
func (r *Ring) IsCurrent() bool { return !r.dropped.Load() }

// SetDeferral says what the queue does to new messages. It concerns all groups of the queue.
func (r *Ring) SetDeferral(d Deferral) {
	if *r.table.deferral.Load() != d {
		r.table.deferral.Store(&d)
	}
}
