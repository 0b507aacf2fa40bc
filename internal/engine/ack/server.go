package ack

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/ready"
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
	AckMulti(ctx context.Context, acks []pg.PositionalAck) ([]pg.PositionalAckResult, error)
	AckByHash(ctx context.Context, a pg.HashAck) (pg.HashAckResult, error)
	CompletedBefore(ctx context.Context, partition uuid.UUID, group string, hashes [][]byte) ([][]byte, error)
	SegmentAt(ctx context.Context, partition uuid.UUID, offset int64) (pg.StoredSegment, bool, error)
	FileDeadLetter(ctx context.Context, d pg.DeadLetter) (pg.DeadLetterResult, error)
	RenewLease(ctx context.Context, tenant uuid.UUID, worker string, seconds int) (pg.Renewal, error)
	PartitionOwner(ctx context.Context, partition uuid.UUID) (tenant uuid.UUID, queue, name string, found bool, err error)
}

// A Sealer encrypts a text into an envelope. It is asked from many requests at a time.
type Sealer interface {
	Seal(text []byte) []byte
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
	// RegistryBytes is the memory for recognising acks of whole batches; 0 is DefaultRegistryBytes, and below 0 none is
	// recognised.
	RegistryBytes int64
	// Shards is how many loops commit recognised acks together; 0 is DefaultShards, and below 0 each is committed by itself.
	Shards int
	// Sealer encrypts what consumers say about encrypted messages. Nil has no key: their words are not kept.
	Sealer Sealer
	// Demanded says whether a queue demands encryption. Nil is never.
	Demanded func(ctx context.Context, tenant uuid.UUID, queue string) (bool, error)
	// Log takes dead letters that could not be filed. Nil drops it.
	Log *slog.Logger
}

// A Server takes acks to the database. Make one with [New]. It works without [Server.Run], committing every ack by itself.
type Server struct {
	cfg      Config
	db       Store
	gates    *ready.Gates
	slots    *admission.Controller
	log      *slog.Logger
	owners   owners
	reads    chan struct{}
	registry *registry
	fuser    *fuser
	turns    turns
}

// New returns a server that works through db, takes slots of the Ack lane and wakes gates.
func New(cfg Config, db Store, gates *ready.Gates, slots *admission.Controller) *Server {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Concurrency <= 0 {
		cfg.Concurrency = defaultConcurrency
	}
	if cfg.RegistryBytes == 0 {
		cfg.RegistryBytes = DefaultRegistryBytes
	}
	if cfg.Shards == 0 {
		cfg.Shards = DefaultShards
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{
		cfg: cfg, db: db, gates: gates, slots: slots, log: log, reads: make(chan struct{}, concurrentReads),
		registry: newRegistry(cfg.RegistryBytes),
		fuser:    newFuser(max(cfg.Shards, 0), db, slots, cfg.Timeout, log),
	}
}

// Run owns the loops that commit whole batches of many requests together, until ctx ends; then it commits what it has taken and
// returns nil. Acks that come before or after commit by themselves. It may run once.
func (s *Server) Run(ctx context.Context) error {
	s.fuser.run(ctx)
	<-ctx.Done() // without shards there is nothing else to wait for
	return nil
}

// Delivered remembers a batch that is about to be sent, so that the ack of all of it is recognised. It does not block.
func (s *Server) Delivered(d Delivery) {
	s.owners.put(d.PartitionID, Owner{Tenant: d.Tenant, Queue: d.Queue, Partition: d.Partition})
	s.registry.put(d)
}

// Forget drops what is remembered of a delivery before worker acknowledges a part of it in another way than through this server.
func (s *Server) Forget(partition uuid.UUID, group, worker string) {
	s.registry.evict(batchKey{partition, group}, worker)
}

// Stats are figures since the server was made, except Batches and RegistryBytes.
type Stats struct {
	// Hits are acks recognised as one whole delivered batch, Misses other completions under a lease.
	Hits, Misses uint64
	// Flushes are common commits, Rows the batches they decided, Failures the commits that failed.
	Flushes, Rows, Failures uint64
	// Batches and RegistryBytes are what the registry holds now.
	Batches       int
	RegistryBytes int64
	// RoundTrips are the calls of the database that moved cursors, by duration.
	RoundTrips pg.RoundTripCounts
}

// Stats returns the server's figures.
func (s *Server) Stats() Stats {
	batches, size := s.registry.size()
	return Stats{
		Hits: s.registry.hits.Load(), Misses: s.registry.misses.Load(),
		Flushes: s.fuser.flushes.Load(), Rows: s.fuser.rows.Load(), Failures: s.fuser.failures.Load(),
		Batches: batches, RegistryBytes: size, RoundTrips: s.fuser.trips.Load(),
	}
}

// A call is one request on its way.
type call struct {
	tenant  uuid.UUID
	group   string
	items   []Item
	results []Result
}

// A group is the items of one request that share a partition and a lease; they are decided together.
type group struct {
	partitionID, leaseID string
	indexes              []int

	// Set by prepare.
	partition uuid.UUID
	owner     Owner
	// hashes are those of the transaction ids in one piece, set by submit.
	hashes []byte
	// whole is the group's share in a common commit, when it completes exactly one delivered batch.
	whole *advance
	// resolves says that the group is to be decided by its transaction ids: it is prepared and completes no delivered batch.
	resolves bool
}

// Ack carries out the items for a consumer group; an empty group means none (pg.QueueModeGroup). It returns one result per item, in
// order, always. Items of one partition and lease are decided together, groups of items independently of each other.
func (s *Server) Ack(ctx context.Context, tenant uuid.UUID, consumerGroup string, items []Item) []Result {
	if consumerGroup == "" {
		consumerGroup = pg.QueueModeGroup
	}
	ctx = context.WithoutCancel(ctx)
	c := &call{tenant: tenant, group: consumerGroup, items: items, results: make([]Result, len(items))}
	groups := groupItems(items)
	if len(groups) == 1 { // most requests acknowledge one batch
		s.ackGroup(ctx, c, groups[0])
		return c.results
	}
	// Batches that are recognised from memory are submitted first, all of them: a request over many partitions is one commit.
	var fused sync.WaitGroup
	var rest, submitted []*group
	for _, g := range groups {
		if s.cfg.Shards < 0 || !s.prepareKnown(ctx, c, g) || !s.submit(c, g, &fused) {
			rest = append(rest, g)
		} else {
			submitted = append(submitted, g)
		}
	}
	s.ackGroups(ctx, c, rest)
	fused.Wait()
	var refused []*group
	for _, g := range submitted {
		if !s.conclude(c, g) {
			refused = append(refused, g)
		}
	}
	s.ackGroups(ctx, c, refused)
	return c.results
}

// ackGroups decides groups side by side.
func (s *Server) ackGroups(ctx context.Context, c *call, groups []*group) {
	limit := make(chan struct{}, s.cfg.Concurrency)
	var working sync.WaitGroup
	for _, g := range groups {
		limit <- struct{}{}
		working.Go(func() {
			defer func() { <-limit }()
			s.ackGroup(ctx, c, g)
		})
	}
	working.Wait()
}

// groupItems puts items with the same partition and lease together, in order of first appearance.
func groupItems(items []Item) []*group {
	type key struct{ partition, lease string }
	var groups []*group
	var byKey map[key]*group // of the groups, as soon as there is more than one
	var g *group
	for i := range items {
		k := key{items[i].PartitionID, items[i].LeaseID}
		if g == nil || g.partitionID != k.partition || g.leaseID != k.lease { // neighbours mostly share their batch
			known := false
			if g, known = byKey[k]; !known {
				g = &group{partitionID: k.partition, leaseID: k.lease}
				groups = append(groups, g)
				if byKey == nil {
					byKey = make(map[key]*group)
				}
				byKey[k] = g
			}
		}
		if g.indexes == nil && len(groups) == 1 {
			g.indexes = make([]int, 0, len(items))
		}
		g.indexes = append(g.indexes, i)
	}
	return groups
}

// ackGroup decides one group and writes the results of its items, which nobody else touches.
func (s *Server) ackGroup(ctx context.Context, c *call, g *group) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if !g.resolves {
		if !s.prepare(ctx, c, g) {
			return
		}
		var fused sync.WaitGroup
		if s.submit(c, g, &fused) {
			fused.Wait()
			if s.conclude(c, g) {
				return
			}
		}
	}
	s.resolve(ctx, c, g)
}

// refuse gives every item of g the same error.
func (c *call) refuse(g *group, text string) {
	for _, i := range g.indexes {
		c.results[i].Error = text
	}
}

// fail gives every item of g the error of the call that was to decide it. A failed common commit has words of its own on the wire, and its
// cause is logged where it failed.
func (c *call) fail(g *group, err error) {
	if errors.Is(err, errFlush) {
		c.refuse(g, errFlush.Error())
		return
	}
	for _, i := range g.indexes {
		c.results[i].Error, c.results[i].Cause = failureText(err), err
	}
}

// prepare checks what does not depend on the state of the batch. When it returns false the items have been refused.
func (s *Server) prepare(ctx context.Context, c *call, g *group) bool {
	for _, i := range g.indexes {
		c.results[i].TransactionID = c.items[i].TransactionID
	}
	partition, err := uuid.Parse(g.partitionID)
	if err != nil || len(g.partitionID) != 36 {
		c.refuse(g, "invalid partitionId: it must be a UUID, as the pop returned it")
		return false
	}
	owner, found, err := s.lookUpFor(ctx, c.tenant, partition)
	switch {
	case err != nil:
		c.fail(g, err)
		return false
	case found && owner.Tenant != c.tenant, !found && s.cfg.Tenancy:
		c.refuse(g, textNotOwned)
		return false
	case !found || !storable(c.group):
		c.refuse(g, textConsumer)
		return false
	case !storable(g.leaseID):
		c.refuse(g, textInvalidLease)
		return false
	}
	for _, i := range g.indexes {
		c.results[i].Queue, c.results[i].Partition = owner.Queue, owner.Partition
	}
	g.partition, g.owner = partition, owner
	g.indexes = slices.DeleteFunc(g.indexes, func(i int) bool {
		_, valid := c.items[i].RedeliveryDelay()
		if !valid {
			c.results[i].Error = TextDelay
		}
		return !valid
	})
	return len(g.indexes) > 0
}

// leaseEnded lets others know that the partition can be claimed again; covered says that its whole batch was completed, and
// a delay that it cannot be claimed before that has passed. Every way in which an ack ends a lease comes here.
func (s *Server) leaseEnded(c *call, g *group, covered bool, delay time.Duration) {
	if delay > 0 {
		s.gates.Postponed(c.tenant, g.owner.Queue, g.owner.Partition, c.group, delay)
		return
	}
	lease := ""
	if covered {
		lease = g.leaseID
	}
	s.gates.Released(c.tenant, g.owner.Queue, g.owner.Partition, c.group, lease)
}
