package ack

import (
	"context"
	"encoding/hex"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/ready"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

const (
	// defaultTimeout bounds one group's way through slot, connection and statement, a little above the statement timeout.
	defaultTimeout = 40 * time.Second
	// defaultConcurrency is how many groups of one request are on their way at a time.
	defaultConcurrency = 16
	// concurrentReads bounds the look-ups of partitions outside admission.
	concurrentReads = 8
)

// A Store is what this package needs of the database door.
type Store interface {
	AckByHash(ctx context.Context, a pg.HashAck) (pg.HashAckResult, error)
	SegmentAt(ctx context.Context, partition uuid.UUID, offset int64) (pg.StoredSegment, bool, error)
	FileDeadLetter(ctx context.Context, d pg.DeadLetter) (pg.DeadLetterResult, error)
	RenewLease(ctx context.Context, tenant uuid.UUID, worker string, seconds int) (pg.Renewal, error)
	PartitionOwner(ctx context.Context, partition uuid.UUID) (tenant uuid.UUID, queue, name string, found bool, err error)
}

// Config holds what a Server can be told. The zero value is the default.
type Config struct {
	// Tenancy says that requests come from several tenants: a partition that does not exist is then refused with the words
	// for a foreign one. Without it, it is a partition that the group never popped.
	Tenancy bool
	// Timeout bounds the work on one group of items. Default 40 s.
	Timeout time.Duration
	// Concurrency is how many groups of one request are worked on at a time. Default 16.
	Concurrency int
	// Log takes dead letters that could not be filed. Nil drops it.
	Log *slog.Logger
}

// A Server takes acks to the database. Make one with [New].
type Server struct {
	cfg    Config
	db     Store
	gates  *ready.Gates
	slots  *admission.Controller
	log    *slog.Logger
	owners owners
	reads  chan struct{}
}

// New returns a server that works through db, takes slots of the Ack lane and wakes gates.
func New(cfg Config, db Store, gates *ready.Gates, slots *admission.Controller) *Server {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Concurrency <= 0 {
		cfg.Concurrency = defaultConcurrency
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, db: db, gates: gates, slots: slots, log: log, reads: make(chan struct{}, concurrentReads)}
}

// A group is the items of one request that share a partition and a lease; they are decided together.
type group struct {
	partitionID, leaseID string
	indexes              []int
}

// Ack carries out the items for a consumer group; an empty group means none (pg.QueueModeGroup). It returns one result per item, in
// order, always. Items of one partition and lease are decided together, groups of items independently of each other.
func (s *Server) Ack(ctx context.Context, tenant uuid.UUID, consumerGroup string, items []Item) []Result {
	if consumerGroup == "" {
		consumerGroup = pg.QueueModeGroup
	}
	ctx = context.WithoutCancel(ctx)
	results := make([]Result, len(items))
	groups := groupItems(items)
	limit := make(chan struct{}, s.cfg.Concurrency)
	var working sync.WaitGroup
	for _, g := range groups {
		limit <- struct{}{}
		working.Go(func() {
			defer func() { <-limit }()
			s.ackGroup(ctx, tenant, consumerGroup, g, items, results)
		})
	}
	working.Wait()
	return results
}

// groupItems puts items with the same partition and lease together, in order of first appearance.
func groupItems(items []Item) []*group {
	type key struct{ partition, lease string }
	var groups []*group
	byKey := make(map[key]*group)
	for i := range items {
		k := key{items[i].PartitionID, items[i].LeaseID}
		g, ok := byKey[k]
		if !ok {
			g = &group{partitionID: k.partition, leaseID: k.lease}
			byKey[k] = g
			groups = append(groups, g)
		}
		g.indexes = append(g.indexes, i)
	}
	return groups
}

// ackGroup decides one group and writes the results of its items, which nobody else touches.
func (s *Server) ackGroup(
	ctx context.Context, tenant uuid.UUID, consumerGroup string, g *group, items []Item, results []Result,
) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	for _, i := range g.indexes {
		results[i].TransactionID = items[i].TransactionID
	}
	refuse := func(text string) {
		for _, i := range g.indexes {
			results[i].Error = text
		}
	}
	partition, err := uuid.Parse(g.partitionID)
	if err != nil || len(g.partitionID) != 36 {
		refuse("invalid partitionId: it must be a UUID, as the pop returned it")
		return
	}
	owner, found, err := s.lookUp(ctx, partition)
	switch {
	case err != nil:
		refuse(errorText(err))
		return
	case found && owner.Tenant != tenant, !found && s.cfg.Tenancy:
		refuse(textNotOwned)
		return
	case !found || !storable(consumerGroup):
		refuse(textConsumer)
		return
	case !storable(g.leaseID):
		refuse(textInvalidLease)
		return
	}
	for _, i := range g.indexes {
		results[i].Queue, results[i].Partition = owner.Queue, owner.Partition
	}

	request := hashAck(partition, consumerGroup, g, items)
	verdict, err := s.commit(ctx, request)
	switch {
	case err != nil:
		refuse(errorText(err))
		return
	case !verdict.OK:
		refuse(orElse(verdict.Error, textAckRejected))
		return
	}
	var handOff DeadLetterOutcome
	if verdict.DeadLetter {
		handOff = s.FileDeadLetter(ctx, DeadLetterOrder{
			PartitionID: partition, Group: consumerGroup, Worker: verdict.Worker, Offset: verdict.Offset, Nacks: nacks(g, items),
		})
	}
	explain(g, items, request, verdict, handOff, results)
	if verdict.LeaseReleased || handOff.Filed {
		s.gates.Wake(tenant, owner.Queue, owner.Partition)
	}
}

// hashAck is what the database is asked for a group.
func hashAck(partition uuid.UUID, consumerGroup string, g *group, items []Item) pg.HashAck {
	request := pg.HashAck{
		PartitionID: partition,
		Group:       consumerGroup,
		Worker:      g.leaseID,
		Hashes:      make([][]byte, 0, len(g.indexes)),
		Statuses:    make([]string, 0, len(g.indexes)),
	}
	for _, i := range g.indexes {
		hash := segment.Hash(items[i].TransactionID)
		request.Hashes = append(request.Hashes, hash[:])
		request.Statuses = append(request.Statuses, Status(items[i].Status))
	}
	return request
}

// commit is the one way to the database: resolve by hash, under the row lock, authoritatively.
func (s *Server) commit(ctx context.Context, request pg.HashAck) (pg.HashAckResult, error) {
	slot, err := s.slots.Acquire(ctx, admission.Ack)
	if err != nil {
		return pg.HashAckResult{}, err
	}
	defer slot.Release()
	return s.db.AckByHash(ctx, request)
}

// explain writes the outcome of every item of a group that was carried out.
func explain(
	g *group, items []Item, request pg.HashAck, verdict pg.HashAckResult, handOff DeadLetterOutcome, results []Result,
) {
	noop, stale, unresolved := count(verdict.Noop), count(verdict.Stale), count(verdict.Unresolved)
	// From the back: of several items with one hash the first ones took the messages there were, the last ones found none.
	for k := len(g.indexes) - 1; k >= 0; k-- {
		result, status := &results[g.indexes[k]], request.Statuses[k]
		result.LeaseReleased = verdict.LeaseReleased || handOff.Filed
		hash := hex.EncodeToString(request.Hashes[k])
		switch {
		case take(unresolved, hash):
			result.Error = textUnresolvable
		case isSignal(status) && take(stale, hash):
			result.Error = textStale
		case !isSignal(status) && take(noop, hash):
			result.Success, result.Noop = true, true
		case isSignal(status) && verdict.SignalIgnored:
			result.Error = textNoLeasedBatch
		default:
			result.Success = true
		}
	}
	if !verdict.DeadLetter {
		return
	}
	for _, i := range handOff.Named {
		if handOff.Filed {
			results[i].DeadLetter = true
		} else {
			results[i].Success, results[i].Error = false, handOff.Error
		}
	}
}

// count turns a list of hashes into how often each occurs.
func count(hashes []string) map[string]int {
	if len(hashes) == 0 {
		return nil
	}
	counted := make(map[string]int, len(hashes))
	for _, hash := range hashes {
		counted[hash]++
	}
	return counted
}

// take uses one occurrence of the hash up, if there is one left.
func take(counted map[string]int, hash string) bool {
	if counted[hash] == 0 {
		return false
	}
	counted[hash]--
	return true
}

func orElse(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}
