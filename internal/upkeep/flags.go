// Package upkeep holds the loops that run beside requests. Each is a struct with Run, which keeps time, and Step, which does
// one bounded pass and reports what it did; tests and administration call Step.
package upkeep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"queenmq/internal/pg"
)

// writeTimeout bounds how long whoever turns a switch waits for a database that does not answer.
const writeTimeout = 2 * time.Second

// A FlagStore keeps the switches that all brokers of a database share.
type FlagStore interface {
	SystemFlags(ctx context.Context) (pushMaintenance, popMaintenance bool, err error)
	SetSystemFlag(ctx context.Context, flag pg.SystemFlag, enabled bool) error
}

// A FlagNotes keeps a note on the broker's own disk, across restarts. [spool.Spool] is one.
type FlagNotes interface {
	// Note returns the note of that name, nil when there is none.
	Note(name string) ([]byte, error)
	// SetNote replaces the note of that name, on disk when it returns; nil deletes it.
	SetNote(name string, text []byte) error
}

// flagNote is the name of the note with the switches that the database has not been told.
const flagNote = "switches"

// Flags keeps the maintenance switches of the database in memory. They are off until the first successful pass: a broker that
// cannot read them serves.
type Flags struct {
	store    FlagStore
	interval time.Duration
	changed  func()
	log      *slog.Logger

	popsPaused, pushesPaused atomic.Bool

	// unwritten are switches that were turned here while the database was away. They win over what it says until it was told.
	mu        sync.Mutex
	unwritten map[pg.SystemFlag]bool
	turns     int
	notes     FlagNotes // nil: they do not outlive a restart
	noted     bool      // the note may say something
	// complained says that a note that stays was logged.
	complained bool
}

// NewFlags makes the loop. changed is called after a pass that found the pop switch turned, so that parked pops look again; it
// must not block.
func NewFlags(store FlagStore, interval time.Duration, changed func(), log *slog.Logger) *Flags {
	return &Flags{store: store, interval: interval, changed: changed, log: log, unwritten: map[pg.SystemFlag]bool{}}
}

// KeepIn makes switches that the database has not been told outlive a restart, and takes up those of an earlier run. It is for the start: nobody
// may use the switches yet. A note that cannot be read is left out, with an error that says so.
func (f *Flags) KeepIn(notes FlagNotes) error {
	f.notes = notes
	text, err := notes.Note(flagNote)
	if err != nil || text == nil {
		return err
	}
	f.noted = true
	var kept map[pg.SystemFlag]bool
	if err := json.Unmarshal(text, &kept); err != nil {
		return fmt.Errorf("the note %q: %w", flagNote, err)
	}
	for _, flag := range []pg.SystemFlag{pg.PushMaintenance, pg.PopMaintenance} { // and nothing else that a file may say
		if enabled, turned := kept[flag]; turned {
			f.unwritten[flag] = enabled
			f.log.Warn("a maintenance switch was turned before the restart while the database was away; the database is told as soon as it answers",
				slog.String("flag", string(flag)), slog.Bool("enabled", enabled))
		}
	}
	f.pushesPaused.Store(f.unwritten[pg.PushMaintenance])
	f.popsPaused.Store(f.unwritten[pg.PopMaintenance])
	return nil
}

// note makes the note say what the database has not been told. The caller holds mu.
func (f *Flags) note() error {
	if f.notes == nil || len(f.unwritten) == 0 && !f.noted {
		return nil
	}
	var text []byte
	if len(f.unwritten) > 0 {
		var err error
		if text, err = json.Marshal(f.unwritten); err != nil {
			return err
		}
	}
	f.noted = true // also when it fails half way
	if err := f.notes.SetNote(flagNote, text); err != nil {
		return err
	}
	f.noted = text != nil
	return nil
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

// Set turns a switch: for this broker at once, and for all when the database has been told. A database that is away is often the reason
// to turn one: Set then succeeds all the same, notes it, and every pass tries to tell it. written says whether it was told.
func (f *Flags) Set(ctx context.Context, flag pg.SystemFlag, enabled bool) (written bool) {
	f.mu.Lock()
	f.unwritten[flag] = enabled
	f.turns++
	pushes, pops := f.pushesPaused.Load(), f.popsPaused.Load()
	if flag == pg.PushMaintenance {
		pushes = enabled
	} else {
		pops = enabled
	}
	f.take(ctx, pushes, pops)
	f.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := f.write(limited); err != nil {
		f.mu.Lock()
		unkept := f.note()
		lasts := f.notes != nil && unkept == nil
		f.mu.Unlock()
		f.log.WarnContext(ctx, "a maintenance switch was turned here and could not be stored; it counts for this broker alone until the database answers",
			slog.String("flag", string(flag)), slog.Bool("enabled", enabled), slog.Bool("outlives_a_restart", lasts),
			slog.Any("error", errors.Join(err, unkept)))
		return false
	}
	return true
}

// write tells the database what it has not been told.
func (f *Flags) write(ctx context.Context) error {
	f.mu.Lock()
	pending := maps.Clone(f.unwritten)
	f.mu.Unlock()
	for flag, enabled := range pending {
		if err := f.store.SetSystemFlag(ctx, flag, enabled); err != nil {
			return err
		}
		f.mu.Lock()
		if f.unwritten[flag] == enabled { // not turned again meanwhile
			delete(f.unwritten, flag)
		}
		f.mu.Unlock()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.noted {
		return nil
	}
	// A note that stays would turn the switch again after the next restart: the next pass tries once more.
	if err := f.note(); err != nil && !f.complained {
		f.complained = true
		f.log.Error("what was noted about a maintenance switch could not be deleted: a restart now would turn the switch again", slog.Any("error", err))
	}
	return nil
}

// Step tells the database what it has not been told, reads the switches once and says whether the pop switch turned.
func (f *Flags) Step(ctx context.Context) (turned bool, err error) {
	if err := f.write(ctx); err != nil {
		return false, err // what the database says is older than what was asked for here
	}
	f.mu.Lock()
	before := f.turns
	f.mu.Unlock()
	pushes, pops, err := f.store.SystemFlags(ctx)
	if err != nil {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.turns != before {
		return false, nil // turned while they were read: the next pass knows more
	}
	return f.take(ctx, pushes, pops), nil
}

// take makes the switches what they are to be and tells whether the pop switch turned. The caller holds mu.
func (f *Flags) take(ctx context.Context, pushes, pops bool) (turned bool) {
	if f.pushesPaused.Swap(pushes) != pushes {
		f.log.InfoContext(ctx, "push maintenance switched", slog.Bool("paused", pushes))
	}
	if f.popsPaused.Swap(pops) == pops {
		return false
	}
	f.log.InfoContext(ctx, "pop maintenance switched", slog.Bool("paused", pops))
	f.changed()
	return true
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
