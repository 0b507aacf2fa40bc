package upkeep

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

const (
	// mostStreak bounds for how long a partition is left alone that has had nothing to delete several times: 1<<mostStreak cycles.
	mostStreak = 6
	// mostFruitless bounds the memory of such partitions; beyond it they are tried again.
	mostFruitless = 100_000
	// stepComplaint is how often failing steps are logged.
	stepComplaint = 30 * time.Second
)

type stepFunc func(ctx context.Context, due pg.DuePartition, maxRows int) (pg.RetentionStep, error)

// phaseState is what a phase remembers from one cycle to the next.
type phaseState struct {
	// after is where the next work list begins, nil at the oldest: lists that are longer than a cycle can handle are gone
	// through in turns, so that partitions that cannot be emptied do not hide those behind them.
	after *pg.DuePartition

	mu        sync.Mutex
	fruitless map[uuid.UUID]fruitless
}

// fruitless is a partition whose steps delete nothing although it is due: its slowest group has not come far enough.
type fruitless struct {
	streak int
	until  uint64 // the first cycle in which it is tried again
}

func (s *phaseState) skips(id uuid.UUID, cycle uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cycle < s.fruitless[id].until
}

func (s *phaseState) note(id uuid.UUID, cycle uint64, deleted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if deleted {
		delete(s.fruitless, id)
		return
	}
	if len(s.fruitless) >= mostFruitless {
		clear(s.fruitless)
	}
	state := s.fruitless[id]
	state.streak = min(state.streak+1, mostStreak)
	state.until = cycle + uint64(1)<<state.streak
	s.fruitless[id] = state
}

// blocked returns how many partitions are left alone for a while, and forgets those that have not come back since.
func (s *phaseState) blocked(cycle uint64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.fruitless, func(_ uuid.UUID, state fruitless) bool { return state.until+1<<mostStreak < cycle })
	return len(s.fruitless)
}

// runPhase works off one list. An error of one partition stops no other.
func (r *Retention) runPhase(ctx context.Context, phase pg.RetentionPhase, now time.Time, step stepFunc, count func(pg.RetentionStep)) error {
	work, err := r.list(ctx, phase, now)
	if err != nil {
		return err
	}
	state := r.phases[phase]
	each(ctx, r.cfg.Parallelism, work, func(due pg.DuePartition) {
		deleted := false
		for range stepsPerPartition {
			done, err := slotted(ctx, r.slots, func() (pg.RetentionStep, error) { return step(ctx, due, r.cfg.BatchSize) })
			if err != nil {
				r.stepFailed(ctx, phase, due, err)
				return
			}
			count(done)
			deleted = deleted || done.Deleted > 0
			if done.Done || done.Deleted == 0 {
				break
			}
		}
		state.note(due.ID, r.cycle, deleted)
	})
	r.counts.blocked(phase).Store(int64(state.blocked(r.cycle)))
	return ctx.Err()
}

// list reads the partitions to work on in this cycle, without those that are to be left alone.
func (r *Retention) list(ctx context.Context, phase pg.RetentionPhase, now time.Time) ([]pg.DuePartition, error) {
	state, limit := r.phases[phase], r.cfg.dueCap()
	fromOldest := state.after == nil
	var work []pg.DuePartition
	for range listsPerPhase {
		due, err := r.store.RetentionDue(ctx, phase, now, state.after, limit)
		if err != nil {
			return nil, err
		}
		for _, one := range due {
			if !state.skips(one.ID, r.cycle) {
				work = append(work, one)
			}
		}
		if len(due) < limit {
			state.after = nil
			break
		}
		state.after = &due[len(due)-1]
		if len(work) >= limit {
			break
		}
	}
	r.counts.due(phase).Store(int64(len(work)))
	if phase == pg.PhaseRules && fromOldest {
		r.counts.lag.Store(int64(lag(work)))
	}
	return work, nil
}

// lag is how far the oldest of the partitions is past its cutoff.
func lag(work []pg.DuePartition) time.Duration {
	most := time.Duration(0)
	for _, due := range work {
		cutoff := due.Cutoff
		if due.Completed.After(cutoff) {
			cutoff = due.Completed
		}
		most = max(most, cutoff.Sub(due.Oldest))
	}
	return most
}

// stepFailed says what went wrong, now and then.
func (r *Retention) stepFailed(ctx context.Context, phase pg.RetentionPhase, due pg.DuePartition, err error) {
	if ctx.Err() != nil || isContention(err) {
		return
	}
	r.counts.stepFailures.Add(1)
	last, now := r.complained.Load(), time.Now().UnixNano()
	if now-last < int64(stepComplaint) || !r.complained.CompareAndSwap(last, now) {
		return
	}
	r.log.WarnContext(ctx, "a retention step failed and will be repeated",
		slog.String("phase", string(phase)), slog.String("partition", due.ID.String()), slog.Any("error", err))
}

// retentionCounts are the figures behind RetentionStats.
type retentionCounts struct {
	segments, messages, unread, hashes, partitions, deadLetters, metricRows, repaired atomic.Int64
	cycles, cycleTime, stepFailures, lag                                              atomic.Int64
	dueRules, dueSidecar, dueMaxWait, blockedRules, blockedSidecar, blockedMaxWait    atomic.Int64
	leading                                                                           atomic.Bool
}

func (c *retentionCounts) segmentsDeleted(s pg.RetentionStep) {
	c.segments.Add(s.Deleted)
	c.messages.Add(s.Messages)
	c.unread.Add(s.Unread)
}

func (c *retentionCounts) hashesDeleted(s pg.RetentionStep) { c.hashes.Add(s.Deleted) }

func (c *retentionCounts) due(phase pg.RetentionPhase) *atomic.Int64 {
	switch phase {
	case pg.PhaseSidecar:
		return &c.dueSidecar
	case pg.PhaseMaxWait:
		return &c.dueMaxWait
	default:
		return &c.dueRules
	}
}

func (c *retentionCounts) blocked(phase pg.RetentionPhase) *atomic.Int64 {
	switch phase {
	case pg.PhaseSidecar:
		return &c.blockedSidecar
	case pg.PhaseMaxWait:
		return &c.blockedMaxWait
	default:
		return &c.blockedRules
	}
}

// RetentionStats are the figures of retention on this broker. Counters grow since the start; a broker that is not the leader
// counts nothing.
type RetentionStats struct {
	Leading bool
	// Segments and Messages were deleted by rules; Unread of the messages had not been read by every group (or by any).
	Segments, Messages, Unread int64
	// Hashes are rows of the sidecar, Partitions those removed because nobody used them any more.
	Hashes, Partitions, DeadLetters, MetricRows int64
	// Repaired counts watermarks that the safety walk corrected: more than a few mean that a writer forgets them.
	Repaired             int64
	Cycles, StepFailures int64
	// CycleTime is the length of the last whole cycle.
	CycleTime time.Duration
	// Lag is how far the oldest partition that can be emptied is past its cutoff, as the last work list had it.
	Lag time.Duration
	// Due is the length of the last work lists, Blocked how many partitions wait for their slowest group.
	Due, Blocked map[pg.RetentionPhase]int64
}

// Stats returns the figures.
func (r *Retention) Stats() RetentionStats {
	c := &r.counts
	return RetentionStats{
		Leading: c.leading.Load(), Segments: c.segments.Load(), Messages: c.messages.Load(), Unread: c.unread.Load(),
		Hashes: c.hashes.Load(), Partitions: c.partitions.Load(), DeadLetters: c.deadLetters.Load(), MetricRows: c.metricRows.Load(),
		Repaired: c.repaired.Load(), Cycles: c.cycles.Load(), StepFailures: c.stepFailures.Load(),
		CycleTime: time.Duration(c.cycleTime.Load()), Lag: time.Duration(c.lag.Load()),
		Due: map[pg.RetentionPhase]int64{pg.PhaseRules: c.dueRules.Load(), pg.PhaseSidecar: c.dueSidecar.Load(), pg.PhaseMaxWait: c.dueMaxWait.Load()},
		Blocked: map[pg.RetentionPhase]int64{
			pg.PhaseRules: c.blockedRules.Load(), pg.PhaseSidecar: c.blockedSidecar.Load(), pg.PhaseMaxWait: c.blockedMaxWait.Load(),
		},
	}
}
