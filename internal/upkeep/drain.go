package upkeep

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"queenmq/internal/engine/spool"
)

const (
	// drainInterval is how often the file buffer is looked at without being told.
	drainInterval = 250 * time.Millisecond
	// Pauses after the database took nothing: recovery is noticed within seconds.
	minDrainPause = 50 * time.Millisecond
	maxDrainPause = 2 * time.Second
)

// Drain stores what the file buffer of this broker keeps.
type Drain struct {
	spool  *spool.Spool
	store  spool.Store
	paused func() bool
	log    *slog.Logger
}

// NewDrain makes the loop. While paused says so nothing is stored.
func NewDrain(s *spool.Spool, store spool.Store, paused func() bool, log *slog.Logger) *Drain {
	return &Drain{s, store, paused, log}
}

// Step stores what waits and returns how many messages that were.
func (d *Drain) Step(ctx context.Context) (stored int, err error) {
	if d.paused() {
		return 0, nil
	}
	return d.spool.Drain(ctx, d.store)
}

// Run makes passes until ctx ends, and returns nil.
func (d *Drain) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var pause time.Duration
	var complained time.Time
	total := 0
	for {
		work := d.spool.Work()
		if pause > 0 {
			work = nil // the database decides when to try again, not the next push
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-work:
		}
		stored, err := d.Step(ctx)
		total += stored
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			pause = min(max(2*pause, minDrainPause), maxDrainPause)
			if complained.IsZero() || time.Since(complained) > complaintInterval {
				complained = time.Now()
				d.log.WarnContext(ctx, "the database does not take what is in the file buffer, trying again",
					slog.Int64("messages", d.spool.Stats().Pending), slog.Any("error", err))
			}
			timer.Reset(pause/2 + rand.N(pause/2+1)) //nolint:gosec // spreading, not secrecy
		default:
			if total > 0 && d.spool.Stats().Pending == 0 {
				d.log.InfoContext(ctx, "the file buffer is empty", slog.Int("stored", total))
				total = 0
			}
			pause, complained = 0, time.Time{}
			timer.Reset(drainInterval)
		}
	}
}
