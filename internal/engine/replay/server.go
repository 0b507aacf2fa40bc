package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// ErrNoPayload says that a dead letter was filed without its message, which retention had taken before. There is nothing to
// replay.
var ErrNoPayload = errors.New("the message was gone before its dead letter was filed: there is nothing to replay")

// A Store is what this package needs of the database door.
type Store interface {
	DeadLetterByID(ctx context.Context, tenant, id uuid.UUID) (pg.DeadLetterRow, bool, error)
	ListDeadLetters(ctx context.Context, tenant uuid.UUID, filter pg.DeadLetterFilter) (pg.DeadLetterPage, error)
	MoveDeadLetter(ctx context.Context, tenant uuid.UUID, m pg.DeadLetterMove) (pg.DeadLetterMoveResult, error)
}

// Gates wake who waits for messages; *ready.Gates is one.
type Gates interface {
	Wake(tenant uuid.UUID, queue, partition string)
}

// A Destination is where a dead letter goes; nil fields are the message's own queue and partition.
type Destination struct{ Queue, Partition *string }

// An Outcome is what became of a replay.
type Outcome struct {
	// Found is false when there is no such dead letter (any more).
	Found bool
	// Row is the dead letter as it was.
	Row pg.DeadLetterRow
	// MessageID and TransactionID are of the new message.
	MessageID     uuid.UUID
	TransactionID string
	// Move is what the database answered.
	Move pg.DeadLetterMoveResult
}

// The statuses of a move.
const (
	Moved     = "moved"
	Gone      = "gone"
	Duplicate = "duplicate"
	Full      = "full"
)

// timeout bounds one move, a little above the statement timeout.
const timeout = 40 * time.Second

// A Server replays single dead letters. Make one with [New].
type Server struct {
	packer *segment.Packer
	db     Store
	gates  Gates
	slots  *admission.Controller
	keys   Keys
}

// New returns a server that moves through db, takes slots of the Push lane and wakes gates. A nil packer is level 3.
func New(packer *segment.Packer, db Store, gates Gates, slots *admission.Controller, keys Keys) *Server {
	if packer == nil {
		packer = segment.DefaultPacker()
	}
	return &Server{packer: packer, db: db, gates: gates, slots: slots, keys: keys}
}

// ByID replays one dead letter. It is not cancelled when the caller leaves: the effect may be wanted.
func (s *Server) ByID(ctx context.Context, tenant, id uuid.UUID, to Destination) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	row, found, err := s.db.DeadLetterByID(ctx, tenant, id)
	if err != nil || !found {
		return Outcome{}, err
	}
	return s.move(ctx, tenant, row, to)
}

// ByAddress replays the newest dead letter of a message; group "" is any group's. Dead letters that other groups filed for the
// same message stay.
func (s *Server) ByAddress(ctx context.Context, tenant, partition uuid.UUID, transactionID, group string) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	page, err := s.db.ListDeadLetters(ctx, tenant, pg.DeadLetterFilter{
		PartitionID: uuid.NullUUID{UUID: partition, Valid: true}, TransactionID: transactionID, Group: group, Limit: 1,
	})
	if err != nil || len(page.Rows) == 0 {
		return Outcome{}, err
	}
	return s.move(ctx, tenant, page.Rows[0], Destination{})
}

func (s *Server) move(ctx context.Context, tenant uuid.UUID, row pg.DeadLetterRow, to Destination) (Outcome, error) {
	outcome := Outcome{Found: true, Row: row}
	if row.Payload == nil {
		return outcome, ErrNoPayload
	}
	queue := row.Queue
	if to.Queue != nil {
		queue = *to.Queue
	}
	frame, plain, err := s.keys.frameOf(ctx, tenant, queue, row)
	if err != nil {
		return outcome, fmt.Errorf("replay a dead letter: %w", err)
	}
	outcome.MessageID, outcome.TransactionID = frame.ID, frame.TransactionID
	blob, hashes, err := s.packer.Pack([]segment.Frame{frame})
	if err != nil {
		return outcome, fmt.Errorf("replay a dead letter: %w", err)
	}
	slot, err := s.slots.Acquire(ctx, admission.Push)
	if err != nil {
		return outcome, fmt.Errorf("replay a dead letter: wait for a slot: %w", err)
	}
	defer slot.Release()
	outcome.Move, err = s.db.MoveDeadLetter(ctx, tenant, pg.DeadLetterMove{
		ID: row.ID, Hash: hashes, Blob: blob, Queue: to.Queue, Partition: to.Partition, Plain: plain,
	})
	if err != nil {
		return outcome, err
	}
	if outcome.Move.Status == Moved {
		s.gates.Wake(tenant, outcome.Move.Queue, outcome.Move.Partition)
	}
	outcome.Found = outcome.Move.Status != Gone
	return outcome, nil
}
