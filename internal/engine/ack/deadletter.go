package ack

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// A DeadLetterOrder is the database's demand to file the message at Offset. The lease is still held by Worker.
type DeadLetterOrder struct {
	PartitionID uuid.UUID
	Group       string
	// Worker is the holder that the verdict named, which is not always the one that acknowledged.
	Worker string
	Offset int64
	// Undelivered says that no consumer failed: the broker gives the message up for Reason; an empty one says that it was delivered as
	// often as its queue allows.
	Undelivered bool
	Reason      string
	// Nacks are the failure reports that led to it, in request order.
	Nacks []Nack
}

// A Nack is one report of a message that was not processed.
type Nack struct {
	// Index is the position of the report in the caller's list.
	Index         int
	TransactionID string
	Status        string
	Error         string
}

// A DeadLetterOutcome is what became of an order.
type DeadLetterOutcome struct {
	// Filed says that the message lies in the dead-letter table, the cursor is past it, and the lease is over.
	Filed bool
	// Error is why not. The lease then runs out and the message redelivers with its budget untouched.
	Error string
	// Cause is set beside Error when a call to the database failed. Its text is not for clients.
	Cause error
	// Named are the indexes of the reports about this very message.
	Named []int
}

// nacks are the failure reports of a group.
func nacks(g *group, items []Item) []Nack {
	var list []Nack
	for _, i := range g.indexes {
		if status := Status(items[i].Status); isSignal(status) {
			list = append(list, Nack{Index: i, TransactionID: items[i].TransactionID, Status: status, Error: items[i].Error})
		}
	}
	return list
}

// FileDeadLetter takes a snapshot of the message and files it, which also moves the cursor past it and ends the lease, in one
// transaction. A crash before it leaves the lease to expire: the message redelivers and reaches the same verdict.
func (s *Server) FileDeadLetter(ctx context.Context, order DeadLetterOrder) DeadLetterOutcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
	defer cancel()
	letter := pg.DeadLetter{PartitionID: order.PartitionID, Group: order.Group, Worker: order.Worker, Offset: order.Offset}
	outcome := DeadLetterOutcome{Named: guessNamed(order.Nacks)}
	if order.Worker == "" {
		// Filing without a holder would not be fenced: two reports could file the message twice.
		outcome.Error = textDLQRejected
		return outcome
	}
	slot, err := s.slots.Acquire(ctx, admission.Ack)
	if err == nil {
		defer slot.Release()
		var readable bool
		if readable, err = s.snapshot(ctx, &letter); readable {
			outcome.Named = named(order.Nacks, letter.TransactionID)
		}
	}
	if err == nil {
		letter.Error = order.Reason
		if !order.Undelivered {
			letter.Error = reason(order.Nacks, outcome.Named)
			err = s.sealError(ctx, &letter)
		}
	}
	if err == nil {
		var filed pg.DeadLetterResult
		filed, err = s.db.FileDeadLetter(ctx, letter)
		outcome.Filed = err == nil && filed.OK
		outcome.Error = orElse(filed.Error, textDLQRejected)
	}
	if err != nil {
		outcome.Error, outcome.Cause = failureText(err), err
	}
	if outcome.Filed {
		outcome.Error = ""
		return outcome
	}
	s.log.WarnContext(ctx, "dead letter not filed; the message redelivers when its lease expires",
		slog.String("partition_id", order.PartitionID.String()),
		slog.String("group", order.Group),
		slog.String("worker", order.Worker),
		slog.Int64("offset", order.Offset),
		slog.String("error", outcome.Error), slog.Any("cause", err))
	return outcome
}

// snapshot copies the message into the letter. It is not readable when retention took the segment in between, or the segment is
// damaged; the letter then says where the message was and nothing else.
func (s *Server) snapshot(ctx context.Context, letter *pg.DeadLetter) (readable bool, err error) {
	stored, found, err := s.db.SegmentAt(ctx, letter.PartitionID, letter.Offset)
	if err != nil || !found {
		return false, err
	}
	frames, err := segment.Unpack(stored.Blob)
	if err == nil {
		defer frames.Release()
	}
	at := letter.Offset - stored.Base
	if err != nil || at < 0 || at >= int64(frames.Len()) {
		s.log.ErrorContext(ctx, "stored segment cannot be decoded; its dead letter has no payload",
			slog.String("partition_id", letter.PartitionID.String()),
			slog.Int64("base_offset", stored.Base),
			slog.Int64("offset", letter.Offset),
			slog.Any("error", err))
		return false, nil
	}
	frame := frames.At(int(at))
	letter.MessageID = uuid.NullUUID{UUID: frame.ID, Valid: true}
	letter.TransactionID = frame.TransactionID
	letter.TraceID = frame.TraceID
	if frame.Context != (segment.TraceContext{}) {
		letter.Context = frame.Context[:]
	}
	letter.Encrypted = frame.Encrypted
	letter.Payload = append([]byte{}, frame.Payload...)
	if len(letter.Payload) == 0 {
		letter.Payload = []byte("null")
	}
	return true, nil
}

// sealError keeps what a consumer said about an encrypted message from being stored in plain text: it may quote the message. Whoever reads
// the letter with the key gets it back. The same holds for a message that is not encrypted itself, or is gone, in a queue that demands
// encryption by now.
func (s *Server) sealError(ctx context.Context, letter *pg.DeadLetter) error {
	if letter.Error == textRetryExhausted {
		return nil // our own words
	}
	if !letter.Encrypted && s.cfg.Demanded != nil {
		owner, found, err := s.lookUp(ctx, letter.PartitionID)
		if err != nil || !found {
			return err
		}
		demanded, err := s.cfg.Demanded(ctx, owner.Tenant, owner.Queue)
		if err != nil || !demanded {
			return err
		}
	} else if !letter.Encrypted {
		return nil
	}
	if s.cfg.Sealer == nil {
		letter.Error = textErrorWithheld
		return nil
	}
	letter.SealedError = s.cfg.Sealer.Seal([]byte(letter.Error))
	letter.Error = textErrorSealed
	return nil
}

// named are the indexes of the reports about the message with this transaction id.
func named(nacks []Nack, transactionID string) []int {
	var indexes []int
	for _, n := range nacks {
		if n.TransactionID == transactionID {
			indexes = append(indexes, n.Index)
		}
	}
	if len(indexes) == 0 {
		return guessNamed(nacks)
	}
	return indexes
}

// guessNamed is for a message that can no longer be read: the strongest report is taken for the one that named it, of several the
// first.
func guessNamed(nacks []Nack) []int {
	for _, status := range []string{DLQ, Failed} {
		for _, n := range nacks {
			if n.Status == status {
				return []int{n.Index}
			}
		}
	}
	return nil
}

// reason is the error kept with the dead letter: the one reported for the message, else the first of the group, else a general one.
func reason(nacks []Nack, named []int) string {
	first := ""
	for _, n := range nacks {
		if n.Error == "" {
			continue
		}
		for _, index := range named {
			if index == n.Index {
				return CleanError(n.Error)
			}
		}
		if first == "" {
			first = n.Error
		}
	}
	return CleanError(orElse(first, textRetryExhausted))
}
