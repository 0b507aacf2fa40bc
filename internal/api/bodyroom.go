package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// defaultBodyWait is how long a request waits for room for its body.
	defaultBodyWait = 5 * time.Second
	// smallBody is the largest body that takes its room from the part kept for small ones.
	smallBody = firstRead
	// bodyStep is by how much the room of a body of unknown length grows.
	bodyStep = 1 << 20

	// While others wait for room, a body that comes slower than slowestBody, and slower than all of it would take wholeBody, is given up
	// once it has been coming for bodyGrace. Without that a few clients that announce much and send a byte now and then would keep the
	// room, and everybody out of it, for good. While nobody waits a body may come as slowly as it likes.
	bodyGrace   = 2 * time.Second
	slowestBody = 16 << 10 // bytes a second
	wholeBody   = time.Minute
	// relieveEvery is how often slow bodies are looked for while requests wait.
	relieveEvery = 250 * time.Millisecond
)

// A bodyRoom bounds the memory of the request bodies that are there at a time. Small bodies have a part of their own, so that
// acknowledgments do not wait behind large pushes. Requests get room in the order in which they asked.
type bodyRoom struct {
	small, large *share
	wait         time.Duration
}

// A share is a part of the room.
type share struct {
	size int64
	free *semaphore.Weighted

	mu      sync.Mutex
	arrive  map[*bodyHold]struct{} // bodies that have room and are being read
	waiting int                    // requests that wait for room
	looking bool                   // relieve will run again
}

// A bodyHold is the room that one request has. The zero value is none. It belongs to the request's goroutine, but for what mu guards.
type bodyHold struct {
	share *share
	bytes int64
	room  int64 // bytes, as the share knows it; guarded by the share's mutex

	mu      sync.Mutex
	began   time.Time
	read    int64
	line    lineDeadline // of the reads under way; nil before the first and after the last
	givenUp bool
}

// A lineDeadline bounds reads of a body; *http.ResponseController is one.
type lineDeadline interface {
	SetReadDeadline(at time.Time) error
}

// next says how much of the body has come and gives the next read until the time until, unless the body was given up.
func (h *bodyHold) next(read int, until time.Time, line lineDeadline) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.line == nil {
		h.began = time.Now()
	}
	h.read, h.line = int64(read), line
	if !h.givenUp {
		_ = line.SetReadDeadline(until) // a writer without a connection has none
	}
}

// end says that the body is not read any more. When it came whole the connection is watched from now on for a client that leaves,
// however long the request takes. Otherwise the deadline stays, so that what is left is not waited for when the connection is closed.
func (h *bodyHold) end(whole bool) {
	if h.share != nil {
		h.share.mu.Lock()
		delete(h.share.arrive, h)
		h.share.mu.Unlock()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if whole && h.line != nil {
		_ = h.line.SetReadDeadline(time.Time{}) // as in next
	}
	h.line = nil
}

// giveUpWhenSlow ends the read under way of a body that comes too slowly for others to wait for it.
func (h *bodyHold) giveUpWhenSlow(bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	late := time.Since(h.began) - bodyGrace
	rate := max(slowestBody, float64(bytes)/wholeBody.Seconds())
	if h.line == nil || h.givenUp || late <= 0 || float64(h.read) >= rate*late.Seconds() {
		return
	}
	h.givenUp = true
	_ = h.line.SetReadDeadline(time.Unix(1, 0)) // long ago
}

func newBodyRoom(size int64, wait time.Duration) *bodyRoom {
	small := max(size/4, 1)
	return &bodyRoom{small: newShare(small), large: newShare(max(size-small, 1)), wait: wait}
}

func newShare(size int64) *share {
	return &share{size: size, free: semaphore.NewWeighted(size), arrive: make(map[*bodyHold]struct{})}
}

// wait says that a request waits for room, until the returned function is called.
func (s *share) wait() (over func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting++
	if !s.looking {
		s.looking = true
		time.AfterFunc(0, s.relieve)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting--
	}
}

// relieve gives slow bodies up, again and again while requests wait.
func (s *share) relieve() {
	s.mu.Lock()
	if s.waiting == 0 {
		s.looking = false
		s.mu.Unlock()
		return
	}
	slow := make(map[*bodyHold]int64, len(s.arrive))
	for hold := range s.arrive {
		slow[hold] = hold.room
	}
	s.mu.Unlock()
	for hold, bytes := range slow {
		hold.giveUpWhenSlow(bytes)
	}
	time.AfterFunc(relieveEvery, s.relieve)
}

// arriving notes that a body with room is about to be read, or has more room now.
func (s *share) arriving(h *bodyHold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrive[h], h.room = struct{}{}, h.bytes
}

// announce takes room for a body of a known length, all of it before the first byte is read: requests that hold a part and wait for
// the rest would wait for each other. An unknown length, below 0, takes none yet.
func (b *bodyRoom) announce(ctx context.Context, hold *bodyHold, length int64) error {
	if length <= 0 {
		return nil
	}
	hold.share = b.large
	if length <= smallBody {
		hold.share = b.small
	}
	return b.take(ctx, hold, min(length, hold.share.size))
}

// grow takes more room for a body of unknown length when what was read of it needs more. The first smallBody bytes need none.
func (b *bodyRoom) grow(ctx context.Context, hold *bodyHold, read int64) error {
	if read <= max(smallBody, hold.bytes) {
		return nil
	}
	hold.share = b.large
	steps := (read + bodyStep - 1) / bodyStep
	want := min(steps*bodyStep, hold.share.size)
	if want <= hold.bytes {
		return nil
	}
	return b.take(ctx, hold, want-hold.bytes)
}

// take waits for room, for a bounded time.
func (b *bodyRoom) take(ctx context.Context, hold *bodyHold, n int64) error {
	if !hold.share.free.TryAcquire(n) {
		defer hold.share.wait()()
		bounded, cancel := context.WithTimeout(ctx, b.wait)
		defer cancel()
		if hold.share.free.Acquire(bounded, n) != nil {
			if gone := ctx.Err(); gone != nil {
				return gone
			}
			return newError(codeOverloaded, errorRows[codeOverloaded].text)
		}
	}
	hold.bytes += n
	hold.share.arriving(hold)
	return nil
}

// release gives the room back; releasing twice is fine.
func (h *bodyHold) release() {
	if h.bytes > 0 {
		h.share.free.Release(h.bytes)
		h.bytes = 0
	}
}

// releaseBody gives the room of a request's body back before its answer is sent. Nothing of the body may be used any more.
func releaseBody(w http.ResponseWriter) {
	if answer, ok := w.(*response); ok {
		answer.body.release()
	}
}
