package pop

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// DefaultMaxInflightBytes is how much all answers together hold unless configured otherwise.
const DefaultMaxInflightBytes = 256 << 20

const (
	// leastExpected is what a claim is expected to hold at least, so that small answers need no more than their first reservation.
	leastExpected = 64 << 10
	// roomWait is how long a pop that waits for no messages waits for room.
	roomWait = 5 * time.Second
	// messageOverhead is about what an answer says of a message besides its content.
	messageOverhead = 400
	// expectedQueues bounds the queues whose answers are expected to be as large as their last one.
	expectedQueues = 20_000
)

// ErrNoRoom says that other answers took all the memory for answers for as long as the pop could wait. Nothing stays leased.
var ErrNoRoom = errors.New("too many answers are under way: their memory (QUEEN_MAX_INFLIGHT_ANSWER_BYTES) is in use")

// A noRoomError says that a claim was given back because not even its first segment fitted into the room that was free. Whoever gets it
// holds nothing, waits for so much room, and claims again.
type noRoomError struct{ needs int64 }

func (e *noRoomError) Error() string {
	return fmt.Sprintf("the first segment needs %d bytes of room", e.needs)
}

// A room bounds the memory of all answers from their claim until they are sent: the blobs, their content, and the rendered bytes. A pop takes
// what it may need before it claims and gives back what it does not need as soon as it knows. It waits with nothing in hand only,
// neither messages nor slot nor connection, so that nobody waits for each other. Small answers have a part of their own: they do not wait
// behind readers that take large ones slowly.
type room struct {
	large, small share
	// generous is what an answer of the largest size needs.
	generous int64

	waits    atomic.Int64
	expected sync.Map // queueKey -> *atomic.Int64, what the last answers needed
	queues   atomic.Int64
}

// A share is a part of the room.
type share struct {
	size int64
	// most is what one pop may have of it.
	most int64

	mu      sync.Mutex
	free    int64
	waiting list.List // of *roomWaiter, first come first served
	// sending are the answers on their way that have room here; hurrying says that relieve will look at them again.
	sending  map[*sending]struct{}
	hurrying bool
}

type roomWaiter struct {
	bytes   int64
	granted chan struct{}
}

func newRoom(size, maxAnswer int64) *room {
	if size <= 0 {
		size = DefaultMaxInflightBytes
	}
	r := &room{}
	r.small.size = size / 4
	r.small.most = min(leastExpected, r.small.size)
	r.large.size = size - r.small.size
	r.large.most = r.large.size
	r.small.free, r.large.free = r.small.size, r.large.size
	r.generous = min(3*maxAnswer, r.large.size)
	return r
}

// A hold is the room that one pop has. Its zero value is none. It belongs to the goroutine that works on the pop.
type hold struct {
	share *share
	bytes int64
}

// enter takes room for a claim of the queue, unless there is less than the claim is expected to need: generously while there is much, so
// that a batch of usual size is never cut short on a broker at rest.
func (r *room) enter(h *hold, key queueKey) bool {
	if h.bytes > 0 {
		return true // of a claim that found nothing, or waited for room
	}
	least := min(max(r.expects(key), leastExpected), r.large.size)
	return r.large.take(h, least, r.generous) || least <= r.small.most && r.small.take(h, least, least)
}

// take takes at least so much room and at most half of what is free, if there is any without waiting.
func (s *share) take(h *hold, least, most int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting.Len() > 0 || s.free < least {
		return false
	}
	h.share, h.bytes = s, max(least, min(most, s.free/2))
	s.free -= h.bytes
	return true
}

// wait takes so much of the large share, or all of it, as soon as those that waited longer have theirs.
func (r *room) wait(ctx context.Context, h *hold, bytes int64) error {
	h.release()
	s := &r.large
	w := &roomWaiter{bytes: min(max(bytes, leastExpected), s.size), granted: make(chan struct{})}
	s.mu.Lock()
	place := s.waiting.PushBack(w)
	s.grantLocked()
	s.hurryLocked()
	s.mu.Unlock()
	select {
	case <-w.granted:
		h.share, h.bytes = s, w.bytes
		return nil
	default:
	}
	r.waits.Add(1)
	select {
	case <-w.granted:
		h.share, h.bytes = s, w.bytes
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-w.granted: // in the last moment
		s.free += w.bytes
	default:
		s.waiting.Remove(place)
	}
	s.grantLocked() // it may have stood in front of smaller ones
	return context.Cause(ctx)
}

func (s *share) grantLocked() {
	for first := s.waiting.Front(); first != nil; first = s.waiting.Front() {
		w := first.Value.(*roomWaiter) //nolint:forcetypeassert // the list holds nothing else
		if w.bytes > s.free {
			return
		}
		s.free -= w.bytes
		s.waiting.Remove(first)
		close(w.granted)
	}
}

// resize makes the hold as large as said if there is room now, and tells whether it is.
func (h *hold) resize(bytes int64) bool {
	s := h.share
	if s == nil {
		return true // nothing is counted
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most == s.size {
		bytes = min(bytes, s.size) // larger than all of it: served alone
	}
	more := bytes - h.bytes
	if more > 0 && (bytes > s.most || more > s.free || s.waiting.Len() > 0) {
		return false
	}
	s.free -= more
	h.bytes = bytes
	if more < 0 {
		s.grantLocked()
	}
	return true
}

// release gives all of it back; releasing twice is fine.
func (h *hold) release() {
	if h.bytes > 0 {
		h.resize(0)
	}
}

// inUse is how much is taken now.
func (r *room) inUse() int64 {
	used := int64(0)
	for _, s := range []*share{&r.large, &r.small} {
		s.mu.Lock()
		used += s.size - s.free
		s.mu.Unlock()
	}
	return used
}

// expects is what a claim of the queue is likely to need.
func (r *room) expects(key queueKey) int64 {
	if known, ok := r.expected.Load(key); ok {
		return known.(*atomic.Int64).Load() //nolint:forcetypeassert // the map holds nothing else
	}
	return 0
}

// learn notes what an answer of the queue needed. A larger one counts at once, smaller ones little by little.
func (r *room) learn(key queueKey, bytes int64) {
	if bytes <= leastExpected && r.expects(key) <= leastExpected {
		return
	}
	known, ok := r.expected.Load(key)
	if !ok {
		if r.queues.Add(1) > expectedQueues {
			r.expected.Clear()
			r.queues.Store(1)
		}
		known, _ = r.expected.LoadOrStore(key, new(atomic.Int64))
	}
	last := known.(*atomic.Int64) //nolint:forcetypeassert // the map holds nothing else
	if before := last.Load(); bytes >= before {
		last.Store(bytes)
	} else {
		last.Store(before - (before-bytes)/8)
	}
}

// needs is the memory that a segment takes on its way: as it is stored, unpacked, and rendered.
func needs(s *pg.ClaimedSegment) (content, all int64) {
	content = segment.ContentSize(s.Blob)
	return content, int64(len(s.Blob)) + 2*content + int64(s.Take)*messageOverhead
}
