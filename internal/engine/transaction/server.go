package transaction

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/ready"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// defaultTimeout bounds one transaction's way through slot, connection and statement, a little above the statement timeout.
const defaultTimeout = 40 * time.Second

// An Operation is one push item or one ack. Exactly one field is set.
type Operation struct {
	Push *push.Item
	Ack  *AckOperation
}

// An AckOperation acknowledges one message for a group.
type AckOperation struct {
	ack.Item
	// Group is the consumer group; empty means none (pg.QueueModeGroup).
	Group string
}

// An Outcome is a committed transaction.
type Outcome struct {
	// ID is made for the call.
	ID uuid.UUID
	// Results are parallel to the operations.
	Results []Result
}

// A Result is what became of one operation of a committed transaction.
type Result struct {
	TransactionID string
	// MessageID and Duplicate describe a push. A repeat inside the transaction has the first one's id.
	MessageID uuid.UUID
	Duplicate bool
	// DeadLetter and Noop describe an ack: its message was filed as a dead letter, or had been completed before.
	DeadLetter, Noop bool
}

// A Store is what this package needs of the database door.
type Store interface {
	Transact(ctx context.Context, t pg.Transaction) (pg.TransactionResult, error)
	PartitionLeaseHolder(ctx context.Context, partition uuid.UUID, group string) (worker string, live bool, err error)
}

// Acks is what this package needs of the ack room; *ack.Server is it.
type Acks interface {
	Owner(ctx context.Context, tenant, partition uuid.UUID) (ack.Owner, error)
	FileDeadLetter(ctx context.Context, order ack.DeadLetterOrder) ack.DeadLetterOutcome
	Forget(partition uuid.UUID, group, worker string)
}

// Config holds what a Server can be told. The zero value is the default.
type Config struct {
	// Timeout bounds one transaction. Default 40 s.
	Timeout time.Duration
	// Packer compresses the pushes. Nil is the default level.
	Packer *segment.Packer
	// Encryption is used for the queues that demand it.
	Encryption push.Encryption
}

// A Server runs transactions. Make one with [New].
type Server struct {
	cfg   Config
	db    Store
	acks  Acks
	gates *ready.Gates
	slots *admission.Controller
}

// New returns a server that commits through db, takes slots of the Push lane, files dead letters through acks and wakes gates.
func New(cfg Config, db Store, acks Acks, gates *ready.Gates, slots *admission.Controller) *Server {
	if cfg.Timeout <= 0 {
		cfg.Timeout = defaultTimeout
	}
	return &Server{cfg: cfg, db: db, acks: acks, gates: gates, slots: slots}
}

// Run commits the operations together. requiredLeases are lease ids that the acks may act under; see the lease rules at
// [Server.chooseLeases]. It is not cancelled when the caller leaves: the effect may be wanted.
//
// Every error means that nothing was committed, except one about the connection (pg.ErrUnavailable, pg.ErrTimeout), after which that
// is unknown. A *pg.TransactionError is a rule that was broken, in the words of the wire: a duplicate push, a full queue, an ack
// that could not be carried out. An error that wraps segment.ErrTooLarge is a message that does not fit.
//
// producerSub is the authenticated subject that the pushed messages carry, empty when there is none.
func (s *Server) Run(
	ctx context.Context, tenant uuid.UUID, producerSub string, operations []Operation, requiredLeases []string,
) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
	defer cancel()
	outcome := Outcome{ID: segment.NewID(), Results: make([]Result, len(operations))}
	if len(operations) == 0 {
		return outcome, nil
	}
	items, itemOf := pushItems(operations)
	bundle, err := s.cfg.Encryption.Pack(ctx, s.cfg.Packer, tenant, producerSub, items)
	if err != nil {
		return Outcome{}, err
	}
	merged, err := mergeAcks(operations)
	if err != nil {
		return Outcome{}, err
	}
	if err := s.chooseLeases(ctx, merged, operations, requiredLeases); err != nil {
		return Outcome{}, err
	}

	for _, m := range merged { // what they leave of a delivered batch is another one
		s.acks.Forget(m.PartitionID, m.Group, m.Worker)
	}
	committed, err := s.commit(ctx, request(tenant, bundle, merged))
	if rolledBack, ok := errors.AsType[*pg.TransactionError](err); ok && rolledBack.Config {
		// A queue has come to demand encryption since its settings were read. Nothing was committed.
		var again bool
		if again, err = s.cfg.Encryption.Recheck(ctx, tenant, bundle); err == nil && again {
			if bundle, err = s.cfg.Encryption.Pack(ctx, s.cfg.Packer, tenant, producerSub, items); err == nil {
				committed, err = s.commit(ctx, request(tenant, bundle, merged))
			}
		} else if err == nil {
			err = rolledBack
		}
	}
	if err != nil {
		return Outcome{}, err
	}
	for i, at := range itemOf {
		verdict := &bundle.Verdicts[i]
		outcome.Results[at] = Result{
			TransactionID: verdict.TransactionID, MessageID: verdict.MessageID, Duplicate: verdict.Status == push.StatusDuplicate,
		}
	}
	for _, stored := range bundle.Segments {
		s.gates.Wake(tenant, stored.Queue, stored.Partition)
	}
	for i, m := range merged {
		s.settle(ctx, tenant, m, committed.Acks[i], operations, outcome.Results)
	}
	return outcome, nil
}

// pushItems picks the pushes out, with the index of the operation that each is.
func pushItems(operations []Operation) (items []push.Item, itemOf []int) {
	for i := range operations {
		if item := operations[i].Push; item != nil {
			items = append(items, *item)
			itemOf = append(itemOf, i)
		}
	}
	return items, itemOf
}

func request(tenant uuid.UUID, bundle *push.Bundle, merged []*mergedAck) pg.Transaction {
	t := pg.Transaction{Tenant: tenant, Pushes: bundle.Segments, Acks: make([]pg.HashAck, len(merged))}
	for i, m := range merged {
		t.Acks[i] = m.HashAck
	}
	return t
}

// commit runs the one database transaction. When a queue or partition was deleted while it ran everything was rolled back, and the
// repetition creates it anew.
func (s *Server) commit(ctx context.Context, t pg.Transaction) (pg.TransactionResult, error) {
	slot, err := s.slots.Acquire(ctx, admission.Push)
	if err != nil {
		return pg.TransactionResult{}, fmt.Errorf("transaction: wait for a slot: %w", err)
	}
	defer slot.Release()
	result, err := s.db.Transact(ctx, t)
	if errors.Is(err, pg.ErrVanished) {
		result, err = s.db.Transact(ctx, t)
	}
	return result, err
}

// settle does what follows the commit of one ack: files the dead letter that the database asks for, describes the operations, and
// wakes long polls when the lease ended.
func (s *Server) settle(
	ctx context.Context, tenant uuid.UUID, m *mergedAck, verdict pg.HashAckResult, operations []Operation, results []Result,
) {
	noop := make(map[string]bool, len(verdict.Noop))
	for _, hash := range verdict.Noop {
		noop[hash] = true
	}
	for k, i := range m.operations {
		results[i].TransactionID = operations[i].Ack.TransactionID
		results[i].Noop = m.Statuses[k] == ack.Completed && noop[hex.EncodeToString(m.Hashes[k])]
	}
	released := verdict.LeaseReleased
	if verdict.DeadLetter {
		filed := s.acks.FileDeadLetter(ctx, ack.DeadLetterOrder{
			PartitionID: m.PartitionID, Group: m.Group, Worker: verdict.Worker, Offset: verdict.Offset, Nacks: m.nacks(operations),
		})
		released = released || filed.Filed
		for _, i := range filed.Named {
			results[i].DeadLetter = filed.Filed
		}
	}
	if !released {
		return
	}
	// The names are a convenience of the wake; the transaction has checked whose partition it is.
	owner, err := s.acks.Owner(ctx, tenant, m.PartitionID)
	switch {
	case err != nil:
	case verdict.RedeliverIn > 0:
		s.gates.Postponed(tenant, owner.Queue, owner.Partition, m.Group, verdict.RedeliverIn)
	default:
		s.gates.Released(tenant, owner.Queue, owner.Partition, m.Group, "")
	}
}
