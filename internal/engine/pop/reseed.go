package pop

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
)

const (
	// walkPage is how many partitions one statement of a reseed looks at, some 30 ms, walkPages how many such statements one background
	// walk makes.
	walkPage, walkPages = 10_000, 200
	// seedStep is how many partitions one statement gives cursors of a new group, seedSteps how many such statements there are for one; maxSeeds
	// bounds the groups that wait for theirs.
	seedStep, seedSteps, maxSeeds = 10_000, 10_000, 10_000
	// walkTick is the longest time between two looks at which rings are due, walkers how many are walked at a time.
	walkTick, walkers = 2 * time.Second, 4
)

// Run keeps the hot list honest until ctx ends, and returns nil: it asks the database again about rings with consumers. Without a hot
// list it does nothing.
func (s *Server) Run(ctx context.Context) error {
	if s.hot == nil {
		<-ctx.Done()
		return nil
	}
	var seeding sync.WaitGroup
	defer seeding.Wait()
	seeding.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.seed:
				s.seedDue(ctx)
			}
		}
	})
	tick := time.NewTicker(min(walkTick, s.hot.Reseed()/4))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.WalkDue(ctx)
		}
	}
}

// seedSoon has the cursors of a group that has just been registered created where the registration, which is bounded, did not come.
func (s *Server) seedSoon(key groupKey) {
	s.seedMu.Lock()
	defer s.seedMu.Unlock()
	if len(s.seeds) < maxSeeds {
		s.seeds = append(s.seeds, key)
	}
	select {
	case s.seed <- struct{}{}:
	default:
	}
}

// seedDue creates the cursors of the groups that wait for it. Where it fails, the claims that come to a partition make them.
func (s *Server) seedDue(ctx context.Context) {
	s.seedMu.Lock()
	due := s.seeds
	s.seeds = nil
	s.seedMu.Unlock()
	for _, key := range due {
		for after, n := (pg.PendingCursor{}), 0; n < seedSteps; n++ {
			next, err := s.db.SeedGroup(ctx, key.tenant, key.queue, key.group, after, seedStep)
			if err != nil && ctx.Err() == nil {
				s.log.WarnContext(ctx, "cursors of a new group could not be created in advance", slog.String("queue", key.queue), slog.String("group", key.group), slog.Any("error", err))
			}
			if err != nil || next.At.IsZero() {
				break
			}
			after = next
		}
	}
}

// WalkDue reseeds the rings that are due. Run calls it.
func (s *Server) WalkDue(ctx context.Context) {
	due := make(chan *ready.Ring)
	var walking sync.WaitGroup
	rings := s.hot.DueWalks()
	for range min(walkers, len(rings)) {
		walking.Go(func() {
			for ring := range due {
				if _, err := s.walk(ctx, ring, walkPages); err != nil && ctx.Err() == nil {
					s.log.WarnContext(ctx, "pending partitions could not be listed; messages of other brokers may be late",
						slog.String("queue", ring.Queue()), slog.String("group", ring.Group()), slog.Any("error", err))
				}
			}
		})
	}
	for _, ring := range rings {
		due <- ring
	}
	close(due)
	walking.Wait()
}

// walk reseeds a ring, or continues to, over at most so many pages, and tells whether that completed it. When a walk is under way it waits for
// its step instead.
func (s *Server) walk(ctx context.Context, ring *ready.Ring, pages int) (complete bool, err error) {
	walk, busy := ring.BeginWalk()
	if walk == nil {
		select {
		case <-busy:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	failed := true
	defer func() {
		walk.End(complete, failed)
		if complete && walk.Window == 0 {
			s.raiseFloor(ctx, groupKey{ring.Tenant(), ring.Queue(), ring.Group()}, pages)
		}
	}()
	for range pages {
		names, messages, next, err := s.pending(ctx, ring, walk)
		if err != nil {
			return false, err
		}
		walk.Page(names, messages, next.At, next.ID)
		if next.At.IsZero() {
			complete = true
			break
		}
	}
	failed = false
	return complete, nil
}

// pending reads one page, as one of few reads at a time.
func (s *Server) pending(ctx context.Context, ring *ready.Ring, walk *ready.Walk) (names []string, messages []int64, next pg.PendingCursor, err error) {
	select {
	case s.reads <- struct{}{}:
		defer func() { <-s.reads }()
	case <-ctx.Done():
		return nil, nil, next, context.Cause(ctx)
	}
	return s.db.Pending(ctx, pg.PendingPage{
		Tenant: ring.Tenant(), Queue: ring.Queue(), Group: ring.Group(), After: pg.PendingCursor{At: walk.AfterAt, ID: walk.After}, Limit: walkPage,
		Window: walk.Window,
	})
}

// Repair reads the repairs of the last minutes and follows those that are new. One call at a time.
func (s *Server) Repair(ctx context.Context) error {
	repairs, err := s.db.HotListRepairs(ctx)
	if err != nil {
		return err
	}
	// Ids are allotted before commit: a smaller one may come later.
	listed := make(map[int64]struct{}, len(repairs))
	for _, r := range repairs {
		listed[r.ID] = struct{}{}
		if _, done := s.repaired[r.ID]; !done {
			s.ForgetGroup(r.Tenant, r.Queue, r.Group)
		}
	}
	s.repaired = listed
	return nil
}
