package pop

import (
	"context"
	"log/slog"
	"time"

	"queenmq/internal/pg"
)

const (
	// concurrentReads bounds the read-only statements that pops run outside admission, so that a crowd of long polls waking
	// up together cannot use up the connections that are kept free for reads.
	concurrentReads = 8
	// probeTimeout bounds one read that several long polls wait for.
	probeTimeout = 5 * time.Second
	// floorInterval is how often a group that is found to have nothing pending notes it, so that the next looks are about what was
	// written since.
	floorInterval = time.Minute
	// probeFloorSteps is how many statements of one look raise the floor at most; what is left is for the next time.
	probeFloorSteps = 4
)

// A probe is the newest answer to "may this group have something pending on this queue?". All long polls of a group share it:
// thousands of them parked on an idle queue cost a few statements a second together.
type probe struct {
	turn    chan struct{} // capacity 1; holding it means running the statement or reading the fields below
	started time.Time
	pending bool
	// raised is when the floor of such looks was last raised.
	raised time.Time
}

// mayHavePending looks whether the group has something pending on the queue, or takes the answer of a look that began at
// since or later.
func (s *Server) mayHavePending(ctx context.Context, r *pg.PopRequest, since time.Time) (bool, error) {
	key := groupKey{r.Tenant, r.Queue, r.Group}
	shared, ok := s.probes.get(key)
	if !ok {
		// Two callers may each make one here; the loser's is used once and forgotten.
		shared = &probe{turn: make(chan struct{}, 1)}
		s.probes.put(key, shared)
	}
	select {
	case shared.turn <- struct{}{}:
		defer func() { <-shared.turn }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if !shared.started.Before(since) {
		return shared.pending, nil
	}
	started := time.Now()
	var pending bool
	err := s.read(ctx, func(ctx context.Context) (err error) {
		pending, err = s.db.HasPending(ctx, r.Tenant, r.Queue, r.Group)
		return err
	})
	if err != nil {
		return false, err
	}
	shared.started, shared.pending = started, pending
	if !pending && started.Sub(shared.raised) >= floorInterval {
		shared.raised = started
		s.raiseFloor(ctx, key, probeFloorSteps)
	}
	return pending, nil
}

// raiseFloor lets later looks pass over what is known to be drained, in at most so many statements. Without it they take longer, and nothing else changes.
func (s *Server) raiseFloor(ctx context.Context, key groupKey, steps int) {
	var floor, before time.Time
	var err error
	for n, more := 0, true; more && err == nil && n < steps; n++ {
		err = s.read(ctx, func(ctx context.Context) (err error) {
			floor, more, err = s.db.RaiseScanFloor(ctx, key.tenant, key.queue, key.group, before)
			return err
		})
		more = more && (floor.IsZero() || floor.After(before))
		before = floor
	}
	if err != nil && ctx.Err() == nil {
		s.log.DebugContext(ctx, "drained partitions could not be noted", slog.String("queue", key.queue), slog.String("group", key.group), slog.Any("error", err))
	}
}

// read runs a read-only statement, at most concurrentReads at a time.
func (s *Server) read(ctx context.Context, statement func(context.Context) error) error {
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return statement(ctx)
}
