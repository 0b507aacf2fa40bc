package ready

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// CoalesceInterval is the shortest time between two wakes of one gate. The first wake after a quiet time passes at once; those that
// follow within the interval are folded into one at its end. It bounds what a stream of commits to one queue costs when thousands
// of long polls wait for it.
const CoalesceInterval = 5 * time.Millisecond

// maxHints is the most partition names a gate remembers for its waiters. Older ones are dropped: a waiter that missed some
// finds their messages by the queue-wide claim.
const maxHints = 64

// Gates holds the gate of every queue, and of every tenant's discovery pops, that a long poll waits for. Make one with [New].
type Gates struct {
	mu        sync.RWMutex
	queues    map[queueKey]*gate
	discovery map[uuid.UUID]*gate
}

type queueKey struct {
	tenant uuid.UUID
	queue  string
}

// New returns an empty set of gates.
func New() *Gates {
	return &Gates{queues: make(map[queueKey]*gate), discovery: make(map[uuid.UUID]*gate)}
}

// Wake tells every long poll on the queue, and every discovery poll of the tenant, that the partition may have work: messages were
// stored, or a lease ended. Call it after the commit. An empty partition means "somewhere in the queue". It never blocks.
func (g *Gates) Wake(tenant uuid.UUID, queue, partition string) {
	g.mu.RLock()
	byQueue, byTenant := g.queues[queueKey{tenant, queue}], g.discovery[tenant]
	g.mu.RUnlock()
	if byQueue != nil {
		byQueue.wake(partition)
	}
	if byTenant != nil {
		byTenant.wake("")
	}
}

// WakeAll wakes every long poll, for a change that concerns all of them: the pop maintenance switch, or hints that were missed.
func (g *Gates) WakeAll() {
	g.mu.RLock()
	all := make([]*gate, 0, len(g.queues)+len(g.discovery))
	for _, one := range g.queues {
		all = append(all, one)
	}
	for _, one := range g.discovery {
		all = append(all, one)
	}
	g.mu.RUnlock()
	for _, one := range all {
		one.wake("")
	}
}

// Subscribe returns a waiter on the gate of one queue, creating the gate when the waiter is its first. Release it after use.
func (g *Gates) Subscribe(tenant uuid.UUID, queue string) *Waiter {
	return subscribe(g, g.queues, queueKey{tenant, queue})
}

// SubscribeDiscovery returns a waiter that any queue of the tenant wakes. Release it after use.
func (g *Gates) SubscribeDiscovery(tenant uuid.UUID) *Waiter {
	return subscribe(g, g.discovery, tenant)
}

// subscribe joins the gate under key in one of the two maps of g.
func subscribe[K comparable](g *Gates, gates map[K]*gate, key K) *Waiter {
	g.mu.Lock()
	defer g.mu.Unlock()
	joined, ok := gates[key]
	if !ok {
		joined = &gate{opened: make(chan struct{})}
		gates[key] = joined
	}
	joined.waiters++
	return &Waiter{gate: joined, leave: func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		joined.waiters--
		if joined.waiters == 0 {
			delete(gates, key)
			joined.stop()
		}
	}}
}

// Size returns how many queue gates and discovery gates exist, for metrics.
func (g *Gates) Size() (queues, tenants int) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return len(g.queues), len(g.discovery)
}

// WaitingByQueue returns how many long polls are subscribed to each queue, for metrics. Queues of the same name are summed over
// tenants; queues without long polls are left out.
func (g *Gates) WaitingByQueue() map[string]int {
	g.mu.RLock()
	defer g.mu.RUnlock()
	waiting := make(map[string]int, len(g.queues))
	for key, one := range g.queues {
		waiting[key.queue] += one.waiters
	}
	return waiting
}

// Waiting returns how many long polls are subscribed to a queue, for metrics.
func (g *Gates) Waiting(tenant uuid.UUID, queue string) int {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if one, ok := g.queues[queueKey{tenant, queue}]; ok {
		return one.waiters
	}
	return 0
}
