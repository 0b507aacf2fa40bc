package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// defaultTimeout bounds one cycle's way through slot, connection and statement, a little above the statement timeout.
const defaultTimeout = 40 * time.Second

// A Cycle is one step of a query over one source partition.
type Cycle struct {
	QueryID, PartitionID uuid.UUID
	// Group is the source's consumer group; "" means none.
	Group string
	// IfState is a JSON array of {"key","value"} that the state must agree with; nil expects nothing.
	IfState json.RawMessage
	// StateOps is a JSON array of state operations; nil is none.
	StateOps json.RawMessage
	// Items are the messages for the sinks. Of items with one transaction id in one partition the first counts.
	Items []push.Item
	// Ack is nil for a cycle that leaves the source cursor alone. Worker is the lease of the source batch.
	Ack    *pg.StreamAck
	Worker string
	// KeepLease moves the cursor over exactly Ack.Count messages and keeps the lease.
	KeepLease bool
}

// A Store is what this package needs of the database door.
type Store interface {
	StreamsCycle(ctx context.Context, c pg.StreamCycle) (pg.StreamCycleResult, error)
	StreamSeals(ctx context.Context, tenant, query, partition uuid.UUID) (bool, error)
	StreamState(ctx context.Context, tenant uuid.UUID, request json.RawMessage) (json.RawMessage, error)
	StreamPartitions(ctx context.Context, tenant uuid.UUID, queries []uuid.UUID, most int) ([]pg.StreamPartitions, error)
	StreamRows(ctx context.Context, tenant uuid.UUID, wanted []pg.StreamRow) ([]pg.StreamRow, error)
}

// Gates wake who waits for messages; *ready.Gates is one.
type Gates interface {
	Wake(tenant uuid.UUID, queue, partition string)
	Released(tenant uuid.UUID, queue, partition, group, covered string)
}

// Acks is what this package needs of the ack room; *ack.Server is it.
type Acks interface {
	Owner(ctx context.Context, tenant, partition uuid.UUID) (ack.Owner, error)
	Forget(partition uuid.UUID, group, worker string)
}

// Config holds what a Server can be told. The zero value is the default.
type Config struct {
	// Timeout bounds one cycle. Default 40 s.
	Timeout time.Duration
	// Packer compresses the sink segments. Nil is level 3.
	Packer *segment.Packer
	// Encryption is used for the sinks that demand it.
	Encryption push.Encryption
	// Ring encrypts the state of queries that read or write a queue which demands encryption. Nil cannot: cycles with state of such queries
	// are refused with push.ErrEncryptionRequired.
	Ring Ring
}

// A Server runs cycles. Make one with [New].
type Server struct {
	cfg   Config
	db    Store
	acks  Acks
	gates Gates
	slots *admission.Controller

	mu sync.Mutex
	// seals remembers of queries whether their state is encrypted. Once it is it stays so, see log_streams_seal_v1; a "no" that is not true
	// any more is contradicted by the database. Guarded by mu, at most maxSeals.
	seals map[uuid.UUID]bool
}

// maxSeals bounds what a server remembers of queries; beyond it forgets them all, which costs a question for each.
const maxSeals = 10_000

// New returns a server that commits through db, takes slots of the Push lane, tells acks of what it acknowledges itself and wakes gates.
func New(cfg Config, db Store, acks Acks, gates Gates, slots *admission.Controller) *Server {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	return &Server{cfg: cfg, db: db, acks: acks, gates: gates, slots: slots, seals: make(map[uuid.UUID]bool)}
}

// Run commits a cycle and returns the answer of the wire. A cycle that was rolled back by a rule is no error: the answer says
// success:false and why. It is not cancelled when the caller leaves: the effect may be wanted.
//
// A sink segment some of whose messages are stored already, and some not, rolls the cycle back: the database cannot take a
// segment apart. Then the stored ones are left out and the cycle runs once more. producerSub is the authenticated subject that the
// pushed messages carry.
func (s *Server) Run(ctx context.Context, tenant uuid.UUID, producerSub string, c Cycle) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
	defer cancel()
	sealed, err := s.seal(ctx, tenant, c)
	if err != nil {
		return nil, err
	}
	if c.Group == "" {
		c.Group = pg.QueueModeGroup
	}
	if c.Ack != nil { // what it leaves of a delivered batch is another one
		s.acks.Forget(c.PartitionID, c.Group, c.Worker)
	}
	items := c.Items
	repacked, rechecked, reread := false, 0, 0
	for {
		bundle, err := s.cfg.Encryption.Pack(ctx, s.cfg.Packer, tenant, producerSub, items)
		if err != nil {
			return nil, err
		}
		request, differs, err := s.request(ctx, tenant, c, bundle.Segments, sealed)
		if err != nil {
			return nil, err
		}
		result, err := s.commit(ctx, request)
		if err != nil {
			return nil, err
		}
		switch {
		case result.Success:
			for _, sink := range result.Queued {
				s.gates.Wake(tenant, sink.Queue, sink.Partition)
			}
			if result.LeaseReleased {
				s.leaseEnded(ctx, tenant, &c)
			}
			return result.Answer, nil
		case result.KeyMissing, result.MustSeal && (sealed || s.cfg.Ring == nil):
			return nil, fmt.Errorf("state of query %s: %w", c.QueryID, push.ErrEncryptionRequired)
		case result.MustSeal:
			sealed = true
			s.remember(c.QueryID, true)
			continue
		case len(result.Duplicates) > 0 && !repacked:
			repacked = true
			items = without(items, bundle, result.Duplicates)
			continue
		case sealed && !differs && reread < maxRereads && strings.HasPrefix(result.Error, "state changed"):
			reread++ // by another cycle, which the comparison here will tell, or by re-encryption
			continue
		}
		if rechecked < 2 { // a sink may have come to demand encryption since its settings were read
			rechecked++
			if again, err := s.cfg.Encryption.Recheck(ctx, tenant, bundle); err != nil {
				return nil, err
			} else if again {
				continue
			}
		}
		return result.Answer, nil
	}
}

// leaseEnded lets others know that the source partition can be claimed again.
func (s *Server) leaseEnded(ctx context.Context, tenant uuid.UUID, c *Cycle) {
	source, err := s.acks.Owner(ctx, tenant, c.PartitionID)
	if err != nil {
		return // its name is only for the wake: whoever waits looks again by itself
	}
	covered := ""
	if c.Ack.OK { // a lease that a completion ended has reached the end of its batch
		covered = c.Worker
	}
	s.gates.Released(tenant, source.Queue, source.Partition, c.Group, covered)
}

// maxRereads is how often state is read again because it was written again between the look and the commit.
const maxRereads = 5

// seal says whether the state of a cycle is encrypted.
func (s *Server) seal(ctx context.Context, tenant uuid.UUID, c Cycle) (bool, error) {
	if len(c.IfState) == 0 && len(c.StateOps) == 0 {
		return false, nil
	}
	s.mu.Lock()
	sealed, known := s.seals[c.QueryID]
	s.mu.Unlock()
	if !known {
		var err error
		if sealed, err = s.db.StreamSeals(ctx, tenant, c.QueryID, c.PartitionID); err != nil {
			return false, err
		}
		s.remember(c.QueryID, sealed)
	}
	if sealed && s.cfg.Ring == nil {
		return false, fmt.Errorf("state of query %s: %w", c.QueryID, push.ErrEncryptionRequired)
	}
	return sealed, nil
}

func (s *Server) remember(query uuid.UUID, sealed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seals) >= maxSeals {
		clear(s.seals)
	}
	s.seals[query] = sealed
}

// request is what the database is asked to commit.
func (s *Server) request(ctx context.Context, tenant uuid.UUID, c Cycle, sinks []pg.Segment, sealed bool) (r pg.StreamCycle, differs bool, err error) {
	r = pg.StreamCycle{
		Tenant: tenant, QueryID: c.QueryID, PartitionID: c.PartitionID, Group: c.Group, Worker: c.Worker,
		IfState: c.IfState, StateOps: c.StateOps, Sinks: sinks, Ack: c.Ack, KeepLease: c.KeepLease,
	}
	if !sealed {
		return r, false, nil
	}
	r.Ring = s.cfg.Ring.IDs()
	if r.StateOps, err = sealOps(s.cfg.Ring, c.QueryID, c.PartitionID, c.StateOps); err != nil {
		return r, false, err
	}
	r.IfState, differs, err = s.sealExpected(ctx, tenant, c)
	return r, differs, err
}

// commit runs the one database transaction. When a queue or partition was deleted while it ran everything was rolled back, and the
// repetition creates it anew.
func (s *Server) commit(ctx context.Context, request pg.StreamCycle) (pg.StreamCycleResult, error) {
	slot, err := s.slots.Acquire(ctx, admission.Push)
	if err != nil {
		return pg.StreamCycleResult{}, fmt.Errorf("streams cycle: wait for a slot: %w", err)
	}
	defer slot.Release()
	result, err := s.db.StreamsCycle(ctx, request)
	if errors.Is(err, pg.ErrVanished) {
		result, err = s.db.StreamsCycle(ctx, request)
	}
	return result, err
}

// without returns the items that are not among the duplicates, which name frames of the bundle's segments. Items that repeat a
// dropped one go with it.
func without(items []push.Item, bundle *push.Bundle, duplicates []pg.StreamDuplicates) []push.Item {
	dropped := make(map[int]map[int]bool, len(duplicates)) // frames by segment
	for _, d := range duplicates {
		for n, sink := range bundle.Segments {
			if sink.Queue != d.Queue || sink.Partition != d.Partition {
				continue
			}
			if dropped[n] == nil {
				dropped[n] = make(map[int]bool, len(d.Frames))
			}
			for _, frame := range d.Frames {
				dropped[n][frame] = true
			}
		}
	}
	var kept []push.Item
	frames := make([]int, len(bundle.Segments)) // the next frame of each segment
	gone := make(map[uuid.UUID]bool)            // message ids of dropped leaders, which their repeats share
	for i := range items {
		n, verdict := bundle.SegmentOf[i], &bundle.Verdicts[i]
		if verdict.Status != push.StatusDuplicate {
			if dropped[n][frames[n]] {
				gone[verdict.MessageID] = true
			}
			frames[n]++
		}
		if !gone[verdict.MessageID] {
			kept = append(kept, items[i])
		}
	}
	return kept
}
