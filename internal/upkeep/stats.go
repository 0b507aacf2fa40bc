package upkeep

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"queenmq/internal/pg"
)

const (
	// mostStatsTime is the longest that one statement of a refresh of the statistics may take.
	mostStatsTime = time.Minute
	// statsShare is the part of the time that a refresh may take up: a cell with very many partitions is refreshed less often.
	statsShare = 10
	// retainedBytesTime bounds the statement that reads a row per segment.
	retainedBytesTime = 2 * time.Minute
	// refreshPatience is how long Refresh waits for the refresh of another broker.
	refreshPatience = 10 * time.Second
	refreshPoll     = 100 * time.Millisecond
)

// ErrStatsBusy says that other brokers refresh the statistics all the time.
var ErrStatsBusy = errors.New("another broker is refreshing the statistics: try again in a moment")

// A StatsStore is what the statistics need of the database door. A nil answer without an error means that another broker is
// at it.
type StatsStore interface {
	RefreshStats(ctx context.Context, timeout time.Duration) (json.RawMessage, error)
	RefreshRetainedBytes(ctx context.Context, timeout time.Duration) (json.RawMessage, error)
}

// Stats keeps queen.stats up to date, on one broker at a time. Being wrong or late changes dashboards only.
type Stats struct {
	*Loop
	store   StatsStore
	timeout time.Duration // of the goroutine that makes the passes
}

// NewStats makes the loop.
func NewStats(store StatsStore, interval time.Duration, log *slog.Logger) *Stats {
	s := &Stats{store: store, timeout: interval * 8 / 10}
	s.Loop = newLoop("statistics", interval, min(interval, 2*time.Second), log, func(ctx context.Context) error {
		_, err := s.Step(ctx)
		return err
	})
	return s
}

// Step refreshes once and tells whether this broker did it. A refresh that takes long makes the next ones rarer, and one that
// is cut off gets more time.
func (s *Stats) Step(ctx context.Context) (done bool, err error) {
	began := time.Now()
	answer, err := s.store.RefreshStats(ctx, s.timeout)
	if errors.Is(err, pg.ErrTimeout) {
		s.timeout = min(2*s.timeout, max(mostStatsTime, s.timeout))
	}
	if err != nil {
		return false, err
	}
	s.stretch(statsShare * time.Since(began))
	return answer != nil, nil
}

// Refresh refreshes now and returns the procedure's summary. It waits for a refresh that is under way elsewhere, and returns
// ErrStatsBusy when that does not end. It may be called while Run runs.
func (s *Stats) Refresh(ctx context.Context) (json.RawMessage, error) {
	waiting, cancel := context.WithTimeout(ctx, refreshPatience)
	defer cancel()
	poll := time.NewTicker(refreshPoll)
	defer poll.Stop()
	for {
		answer, err := s.store.RefreshStats(ctx, mostStatsTime)
		if err != nil || answer != nil {
			return answer, err
		}
		select {
		case <-poll.C:
		case <-waiting.Done():
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			return nil, ErrStatsBusy
		}
	}
}

// RetainedBytes keeps the stored bytes per queue up to date, rarely: it reads a row per segment.
type RetainedBytes struct {
	*Loop
	store StatsStore
}

// NewRetainedBytes makes the loop.
func NewRetainedBytes(store StatsStore, interval time.Duration, log *slog.Logger) *RetainedBytes {
	b := &RetainedBytes{store: store}
	b.Loop = newLoop("stored bytes", interval, min(interval, 30*time.Second), log, func(ctx context.Context) error {
		_, err := b.Step(ctx)
		return err
	})
	return b
}

// Step computes the figures once and tells whether this broker did it.
func (b *RetainedBytes) Step(ctx context.Context) (done bool, err error) {
	began := time.Now()
	answer, err := b.store.RefreshRetainedBytes(ctx, retainedBytesTime)
	if err != nil {
		return false, err
	}
	b.stretch(statsShare * time.Since(began))
	return answer != nil, nil
}
