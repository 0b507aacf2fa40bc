package api

import (
	"context"
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
)

// A bodyRoom bounds the memory of the request bodies that are there at a time. Small bodies have a part of their own, so that
// acknowledgments do not wait behind large pushes. Requests get room in the order in which they asked.
type bodyRoom struct {
	small, large share
	wait         time.Duration
}

// A share is a part of the room.
type share struct {
	size int64
	free *semaphore.Weighted
}

// A bodyHold is the room that one request has. The zero value is none. It belongs to the request's goroutine.
type bodyHold struct {
	share *share
	bytes int64
}

func newBodyRoom(size int64, wait time.Duration) *bodyRoom {
	small := max(size/4, 1)
	return &bodyRoom{small: newShare(small), large: newShare(max(size-small, 1)), wait: wait}
}

func newShare(size int64) share { return share{size: size, free: semaphore.NewWeighted(size)} }

// announce takes room for a body of a known length, all of it before the first byte is read: requests that hold a part and wait for
// the rest would wait for each other. An unknown length, below 0, takes none yet.
func (b *bodyRoom) announce(ctx context.Context, hold *bodyHold, length int64) error {
	if length <= 0 {
		return nil
	}
	hold.share = &b.large
	if length <= smallBody {
		hold.share = &b.small
	}
	return b.take(ctx, hold, min(length, hold.share.size))
}

// grow takes more room for a body of unknown length when what was read of it needs more. The first smallBody bytes need none.
func (b *bodyRoom) grow(ctx context.Context, hold *bodyHold, read int64) error {
	if read <= max(smallBody, hold.bytes) {
		return nil
	}
	hold.share = &b.large
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
	return nil
}

// release gives the room back; releasing twice is fine.
func (h *bodyHold) release() {
	if h.bytes > 0 {
		h.share.free.Release(h.bytes)
		h.bytes = 0
	}
}
