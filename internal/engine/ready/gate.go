package ready

import (
	"slices"
	"sync"
	"time"
)

// A gate is what all long polls of one queue wait at. Opening it closes the channel they hold and puts a new one in its place.
type gate struct {
	// waiters is guarded by Gates.mu, so that the last one to leave and the next one to come agree about the map.
	waiters int

	mu      sync.Mutex
	opened  chan struct{}
	last    time.Time   // of the newest opening
	pending *time.Timer // a wake folded into the end of the coalescing interval
	stopped bool
	// sequence numbers the wakes; blind is the number of the newest one that cannot be told from hints, because it named no
	// partition or its name was dropped.
	sequence, blind uint64
	hints           []hint
}

// A hint is a partition named by a wake.
type hint struct {
	partition string
	sequence  uint64
}

// wake opens the gate now, or at the end of the coalescing interval when it was opened a moment ago.
func (g *gate) wake(partition string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sequence++
	if partition == "" {
		g.blind = g.sequence
	} else {
		g.rememberLocked(partition)
	}
	if g.stopped || g.pending != nil {
		return
	}
	since := time.Since(g.last)
	if since >= CoalesceInterval {
		g.openLocked()
		return
	}
	g.pending = time.AfterFunc(CoalesceInterval-since, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.pending = nil
		if !g.stopped {
			g.openLocked()
		}
	})
}

// openLocked releases everybody who armed before now. The caller holds the mutex.
func (g *gate) openLocked() {
	g.last = time.Now()
	close(g.opened)
	g.opened = make(chan struct{})
}

// rememberLocked keeps the partition as a hint, the newest last. The caller holds the mutex.
func (g *gate) rememberLocked(partition string) {
	if known := slices.IndexFunc(g.hints, func(h hint) bool { return h.partition == partition }); known >= 0 {
		g.hints = slices.Delete(g.hints, known, known+1)
	} else if len(g.hints) == maxHints {
		g.blind = max(g.blind, g.hints[0].sequence)
		g.hints = slices.Delete(g.hints, 0, 1)
	}
	g.hints = append(g.hints, hint{partition, g.sequence})
}

// stop ends a folded wake of a gate that lost its last waiter.
func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	if g.pending != nil {
		g.pending.Stop()
		g.pending = nil
	}
}

// A Waiter is one long poll's place at a gate. It belongs to one goroutine.
type Waiter struct {
	gate  *gate
	leave func()
	armed bool
	seen  uint64 // the newest wake that the last Arm knew of
}

// Arm returns a channel that the next wake closes. Arm before looking for messages; see the package comment.
//
// The hints are the partitions that wakes have named since the previous Arm, oldest first. They are complete or nil: when a wake
// named no partition, or more partitions were named than a gate remembers, and on the first Arm, there are none and the whole
// queue is worth a look.
func (w *Waiter) Arm() (opened <-chan struct{}, hints []string) {
	w.gate.mu.Lock()
	defer w.gate.mu.Unlock()
	if w.armed && w.gate.blind <= w.seen {
		for _, one := range w.gate.hints {
			if one.sequence > w.seen {
				hints = append(hints, one.partition)
			}
		}
	}
	w.armed, w.seen = true, w.gate.sequence
	return w.gate.opened, hints
}

// Release gives the place up. The waiter must not be used afterwards.
func (w *Waiter) Release() {
	w.leave()
}
