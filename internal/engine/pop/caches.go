package pop

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

const (
	// cacheTTL is how long the settings of a queue or a registration are believed. A change made through another broker is seen after it.
	cacheTTL = 30 * time.Second
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

// queueSettings returns what pops need of a queue's options. A queue that does not exist yet has the defaults, which are not remembered:
// it may be configured the next moment.
func (s *Server) queueSettings(ctx context.Context, tenant uuid.UUID, queue string) (pg.QueueSettings, error) {
	key := queueKey{tenant, queue}
	if settings, ok := s.settings.get(key); ok {
		return settings, nil
	}
	leave, err := s.flights.join(ctx, groupKey{tenant, queue, ""})
	if err != nil {
		return pg.QueueSettings{}, err
	}
	defer leave()
	if settings, ok := s.settings.get(key); ok {
		return settings, nil
	}
	settings, found, err := s.db.QueueSettings(ctx, tenant, queue)
	if err != nil {
		return pg.QueueSettings{}, err
	}
	if settings.LeaseSeconds <= 0 {
		settings.LeaseSeconds = defaultLeaseSeconds
	}
	if found {
		s.settings.put(key, settings)
	}
	return settings, nil
}

// register makes sure that the group is registered with the queue. Of pops that come together for a group that is not, one registers it with a
// search of the database, whose result it may return; the others wait for that: each would search all partitions.
func (s *Server) register(ctx context.Context, l *look) (*Result, error) {
	if s.registered(&l.PopRequest) {
		return nil, nil
	}
	leave, err := s.flights.join(ctx, groupKey{l.Tenant, l.Queue, l.Group})
	if err != nil {
		return nil, err
	}
	defer leave()
	if s.registered(&l.PopRequest) {
		return nil, nil
	}
	found, err := s.db.GroupRegistered(ctx, l.Tenant, l.Queue, l.Group)
	if err != nil {
		return nil, err
	}
	if found {
		s.markers.put(groupKey{l.Tenant, l.Queue, l.Group}, struct{}{})
		return nil, nil
	}
	if err := s.setLease(ctx, l); err != nil {
		return nil, err
	}
	// Provisions the queue, registers the group and seeds its cursors.
	result, err := s.search(ctx, l)
	if err == nil {
		s.seedSoon(groupKey{l.Tenant, l.Queue, l.Group})
	}
	return result, err
}

// flights makes pops that need the same fact at the same time wait for one of them to read it.
type flights struct {
	mu      sync.Mutex
	current map[groupKey]*flight
}

type flight struct {
	turn    chan struct{} // capacity 1
	members int
}

// join waits for the caller's turn at a key; leave ends it. The error is ctx's cause.
func (f *flights) join(ctx context.Context, key groupKey) (leave func(), err error) {
	f.mu.Lock()
	one, ok := f.current[key]
	if !ok {
		if f.current == nil {
			f.current = make(map[groupKey]*flight)
		}
		one = &flight{turn: make(chan struct{}, 1)}
		f.current[key] = one
	}
	one.members++
	f.mu.Unlock()
	quit := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		one.members--
		if one.members == 0 {
			delete(f.current, key)
		}
	}
	select {
	case one.turn <- struct{}{}:
		return func() { <-one.turn; quit() }, nil
	case <-ctx.Done():
		quit()
		return nil, context.Cause(ctx)
	}
}

// registered says whether the group is known to be registered with the queue. A group that is not may have a cursor to be
// seeded, so that a read-only look would not do.
func (s *Server) registered(r *pg.PopRequest) bool {
	_, ok := s.markers.get(groupKey{r.Tenant, r.Queue, r.Group})
	return ok
}

// ForgetQueue drops what is remembered about a queue. Call it after the queue was configured or deleted, here or elsewhere.
func (s *Server) ForgetQueue(tenant uuid.UUID, queue string) {
	s.settings.forget(func(k queueKey) bool { return k == queueKey{tenant, queue} })
	s.markers.forget(func(k groupKey) bool { return k.tenant == tenant && k.queue == queue })
	s.gates.ForgetQueue(tenant, queue)
}

// ForgetGroup drops what is remembered about a consumer group, on one queue or, with an empty queue, on all queues of the tenant. An empty
// group stands for all groups.
// Call it after the group was deleted or its cursors were moved.
func (s *Server) ForgetGroup(tenant uuid.UUID, queue, group string) {
	s.markers.forget(func(k groupKey) bool {
		return k.tenant == tenant && (group == "" || k.group == group) && (queue == "" || k.queue == queue)
	})
	s.gates.ForgetGroup(tenant, queue, group)
}

// ForgetAll drops what is remembered about all queues and groups, for a broker that may have missed changes. The hot list, which has ways of
// its own to find what it missed, stays.
func (s *Server) ForgetAll() {
	s.settings.forget(func(queueKey) bool { return true })
	s.markers.forget(func(groupKey) bool { return true })
}
