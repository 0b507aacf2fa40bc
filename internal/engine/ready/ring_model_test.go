package ready

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// A lane is one partition as the database has it: messages numbered from 1, a cursor, and a lease.
type lane struct {
	stored, committed, batchEnd int
	worker                      int // 0: no lease
	leaseEnd                    int64
}

// A claimVerdict is what a claim found when it looked, to be reported later.
type claimVerdict struct {
	kind    string // took, leased, empty, missed
	worker  int
	wait    time.Duration
	lease   time.Duration
	drained bool
}

// A leaseEnd is an end of a lease of which the list has not heard yet.
type leaseEnd struct{ name, covered string }

// A ringMachine drives one ring of a plain queue against a small database, with everything that can come between: marks after their commit,
// check-ins after their snapshot, ends of leases, claims past the list, reseeds.
type ringMachine struct {
	list    *HotList
	ring    *Ring
	clock   int64
	lanes   map[string]*lane
	marks   []string // committed, not yet told
	ends    []leaseEnd
	out     []CheckOut
	results [][]claimVerdict
	workers int
	walk    *Walk
	page    []string
	late    bool // something happened that only a reseed finds
}

var laneNames = []string{"a", "b", "c", "d", "e"}

func newRingMachine() *ringMachine {
	m := &ringMachine{list: NewHotList(HotConfig{Shards: 2}), clock: 1, lanes: map[string]*lane{}}
	m.list.now = func() int64 { return m.clock }
	m.ring = m.list.Ring(tenant, "q", "g")
	for _, name := range laneNames {
		m.lanes[name] = &lane{}
	}
	return m
}

func (m *ringMachine) drawLane(t *rapid.T) (string, *lane) {
	name := rapid.SampledFrom(laneNames).Draw(t, "lane")
	return name, m.lanes[name]
}

func (m *ringMachine) push(t *rapid.T) {
	name, l := m.drawLane(t)
	l.stored += rapid.IntRange(1, 3).Draw(t, "messages")
	m.marks = append(m.marks, name)
	if rapid.Bool().Draw(t, "told at once") {
		m.tell(t)
	}
}

func (m *ringMachine) tell(t *rapid.T) {
	for _, name := range m.marks {
		m.list.mark(queueKey{tenant, "q"}, name, rapid.IntRange(0, 1).Draw(t, "count"), false)
	}
	m.marks = nil
}

// claim does to a lane what a pop does, with the lease and the budget given.
func (m *ringMachine) claim(l *lane, budget int, lease time.Duration) claimVerdict {
	if l.worker != 0 && l.leaseEnd > m.clock {
		return claimVerdict{kind: "leased", wait: time.Duration(l.leaseEnd - m.clock)}
	}
	if l.committed == l.stored {
		return claimVerdict{kind: "empty"}
	}
	m.workers++
	end := min(l.stored, l.committed+budget)
	drained := end == l.stored
	if lease == 0 {
		l.committed, l.worker = end, 0
	} else {
		l.worker, l.batchEnd, l.leaseEnd = m.workers, end, m.clock+int64(lease)
	}
	return claimVerdict{kind: "took", worker: m.workers, lease: lease, drained: drained}
}

func (m *ringMachine) take(t *rapid.T) {
	c := m.ring.Take(rapid.IntRange(1, 4).Draw(t, "limit"), 100)
	lease := rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond, time.Minute}).Draw(t, "lease")
	budget, cap := rapid.IntRange(1, 4).Draw(t, "budget"), rapid.IntRange(1, 3).Draw(t, "cap")
	var results []claimVerdict
	for _, name := range c.Names() {
		switch {
		case cap == 0:
			results = append(results, claimVerdict{kind: "missed"})
		case rapid.IntRange(0, 9).Draw(t, "raced") == 0:
			results = append(results, claimVerdict{kind: rapid.SampledFrom([]string{"raced", "leased"}).Draw(t, "lost"), wait: 250 * time.Millisecond})
		default:
			v := m.claim(m.lanes[name], budget, lease)
			if v.kind == "took" {
				cap--
			}
			results = append(results, v)
		}
	}
	m.out, m.results = append(m.out, c), append(m.results, results)
	if rapid.Bool().Draw(t, "checked in at once") {
		m.checkInAt(t, len(m.out)-1)
	}
}

func (m *ringMachine) checkIn(t *rapid.T) {
	if len(m.out) > 0 {
		m.checkInAt(t, rapid.IntRange(0, len(m.out)-1).Draw(t, "check-out"))
	}
}

func (m *ringMachine) checkInAt(t *rapid.T, at int) {
	c, results := &m.out[at], m.results[at]
	if rapid.IntRange(0, 9).Draw(t, "fails") > 0 { // else everything is given back unreported
		for i := len(results) - 1; i >= 0; i-- {
			switch v := results[i]; {
			case v.kind == "took" && v.lease > 0:
				c.Leased(i, fmt.Sprint(v.worker), v.lease, left(v.drained))
			case v.kind == "took":
				c.Consumed(i, left(v.drained))
			case v.kind == "raced":
				c.Raced(i, v.wait)
			case v.kind == "leased":
				c.HeldByOther(i, v.wait)
			case v.kind == "empty":
				c.Empty(i)
			default:
				c.NotReached(i)
			}
		}
	}
	c.Return()
	m.out, m.results = slices.Delete(m.out, at, at+1), slices.Delete(m.results, at, at+1)
}

// end ends a lease by an ack of everything, of a part, or by giving it back. A reply is sent after the check-in, so the partitions that are
// checked out cannot be acknowledged yet.
func (m *ringMachine) end(t *rapid.T) {
	name, l := m.drawLane(t)
	if l.worker == 0 || m.isOut(name) {
		return
	}
	covered := ""
	if rapid.Bool().Draw(t, "covered") {
		covered = fmt.Sprint(l.worker)
		l.committed = l.batchEnd
	}
	l.worker = 0
	m.ends = append(m.ends, leaseEnd{name, covered})
	if rapid.Bool().Draw(t, "heard at once") {
		m.hear(t)
	}
}

// hear tells the list of the leases that ended, in any order. The partitions may have been claimed again meanwhile.
func (m *ringMachine) hear(t *rapid.T) {
	for _, end := range rapid.Permutation(m.ends).Draw(t, "ends") {
		m.list.promote(queueKey{tenant, "q"}, end.name, "g", end.covered)
	}
	m.ends = nil
}

func (m *ringMachine) isOut(name string) bool {
	return slices.ContainsFunc(m.out, func(c CheckOut) bool { return slices.Contains(c.Names(), name) })
}

// claimPast is a pop of one partition, which the list does not serve.
func (m *ringMachine) claimPast(t *rapid.T) {
	name, l := m.drawLane(t)
	if m.claim(l, 1, time.Minute).kind == "took" {
		m.list.overtake(queueKey{tenant, "q"}, name, "g", false)
	}
}

// pushElsewhere is a push through another broker whose hint was lost.
func (m *ringMachine) pushElsewhere(t *rapid.T) {
	_, l := m.drawLane(t)
	l.stored++
	m.late = true
}

func (m *ringMachine) beginWalk(*rapid.T) {
	if m.walk != nil {
		return
	}
	m.walk, _ = m.ring.BeginWalk()
	m.page = m.pending()
}

func (m *ringMachine) endWalk(*rapid.T) {
	if m.walk == nil {
		return
	}
	m.walk.Page(m.page, make([]int64, len(m.page)), time.Time{}, uuid.Nil)
	m.walk.End(true, false)
	m.walk = nil
}

func (m *ringMachine) pending() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(m.lanes)) {
		if m.lanes[name].committed < m.lanes[name].stored {
			names = append(names, name)
		}
	}
	return names
}

func (m *ringMachine) wait(t *rapid.T) {
	m.clock += int64(rapid.IntRange(1, 1500).Draw(t, "ms")) * int64(time.Millisecond)
	if rapid.Bool().Draw(t, "tick") {
		m.ring.turn(m.clock)
	}
}

// check holds the ring's books against each other: every entry is in exactly one place.
func (m *ringMachine) check(t *rapid.T) {
	ready, flying := 0, 0
	for i := range m.ring.subs {
		s := &m.ring.subs[i]
		places := make([]int, len(s.entries))
		last := uint32(0)
		for at := s.head; at != 0; at = s.entries[at-1].next {
			places[at-1]++
			if s.entries[at-1].state != listed || places[at-1] > 1 {
				t.Fatalf("entry %d of the ready list has state %d, seen %d times", at-1, s.entries[at-1].state, places[at-1])
			}
			last = at
			ready++
		}
		if s.tail != last {
			t.Fatalf("the ready list ends at %d, its tail is %d", last, s.tail)
		}
		due := int64(never)
		for position, e := range s.entries {
			onWheel := slices.ContainsFunc(s.wheel, func(w wheelItem) bool { return int(w.position) == position && w.due == e.revisit })
			switch {
			case e.state == listed && places[position] == 0:
				t.Fatalf("entry %d is listed nowhere", position)
			case e.state == timed && !onWheel:
				t.Fatalf("entry %d is timed and not on the wheel", position)
			case e.state == timed:
				due = min(due, e.revisit)
			case e.state == inFlight:
				flying++
			}
		}
		if s.due.Load() > due {
			t.Fatalf("an entry is due at %d, the sub-ring says %d", due, s.due.Load())
		}
	}
	out := 0
	for _, c := range m.out {
		out += len(c.Names())
	}
	if ready != m.ring.Ready() || flying != int(m.ring.flying.Load()) || flying != out {
		t.Fatalf("counted %d listed and %d taken entries, the ring says %d and %d, pops hold %d", ready, flying, m.ring.Ready(), m.ring.flying.Load(), out)
	}
}

// settle lets everything under way finish; then no partition with work may be forgotten.
func (m *ringMachine) settle(t *rapid.T) {
	m.tell(t)
	m.hear(t)
	for len(m.out) > 0 {
		m.checkInAt(t, 0)
	}
	m.endWalk(t)
	if m.late {
		m.beginWalk(t)
		m.endWalk(t)
	}
	for _, name := range m.pending() {
		index, known := m.ring.table.lookUp(name)
		if !known {
			t.Fatalf("%s has work and is unknown", name)
		}
		sub, position := m.ring.locate(index)
		switch e := *sub.at(position); {
		case e.state == listed:
		case e.state == timed && e.revisit <= m.clock+int64(revisitMost):
		default:
			t.Fatalf("%s has work (%+v) and is forgotten (%+v)", name, *m.lanes[name], e)
		}
	}
}

func TestRingAgreesWithModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newRingMachine()
		m.beginWalk(t)
		m.endWalk(t)
		t.Repeat(map[string]func(*rapid.T){
			"push": m.push, "tell": m.tell, "take": m.take, "checkIn": m.checkIn, "end": m.end, "hear": m.hear, "claimPast": m.claimPast,
			"pushElsewhere": m.pushElsewhere, "beginWalk": m.beginWalk, "endWalk": m.endWalk, "wait": m.wait, "": m.check,
		})
		m.settle(t)
		m.check(t)
	})
}

// The same without anything that only a reseed finds: then nothing may be forgotten without one.
func TestRingForgetsNothingThatItWasTold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newRingMachine()
		t.Repeat(map[string]func(*rapid.T){
			"push": m.push, "tell": m.tell, "take": m.take, "checkIn": m.checkIn, "end": m.end, "hear": m.hear, "claimPast": m.claimPast, "wait": m.wait, "": m.check,
		})
		m.settle(t)
	})
}
