package ready

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Deferral is what a queue does to new messages before they may be delivered.
type Deferral struct {
	// Delay is how long a message stays invisible.
	Delay time.Duration
	// Window is how long messages are collected before they are delivered together.
	Window time.Duration
}

const (
	// manyNames is how many partition names of a queue are kept without asking whether they are of use, tableLife how long all are.
	manyNames = 100_000
	tableLife = time.Hour
)

// A table is what the hot list keeps per queue: its partition names as small numbers, and its rings.
type table struct {
	// born is when it was made, on the list's clock.
	born int64
	// rings is replaced as a whole, so that marks read it without a lock.
	rings    atomic.Pointer[[]*Ring]
	deferral atomic.Pointer[Deferral]

	mu      sync.RWMutex
	indexes map[string]uint32
	names   []string
}

func newTable(now int64) *table {
	t := &table{born: now, indexes: make(map[string]uint32)}
	t.rings.Store(&[]*Ring{})
	t.deferral.Store(&Deferral{})
	return t
}

// intern returns the number of a partition name, a new one when it has none.
func (t *table) intern(name string) uint32 {
	t.mu.RLock()
	index, ok := t.indexes[name]
	t.mu.RUnlock()
	if ok {
		return index
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if index, ok := t.indexes[name]; ok {
		return index
	}
	index = uint32(len(t.names)) //nolint:gosec // four thousand million names do not fit into memory
	t.names = append(t.names, name)
	t.indexes[name] = index
	return index
}

// lookUp returns the number of a partition name that has one.
func (t *table) lookUp(name string) (uint32, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	index, ok := t.indexes[name]
	return index, ok
}

// find returns the ring of a group, nil when there is none.
func (t *table) find(group string) *Ring {
	for _, r := range *t.rings.Load() {
		if r.group == group {
			return r
		}
	}
	return nil
}

// addLocked and removeLocked replace the list of rings. The caller holds the list's mutex.
func (t *table) addLocked(r *Ring) {
	rings := append(slices.Clone(*t.rings.Load()), r)
	t.rings.Store(&rings)
}

func (t *table) removeLocked(r *Ring) {
	rings := slices.DeleteFunc(slices.Clone(*t.rings.Load()), func(other *Ring) bool { return other == r })
	t.rings.Store(&rings)
}

// isWorn tells whether the table is old and mostly of names that nothing is believed about. A queue may get new partitions for ever, one for
// each order say; a table that is made anew knows those that have messages.
func (t *table) isWorn(now int64) bool {
	t.mu.RLock()
	names := len(t.names)
	t.mu.RUnlock()
	if names < manyNames || now-t.born < int64(tableLife) {
		return false
	}
	believed := 0
	for _, r := range *t.rings.Load() {
		believed = max(believed, r.believed())
	}
	return believed < names/4
}
