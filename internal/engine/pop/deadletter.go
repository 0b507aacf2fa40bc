package pop

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// fileLease is how long a message is held that is claimed to be filed.
const fileLease = time.Minute

// A DeadLetter is the message at the head of a leased batch that is filed instead of being delivered.
type DeadLetter struct {
	Tenant           uuid.UUID
	Queue, Partition string
	PartitionID      uuid.UUID
	Group, LeaseID   string
	Offset           int64
	// Reason is kept with the letter; empty says that the message was delivered as often as its queue allows.
	Reason string
}

// file files the message at offset, which must be the first of the leased batch, and lets others know that the lease is over. When it
// cannot be filed, the lease runs out and the next pop of the partition comes to the same verdict.
func (s *Server) file(ctx context.Context, l *look, p pg.ClaimedPartition, offset int64, reason string) {
	letter := DeadLetter{
		Tenant: l.Tenant, Queue: p.Queue, Partition: p.Partition, PartitionID: p.PartitionID,
		Group: l.Group, LeaseID: l.Worker, Offset: offset, Reason: reason,
	}
	if s.cfg.DeadLetter == nil || !s.cfg.DeadLetter(ctx, letter) {
		return
	}
	l.filed++
	s.counts.filed.Add(1)
	s.gates.Released(l.Tenant, p.Queue, p.Partition, l.Group, "")
}

// filePoison files what a claim found to have been delivered too often, and returns the rest of the claim.
func (s *Server) filePoison(ctx context.Context, l *look, claimed []pg.ClaimedPartition) []pg.ClaimedPartition {
	if !slices.ContainsFunc(claimed, func(p pg.ClaimedPartition) bool { return p.Poison }) {
		return claimed
	}
	rest := make([]pg.ClaimedPartition, 0, len(claimed))
	for _, p := range claimed {
		if !p.Poison {
			rest = append(rest, p)
			continue
		}
		s.file(ctx, l, p, p.Segments[0].Base+int64(p.Segments[0].StartIndex), "")
	}
	return rest
}

// A sealedMessage is the first message of a claim that no key of this broker opens.
type sealedMessage struct {
	before int // messages of the batch before it
	offset int64
	err    error
}

// unseal decrypts the encrypted messages of a batch. It stops at the first that cannot be opened.
func (s *Server) unseal(b *Batch) *sealedMessage {
	if s.cfg.Opener == nil {
		return nil
	}
	before := 0
	for k := range b.slices {
		part := &b.slices[k]
		if !part.frames.Encrypted() {
			before += part.take
			continue
		}
		part.plain = make([][]byte, part.take)
		for i := range part.take {
			frame := part.frames.View(part.start + i)
			if !frame.Encrypted {
				continue
			}
			plain, err := s.cfg.Opener.Open(frame.Payload, true)
			if err != nil {
				return &sealedMessage{before + i, part.base + int64(part.start+i), err}
			}
			part.plain[i] = plain
		}
		before += part.take
	}
	return nil
}

// reason is what the dead letter of a message says that cannot be opened.
func (m *sealedMessage) reason() string { return "not delivered: " + m.err.Error() }

// unsealAll decrypts what was leased. A batch ends before its first message that cannot be opened: its lease is shortened, and the next
// pop begins with that message. A message that a batch begins with is filed, because it would hold up its lane for ever.
// ErrKeyMissing says that it is this broker that lacks the key, not the message that is broken; such batches are given back.
func (s *Server) unsealAll(ctx context.Context, l *look, result *Result) error {
	var missing error
	kept := result.Partitions[:0]
	for i := range result.Partitions {
		batch := &result.Partitions[i]
		sealed := s.unseal(batch)
		if sealed == nil {
			kept = append(kept, *batch)
			continue
		}
		s.reportSealed(ctx, l, batch, sealed)
		p := pg.ClaimedPartition{Queue: batch.Queue, Partition: batch.Partition, PartitionID: batch.PartitionID}
		switch lacking := s.cfg.KeyMissing != nil && s.cfg.KeyMissing(ctx, sealed.err); {
		case sealed.before > 0 && s.endBefore(ctx, l, batch, sealed):
			kept = append(kept, *batch)
			continue
		case sealed.before > 0:
			// Not ours any more.
		case lacking:
			missing = fmt.Errorf("%w: %w", ErrKeyMissing, sealed.err)
			if result.release(ctx, p) {
				s.gates.Released(l.Tenant, p.Queue, p.Partition, l.Group, "")
			}
		default:
			s.file(ctx, l, p, sealed.offset, sealed.reason())
		}
		releaseAll([]Batch{*batch})
	}
	result.Partitions = kept
	if len(kept) == 0 {
		return missing
	}
	return nil
}

// endBefore lets the leased batch end before a message. False says that the lease is lost.
func (s *Server) endBefore(ctx context.Context, l *look, b *Batch, m *sealedMessage) bool {
	kept, err := s.db.ShortenLeases(ctx, l.Group, l.Worker, []pg.LeaseCut{{PartitionID: b.PartitionID, End: m.offset - 1}})
	if err != nil || len(kept) == 0 {
		s.logKept(ctx, pg.ClaimedPartition{Queue: b.Queue, PartitionID: b.PartitionID}, l.Group, l.Worker, err)
		return false
	}
	b.truncate(m.before)
	// The hot list was told of the whole claim: what is behind the cut is to be looked at when this lease ends.
	s.gates.Wake(l.Tenant, b.Queue, b.Partition)
	return true
}

// truncate keeps the first n messages, at least one.
func (b *Batch) truncate(n int) {
	b.Messages = n
	for i := range b.slices {
		part := &b.slices[i]
		if n > part.take {
			n -= part.take
			continue
		}
		part.take = n
		b.End = part.base + int64(part.start+n) - 1
		for _, rest := range b.slices[i+1:] {
			rest.frames.Release()
		}
		b.slices = b.slices[:i+1]
		return
	}
}

// reportSealed counts and logs a message that cannot be opened. A thousand in a row are one fault.
func (s *Server) reportSealed(ctx context.Context, l *look, b *Batch, m *sealedMessage) {
	if n := s.counts.sealed.Add(1); n%1000 == 1 {
		s.log.ErrorContext(ctx, "messages cannot be decrypted; they become dead letters that can be replayed once their key is in QUEEN_ENCRYPTION_KEYS_OLD",
			slog.String("queue", b.Queue), slog.String("partition", b.Partition), slog.String("group", l.Group), slog.Int64("offset", m.offset),
			slog.Int64("messages", n), slog.Any("error", m.err))
	}
}

// An unopenedError rolls an auto-ack claim back that begins with a message which cannot be opened.
type unopenedError struct {
	queue, partition string
	message          *sealedMessage
}

func (e *unopenedError) Error() string {
	return fmt.Sprintf("message %d of the partition cannot be delivered: %v", e.message.offset, e.message.err)
}

// unsealAutoAck decrypts what an auto-ack pop is about to acknowledge. Its error rolls the claim back: the part before a message that
// cannot be opened is to be claimed alone, or that message is the first.
func (s *Server) unsealAutoAck(ctx context.Context, l *look, batches []Batch) error {
	n := 0
	for i := range batches {
		sealed := s.unseal(&batches[i])
		if sealed == nil {
			n += batches[i].Messages
			continue
		}
		if n+sealed.before > 0 {
			return &oversizedError{n + sealed.before}
		}
		s.reportSealed(ctx, l, &batches[i], sealed)
		if s.cfg.KeyMissing != nil && s.cfg.KeyMissing(ctx, sealed.err) {
			return fmt.Errorf("%w: %w", ErrKeyMissing, sealed.err)
		}
		return &unopenedError{queue: batches[i].Queue, partition: batches[i].Partition, message: sealed}
	}
	return nil
}

// fileUnopened leases the message that an auto-ack pop stopped at, to file it.
func (s *Server) fileUnopened(ctx context.Context, l *look, e *unopenedError) error {
	request := l.PopRequest
	request.Queue, request.Partition, request.Budget, request.MaxPartitions = e.queue, e.partition, 1, 1
	request.AutoAck, request.Accept, request.LeaseSeconds = false, nil, int(fileLease.Seconds())
	claimed, err := s.db.PopSpecific(ctx, request)
	if err != nil || len(claimed.Partitions) == 0 {
		return err
	}
	p := claimed.Partitions[0]
	if offset := p.Segments[0].Base + int64(p.Segments[0].StartIndex); offset == e.message.offset {
		s.file(ctx, l, p, offset, e.message.reason())
		return nil
	}
	return s.db.ReleaseLease(ctx, p.PartitionID, l.Group, l.Worker) // others were faster
}
