package ready

import (
	"container/heap"
	"math"
	"sync"
	"sync/atomic"
)

// A state says what is believed about one partition for one group.
type state uint8

const (
	idle     state = iota // nothing known
	listed                // READY: linked in the ready list
	timed                 // WHEEL: due at revisit
	inFlight              // taken by a pop
)

// A note is what else is to be known of an entry in its state.
type note uint8

const (
	nothing note = iota
	drained      // timed: the newest claim delivered everything there was
	found        // listed: the database named it and no mark did; how old its messages are is not known
	ended        // inFlight: a lease of it ended meanwhile
	raced        // timed: a claim found it free and with messages, and did not get them
)

// An entry is one partition in one ring, 24 bytes.
type entry struct {
	// revisit is when a timed entry is due, on the list's clock.
	revisit int64
	// next links the ready list: position + 1, 0 at the end.
	next uint32
	// epoch counts the marks; a verdict about an older epoch does not overrule them.
	epoch uint32
	// count is how many messages marks have announced since the last verdict; 0 also stands for "unknown".
	count uint32
	state state
	note  note
	// lease is a hash of the lease of the newest claim, to tell its end from that of an earlier one.
	lease uint16
}

// leaseHash tells leases apart well enough: when two have the same one, a partition may be forgotten until the next reseed.
func leaseHash(id string) uint16 {
	hash := uint32(2166136261)
	for i := range len(id) {
		hash = (hash ^ uint32(id[i])) * 16777619
	}
	return uint16(hash>>16 ^ hash) //nolint:gosec // both halves are wanted
}

// never is a time that does not come.
const never = math.MaxInt64

// A subring holds every shards-th partition of a ring, under a mutex of its own.
type subring struct {
	mu      sync.Mutex
	entries []entry
	// head and tail are the ends of the ready list, position + 1.
	head, tail uint32
	wheel      wheel
	// due is the time of the earliest wheel item, never when there is none; read without the mutex.
	due atomic.Int64
}

// at returns the entry at a position, making it when it is new. The caller holds the mutex.
func (s *subring) at(position uint32) *entry {
	if need := int(position) + 1; need > len(s.entries) {
		if need > cap(s.entries) {
			// A quarter at a time: the bound on memory per partition counts the slack.
			grown := make([]entry, len(s.entries), max(need+need/4, 16))
			copy(grown, s.entries)
			s.entries = grown
		}
		s.entries = s.entries[:need]
	}
	return &s.entries[position]
}

// link puts an entry at the end of the ready list, or at its front. The caller holds the mutex.
func (s *subring) link(position uint32, front bool) {
	e := &s.entries[position]
	e.state, e.next = listed, 0
	switch {
	case s.head == 0:
		s.head, s.tail = position+1, position+1
	case front:
		e.next, s.head = s.head, position+1
	default:
		s.entries[s.tail-1].next = position + 1
		s.tail = position + 1
	}
}

// unlink takes the first entry of the ready list. The caller holds the mutex.
func (s *subring) unlink() (position uint32, ok bool) {
	if s.head == 0 {
		return 0, false
	}
	position = s.head - 1
	e := &s.entries[position]
	s.head, e.next = e.next, 0
	if s.head == 0 {
		s.tail = 0
	}
	return position, true
}

// time puts an entry on the wheel. The caller holds the mutex.
func (s *subring) time(position uint32, due int64) {
	e := &s.entries[position]
	e.state, e.revisit = timed, due
	heap.Push(&s.wheel, wheelItem{due, position})
	s.due.Store(s.wheel[0].due)
}

// turn lists the entries that are due, counts them in ready before anybody can see that they are due no more, and returns how many they were. The
// caller holds the mutex.
func (s *subring) turn(now int64, ready *atomic.Int64) (moved int) {
	for len(s.wheel) > 0 {
		first := s.wheel[0]
		e := &s.entries[first.position]
		current := e.state == timed && e.revisit == first.due
		if current && first.due > now {
			break
		}
		heap.Pop(&s.wheel) // due, or left behind by an entry that moved on
		if current {
			s.link(first.position, false)
			moved++
		}
	}
	ready.Add(int64(moved))
	if len(s.wheel) == 0 {
		s.wheel = nil
		s.due.Store(never)
	} else {
		s.due.Store(s.wheel[0].due)
	}
	return moved
}

// A wheelItem is a time at which a position may be due. Items of entries that moved on stay until they come up.
type wheelItem struct {
	due      int64
	position uint32
}

// wheel is a min-heap by time.
type wheel []wheelItem

func (w wheel) Len() int           { return len(w) }
func (w wheel) Less(i, j int) bool { return w[i].due < w[j].due }
func (w wheel) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }
func (w *wheel) Push(x any)        { *w = append(*w, x.(wheelItem)) }
func (w *wheel) Pop() any {
	last := len(*w) - 1
	item := (*w)[last]
	*w = (*w)[:last]
	return item
}
