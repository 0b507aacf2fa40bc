package ready

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// walks is what a ring remembers of its reseeds. A reseed walks over the partitions that the database says are pending: it finds what
// no mark announced.
type walks struct {
	// popped says that a pop asked for the ring since the last walk began.
	popped atomic.Bool

	mu      sync.Mutex
	running chan struct{} // closed at the end of the step under way; nil when there is none
	// last and lastFull are when the last complete walks began, on the list's clock; 0 is never.
	last, lastFull int64
	// forced asks for a full walk; answering says that one that was asked for is not over yet.
	forced, answering bool
	// spread is how much earlier the next background walk is, so that rings that were made together do not walk together.
	spread time.Duration
	// unfinished is a walk that stopped between two pages.
	unfinished *Walk
}

// A Walk is a reseed of one ring, or the next piece of one. It belongs to one goroutine.
type Walk struct {
	// AfterAt and After are where the last page ended: the time of the last write and the id of its last partition. Both are zero at the
	// beginning.
	AfterAt time.Time
	After   uuid.UUID
	// Window limits the walk to partitions written to within it; 0 is all partitions.
	Window time.Duration

	ring  *Ring
	begun int64
	// forced says that the walk answers a request for one.
	forced bool
	// pending and found count what the database has and what of it was not known.
	pending, found int
}

// NeedsWalk tells whether the ring must be reseeded before it can be said to be empty.
func (r *Ring) NeedsWalk() bool {
	r.walks.mu.Lock()
	defer r.walks.mu.Unlock()
	w, cfg := &r.walks, &r.list.cfg
	// The background has its turn before: a pop would have to wait for the answer.
	return w.lastFull == 0 || w.forced || w.answering || r.list.now()-w.last >= int64(cfg.Reseed+cfg.Reseed/4)
}

// IsCold tells whether a full walk has to begin before the ring is believed: the first one, or one that was asked for.
func (r *Ring) IsCold() bool {
	r.walks.mu.Lock()
	defer r.walks.mu.Unlock()
	return r.walks.forced || r.walks.lastFull == 0 && r.walks.unfinished == nil
}

// dueLocked tells whether the background should walk. The caller holds the mutex.
func (w *walks) dueLocked(now int64, cfg *HotConfig) bool {
	return w.lastFull == 0 || w.forced || w.unfinished != nil || now-w.last >= int64(cfg.Reseed-w.spread)
}

// BeginWalk starts or continues a reseed. When one is under way it returns nil and a channel that is closed at the end of its step.
// The caller reports each page and then calls End, whatever happens.
func (r *Ring) BeginWalk() (walk *Walk, busy <-chan struct{}) {
	w := &r.walks
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running != nil {
		return nil, w.running
	}
	w.running = make(chan struct{})
	if w.unfinished != nil && !w.forced {
		return w.unfinished, nil
	}
	w.popped.Store(false)
	now, cfg := r.list.now(), &r.list.cfg
	walk = &Walk{ring: r, begun: now, forced: w.forced}
	w.forced, w.answering = false, w.forced
	// The window is measured on the database's clock from now on; it must reach back to the beginning of the last walk with room
	// for transactions that were in flight then.
	isCovered := now-w.last < int64(cfg.ReseedWindow-cfg.ReseedWindow/4)
	if w.lastFull != 0 && !walk.forced && cfg.ReseedFull > 0 && now-w.lastFull < int64(cfg.ReseedFull) && isCovered {
		walk.Window = cfg.ReseedWindow
	}
	return walk, nil
}

// Page notes the pending partitions of one page and how many messages they have; afterAt and after are where it ended.
func (w *Walk) Page(names []string, pending []int64, afterAt time.Time, after uuid.UUID) {
	found := 0
	for i, name := range names {
		if w.ring.reseed(w.ring.table.intern(name), messages(pending[i])) {
			found++
		}
	}
	w.AfterAt, w.After = afterAt, after
	w.pending += len(names)
	w.found += found
	if found > 0 {
		w.ring.crowd.wake()
	}
}

// End ends the step. complete says that the last page was seen; failed that the walk has to be done again.
func (w *Walk) End(complete, failed bool) {
	own := &w.ring.walks
	defer w.ring.trace("walk", slog.Duration("window", w.Window), slog.Int("pending", w.pending), slog.Int("found", w.found),
		slog.Bool("complete", complete), slog.Bool("failed", failed))
	own.mu.Lock()
	defer own.mu.Unlock()
	close(own.running)
	own.running, own.unfinished = nil, nil
	switch {
	case failed:
		own.forced, own.answering = own.forced || w.forced, false
		own.popped.Store(true) // whoever popped is still owed an answer
	case complete:
		own.last, own.answering = max(w.begun, 1), false
		if w.Window == 0 {
			own.lastFull = own.last
		}
		own.spread = rand.N(w.ring.list.cfg.Reseed/4 + 1) //nolint:gosec // spreading, not secrecy
	default:
		own.unfinished = w
	}
}

// force asks for a full walk before the ring is believed again.
func (r *Ring) force() {
	r.walks.mu.Lock()
	r.walks.forced = true
	r.walks.unfinished = nil
	r.walks.mu.Unlock()
	r.crowd.wakeAll()
}

// Reseed is how old the database's word may get.
func (l *HotList) Reseed() time.Duration { return l.cfg.Reseed }

// DueWalks returns the rings that the background should reseed: their time has come, and they have a consumer that waits or has come
// since the last walk.
func (l *HotList) DueWalks() []*Ring {
	now := l.now()
	var due []*Ring
	for _, r := range l.rings() {
		w := &r.walks
		if !w.popped.Load() && r.crowd.size() == 0 {
			continue
		}
		w.mu.Lock()
		if w.running == nil && w.dueLocked(now, &l.cfg) {
			due = append(due, r)
		}
		w.mu.Unlock()
	}
	return due
}
