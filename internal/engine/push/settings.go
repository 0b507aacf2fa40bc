package push

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// settingsAge is the oldest answer that is used. A queue that becomes bounded meanwhile is still exact, the database
	// sees to that; only its requests may be judged together with others until then.
	settingsAge = 5 * time.Second
	// settingsRefresh is the age from which an answer in use is read again in the background, so that a busy queue never
	// waits for it.
	settingsRefresh = settingsAge / 2
	// settingsRetry is how long a failed read is not repeated. Meanwhile, and while it is repeated, the last answer counts:
	// during an outage no push waits for a read that will fail before it waits for a commit that will.
	settingsRetry = time.Second
	// maxSettings bounds the memory for queues that are never pushed to again.
	maxSettings = 100_000
)

// settingsCache knows which queues are bounded, and which demand encryption.
type settingsCache struct {
	db Store

	mu      sync.Mutex
	entries map[queueKey]*queueEntry
	loads   sync.WaitGroup
}

type queueKey struct {
	tenant uuid.UUID
	name   string
}

type queueEntry struct {
	bounded    bool
	encrypted  bool
	repeats    bool // de-duplication is off
	known      bool // the settings were read at least once
	refreshAt  time.Time
	validUntil time.Time
	loading    chan struct{} // closed when the read under way is over; nil without one
}

func newSettingsCache(db Store) *settingsCache {
	return &settingsCache{db: db, entries: make(map[queueKey]*queueEntry)}
}

// bounded reports whether the queue has a limit. Unknown queues have none, and neither has a queue whose settings cannot be
// read now. It fails only with ctx's error.
func (s *settingsCache) bounded(ctx context.Context, tenant uuid.UUID, queue string) (bool, error) {
	k := queueKey{tenant, queue}
	now := time.Now()
	s.mu.Lock()
	e := s.entries[k]
	if e == nil {
		if len(s.entries) >= maxSettings {
			clear(s.entries)
		}
		e = &queueEntry{}
		s.entries[k] = e
	}
	if e.loading == nil && !now.Before(e.refreshAt) {
		e.loading = make(chan struct{})
		s.loads.Go(func() { s.load(context.WithoutCancel(ctx), k, e) })
	}
	if now.Before(e.validUntil) {
		defer s.mu.Unlock()
		return e.bounded, nil
	}
	loading := e.loading
	s.mu.Unlock()
	select {
	case <-loading:
	case <-ctx.Done():
		return false, fmt.Errorf("push: %w", ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.bounded, nil
}

// load reads the settings of one queue. A failure keeps the old answer for a moment: the push itself will tell the caller.
func (s *settingsCache) load(ctx context.Context, k queueKey, e *queueEntry) {
	settings, found, err := s.db.QueueSettings(ctx, k.tenant, k.name)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		e.refreshAt, e.validUntil = now.Add(settingsRetry), now.Add(settingsAge)
	} else {
		e.bounded = found && settings.MaxSize > 0
		e.encrypted = found && settings.EncryptionEnabled
		e.repeats = found && settings.DedupWindow <= 0
		e.known = true
		e.refreshAt, e.validUntil = now.Add(settingsRefresh), now.Add(settingsAge)
	}
	close(e.loading)
	e.loading = nil
}

// encrypts reports what the last read said, false when there was none. It does not wait: a flush asks it.
func (s *settingsCache) encrypts(tenant uuid.UUID, queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[queueKey{tenant, queue}]
	return e != nil && e.encrypted
}

// Options are what the pusher knows of a queue without asking anybody.
type Options struct {
	// Known says that the settings were read at least once. The rest is zero otherwise.
	Known bool
	// Encrypted demands encrypted payloads.
	Encrypted bool
	// Repeats says that de-duplication is off: a transaction id that comes again is another message.
	Repeats bool
}

// lastKnown is what the last read said.
func (s *settingsCache) lastKnown(tenant uuid.UUID, queue string) Options {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[queueKey{tenant, queue}]
	if e == nil {
		return Options{}
	}
	return Options{Known: e.known, Encrypted: e.encrypted, Repeats: e.repeats}
}

func (s *settingsCache) forget(tenant uuid.UUID, queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, queueKey{tenant, queue})
}

// wait returns when no read is under way. No new one may start meanwhile.
func (s *settingsCache) wait() { s.loads.Wait() }
