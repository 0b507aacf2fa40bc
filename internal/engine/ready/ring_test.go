package ready

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

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
		{"claimed past the list meanwhile", true, func(l *HotList, _ *Ring) { l.overtake(key, "a", "g", false) }, true, []string{"a"}},
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

// TestAClaimWithoutALeaseEndsTheWaitForOne: a pop that acknowledges at once gets messages only when the lease before is over.
func TestAClaimWithoutALeaseEndsTheWaitForOne(t *testing.T) {
	t.Parallel()
	key := queueKey{tenant, "q"}
	for _, c := range []struct {
		name     string
		free     bool
		deferral Deferral
		want     []string
	}{
		{"acknowledged at once", true, Deferral{}, []string{"a"}},
		{"leased", false, Deferral{}, nil},
		{"delayed", true, Deferral{Delay: time.Minute}, nil},
		{"collected", true, Deferral{Window: time.Minute}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			list := NewHotList(HotConfig{})
			ring := list.Ring(tenant, "q", "g")
			list.mark(key, "a", 5, false)
			out := ring.Take(1, 100)
			out.Leased(0, "lease", time.Minute, 3)
			out.Return()
			ring.SetDeferral(c.deferral)
			parked := NewParked()
			ring.Park(parked)
			list.overtake(key, "a", "g", c.free)
			if got := len(parked.Woken) > 0; got != (c.want != nil) {
				t.Fatalf("a parked pop was woken: %v", got)
			}
			parked.Leave()
			parked.Settle()
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
