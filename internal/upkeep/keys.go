package upkeep

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// keysInterval is how often a broker says which key it encrypts with. A key can be retired five minutes after the last word.
	keysInterval = time.Minute
	// keysAge is for how long a key that was missing is taken to be missing still.
	keysAge = 5 * time.Second
)

// A KeyStore keeps which keys are in use.
type KeyStore interface {
	UseEncryptionKey(ctx context.Context, active string, ring []string) (missing []string, err error)
}

// Keys is the loop that says which key this broker encrypts with, and knows which keys of the other brokers it lacks.
type Keys struct {
	*Loop
	db     KeyStore
	active string
	ring   []string

	mu      sync.Mutex
	missing []string
	asked   time.Time
}

// NewKeys makes the loop; ring are the ids of all keys, the active one first. An empty ring has nothing to say.
func NewKeys(db KeyStore, ring []string, log *slog.Logger) *Keys {
	k := &Keys{db: db, ring: ring}
	if len(ring) > 0 {
		k.active = ring[0]
	}
	k.Loop = newLoop("encryption keys", keysInterval, keysInterval, log, k.Step)
	return k
}

// Step says it once.
func (k *Keys) Step(ctx context.Context) error {
	if k.active == "" {
		return nil
	}
	_, err := k.Missing(ctx)
	return err
}

// Missing returns the ids of keys that brokers of the database encrypt with and this one lacks.
func (k *Keys) Missing(ctx context.Context) ([]string, error) {
	missing, err := k.db.UseEncryptionKey(ctx, k.active, k.ring)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.missing, k.asked = missing, time.Now()
	return missing, nil
}

// Lacks tells whether a key is one that others encrypt with and this broker lacks. When the database cannot be asked, it is: nothing is
// given up in doubt.
func (k *Keys) Lacks(ctx context.Context, id string) bool {
	k.mu.Lock()
	known := slices.Contains(k.missing, id) && time.Since(k.asked) < keysAge
	k.mu.Unlock()
	if known {
		return true
	}
	// A key that came into use this moment counts: a message is given up only on a word of now.
	missing, err := k.Missing(ctx)
	return err != nil || slices.Contains(missing, id)
}
