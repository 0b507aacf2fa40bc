package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/pg"
)

const (
	// stepsPerPartition bounds what one partition gets in a cycle, so that a huge one does not keep the others waiting.
	stepsPerPartition = 50
	// listsPerPhase bounds how many work lists a phase reads in a cycle when everything on them is to be skipped.
	listsPerPhase = 20
	// houseworkInterval is how often dead partitions, old metrics and dead letters are looked for; houseworkTime bounds one look.
	houseworkInterval = time.Minute
	houseworkTime     = time.Minute
	// walkBatch partitions are compared in one step of the safety walk, walkSteps steps are made in one cycle.
	walkBatch = 5000
	walkSteps = 20
)

// A RetentionStore is what retention needs of the database door.
type RetentionStore interface {
	DatabaseTime(ctx context.Context) (time.Time, error)
	RetentionDue(ctx context.Context, phase pg.RetentionPhase, now time.Time, after *pg.DuePartition, limit int) ([]pg.DuePartition, error)
	RetentionStep(ctx context.Context, due pg.DuePartition, maxRows int) (pg.RetentionStep, error)
	PurgeSidecar(ctx context.Context, due pg.DuePartition, maxRows int) (pg.RetentionStep, error)
	EvictMaxWait(ctx context.Context, due pg.DuePartition, maxRows int) (pg.RetentionStep, error)
	CleanupPartitions(ctx context.Context, before time.Time, maxRows int) (pg.RetentionStep, error)
	PurgeDeadLetters(ctx context.Context, maxRows int) (pg.RetentionStep, error)
	PurgeMetrics(ctx context.Context, days, maxRows int) (deleted int64, done bool, err error)
	RepairWatermarks(ctx context.Context, after uuid.UUID, maxRows int) (pg.RepairStep, error)
}

// An Elector runs f while this broker is the leader; false says that another one is.
type Elector interface {
	Lead(ctx context.Context, f func(context.Context) error) (led bool, err error)
	Close()
}

// RetentionConfig is how retention works.
type RetentionConfig struct {
	Interval time.Duration
	// BatchSize is the most rows of one step, which holds the partition's lock for as long as it takes.
	BatchSize int
	// Parallelism is how many partitions are worked on at once.
	Parallelism int
	// DueCap is the length of a work list; 0 is BatchSize x Parallelism x 5.
	DueCap int
	// SafetyWalk is the time between two walks that compare every partition's watermarks with what it holds.
	SafetyWalk time.Duration
	// CleanupDays is how long an empty partition lives unused; Cleanup switches their removal.
	CleanupDays int
	Cleanup     bool
	// MetricsDays is how long metrics, retention history and traces are kept.
	MetricsDays int
}

func (c RetentionConfig) dueCap() int {
	if c.DueCap > 0 {
		return c.DueCap
	}
	return c.BatchSize * max(c.Parallelism, 1) * 5
}

// Retention deletes what rules allow, on one broker at a time. Unread messages are deleted only by the two options that say
// so, and counted.
type Retention struct {
	*Loop
	cfg    RetentionConfig
	store  RetentionStore
	leader Elector
	slots  *admission.Controller

	// All below belong to the goroutine that makes the passes.
	cycle     uint64
	phases    map[pg.RetentionPhase]*phaseState
	housework time.Time
	walk      struct {
		due   time.Time
		after uuid.UUID
	}
	complained atomic.Int64

	counts retentionCounts
}

// NewRetention makes the loop. It owns leader and closes it when Run ends.
func NewRetention(cfg RetentionConfig, store RetentionStore, leader Elector, slots *admission.Controller, log *slog.Logger) *Retention {
	r := &Retention{cfg: cfg, store: store, leader: leader, slots: slots, phases: map[pg.RetentionPhase]*phaseState{}}
	for _, phase := range [...]pg.RetentionPhase{pg.PhaseRules, pg.PhaseSidecar, pg.PhaseMaxWait} {
		r.phases[phase] = &phaseState{fruitless: map[uuid.UUID]fruitless{}}
	}
	r.Loop = newLoop("retention", cfg.Interval, min(cfg.Interval, time.Second), log, func(ctx context.Context) error {
		_, err := r.Step(ctx)
		return err
	})
	return r
}

// Run keeps trying to be the leader and to work until ctx ends.
func (r *Retention) Run(ctx context.Context) error {
	defer r.leader.Close()
	return r.Loop.Run(ctx)
}

// Step makes one cycle if this broker is the leader, and tells whether it is.
func (r *Retention) Step(ctx context.Context) (led bool, err error) {
	led, err = r.leader.Lead(ctx, r.work)
	r.counts.leading.Store(led && err == nil)
	if !led {
		r.counts.lag.Store(0) // the leader tells
	}
	return led, err
}

// work is one cycle. Every step of it is a transaction of its own, and it stops before the next one when ctx ends.
func (r *Retention) work(ctx context.Context) error {
	began := time.Now()
	r.cycle++
	now, err := r.store.DatabaseTime(ctx)
	if err != nil {
		return err
	}
	for _, phase := range [...]struct {
		phase pg.RetentionPhase
		step  stepFunc
		count func(pg.RetentionStep)
	}{
		{pg.PhaseRules, r.store.RetentionStep, r.counts.segmentsDeleted},
		{pg.PhaseSidecar, r.store.PurgeSidecar, r.counts.hashesDeleted},
		{pg.PhaseMaxWait, r.store.EvictMaxWait, r.counts.segmentsDeleted},
	} {
		if err := r.runPhase(ctx, phase.phase, now, phase.step, phase.count); err != nil {
			return err
		}
	}
	if err := r.safetyWalk(ctx); err != nil {
		return err
	}
	if r.housework.IsZero() || time.Since(r.housework) >= houseworkInterval {
		r.housework = time.Now()
		if err := r.doHousework(ctx, now); err != nil {
			return err
		}
	}
	r.counts.cycles.Add(1)
	r.counts.cycleTime.Store(int64(time.Since(began)))
	return nil
}

// safetyWalk goes on with the comparison of watermarks, or starts one when it is time.
func (r *Retention) safetyWalk(ctx context.Context) error {
	if time.Now().Before(r.walk.due) {
		return nil
	}
	for range walkSteps {
		step, err := slotted(ctx, r.slots, func() (pg.RepairStep, error) { return r.store.RepairWatermarks(ctx, r.walk.after, walkBatch) })
		if err != nil {
			return err
		}
		r.counts.repaired.Add(int64(step.Repaired))
		r.walk.after = step.Last
		if step.Done {
			r.walk.after, r.walk.due = uuid.Nil, time.Now().Add(r.cfg.SafetyWalk)
			return nil
		}
	}
	return nil
}

// doHousework removes what nobody waits for: dead partitions, old metrics, dead letters past their time. What one kind of it
// meets does not keep the others from being done.
func (r *Retention) doHousework(ctx context.Context, now time.Time) error {
	until := time.Now().Add(houseworkTime)
	repeat := func(step func() (pg.RetentionStep, error), count *atomic.Int64) error {
		for time.Now().Before(until) {
			done, err := slotted(ctx, r.slots, step)
			if err != nil {
				if ctx.Err() == nil && isContention(err) {
					return nil
				}
				return err
			}
			count.Add(done.Deleted)
			if done.Done {
				return nil
			}
		}
		return nil
	}
	var faults []error
	if r.cfg.Cleanup {
		before := now.Add(-time.Duration(max(r.cfg.CleanupDays, 1)) * 24 * time.Hour)
		faults = append(faults, repeat(func() (pg.RetentionStep, error) { return r.store.CleanupPartitions(ctx, before, r.cfg.BatchSize) }, &r.counts.partitions))
	}
	faults = append(faults,
		repeat(func() (pg.RetentionStep, error) { return r.store.PurgeDeadLetters(ctx, r.cfg.BatchSize) }, &r.counts.deadLetters),
		repeat(func() (pg.RetentionStep, error) {
			deleted, done, err := r.store.PurgeMetrics(ctx, r.cfg.MetricsDays, 10*r.cfg.BatchSize)
			return pg.RetentionStep{Deleted: deleted, Done: done}, err
		}, &r.counts.metricRows))
	return errors.Join(faults...)
}

// slotted calls f with a slot of the maintenance lane, which is held for one step and not for a cycle.
func slotted[T any](ctx context.Context, slots *admission.Controller, f func() (T, error)) (T, error) {
	slot, err := slots.Acquire(ctx, admission.Maintenance)
	if err != nil {
		var none T
		return none, err
	}
	defer slot.Release()
	return f()
}

// isContention says that traffic was in the way: the next cycle comes soon.
func isContention(err error) bool {
	return errors.Is(err, pg.ErrSerialization) || errors.Is(err, pg.ErrLockTimeout)
}

// each runs f over the partitions with so many workers, and returns when all have ended.
func each(ctx context.Context, workers int, due []pg.DuePartition, f func(pg.DuePartition)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(max(workers, 1), len(due)) {
		group.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(due) || ctx.Err() != nil {
					return
				}
				f(due[i])
			}
		})
	}
	group.Wait()
}
