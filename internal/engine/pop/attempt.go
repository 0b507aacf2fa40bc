package pop

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"queenmq/internal/engine/admission"
	"queenmq/internal/pg"
)

// errLookTooLate ends a look that could not start before the answer of its long poll was due.
var errLookTooLate = errors.New("the long poll's answer is due")

// A look is one attempt of a pop to find messages.
type look struct {
	pg.PopRequest
	kind Kind
	// override is the lease the request asked for, in seconds; 0 or less leaves it to the queue.
	override int
	// hints are the partitions named by the wakes since the previous look; nil when everything is worth a look.
	hints []string
	// filed counts the messages that were filed on the way. What is behind them is worth another look.
	filed int
	// byTimer says that nothing woke the pop: an answer that is a moment old will do.
	byTimer bool
	// room is what the pop may take of the memory for answers, and waits that it can wait for some until its long poll is over.
	room  hold
	waits bool
	// enlistable says that nothing the queue or the pop asks for keeps it from being handed messages over.
	enlistable bool
}

// attempt looks until nothing stands in the way: messages that are filed instead of being delivered are passed over. Nil means that there
// was nothing.
func (s *Server) attempt(ctx context.Context, l *look) (result *Result, err error) {
	for range maxRounds {
		filed := l.filed
		result, err = s.attemptOnce(ctx, l)
		if result != nil || err != nil || l.filed == filed {
			break
		}
	}
	return result, err
}

// attemptOnce looks once.
func (s *Server) attemptOnce(ctx context.Context, l *look) (*Result, error) {
	if err := s.setLease(ctx, l); err != nil {
		return nil, err
	}
	switch l.kind {
	case Partition:
		return s.claim(ctx, l, s.db.PopSpecific)
	case Discovery:
		return s.claim(ctx, l, s.db.PopDiscover)
	default:
		return s.attemptQueue(ctx, l)
	}
}

// setLease decides how long the batch is held. Discovery passes 0, for "each queue's own lease time".
func (s *Server) setLease(ctx context.Context, l *look) error {
	switch {
	case l.AutoAck:
		return nil
	case l.override > 0:
		l.LeaseSeconds = min(l.override, MaxLeaseSeconds)
		return nil
	case l.kind == Discovery:
		return nil
	}
	settings, err := s.queueSettings(ctx, l.Tenant, l.Queue)
	l.LeaseSeconds = settings.LeaseSeconds
	return err
}

// attemptQueue looks for messages anywhere in a queue, letting the database find the partitions.
func (s *Server) attemptQueue(ctx context.Context, l *look) (*Result, error) {
	if !s.registered(&l.PopRequest) {
		return s.search(ctx, l) // provisions the queue, registers the group and seeds its cursors
	}
	if len(l.hints) > 0 {
		result, reached, err := s.claimNamed(ctx, l, l.hints)
		// When every partition named was looked at, others were faster. The rest of the queue was searched before
		// this pop parked, and is again by its back-off.
		if result != nil || err != nil || reached == len(l.hints) {
			return result, err
		}
	}
	since := time.Now()
	if l.byTimer {
		since = since.Add(-s.cfg.Backoff.Initial)
	}
	pending, err := s.mayHavePending(ctx, &l.PopRequest, since)
	if err != nil || !pending {
		return nil, err
	}
	return s.search(ctx, l)
}

// search lets the database look for partitions, and remembers that the group is registered.
func (s *Server) search(ctx context.Context, l *look) (*Result, error) {
	s.counts.wildcard.Add(1)
	result, err := s.claim(ctx, l, s.db.PopWildcard)
	if err == nil {
		s.markers.put(groupKey{l.Tenant, l.Queue, l.Group}, struct{}{})
	}
	return result, err
}

// claimNamed tries the partitions named and returns how many of them were looked at.
func (s *Server) claimNamed(ctx context.Context, l *look, names []string) (result *Result, reached int, err error) {
	s.counts.targeted.Add(1)
	l.Candidates = names
	result, err = s.claim(ctx, l, func(ctx context.Context, r pg.PopRequest) (pg.Claim, error) {
		c, err := s.db.PopList(ctx, r)
		reached = len(c.States)
		return c, err
	})
	return result, reached, err
}

// claim runs one claiming statement under a Pop slot and decodes what it took. The slot comes before the connection, everywhere:
// the other order lets requests that hold connections wait for requests that hold slots.
func (s *Server) claim(
	ctx context.Context, l *look, statement func(context.Context, pg.PopRequest) (pg.Claim, error),
) (*Result, error) {
	if err := s.makeRoom(ctx, l, 0); err != nil {
		return nil, err
	}
	slot, err := s.slots.Acquire(ctx, admission.Pop)
	if err != nil {
		return nil, context.Cause(ctx) // Acquire fails with nothing else
	}
	defer slot.Release()

	if l.AutoAck {
		return s.claimAutoAck(ctx, l, statement)
	}
	claimed, err := s.timed(ctx, l.PopRequest, statement)
	if err != nil {
		return nil, err
	}
	returned, err := s.shorten(ctx, l, &claimed)
	for _, p := range returned {
		s.gates.Released(l.Tenant, p.Queue, p.Partition, l.Group, "")
	}
	if err != nil {
		return nil, err
	}
	slot.Release() // decoding needs no slot, and giving a lease back takes one of its own
	s.overtake(l, claimed)
	return s.deliver(ctx, l, claimed)
}

// timed runs a claiming statement and counts how long it took.
func (s *Server) timed(
	ctx context.Context, r pg.PopRequest, statement func(context.Context, pg.PopRequest) (pg.Claim, error),
) (pg.Claim, error) {
	began := time.Now()
	claimed, err := statement(ctx, r)
	s.counts.trips.Add(time.Since(began))
	return claimed, err
}

// overtake tells the hot list of claims that it did not name.
func (s *Server) overtake(l *look, claimed pg.Claim) {
	for _, p := range claimed.Partitions {
		s.gates.Taken(l.Tenant, p.Queue, p.Partition, l.Group, l.AutoAck)
	}
}

// reportBroken logs and counts segments that cannot be read. The log names what an operator needs for a seek.
func (s *Server) reportBroken(ctx context.Context, l *look, broken []brokenSegment) {
	for _, b := range broken {
		s.counts.broken.Add(1)
		s.log.ErrorContext(ctx, "stored segment cannot be decoded; consumers of the partition stop before it until its group seeks past it",
			slog.String("queue", b.partition.Queue),
			slog.String("partition", b.partition.Partition),
			slog.String("partition_id", b.partition.PartitionID.String()),
			slog.String("group", l.Group),
			slog.Int64("base_offset", b.base),
			slog.Int("start", b.start),
			slog.Int("take", b.take),
			slog.Any("error", b.err))
	}
}
