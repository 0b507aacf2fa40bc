package pop

import (
	"context"
	"errors"

	"queenmq/internal/pg"
)

// An unacknowledged is what an auto-ack claim found, decoded before its commit: what cannot be read, or has nobody left to be sent to, is not
// acknowledged.
type unacknowledged struct {
	batches []Batch
	// broken is what could not be read; then nothing is committed.
	broken []brokenSegment
}

// claimUnacknowledged runs a claiming statement for an auto-ack pop. After an error nothing was claimed, and only what is broken is known.
func (s *Server) claimUnacknowledged(
	ctx context.Context, l *look, request pg.PopRequest, statement func(context.Context, pg.PopRequest) (pg.Claim, error),
) (pg.Claim, unacknowledged, error) {
	var u unacknowledged
	request.Accept = func(claimed pg.Claim) error {
		releaseAll(u.batches) // of a try that was rolled back and is repeated
		u.batches = nil
		if p, noRoom := s.fit(l, claimed.Partitions); noRoom != nil {
			return noRoom
		} else if !p.whole {
			return &oversizedError{p.messages}
		}
		u.batches, u.broken = decode(claimed.Partitions)
		if len(u.broken) > 0 {
			s.reportBroken(ctx, l, u.broken)
			return ErrUndecodable
		}
		if s.cfg.Opener == nil && anyEncrypted(u.batches) {
			return ErrKeyMissing
		}
		if err := s.unsealAutoAck(ctx, l, u.batches); err != nil {
			return err
		}
		return ctx.Err()
	}
	claimed, err := s.claimSmaller(ctx, request, statement)
	if err != nil {
		releaseAll(u.batches)
		u.batches = nil
		if unopened, ok := errors.AsType[*unopenedError](err); ok {
			err = s.fileUnopened(ctx, l, unopened)
		}
	}
	return claimed, u, err
}

// acknowledged is the answer of an auto-ack pop, nil when there is nothing in it.
func (s *Server) acknowledged(l *look, u unacknowledged) *Result {
	if len(u.batches) == 0 {
		return nil
	}
	return s.newResult(l, u.batches)
}

// claimAutoAck claims past the hot list for an auto-ack pop.
func (s *Server) claimAutoAck(
	ctx context.Context, l *look, statement func(context.Context, pg.PopRequest) (pg.Claim, error),
) (*Result, error) {
	claimed, found, err := s.claimUnacknowledged(ctx, l, l.PopRequest, statement)
	if err != nil {
		return nil, err
	}
	s.overtake(l, claimed)
	return s.acknowledged(l, found), nil
}
