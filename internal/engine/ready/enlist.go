package ready

import (
	"time"

	"github.com/google/uuid"
)

// enlistReach is how far from the front of a crowd is looked for a long poll that may be enlisted.
const enlistReach = 8

// Crowded returns the rings of a queue at which long polls are parked.
func (l *HotList) Crowded(tenant uuid.UUID, queue string) []*Ring {
	t := l.table(queueKey{tenant, queue})
	if t == nil {
		return nil
	}
	var crowded []*Ring
	for _, r := range *t.rings.Load() {
		if r.crowd.idle() {
			crowded = append(crowded, r)
		}
	}
	return crowded
}

// idle tells whether more long polls are parked than the listed partitions need.
func (c *crowd) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spareLocked()
}

func (c *crowd) spareLocked() bool {
	return int64(c.waiting) > max(c.ring.ready.Load()-int64(c.woken), 0)
}

// Enlist takes the long poll out of the crowd that waits longest among those that may get messages without looking for them ([Parked.Enlistable]).
// It stays where it is until [Ring.Discharge], which the caller owes it. Nil when there is none, or when those that wait are needed for
// partitions that are listed already.
func (r *Ring) Enlist() *Parked {
	c := &r.crowd
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.spareLocked() {
		return nil
	}
	p := c.first
	for n := 0; p != nil && !p.Enlistable; p = p.next {
		if n++; n == enlistReach {
			return nil
		}
	}
	if p == nil {
		return nil
	}
	c.removeLocked(p)
	p.place = enlisted
	return p
}

// Discharge ends the service of a long poll that was enlisted at the ring: what it is to have is where it looks for it. False means that it
// waited too long and left.
func (r *Ring) Discharge(p *Parked) bool {
	r.crowd.mu.Lock()
	defer r.crowd.mu.Unlock()
	if p.place != enlisted {
		return false
	}
	p.place = outside
	p.signal()
	return true
}

// Serve waits, when the long poll was enlisted, until it is discharged, at most so long. False means that it was not by then: it has left
// for good, and the place is not to be used again. Leave comes after it.
func (p *Parked) Serve(limit time.Duration) bool {
	if p.crowd == nil || !p.isEnlisted() {
		return true
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.Woken:
		return true
	case <-timer.C:
	}
	p.crowd.mu.Lock()
	defer p.crowd.mu.Unlock()
	if p.place != enlisted { // in the last moment
		return true
	}
	p.place = deserted
	return false
}

func (p *Parked) isEnlisted() bool {
	p.crowd.mu.Lock()
	defer p.crowd.mu.Unlock()
	return p.place == enlisted
}

// Reserve adds the named partition when nothing is believed about it, so that what is about to be stored there is all that it has. Whoever
// stored something says so with [CheckOut.Stored], after the mark of it.
func (c *CheckOut) Reserve(name string) bool {
	r := c.ring
	index, known := r.table.lookUp(name)
	if !known {
		return false
	}
	r.table.mu.RLock()
	kept := r.table.names[index]
	r.table.mu.RUnlock()
	sub, position := r.locate(index)
	sub.mu.Lock()
	defer sub.mu.Unlock()
	e := sub.at(position)
	if e.state != idle {
		return false
	}
	c.handles = append(c.handles, handle{index: index, epoch: e.epoch, name: kept})
	e.state, e.note = inFlight, nothing
	r.flying.Add(1)
	return true
}

// Stored says that one mark of the i-th partition since its reservation is about what is being reported.
func (c *CheckOut) Stored(i int) { c.handles[i].epoch++ }
