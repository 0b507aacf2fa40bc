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
		m.list.overtake(queueKey{tenant, "q"}, name, "g")
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

// A batch that took everything there was leaves nothing when it is completed, unless the list heard of more since, in whatever way.
func TestPromoteAfterACoveredBatch(t *testing.T) {
	t.Parallel()
	key := queueKey{tenant, "q"}
	for _, c := range []struct {
		name    string
		drained bool
		between func(*HotList, *Ring)
		covered bool
		want    []string
	}{
		{"all taken, all completed", true, nil, true, nil},
		{"more was left", false, nil, true, []string{"a"}},
		{"given back", true, nil, false, []string{"a"}},
		{"pushed meanwhile", true, func(l *HotList, _ *Ring) { l.mark(key, "a", 3, true) }, true, []string{"a"}},
		{"hint of another broker meanwhile", true, func(l *HotList, _ *Ring) { l.mark(key, "a", 0, false) }, true, []string{"a"}},
		{"claimed past the list meanwhile", true, func(l *HotList, _ *Ring) { l.overtake(key, "a", "g") }, true, []string{"a"}},
		{"pushed to another partition", true, func(l *HotList, _ *Ring) { l.mark(key, "b", 3, true) }, true, []string{"b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			list := NewHotList(HotConfig{})
			ring := list.Ring(tenant, "q", "g")
			list.mark(key, "a", 1, false)
			out := ring.Take(1, 100)
			out.Leased(0, "lease", time.Minute, left(c.drained))
			out.Return()
			if c.between != nil {
				c.between(list, ring)
			}
			list.promote(key, "a", "g", map[bool]string{true: "lease"}[c.covered])
			if got := ringNames(ring, 9); !slices.Equal(got, c.want) {
				t.Fatalf("ready are %v, want %v", got, c.want)
			}
		})
	}
}

// left is how many messages lie behind a batch.
func left(drained bool) int64 {
	if drained {
		return 0
	}
	return 1
}

func ringNames(r *Ring, limit int) []string {
	c := r.Take(limit, 1<<30)
	defer c.Return()
	return c.Names()
}

// Whoever waited longest is served first, and a partition that always has more goes behind those that wait.
func TestTakeServesInTurn(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{})
	ring := list.Ring(tenant, "q", "g")
	for i := range 100 {
		list.mark(queueKey{tenant, "q"}, fmt.Sprintf("p%02d", i), 1, false)
	}
	served := map[string]int{}
	for range 100 {
		c := ring.Take(1, 100)
		served[c.Names()[0]]++
		c.Consumed(0, 1) // there is always more
		c.Return()
	}
	if len(served) != 100 {
		t.Fatalf("only %d of 100 waiting partitions were served by 100 takes", len(served))
	}
}

func TestTakeStopsAtTheBudget(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{})
	ring := list.Ring(tenant, "q", "g")
	for i := range 10 {
		list.mark(queueKey{tenant, "q"}, fmt.Sprint(i), 40, false)
	}
	c := ring.Take(64, 100)
	defer c.Return()
	if len(c.Names()) != 3 {
		t.Fatalf("took %d partitions with 40 messages each for a budget of 100", len(c.Names()))
	}
}

// What a walk counted and what a claim left behind counts like what was pushed: a take names no more partitions than it needs.
func TestTakeKnowsWhatWalksFoundAndClaimsLeft(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{Shards: 1})
	ring := list.Ring(tenant, "q", "g")
	walk, _ := ring.BeginWalk()
	walk.Page([]string{"a", "b", "c", "d"}, []int64{40, 70, 1 << 40, 9}, time.Time{}, uuid.Nil)
	walk.End(true, false)
	take := func(budget int, want ...string) CheckOut {
		c := ring.Take(64, budget)
		if got := c.Names(); !slices.Equal(got, want) {
			t.Fatalf("took %v for %d messages, want %v", got, budget, want)
		}
		return c
	}
	both := take(100, "a", "b")
	both.Leased(0, "lease", time.Minute, 0)
	both.Leased(1, "lease", time.Minute, 10)
	both.Return()
	huge := take(100, "c")
	huge.Consumed(0, 2)
	huge.Return()
	list.promote(queueKey{tenant, "q"}, "a", "g", "lease")
	list.promote(queueKey{tenant, "q"}, "b", "g", "lease")
	rest := take(20, "d", "c", "b")
	rest.Return()
}

// The count of a queue with a window says when the window is over, so that only pushes count.
func TestWindowsCountPushesOnly(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{WindowBatch: 100})
	ring := list.Ring(tenant, "q", "g")
	ring.SetDeferral(Deferral{Window: time.Minute})
	list.mark(queueKey{tenant, "q"}, "a", 100, false)
	c := ring.Take(1, 100)
	c.Leased(0, "lease", time.Minute, 99)
	c.Return()
	list.mark(queueKey{tenant, "q"}, "a", 1, false)
	if ring.HasReady() {
		t.Fatal("one message ended the window of a leased partition")
	}
}

// What a claim did not reach keeps its place; what a failed claim held goes behind the others.
func TestCheckInKeepsTheOrder(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{Shards: 1})
	ring := list.Ring(tenant, "q", "g")
	for _, name := range laneNames {
		list.mark(queueKey{tenant, "q"}, name, 1, false)
	}
	c := ring.Take(3, 100)
	c.Empty(0)
	c.NotReached(2)
	c.NotReached(1)
	c.Return()
	if got := ringNames(ring, 2); !slices.Equal(got, []string{"b", "c"}) {
		t.Fatalf("took %v", got)
	}
	if got := ringNames(ring, 9); !slices.Equal(got, []string{"d", "e", "b", "c"}) {
		t.Fatalf("took %v after b and c were given back", got)
	}
}

// A claim may find a partition leased whose lease is over by the time that it says so: nobody else will tell of that end again.
func TestALeaseThatEndsDuringALookIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	m := newRingMachine()
	key := queueKey{tenant, "q"}
	m.list.mark(key, "a", 1, false)
	looked := m.ring.Take(1, 100)
	m.list.promote(key, "a", "g", "")
	for i := range looked.Names() {
		looked.HeldByOther(i, time.Minute)
	}
	looked.Return()
	again := m.ring.Take(9, 100)
	if got := again.Names(); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("ready are %v", got)
	}
	for i := range again.Names() {
		again.HeldByOther(i, time.Minute)
	}
	again.Return()
	if got := ringNames(m.ring, 9); len(got) > 0 {
		t.Fatalf("somebody holds it still, ready are %v", got)
	}
}

// Messages that come while a claim runs look like lost ones to its last look. Their mark, before or after the report, brings them at once.
func TestMessagesThatComeDuringALookAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		m := newRingMachine()
		key := queueKey{tenant, "q"}
		m.list.mark(key, "a", 1, false)
		looked := m.ring.Take(1, 100)
		if !late {
			m.list.mark(key, "a", 1, false)
		}
		for i := range looked.Names() {
			looked.Raced(i, time.Minute)
		}
		looked.Return()
		if late {
			m.list.mark(key, "a", 1, false)
		}
		again := m.ring.Take(9, 100)
		if got := again.Names(); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("late %v: ready are %v", late, got)
		}
		for i := range again.Names() {
			again.Raced(i, time.Minute)
		}
		again.Return()
		if got := ringNames(m.ring, 9); len(got) > 0 {
			t.Fatalf("nothing is new, ready are %v", got)
		}
	}
}

// The end of a lease may be heard after the partition was leased again: it is the end of another batch then.
func TestALateEndOfALeaseIsNotTheEndOfTheNext(t *testing.T) {
	t.Parallel()
	m := newRingMachine()
	key := queueKey{tenant, "q"}
	claim := func(lease string) {
		out := m.ring.Take(1, 100)
		if got := out.Names(); !slices.Equal(got, []string{"a"}) {
			t.Fatalf("taken are %v", got)
		}
		out.Leased(0, lease, time.Minute, 0)
		out.Return()
	}
	m.list.mark(key, "a", 1, false)
	claim("first")
	m.clock += int64(revisitMost)
	claim("second") // the first one is acknowledged in the database, which this broker has not heard yet
	m.list.promote(key, "a", "g", "first")
	looked := m.ring.Take(1, 100)
	for i := range looked.Names() {
		looked.HeldByOther(i, time.Minute)
	}
	looked.Return()
	m.list.promote(key, "a", "g", "")
	if got := ringNames(m.ring, 9); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("the second batch was given back, ready are %v", got)
	}
}
