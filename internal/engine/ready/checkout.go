package ready

import (
	"math"
	"time"
)

// A handle is one partition taken from a ring.
type handle struct {
	index, epoch uint32
	name         string
	found        bool
	settled      bool
}

// A CheckOut is the partitions that one pop took from a ring. Nobody else gets them until it reports what became of them. It belongs
// to one goroutine, which must call Return whatever happens.
type CheckOut struct {
	ring    *Ring
	handles []handle
	names   []string
	found   bool
	// outcomes counts what became of the partitions.
	outcomes [outcomeCount]uint16
}

// Take checks out the partitions that have waited longest, at most limit, and stops early when what they are known to have makes up
// budget. An empty check-out needs no Return.
func (r *Ring) Take(limit, budget int) CheckOut {
	c := r.CheckOut()
	c.Take(limit, budget)
	return c
}

// CheckOut returns an empty check-out.
func (r *Ring) CheckOut() CheckOut {
	r.turn(r.list.now())
	return CheckOut{ring: r}
}

// Take adds partitions as [Ring.Take] does and returns how many.
func (c *CheckOut) Take(limit, budget int) int {
	r := c.ring
	first := len(c.handles)
	n := uint32(len(r.subs)) //nolint:gosec // at most maxShards
	known, barren := 0, uint32(0)
	for at := r.cursor.Load(); len(c.handles)-first < limit && known < budget && barren < n; at++ {
		sub := &r.subs[at%n]
		sub.mu.Lock()
		position, ok := sub.unlink()
		if !ok {
			sub.mu.Unlock()
			barren++
			continue
		}
		barren = 0
		e := &sub.entries[position]
		c.handles = append(c.handles, handle{index: position*n + at%n, epoch: e.epoch, found: e.note == found})
		c.found = c.found || e.note == found
		e.state, e.note = inFlight, nothing
		known += int(e.count)
		sub.mu.Unlock()
		r.cursor.Store(at + 1)
		r.ready.Add(-1)
		r.flying.Add(1)
	}
	r.table.mu.RLock()
	for i := first; i < len(c.handles); i++ {
		c.handles[i].name = r.table.names[c.handles[i].index]
	}
	r.table.mu.RUnlock()
	return len(c.handles) - first
}

// Names returns the names of the partitions, those that waited longest first. The slice belongs to the check-out.
func (c *CheckOut) Names() []string {
	for i := len(c.names); i < len(c.handles); i++ {
		c.names = append(c.names, c.handles[i].name)
	}
	return c.names
}

// Found tells whether the database named one of the partitions and no mark did: the list has not held its messages back for the queue's
// window.
func (c *CheckOut) Found() bool { return c.found }

// checkIn gives the i-th partition back. next decides what becomes of the entry; moved says that it was marked meanwhile.
func (c *CheckOut) checkIn(i int, became outcome, next func(sub *subring, position uint32, e *entry, moved bool)) {
	h := &c.handles[i]
	if h.settled {
		return
	}
	h.settled = true
	c.outcomes[became]++
	sub, position := c.ring.locate(h.index)
	sub.mu.Lock()
	e := &sub.entries[position]
	if e.state != inFlight {
		sub.mu.Unlock()
		return
	}
	next(sub, position, e, e.epoch != h.epoch)
	if e.state == listed {
		c.ring.ready.Add(1)
	}
	sub.mu.Unlock()
	c.ring.flying.Add(-1)
}

// Leased reports that this pop leased messages of the i-th partition for the given time, under the lease named. left is how many messages there
// were behind the batch, 0 when it ends at the partition's head.
func (c *CheckOut) Leased(i int, id string, lease time.Duration, left int64) {
	window := c.ring.table.deferral.Load().Window
	c.checkIn(i, outcomeLeased, func(sub *subring, position uint32, e *entry, moved bool) {
		if !moved {
			e.count, e.lease = 0, leaseHash(id)
			if left <= 0 {
				e.note = drained
			} else if window == 0 { // else the count says when the window is full
				e.count = messages(left)
			}
		}
		sub.time(position, c.ring.soon(lease))
	})
}

// Consumed reports that this pop took messages of the i-th partition without a lease, and how many there were behind them.
func (c *CheckOut) Consumed(i int, left int64) {
	window := c.ring.table.deferral.Load().Window
	c.checkIn(i, outcomeConsumed, func(sub *subring, position uint32, e *entry, moved bool) {
		if !moved {
			e.count = 0
			if window == 0 {
				e.count = messages(left)
			}
		}
		switch {
		case left <= 0 && !moved:
			e.state = idle
		case window > 0:
			sub.time(position, c.ring.list.now()+int64(window))
		default:
			sub.link(position, false)
		}
	})
}

// HeldByOther reports that somebody else holds the i-th partition, for about wait. When a lease of it ended meanwhile it was probably that one, and
// the partition is the next to be looked at.
func (c *CheckOut) HeldByOther(i int, wait time.Duration) {
	c.checkIn(i, outcomeHeld, func(sub *subring, position uint32, e *entry, _ bool) {
		if e.note == ended {
			e.note = nothing
			sub.link(position, true)
			return
		}
		sub.time(position, c.ring.soon(wait))
	})
}

// Raced reports that the i-th partition has messages and no lease, and that the claim did not get them: somebody else was at it, or they came while
// the claim ran, which is told by a mark. After a mark or the end of a lease, even a later one, it is looked at again at once, else after wait.
func (c *CheckOut) Raced(i int, wait time.Duration) {
	c.checkIn(i, outcomeRaced, func(sub *subring, position uint32, e *entry, moved bool) {
		if moved {
			e.note = nothing
			sub.link(position, false)
			return
		}
		e.note = raced
		sub.time(position, c.ring.soon(wait))
	})
}

// Deferred reports that the messages of the i-th partition become visible after wait.
func (c *CheckOut) Deferred(i int, wait time.Duration) {
	c.checkIn(i, outcomeDeferred, func(sub *subring, position uint32, _ *entry, _ bool) {
		sub.time(position, c.ring.list.now()+int64(max(wait, 0)))
	})
}

// Empty reports that the database has nothing pending in the i-th partition. A mark that came meanwhile wins.
func (c *CheckOut) Empty(i int) {
	c.checkIn(i, outcomeEmpty, func(sub *subring, position uint32, e *entry, moved bool) {
		if moved {
			sub.link(position, false)
			return
		}
		e.state, e.count = idle, 0
	})
}

// NotReached reports that the claim ended before the i-th partition, which is the next to be served.
func (c *CheckOut) NotReached(i int) {
	c.checkIn(i, outcomeNotReached, func(sub *subring, position uint32, e *entry, moved bool) {
		c.unchanged(i, e, moved)
		sub.link(position, true)
	})
}

// unchanged puts back what the entry of a partition said about which nothing was found out.
func (c *CheckOut) unchanged(i int, e *entry, moved bool) {
	if c.handles[i].found && !moved {
		e.note = found
	}
}

// Pause leaves the named partition alone for a while, because a claim of it failed.
func (c *CheckOut) Pause(name string, wait time.Duration) {
	for i := range c.handles {
		if c.handles[i].name == name {
			c.HeldByOther(i, wait)
		}
	}
}

// Return gives back, unchanged but behind all others, whatever nothing was reported about: nothing is known, and what makes a claim
// fail must not be the first thing that the next one meets. It wakes pops for what the ring still has.
func (c *CheckOut) Return() {
	for i := range c.handles {
		c.checkIn(i, outcomeReturned, func(sub *subring, position uint32, e *entry, moved bool) {
			c.unchanged(i, e, moved)
			sub.link(position, false)
		})
	}
	if c.ring != nil {
		c.trace()
		c.ring.crowd.wake()
	}
}

// messages is a number of messages as an entry counts them.
func messages(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) } //nolint:gosec // bounded in this line

// soon is when a partition that is held for wait is worth another look.
func (r *Ring) soon(wait time.Duration) int64 {
	return r.list.now() + int64(min(max(wait, 0)+revisitSlack, revisitMost))
}
