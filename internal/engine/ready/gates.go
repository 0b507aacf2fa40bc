package ready

import (
	"sync"
	"sync/atomic"
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
	hot  *HotList // nil when the database finds the partitions
	tell func(tenant uuid.UUID, queue, partition string)
	// tellEnd is told of leases that ended before their time.
	tellEnd func(tenant uuid.UUID, queue, partition, group string)
	// postponed counts the releases that are yet to come.
	postponed atomic.Int64

	mu        sync.RWMutex
	queues    map[queueKey]*gate
	discovery map[uuid.UUID]*gate
}

// maxPostponed bounds the timers of redeliveries that wait, some 300 bytes each.
const maxPostponed = 100_000

type queueKey struct {
	tenant uuid.UUID
	queue  string
}

// New returns an empty set of gates without a hot list.
func New() *Gates {
	return &Gates{
		tell:    func(uuid.UUID, string, string) {},
		tellEnd: func(uuid.UUID, string, string, string) {},
		queues:  make(map[queueKey]*gate), discovery: make(map[uuid.UUID]*gate),
	}
}

// Tell makes available hear of every partition in which this broker made messages available, and ended of every lease of a group that
// ended before its time, for the other brokers. Neither may block. Call it before the gates are in use.
func (g *Gates) Tell(available func(tenant uuid.UUID, queue, partition string), ended func(tenant uuid.UUID, queue, partition, group string)) {
	g.tell, g.tellEnd = available, ended
}

// NewHot returns an empty set of gates that keeps a hot list for queue pops.
func NewHot(list *HotList) *Gates {
	g := New()
	g.hot = list
	return g
}

// HotList returns the hot list, nil when there is none.
func (g *Gates) HotList() *HotList { return g.hot }

// Stored tells that n messages of this broker's pushes were committed to a partition. It never blocks; wakes are coalesced.
func (g *Gates) Stored(tenant uuid.UUID, queue, partition string, n int) {
	if g.hot != nil {
		g.hot.mark(queueKey{tenant, queue}, partition, n, true)
	}
	g.open(tenant, queue, partition)
	g.tell(tenant, queue, partition)
}

// Wake tells every long poll on the queue, and every discovery poll of the tenant, that the partition may have work that is not the
// doing of a push: a transaction, a moved dead letter, a changed option. Call it after the commit. An empty partition means "somewhere
// in the queue". It never blocks.
func (g *Gates) Wake(tenant uuid.UUID, queue, partition string) {
	g.WakeRemote(tenant, queue, partition)
	g.tell(tenant, queue, partition)
}

// WakeRemote is Wake for what other brokers know already, because they said so or are told otherwise.
func (g *Gates) WakeRemote(tenant uuid.UUID, queue, partition string) {
	switch {
	case g.hot == nil:
	case partition == "":
		g.hot.forgetGroup(tenant, queue, "")
	default:
		g.hot.mark(queueKey{tenant, queue}, partition, 0, false)
	}
	g.open(tenant, queue, partition)
}

// Released tells that a lease of (partition, group) ended by an acknowledgment or because it was given back. covered is the lease when its
// whole batch was completed, which no nack, retry or partial ack ever does, else empty.
func (g *Gates) Released(tenant uuid.UUID, queue, partition, group, covered string) {
	if g.hot != nil {
		g.hot.promote(queueKey{tenant, queue}, partition, group, covered)
	}
	g.open(tenant, queue, partition)
	// What was given back is as good as new to the others. After a covered batch there may be more too, but telling so for every ack
	// would cost more than their looking again by themselves.
	if covered == "" {
		g.tellEnd(tenant, queue, partition, group)
	}
}

// ReleasedRemote is Released, not covered, for what ended through another broker. A partition that the hot list leaves alone because its
// lease is held is looked at: a mark, which any push brings, would not do that.
func (g *Gates) ReleasedRemote(tenant uuid.UUID, queue, partition, group string) {
	if g.hot != nil {
		g.hot.release(queueKey{tenant, queue}, partition, group)
	}
	g.open(tenant, queue, partition)
}

// Postponed tells that a lease of (partition, group) ended and that its messages cannot be claimed before delay has passed, counted from
// about now. It never blocks. At the end of the delay it is Released, unless too many are waiting already: then the database's word, which
// the hot list gets with its next claim, and the back-off of long polls have to do.
func (g *Gates) Postponed(tenant uuid.UUID, queue, partition, group string, delay time.Duration) {
	if g.hot != nil {
		g.hot.promote(queueKey{tenant, queue}, partition, group, "")
	}
	if g.postponed.Add(1) > maxPostponed {
		g.postponed.Add(-1)
		return
	}
	time.AfterFunc(delay, func() {
		g.postponed.Add(-1)
		g.Released(tenant, queue, partition, group, "")
	})
}

// Taken tells that a pop claimed messages of (partition, group) past the hot list. What the list believed about the newest batch is no
// longer about the newest batch. free says that the pop acknowledged them at once: nobody has a lease, and if the list waits for the end of one,
// that has come.
func (g *Gates) Taken(tenant uuid.UUID, queue, partition, group string, free bool) {
	if g.hot != nil {
		g.hot.overtake(queueKey{tenant, queue}, partition, group, free)
	}
}

// ForgetQueue drops what is believed about a queue that was deleted or configured.
func (g *Gates) ForgetQueue(tenant uuid.UUID, queue string) {
	if g.hot != nil {
		g.hot.forgetQueue(queueKey{tenant, queue})
	}
}

// ForgetGroup makes the hot list ask the database again about a group whose cursors moved other than by acknowledgments. An empty
// queue or group stands for all of the tenant.
func (g *Gates) ForgetGroup(tenant uuid.UUID, queue, group string) {
	if g.hot != nil {
		g.hot.forgetGroup(tenant, queue, group)
	}
}

// ForgetAll makes the hot list ask the database again about everything, for a broker that may have missed changes.
func (g *Gates) ForgetAll() {
	if g.hot != nil {
		g.hot.forgetAll()
	}
}

// open wakes the long polls at the gates.
func (g *Gates) open(tenant uuid.UUID, queue, partition string) {
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
	if g.hot != nil {
		g.hot.wakeAll()
	}
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
