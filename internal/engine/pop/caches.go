package pop

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

const (
	// cacheTTL is how long a lease time or a registration is believed. A change made through another broker is seen after it.
	cacheTTL = time.Minute
	// cacheEntries bounds each cache; a full one starts over, which costs one read per queue.
	cacheEntries = 100_000
	// defaultLeaseSeconds is the lease of a queue that does not exist yet.
	defaultLeaseSeconds = 60
)

type queueKey struct {
	tenant uuid.UUID
	queue  string
}

type groupKey struct {
	tenant       uuid.UUID
	queue, group string
}

// expiring is a bounded map whose entries are believed for cacheTTL.
type expiring[K comparable, V any] struct {
	mu      sync.Mutex
	entries map[K]expiringEntry[V]
}

type expiringEntry[V any] struct {
	value V
	until time.Time
}

func (c *expiring[K, V]) get(key K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, ok := c.entries[key]
	if ok && time.Now().After(entry.until) {
		delete(c.entries, key)
		ok = false
	}
	return entry.value, ok
}

func (c *expiring[K, V]) put(key K, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil || len(c.entries) >= cacheEntries {
		c.entries = make(map[K]expiringEntry[V])
	}
	c.entries[key] = expiringEntry[V]{value, time.Now().Add(cacheTTL)}
}

// forget drops the entries whose key matches.
func (c *expiring[K, V]) forget(matches func(K) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range c.entries {
		if matches(key) {
			delete(c.entries, key)
		}
	}
}

// leaseSeconds is how long a batch of the queue is held when the pop does not say.
func (s *Server) leaseSeconds(ctx context.Context, tenant uuid.UUID, queue string) (int, error) {
	key := queueKey{tenant, queue}
	if seconds, ok := s.leases.get(key); ok {
		return seconds, nil
	}
	settings, found, err := s.db.QueueSettings(ctx, tenant, queue)
	if err != nil {
		return 0, err
	}
	if !found || settings.LeaseSeconds <= 0 {
		return defaultLeaseSeconds, nil // not remembered: the queue may be configured the next moment
	}
	s.leases.put(key, settings.LeaseSeconds)
	return settings.LeaseSeconds, nil
}

// registered says whether the group is known to be registered with the queue. A group that is not may have a cursor to be
// seeded, so that a read-only look would not do.
func (s *Server) registered(r *pg.PopRequest) bool {
	_, ok := s.markers.get(groupKey{r.Tenant, r.Queue, r.Group})
	return ok
}

// ForgetQueue drops what is remembered about a queue. Call it after the queue was configured or deleted, here or elsewhere.
func (s *Server) ForgetQueue(tenant uuid.UUID, queue string) {
	s.leases.forget(func(k queueKey) bool { return k == queueKey{tenant, queue} })
	s.markers.forget(func(k groupKey) bool { return k.tenant == tenant && k.queue == queue })
}

// ForgetGroup drops what is remembered about a consumer group, on one queue or, with an empty queue, on all queues of the tenant.
// Call it after the group was deleted or its cursors were moved.
func (s *Server) ForgetGroup(tenant uuid.UUID, queue, group string) {
	s.markers.forget(func(k groupKey) bool {
		return k.tenant == tenant && k.group == group && (queue == "" || k.queue == queue)
	})
}

// ForgetAll drops everything remembered, for a broker that may have missed changes.
func (s *Server) ForgetAll() {
	s.leases.forget(func(queueKey) bool { return true })
	s.markers.forget(func(groupKey) bool { return true })
}
