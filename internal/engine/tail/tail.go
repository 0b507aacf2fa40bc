// Package tail shows the messages of queues as they come, to people who watch. It moves no cursor and takes no lease: one look a second
// at each queue that somebody watches, shared by everybody who watches it, and none for queues that nobody watches.
//
// What is shown is for the eye: when more comes in than a page holds, or a watcher is slow, messages are left out and counted.
//
// # Concurrency
//
// A [Hub] is safe for concurrent use. It runs one goroutine per watched queue, which ends with its last watcher. A [Watcher] belongs to
// one goroutine. The mutex of the hub is held for map and slice work only.
package tail

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/browse"
	"queenmq/internal/pg"
)

// Bounds of a hub.
const (
	// pageSize is the most messages that one look shows.
	pageSize = 100
	// backlog is the most messages that wait for one watcher.
	backlog = 200
	// share is the most of a database session's time that the looks at one queue take: one part in share.
	share = 50
	// overlap is how far each look reaches behind the newest message that was seen. Times are taken under partition locks, before commit,
	// so that what is seen later may carry an earlier time.
	overlap = 5 * time.Second
	// lookTimeout ends a look that the database does not answer.
	lookTimeout = 10 * time.Second
)

// ErrTooMany says that no more watchers, or no more watched queues, are admitted.
var ErrTooMany = errors.New("too many watchers")

// ErrCrowdedOut ends the watching of a queue so that a tenant that watches fewer can watch one.
var ErrCrowdedOut = errors.New("other tenants want to watch queues too")

// ErrStopped ends the watching when the hub stops.
var ErrStopped = errors.New("the broker is stopping")

// A Source lists messages; *browse.Reader is one.
type Source interface {
	List(ctx context.Context, tenant uuid.UUID, filter pg.MessageFilter) (browse.Page, error)
}

// Config is how a hub looks. Zero fields take the defaults.
type Config struct {
	// Interval is the time between two looks at a queue; 0 is one second. It is longer while looks are slow.
	Interval time.Duration
	// MaxQueues is the most queues that are watched at a time, MaxWatchers the most watchers of one tenant; 0 is 16 and 20. When all queues
	// are taken, a tenant takes one from the tenant that has most, as long as that leaves it no fewer.
	MaxQueues, MaxWatchers int
	// Log takes looks that failed. Nil drops them.
	Log *slog.Logger
}

// A Hub knows who watches what. Make one with [New], and stop it.
type Hub struct {
	cfg    Config
	source Source

	mu       sync.Mutex
	stopped  bool
	feeds    map[queue]*feed
	begun    uint64 // feeds, ever
	watchers map[uuid.UUID]int
	running  sync.WaitGroup
}

type queue struct {
	tenant uuid.UUID
	name   string
}

// New returns a hub that looks through source.
func New(cfg Config, source Source) *Hub {
	if cfg.Interval <= 0 {
		cfg.Interval = time.Second
	}
	if cfg.MaxQueues <= 0 {
		cfg.MaxQueues = 16
	}
	if cfg.MaxWatchers <= 0 {
		cfg.MaxWatchers = 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Hub{cfg: cfg, source: source, feeds: map[queue]*feed{}, watchers: map[uuid.UUID]int{}}
}

// A feed is the looking at one queue.
type feed struct {
	number   uint64 // later ones have higher numbers
	watchers map[*Watcher]bool
	cancel   context.CancelFunc
}

// A Watcher gets what comes into one queue from about now on. Close it.
type Watcher struct {
	hub   *Hub
	queue queue
	// signal says that something waits, or that it is over.
	signal chan struct{}
	// waiting, missed and over are guarded by the hub's mutex.
	waiting []browse.Message
	missed  int
	over    error
}

// Watch begins to watch a queue of a tenant. The queue need not exist. Errors: ErrTooMany, ErrStopped.
func (h *Hub) Watch(tenant uuid.UUID, name string) (*Watcher, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := queue{tenant, name}
	f := h.feeds[key]
	switch {
	case h.stopped:
		return nil, ErrStopped
	case h.watchers[tenant] >= h.cfg.MaxWatchers, f == nil && len(h.feeds) >= h.cfg.MaxQueues && !h.yieldLocked(tenant):
		return nil, ErrTooMany
	}
	if f == nil {
		// It outlives the request that began it, when others came.
		ctx, cancel := context.WithCancel(context.Background())
		h.begun++
		f = &feed{number: h.begun, watchers: map[*Watcher]bool{}, cancel: cancel}
		h.feeds[key] = f
		h.running.Go(func() { h.look(ctx, key) })
	}
	w := &Watcher{hub: h, queue: key, signal: make(chan struct{}, 1)}
	f.watchers[w] = true
	h.watchers[tenant]++
	return w, nil
}

// yieldLocked makes room for a queue of a tenant when another tenant watches at least two more: that one's newest goes. It reports whether
// there is room now. The caller holds mu.
func (h *Hub) yieldLocked(tenant uuid.UUID) bool {
	counts := map[uuid.UUID]int{}
	for key := range h.feeds {
		counts[key.tenant]++
	}
	most := tenant
	for other, n := range counts {
		if n > counts[most] {
			most = other
		}
	}
	if counts[most] < counts[tenant]+2 {
		return false
	}
	var last queue
	for key, f := range h.feeds {
		if key.tenant == most && (last.tenant != most || f.number > h.feeds[last].number) {
			last = key
		}
	}
	f := h.feeds[last]
	for w := range f.watchers {
		w.over = ErrCrowdedOut
		w.wake()
		h.leaveLocked(w, f)
	}
	return true
}

// leaveLocked takes a watcher out of its feed, which ends with its last one. The caller holds mu.
func (h *Hub) leaveLocked(w *Watcher, f *feed) {
	delete(f.watchers, w)
	if h.watchers[w.queue.tenant]--; h.watchers[w.queue.tenant] == 0 {
		delete(h.watchers, w.queue.tenant)
	}
	if len(f.watchers) == 0 {
		f.cancel()
		delete(h.feeds, w.queue)
	}
}

// Close ends the watching. Closing twice does nothing.
func (w *Watcher) Close() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.feeds[w.queue]
	if f != nil && f.watchers[w] {
		h.leaveLocked(w, f)
	}
}

// Next waits for messages, oldest first, and says how many were left out before them. The error is that of ctx, ErrStopped
// or ErrCrowdedOut.
func (w *Watcher) Next(ctx context.Context) (messages []browse.Message, missed int, err error) {
	for {
		w.hub.mu.Lock()
		messages, missed = w.waiting, w.missed
		w.waiting, w.missed = nil, 0
		over := w.over
		w.hub.mu.Unlock()
		switch {
		case len(messages) > 0 || missed > 0:
			return messages, missed, nil
		case over != nil:
			return nil, 0, over
		}
		select {
		case <-w.signal:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// Stop ends all watching and waits until nothing looks any more. It is for the end of the broker, may be called twice, and does not
// wait for watchers to close.
func (h *Hub) Stop() {
	h.mu.Lock()
	h.stopped = true
	for _, f := range h.feeds {
		f.cancel()
		for w := range f.watchers {
			w.over = ErrStopped
			w.wake()
		}
	}
	h.mu.Unlock()
	h.running.Wait()
}

func (w *Watcher) wake() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// look reads what is new in a queue again and again until ctx ends.
func (h *Hub) look(ctx context.Context, q queue) {
	var seen memory
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		began := time.Now()
		messages, missed, err := h.read(ctx, q, &seen)
		took := time.Since(began)
		if err != nil && ctx.Err() == nil {
			h.cfg.Log.DebugContext(ctx, "a queue that is watched could not be read", slog.Any("error", err))
		}
		h.hand(q, messages, missed)
		wait.Reset(max(h.cfg.Interval, share*took))
	}
}

// memory is what a feed has seen.
type memory struct {
	begun  bool
	newest time.Time
	// offsets is the highest offset seen of each partition, at is when its message was stored.
	offsets map[uuid.UUID]mark
}

type mark struct {
	offset int64
	at     time.Time
}

// read returns the messages that were not there at the last look, oldest first. The first look shows nothing: what is there then is not
// new.
func (h *Hub) read(ctx context.Context, q queue, seen *memory) (fresh []browse.Message, missed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	filter := pg.MessageFilter{Queue: q.name, Limit: pageSize + 1}
	if seen.begun && !seen.newest.IsZero() {
		filter.From = seen.newest.Add(-overlap).UTC().Format(time.RFC3339Nano)
	}
	page, err := h.source.List(ctx, q.tenant, filter)
	if err != nil {
		return nil, 0, err
	}
	if seen.offsets == nil {
		seen.offsets = map[uuid.UUID]mark{}
	}
	for _, m := range page.Messages {
		if before, ok := seen.offsets[m.PartitionID]; seen.begun && (!ok || m.Offset > before.offset) {
			fresh = append(fresh, m)
		}
	}
	// A page of new messages alone does not reach back to the last look. How much lies between is not counted, only that it does.
	if len(fresh) > pageSize {
		fresh, missed = fresh[:pageSize], 1
	}
	for _, m := range page.Messages {
		if before, ok := seen.offsets[m.PartitionID]; !ok || m.Offset > before.offset {
			seen.offsets[m.PartitionID] = mark{m.Offset, m.CreatedAt}
		}
		if m.CreatedAt.After(seen.newest) {
			seen.newest = m.CreatedAt
		}
	}
	seen.begun = true
	for id, one := range seen.offsets { // what lies before the overlap cannot come again
		if one.at.Before(seen.newest.Add(-2 * overlap)) {
			delete(seen.offsets, id)
		}
	}
	slices.SortStableFunc(fresh, func(a, b browse.Message) int {
		if byTime := a.CreatedAt.Compare(b.CreatedAt); byTime != 0 {
			return byTime
		}
		if a.PartitionID != b.PartitionID {
			return cmp.Compare(a.Partition, b.Partition)
		}
		return cmp.Compare(a.Offset, b.Offset)
	})
	return fresh, missed, nil
}

// hand gives messages to everybody who watches a queue.
func (h *Hub) hand(q queue, messages []browse.Message, missed int) {
	if len(messages) == 0 && missed == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.feeds[q]
	if f == nil {
		return
	}
	for w := range f.watchers {
		w.waiting = append(w.waiting, messages...)
		w.missed += missed
		if late := len(w.waiting) - backlog; late > 0 {
			w.waiting = slices.Clone(w.waiting[late:])
			w.missed += late
		}
		w.wake()
	}
}
