package ack

import (
	"context"
	"errors"
	"sync"

	"github.com/google/uuid"
)

// ErrNotOwned says that a partition belongs to another tenant or does not exist; the two look the same from outside.
var ErrNotOwned = errors.New(textNotOwned)

// ownerEntries is how many partitions are remembered, twice: the facts never change, and an entry is some 150 bytes.
const ownerEntries = 50_000

// An Owner is where a partition belongs. It never changes for the life of a partition id.
type Owner struct {
	Tenant           uuid.UUID
	Queue, Partition string
}

// owners remembers partitions that exist. Only what was found is kept: a partition that is unknown now may exist in a moment. It is
// two maps: when the young one is full it becomes the old one, whose entries move over when they are used.
type owners struct {
	mu         sync.Mutex
	young, old map[uuid.UUID]Owner
}

func (o *owners) get(id uuid.UUID) (Owner, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if owner, ok := o.young[id]; ok {
		return owner, true
	}
	owner, ok := o.old[id]
	if ok {
		o.putLocked(id, owner)
	}
	return owner, ok
}

func (o *owners) put(id uuid.UUID, owner Owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.putLocked(id, owner)
}

// putLocked keeps the entry among the young. The caller holds the mutex.
func (o *owners) putLocked(id uuid.UUID, owner Owner) {
	if o.young == nil || len(o.young) >= ownerEntries {
		o.old, o.young = o.young, make(map[uuid.UUID]Owner)
	}
	o.young[id] = owner
}

// Owner says where a partition belongs. It is ErrNotOwned unless that is the tenant, and the database's error when it could not be
// asked.
func (s *Server) Owner(ctx context.Context, tenant, partition uuid.UUID) (Owner, error) {
	owner, found, err := s.lookUpFor(ctx, tenant, partition)
	switch {
	case err != nil:
		return Owner{}, err
	case !found || owner.Tenant != tenant:
		return Owner{}, ErrNotOwned
	default:
		return owner, nil
	}
}

// lookUp finds a partition, in memory or in the database.
func (s *Server) lookUp(ctx context.Context, partition uuid.UUID) (Owner, bool, error) {
	if owner, ok := s.owners.get(partition); ok {
		return owner, true, nil
	}
	return s.ask(ctx, partition)
}

// lookUpFor finds a partition for a tenant. The database is asked for that of another tenant like for one that does not exist: an answer from
// memory would be quicker, and tell them apart.
func (s *Server) lookUpFor(ctx context.Context, tenant, partition uuid.UUID) (Owner, bool, error) {
	if owner, ok := s.owners.get(partition); ok && owner.Tenant == tenant {
		return owner, true, nil
	}
	return s.ask(ctx, partition)
}

// ask finds a partition in the database.
func (s *Server) ask(ctx context.Context, partition uuid.UUID) (Owner, bool, error) {
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	case <-ctx.Done():
		return Owner{}, false, context.Cause(ctx)
	}
	tenant, queue, name, found, err := s.db.PartitionOwner(ctx, partition)
	if err != nil || !found {
		return Owner{}, false, err
	}
	owner := Owner{Tenant: tenant, Queue: queue, Partition: name}
	s.owners.put(partition, owner)
	return owner, true, nil
}
