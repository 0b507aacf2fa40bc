// Package meter counts what goes through a broker, in total and per queue. It is put around the engine as decorators, so that
// the rooms of the data path know nothing of it.
//
// # Concurrency and bounds
//
// Counting takes no lock and allocates nothing once a queue is known: a look-up in a map that is replaced, never changed, and a
// few atomic additions. At most maxQueues queues are told apart; what goes through others counts in the totals only.
package meter

import (
	"hash/maphash"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// maxQueues bounds the memory that callers can take by naming queues: about 300 bytes each.
const maxQueues = 20_000

// shards spreads the queues, so that the first use of one copies a small map.
const shards = 256

// Counts are cumulative figures. Lag is the age of messages when they were popped, in milliseconds.
type Counts struct {
	PushRequests, PushMessages         int64
	PopRequests, PopMessages, PopEmpty int64
	AckRequests, AckMessages           int64
	AckOK, AckFailed                   int64
	Transactions, DeadLetters          int64
	LagSum, LagCount                   int64
}

// counters are Counts that are being counted.
type counters struct {
	pushRequests, pushMessages         atomic.Int64
	popRequests, popMessages, popEmpty atomic.Int64
	ackRequests, ackMessages           atomic.Int64
	ackOK, ackFailed                   atomic.Int64
	transactions, deadLetters          atomic.Int64
	lagSum, lagCount, lagMax           atomic.Int64
}

func (c *counters) load() Counts {
	return Counts{
		PushRequests: c.pushRequests.Load(), PushMessages: c.pushMessages.Load(),
		PopRequests: c.popRequests.Load(), PopMessages: c.popMessages.Load(), PopEmpty: c.popEmpty.Load(),
		AckRequests: c.ackRequests.Load(), AckMessages: c.ackMessages.Load(),
		AckOK: c.ackOK.Load(), AckFailed: c.ackFailed.Load(),
		Transactions: c.transactions.Load(), DeadLetters: c.deadLetters.Load(),
		LagSum: c.lagSum.Load(), LagCount: c.lagCount.Load(),
	}
}

func (c *counters) sampleLag(milliseconds, messages int64) {
	c.lagSum.Add(milliseconds * messages)
	c.lagCount.Add(messages)
	raise(&c.lagMax, milliseconds)
}

// raise makes the value at least as large as to.
func raise(value *atomic.Int64, to int64) {
	for {
		now := value.Load()
		if to <= now || value.CompareAndSwap(now, to) {
			return
		}
	}
}

// A Queue is the figures of one queue.
type Queue struct {
	Tenant uuid.UUID
	Name   string

	counters
}

// Counts returns the figures since the queue was first used.
func (q *Queue) Counts() Counts { return q.load() }

// TakeLagMax returns the largest lag since it was last taken, and starts anew. ReturnLagMax gives it back, when what was taken
// could not be stored.
func (q *Queue) TakeLagMax() int64 { return q.lagMax.Swap(0) }

// ReturnLagMax undoes a TakeLagMax.
func (q *Queue) ReturnLagMax(milliseconds int64) { raise(&q.lagMax, milliseconds) }

type key struct {
	tenant uuid.UUID
	name   string
}

type shard struct {
	mu     sync.Mutex // of writers
	queues atomic.Pointer[map[key]*Queue]
}

// A Meter holds the figures of one broker. Make one with [New].
type Meter struct {
	total  counters
	size   atomic.Int64
	seed   maphash.Seed
	shards [shards]shard
	offset atomic.Int64
}

// New returns a meter at zero.
func New() *Meter {
	m := &Meter{seed: maphash.MakeSeed()}
	for i := range m.shards {
		m.shards[i].queues.Store(&map[key]*Queue{})
	}
	return m
}

// Total returns the figures of all queues together, also of those that are not told apart.
func (m *Meter) Total() Counts { return m.total.load() }

// TakeLagMax and ReturnLagMax are as those of a Queue.
func (m *Meter) TakeLagMax() int64 { return m.total.lagMax.Swap(0) }

// ReturnLagMax undoes a TakeLagMax.
func (m *Meter) ReturnLagMax(milliseconds int64) { raise(&m.total.lagMax, milliseconds) }

// SetClockOffset tells how far the database's clock is ahead of ours: messages carry the database's time.
func (m *Meter) SetClockOffset(d time.Duration) { m.offset.Store(int64(d)) }

// Queues returns every queue that is told apart.
func (m *Meter) Queues() []*Queue {
	all := make([]*Queue, 0, m.size.Load())
	for i := range m.shards {
		for _, queue := range *m.shards[i].queues.Load() {
			all = append(all, queue)
		}
	}
	return all
}

// Forget stops telling a queue apart until it is used again. Who counts in it at this very moment still counts in the value
// forgotten: look at it once more later.
func (m *Meter) Forget(queue *Queue) {
	k := key{queue.Tenant, queue.Name}
	s := m.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := *s.queues.Load()
	if now[k] != queue {
		return
	}
	next := maps.Clone(now)
	delete(next, k)
	s.queues.Store(&next)
	m.size.Add(-1)
}

func (m *Meter) shard(k key) *shard {
	return &m.shards[(maphash.String(m.seed, k.name)+uint64(k.tenant[15]))%shards]
}

// queue returns the figures of a queue, nil when there are too many queues.
func (m *Meter) queue(tenant uuid.UUID, name string) *Queue {
	k := key{tenant, name}
	s := m.shard(k)
	if found := (*s.queues.Load())[k]; found != nil {
		return found
	}
	return m.add(s, k)
}

func (m *Meter) add(s *shard, k key) *Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := *s.queues.Load()
	if found := now[k]; found != nil {
		return found
	}
	if m.size.Add(1) > maxQueues {
		m.size.Add(-1)
		return nil
	}
	next := maps.Clone(now)
	added := &Queue{Tenant: k.tenant, Name: k.name}
	next[k] = added
	s.queues.Store(&next)
	return added
}

// age is how old something of that time is by the database's clock, in milliseconds; never negative.
func (m *Meter) age(now, createdAt time.Time) int64 {
	return max(now.Sub(createdAt)+time.Duration(m.offset.Load()), 0).Milliseconds()
}

// DeadLetter counts a message that was filed without an ack.
func (m *Meter) DeadLetter() { m.total.deadLetters.Add(1) }
