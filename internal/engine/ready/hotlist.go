package ready

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// wheelTick is how often due partitions are looked for on behalf of parked pops. A pop that looks finds them without it.
	wheelTick = 50 * time.Millisecond
	maxShards = 1024
)

// HotConfig is the measures of a hot list. Zero values are the defaults.
type HotConfig struct {
	// Shards is the number of mutexes per ring. Default 8.
	Shards int
	// WindowBatch is how many messages end the window of a partition before its time. Default 100; negative is never.
	WindowBatch int
	// Reseed is how old the database's word on what is pending may get. Default 30 s.
	Reseed time.Duration
	// ReseedWindow is how far back a reseed looks for partitions written to. Default 4 x Reseed, at least 2 minutes.
	ReseedWindow time.Duration
	// ReseedFull is how often a reseed looks at all partitions. Default 5 minutes; negative makes every reseed full.
	ReseedFull time.Duration
	// IdleSweep is after how much time without a pop a ring is dropped. Default 5 minutes.
	IdleSweep time.Duration
	// RingsPerMinute is how many rings one tenant may make in a minute; beyond it its new groups are served by searching the
	// database. Default 10,000.
	RingsPerMinute int
	// Trace logs every claim, walk and change of rings: a line for each claim, to find out why a message was late.
	Trace bool
	// Log takes tenants that exceed RingsPerMinute, and the trace. Nil drops it.
	Log *slog.Logger
}

func (c HotConfig) withDefaults() HotConfig {
	positive := func(value *time.Duration, fallback time.Duration) {
		if *value == 0 {
			*value = fallback
		}
	}
	if c.Shards <= 0 {
		c.Shards = 8
	}
	c.Shards = min(c.Shards, maxShards)
	if c.WindowBatch == 0 {
		c.WindowBatch = 100
	}
	positive(&c.Reseed, 30*time.Second)
	positive(&c.ReseedWindow, max(4*c.Reseed, 2*time.Minute))
	positive(&c.ReseedFull, 5*time.Minute)
	positive(&c.IdleSweep, 5*time.Minute)
	if c.RingsPerMinute <= 0 {
		c.RingsPerMinute = 10_000
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// A HotList is this broker's belief about which partitions have undelivered messages, per (tenant, queue, group), so that a pop can name
// its candidates. Make one with [NewHotList].
type HotList struct {
	cfg HotConfig
	// now is the list's monotonic clock, in nanoseconds, never 0.
	now func() int64

	mu      sync.RWMutex
	tables  map[queueKey]*table
	created map[uuid.UUID]int // rings of the current minute
	minute  int64
}

// NewHotList returns an empty list.
func NewHotList(cfg HotConfig) *HotList {
	base := time.Now()
	return &HotList{
		cfg: cfg.withDefaults(), now: func() int64 { return int64(time.Since(base)) + 1 },
		tables: make(map[queueKey]*table), created: make(map[uuid.UUID]int),
	}
}

// Ring returns the ring of a group, making it when the group pops for the first time: it is cold then and must be walked. Nil when the
// tenant makes rings too fast; the database must be searched then.
func (l *HotList) Ring(tenant uuid.UUID, queue, group string) *Ring {
	key := queueKey{tenant, queue}
	r := l.find(key, group)
	if r == nil {
		r = l.create(key, group)
	}
	if r != nil {
		r.use()
	}
	return r
}

// use notes that a pop asked for the ring.
func (r *Ring) use() {
	// Loads first: the flags are shared by all pops of the group and hardly ever change.
	if !r.used.Load() {
		r.used.Store(true)
	}
	if !r.walks.popped.Load() {
		r.walks.popped.Store(true)
	}
}

func (l *HotList) find(key queueKey, group string) *Ring {
	if t := l.table(key); t != nil {
		return t.find(group)
	}
	return nil
}

func (l *HotList) table(key queueKey) *table {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.tables[key]
}

func (l *HotList) create(key queueKey, group string) *Ring {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tables[key]
	if t != nil {
		if r := t.find(group); r != nil {
			return r
		}
	}
	if minute := l.now() / int64(time.Minute); minute != l.minute {
		l.minute = minute
		clear(l.created)
	}
	switch made := l.created[key.tenant]; {
	case made > l.cfg.RingsPerMinute:
		return nil
	case made == l.cfg.RingsPerMinute:
		l.created[key.tenant]++ // logged once a minute
		l.cfg.Log.Warn("a tenant makes consumer groups too fast; new ones are served by searching the database",
			slog.String("tenant", key.tenant.String()), slog.Int("per_minute", l.cfg.RingsPerMinute))
		return nil
	}
	l.created[key.tenant]++
	if t == nil {
		t = newTable(l.now())
		l.tables[key] = t
	}
	r := newRing(l, t, key, group)
	t.addLocked(r)
	r.trace("ring made")
	return r
}

// mark notes messages in a partition for every group of the queue, and wakes pops that are parked for them.
func (l *HotList) mark(key queueKey, partition string, count int, quiet bool) {
	t := l.table(key)
	if t == nil {
		return
	}
	rings := *t.rings.Load()
	if len(rings) == 0 {
		return
	}
	index, now := t.intern(partition), l.now()
	for _, r := range rings {
		if !r.mark(index, clampCount(count), now) {
			continue
		}
		if quiet {
			r.crowd.wakeSoon()
		} else {
			r.crowd.wake()
		}
	}
}

func clampCount(n int) uint32 { return uint32(min(max(n, 0), 1<<31)) } //nolint:gosec // bounded in this line

// promote follows the end of a lease of (partition, group); covered as in [Gates.Released].
func (l *HotList) promote(key queueKey, partition, group, covered string) {
	t := l.table(key)
	if t == nil {
		return
	}
	r := t.find(group)
	if r == nil {
		return
	}
	// A name that was never marked or taken has nothing to be promoted.
	if index, known := t.lookUp(partition); known && r.promote(index, covered) {
		r.crowd.wakeSoon()
	}
}

// release follows the end of a lease of (partition, group) through another broker. Unlike promote it knows nothing of the partition, which
// may never have been named here.
func (l *HotList) release(key queueKey, partition, group string) {
	t := l.table(key)
	if t == nil {
		return
	}
	r := t.find(group)
	if r == nil {
		return
	}
	index := t.intern(partition)
	marked := r.mark(index, 0, l.now())
	if promoted := r.promote(index, ""); marked || promoted {
		r.crowd.wake()
	}
}

// overtake follows a claim of (partition, group) that did not go through the list; free as in [Gates.Taken].
func (l *HotList) overtake(key queueKey, partition, group string, free bool) {
	t := l.table(key)
	if t == nil {
		return
	}
	if r := t.find(group); r != nil {
		if index, known := t.lookUp(partition); known && r.overtake(index, free) {
			r.crowd.wakeSoon()
		}
	}
}

// forgetQueue drops everything about a queue. Parked pops look again and find a cold ring.
func (l *HotList) forgetQueue(key queueKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tables[key]; t != nil {
		for _, r := range *t.rings.Load() {
			l.dropLocked(t, r)
		}
		delete(l.tables, key)
	}
}

// forgetGroup asks for full walks of the matching rings. An empty queue or group stands for all of the tenant.
func (l *HotList) forgetGroup(tenant uuid.UUID, queue, group string) {
	for _, r := range l.rings() {
		if r.key.tenant == tenant && (queue == "" || r.key.queue == queue) && (group == "" || r.group == group) {
			r.force()
		}
	}
}

// forgetAll asks for full walks of all rings.
func (l *HotList) forgetAll() {
	for _, r := range l.rings() {
		r.force()
	}
}

func (l *HotList) wakeAll() {
	for _, r := range l.rings() {
		r.crowd.wakeAll()
	}
}

// rings returns all rings there are.
func (l *HotList) rings() []*Ring {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var all []*Ring
	for _, t := range l.tables {
		all = append(all, *t.rings.Load()...)
	}
	return all
}

// dropLocked takes a ring out of its table. The caller holds the mutex.
func (l *HotList) dropLocked(t *table, r *Ring) {
	r.trace("ring dropped")
	t.removeLocked(r)
	r.dropped.Store(true)
	r.crowd.disperse()
}

// Sweep drops the rings that no pop asked for since the sweep before and whose partitions nobody holds, and queues without rings. A later
// pop starts cold, and so does a queue that has gathered the names of many partitions which are idle or gone. Run calls it.
func (l *HotList) Sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, t := range l.tables {
		worn := t.isWorn(l.now())
		for _, r := range *t.rings.Load() {
			if worn || !r.used.Swap(false) && r.flying.Load() == 0 && r.crowd.size() == 0 {
				l.dropLocked(t, r)
			}
		}
		if len(*t.rings.Load()) == 0 {
			delete(l.tables, key)
		}
	}
}

// Run wakes parked pops for partitions that come due, and sweeps, until ctx ends; it returns nil.
func (l *HotList) Run(ctx context.Context) error {
	wheel, sweep := time.NewTicker(wheelTick), time.NewTicker(l.cfg.IdleSweep)
	defer wheel.Stop()
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wheel.C:
			l.turn()
		case <-sweep.C:
			l.Sweep()
		}
	}
}

// turn lists what is due in all rings.
func (l *HotList) turn() {
	now := l.now()
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, t := range l.tables {
		for _, r := range *t.rings.Load() {
			if r.turn(now) {
				r.crowd.wake()
			}
		}
	}
}

// HotStats are figures of a hot list at one moment.
type HotStats struct {
	// Queues, Rings and Partitions count what is kept; Ready what is listed and InFlight what pops have taken, over all rings.
	Queues, Rings, Partitions, Ready, InFlight int
}

// Stats counts what there is.
func (l *HotList) Stats() HotStats {
	l.mu.RLock()
	defer l.mu.RUnlock()
	stats := HotStats{Queues: len(l.tables)}
	for _, t := range l.tables {
		t.mu.RLock()
		stats.Partitions += len(t.names)
		t.mu.RUnlock()
		for _, r := range *t.rings.Load() {
			stats.Rings++
			stats.Ready += int(r.ready.Load())
			stats.InFlight += int(r.flying.Load())
		}
	}
	return stats
}
