package upkeep

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/admission"
	"queenmq/internal/pg"
)

// shelf is a store in memory: partitions with so many rows to delete, and some that are due and never give anything.
type shelf struct {
	mu      sync.Mutex
	rows    map[uuid.UUID]int
	oldest  map[uuid.UUID]time.Time
	stuck   map[uuid.UUID]bool
	fail    map[uuid.UUID]error
	steps   map[uuid.UUID]int
	now     time.Time
	lists   int
	repairs int
}

func newShelf() *shelf {
	return &shelf{
		rows: map[uuid.UUID]int{}, oldest: map[uuid.UUID]time.Time{}, stuck: map[uuid.UUID]bool{}, fail: map[uuid.UUID]error{},
		steps: map[uuid.UUID]int{}, now: time.Unix(1e9, 0),
	}
}

func (s *shelf) add(age time.Duration, rows int) uuid.UUID {
	id := uuid.New()
	s.rows[id], s.oldest[id] = rows, s.now.Add(-age)
	return id
}

func (s *shelf) DatabaseTime(context.Context) (time.Time, error) { return s.now, nil }

func (s *shelf) RetentionDue(_ context.Context, phase pg.RetentionPhase, now time.Time, after *pg.DuePartition, limit int) ([]pg.DuePartition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if phase != pg.PhaseRules {
		return nil, nil
	}
	var due []pg.DuePartition
	for id, n := range s.rows {
		if n > 0 && s.oldest[id].Before(now) {
			due = append(due, pg.DuePartition{ID: id, Oldest: s.oldest[id], Cutoff: now})
		}
	}
	order := func(a, b pg.DuePartition) int {
		if c := a.Oldest.Compare(b.Oldest); c != 0 {
			return c
		}
		return slices.Compare(a.ID[:], b.ID[:])
	}
	slices.SortFunc(due, order)
	if after != nil {
		due = slices.DeleteFunc(due, func(d pg.DuePartition) bool { return order(d, *after) <= 0 })
	}
	return due[:min(limit, len(due))], nil
}

func (s *shelf) RetentionStep(_ context.Context, due pg.DuePartition, maxRows int) (pg.RetentionStep, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps[due.ID]++
	if err := s.fail[due.ID]; err != nil {
		return pg.RetentionStep{}, err
	}
	if s.stuck[due.ID] {
		return pg.RetentionStep{Done: true}, nil
	}
	n := min(maxRows, s.rows[due.ID])
	s.rows[due.ID] -= n
	return pg.RetentionStep{Deleted: int64(n), Messages: int64(2 * n), Unread: int64(n), Done: s.rows[due.ID] == 0}, nil
}

func (s *shelf) PurgeSidecar(ctx context.Context, due pg.DuePartition, maxRows int) (pg.RetentionStep, error) {
	return s.RetentionStep(ctx, due, maxRows)
}

func (s *shelf) EvictMaxWait(ctx context.Context, due pg.DuePartition, maxRows int) (pg.RetentionStep, error) {
	return s.RetentionStep(ctx, due, maxRows)
}

func (s *shelf) CleanupPartitions(context.Context, time.Time, int) (pg.RetentionStep, error) {
	return pg.RetentionStep{Done: true}, pg.ErrSerialization
}

func (s *shelf) PurgeDeadLetters(context.Context, int) (pg.RetentionStep, error) {
	return pg.RetentionStep{Deleted: 1, Done: true}, nil
}
func (s *shelf) PurgeMetrics(context.Context, int, int) (int64, bool, error) { return 3, true, nil }

func (s *shelf) RepairWatermarks(context.Context, uuid.UUID, int) (pg.RepairStep, error) {
	s.repairs++
	return pg.RepairStep{Last: uuid.New(), Seen: walkBatch, Done: s.repairs%30 == 0}, nil
}

// crowned always leads.
type crowned struct{}

func (crowned) Lead(ctx context.Context, f func(context.Context) error) (bool, error) {
	return true, f(ctx)
}
func (crowned) Close() {}

func retentionOf(store RetentionStore, cfg RetentionConfig) *Retention {
	return NewRetention(cfg, store, crowned{}, admission.New(admission.Config{PoolSize: 16}), quiet)
}

var small = RetentionConfig{Interval: time.Second, BatchSize: 10, Parallelism: 2, DueCap: 5, SafetyWalk: time.Hour, Cleanup: true, CleanupDays: 1, MetricsDays: 1}

func step(t *testing.T, r *Retention) {
	t.Helper()
	led, err := r.Step(t.Context())
	require.NoError(t, err)
	require.True(t, led)
}

func TestAHugePartitionDoesNotKeepTheOthersWaiting(t *testing.T) {
	t.Parallel()
	store := newShelf()
	huge, tiny := store.add(time.Hour, 10*stepsPerPartition*3), store.add(time.Minute, 1)
	r := retentionOf(store, small)
	step(t, r)
	require.Equal(t, []int{stepsPerPartition, 1}, []int{store.steps[huge], store.steps[tiny]})
	require.Zero(t, store.rows[tiny])
	step(t, r)
	step(t, r)
	require.Zero(t, store.rows[huge])
	stats := r.Stats()
	require.Equal(t, []int64{1501, 3002, 1501}, []int64{stats.Segments, stats.Messages, stats.Unread})
	require.Equal(t, time.Hour, stats.Lag)
	step(t, r)
	require.Zero(t, r.Stats().Lag, "nothing is due any more")
}

func TestPartitionsThatWaitForAGroupDoNotStarveTheOthers(t *testing.T) {
	t.Parallel()
	store := newShelf()
	var stuck []uuid.UUID
	for i := range 300 {
		id := store.add(time.Duration(1000+i)*time.Hour, 1)
		store.stuck[id] = true
		stuck = append(stuck, id)
	}
	last := store.add(time.Minute, 3)
	r := retentionOf(store, small)
	cycles := 0
	for ; store.rows[last] > 0 && cycles < 100; cycles++ {
		step(t, r)
	}
	require.Less(t, cycles, 70, "five a cycle, three hundred in the way")
	before := map[uuid.UUID]int{}
	for _, id := range stuck {
		before[id] = store.steps[id]
		require.Positive(t, before[id])
	}
	for range 64 {
		step(t, r)
	}
	tried := 0
	for _, id := range stuck {
		tried += store.steps[id] - before[id]
	}
	require.Less(t, tried, 64*5, "what gave nothing is tried more and more rarely")
	require.EqualValues(t, 300, r.Stats().Blocked[pg.PhaseRules])

	// As soon as the group has come along, its partition is emptied.
	for _, id := range stuck {
		store.stuck[id] = false
	}
	for range 200 {
		step(t, r)
	}
	for _, id := range stuck {
		require.Zero(t, store.rows[id])
	}
	require.Zero(t, r.Stats().Blocked[pg.PhaseRules])
}

func TestFailingPartitionsStopNoOther(t *testing.T) {
	t.Parallel()
	store := newShelf()
	broken, locked, fine := store.add(3*time.Hour, 1), store.add(2*time.Hour, 1), store.add(time.Hour, 1)
	store.fail[broken], store.fail[locked] = errors.New("no"), pg.ErrLockTimeout
	r := retentionOf(store, small)
	step(t, r)
	require.Zero(t, store.rows[fine])
	require.EqualValues(t, 1, r.Stats().StepFailures, "traffic in the way is no failure")
	step(t, r)
	require.Equal(t, 2, store.steps[broken], "the next cycle tries again")
	require.EqualValues(t, 1, r.Stats().DeadLetters, "a deadlock of the cleanup keeps nothing else from being done, once a minute")
	require.EqualValues(t, 3, r.Stats().MetricRows)
}

func TestTheSafetyWalkIsSpreadOverCycles(t *testing.T) {
	t.Parallel()
	store := newShelf()
	r := retentionOf(store, small)
	step(t, r)
	require.Equal(t, walkSteps, store.repairs)
	step(t, r)
	require.Equal(t, 30, store.repairs)
	step(t, r)
	require.Equal(t, 30, store.repairs, "the next walk comes much later")
}
