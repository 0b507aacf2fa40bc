// Package upkeep holds the loops that run beside requests. Each is a struct with Run, which keeps time, and Step, which does
// one bounded pass and reports what it did; tests and administration call Step.
package upkeep

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A FlagStore reads the switches that all brokers of a database share.
type FlagStore interface {
	SystemFlags(ctx context.Context) (pushMaintenance, popMaintenance bool, err error)
}

// Flags keeps the maintenance switches of the database in memory. They are off until the first successful pass: a broker that
// cannot read them serves.
type Flags struct {
	store    FlagStore
	interval time.Duration
	changed  func()
	log      *slog.Logger

	popsPaused, pushesPaused atomic.Bool
}

// NewFlags makes the loop. changed is called after a pass that found the pop switch turned, so that parked pops look again; it
// must not block.
func NewFlags(store FlagStore, interval time.Duration, changed func(), log *slog.Logger) *Flags {
	return &Flags{store: store, interval: interval, changed: changed, log: log}
}

// PopsPaused tells whether pops are switched off for maintenance, as of the last pass.
func (f *Flags) PopsPaused() bool { return f.popsPaused.Load() }

// PushesPaused tells whether pushes are switched off for maintenance, as of the last pass.
func (f *Flags) PushesPaused() bool { return f.pushesPaused.Load() }

// Refresh is Step for callers who only want the switches to be fresh.
func (f *Flags) Refresh(ctx context.Context) error {
	_, err := f.Step(ctx)
	return err
}

// Step reads the switches once and tells whether the pop switch turned.
func (f *Flags) Step(ctx context.Context) (turned bool, err error) {
	pushes, pops, err := f.store.SystemFlags(ctx)
	if err != nil {
		return false, err
	}
	if f.pushesPaused.Swap(pushes) != pushes {
		f.log.InfoContext(ctx, "push maintenance switched", slog.Bool("paused", pushes))
	}
	if f.popsPaused.Swap(pops) == pops {
		return false, nil
	}
	f.log.InfoContext(ctx, "pop maintenance switched", slog.Bool("paused", pops))
	f.changed()
	return true, nil
}

// Run makes a pass at once and then one per interval until ctx ends, and returns nil. A pass that fails leaves the switches as
// they are.
func (f *Flags) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var complained time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if _, err := f.Step(ctx); err != nil && ctx.Err() == nil && time.Since(complained) > complaintInterval {
			complained = time.Now()
			f.log.WarnContext(ctx, "maintenance switches could not be read", slog.Any("error", err))
		}
		// Brokers that start together do not read together.
		timer.Reset(f.interval - rand.N(f.interval/10+1))
	}
}
