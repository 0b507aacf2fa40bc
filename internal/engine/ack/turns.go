package ack

import (
	"context"
	"sync"
)

// turnsAtOnce is how many acks of one (partition, group) may be on their way to the database. Its row lets one through at a time;
// the second waits there, so that the row is never idle while the answer of the first travels.
const turnsAtOnce = 2

// turns keeps acks of one (partition, group) from waiting for its row with a slot and a connection each. A row that is locked for
// long, or acknowledged by many at once, would otherwise take all slots, and acks of every other partition would wait with it.
type turns struct {
	mu      sync.Mutex
	waiting map[batchKey]*turn
}

// A turn is the queue before one row.
type turn struct {
	free chan struct{} // holds a token for every one on its way
	refs int
}

// take waits until it is the caller's turn. The function returned ends the turn; call it once.
func (t *turns) take(ctx context.Context, key batchKey) (done func(), err error) {
	t.mu.Lock()
	if t.waiting == nil {
		t.waiting = make(map[batchKey]*turn)
	}
	mine := t.waiting[key]
	if mine == nil {
		mine = &turn{free: make(chan struct{}, turnsAtOnce)}
		t.waiting[key] = mine
	}
	mine.refs++
	t.mu.Unlock()

	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.refs--; mine.refs == 0 {
			delete(t.waiting, key)
		}
	}
	select {
	case mine.free <- struct{}{}:
		return func() { <-mine.free; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}
