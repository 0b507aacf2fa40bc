package upkeep_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/pg"
	"queenmq/internal/upkeep"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// switches is a store whose answers a test sets between passes.
type switches struct {
	pops  bool
	err   error
	reads atomic.Int64

	pushes bool
	away   bool
}

func (s *switches) SetSystemFlag(_ context.Context, flag pg.SystemFlag, enabled bool) error {
	if s.away {
		return errors.New("away")
	}
	if flag == pg.PushMaintenance {
		s.pushes = enabled
	} else {
		s.pops = enabled
	}
	return nil
}

func (s *switches) SystemFlags(context.Context) (pushes, pops bool, err error) {
	s.reads.Add(1)
	return s.pushes, s.pops, s.err
}

// notes are those of a directory.
type notes map[string][]byte

func (n notes) Note(name string) ([]byte, error) { return n[name], nil }

func (n notes) SetNote(name string, text []byte) error {
	if text == nil {
		delete(n, name)
	} else {
		n[name] = text
	}
	return nil
}

var discard = slog.New(slog.DiscardHandler)

func TestFlags(t *testing.T) {
	t.Parallel()

	t.Run("TurnIsReportedOnce", func(t *testing.T) {
		t.Parallel()
		store, turns := &switches{}, 0
		flags := upkeep.NewFlags(store, time.Minute, func() { turns++ }, discard)
		for _, want := range []struct{ pops, turned bool }{{false, false}, {true, true}, {true, false}, {false, true}} {
			store.pops = want.pops
			turned, err := flags.Step(t.Context())
			require.NoError(t, err)
			require.Equal(t, want.turned, turned)
			require.Equal(t, want.pops, flags.PopsPaused())
		}
		require.Equal(t, 2, turns)
	})

	t.Run("FailedPassKeepsTheSwitch", func(t *testing.T) {
		t.Parallel()
		store := &switches{pops: true}
		flags := upkeep.NewFlags(store, time.Minute, func() {}, discard)
		_, err := flags.Step(t.Context())
		require.NoError(t, err)
		store.pops, store.err = false, errors.New("away")
		_, err = flags.Step(t.Context())
		require.ErrorIs(t, err, store.err)
		require.True(t, flags.PopsPaused())
	})

	// Without the rule a switch that was turned while the database was away would be turned back by what the database said before.
	t.Run("TurnedWhileTheDatabaseIsAwayStaysTurned", func(t *testing.T) {
		t.Parallel()
		store := &switches{away: true}
		flags := upkeep.NewFlags(store, time.Minute, func() {}, discard)
		require.False(t, flags.Set(t.Context(), pg.PushMaintenance, true))
		require.True(t, flags.PushesPaused(), "at once")
		_, err := flags.Step(t.Context())
		require.Error(t, err)
		require.True(t, flags.PushesPaused())
		require.Zero(t, store.reads.Load(), "what it says is older")
		store.away = false
		_, err = flags.Step(t.Context())
		require.NoError(t, err)
		require.True(t, store.pushes, "told as soon as it answers")
		require.True(t, flags.PushesPaused())
		store.pushes = false // another broker, later
		_, err = flags.Step(t.Context())
		require.NoError(t, err)
		require.False(t, flags.PushesPaused())
		require.True(t, flags.Set(t.Context(), pg.PopMaintenance, true))
		require.True(t, store.pops)
	})

	t.Run("TurnedWhileTheDatabaseIsAwayOutlivesARestart", func(t *testing.T) {
		t.Parallel()
		store, kept := &switches{away: true}, notes{}
		start := func() *upkeep.Flags {
			flags := upkeep.NewFlags(store, time.Minute, func() {}, discard)
			require.NoError(t, flags.KeepIn(kept))
			return flags
		}
		flags := start()
		require.Empty(t, kept)
		require.False(t, flags.Set(t.Context(), pg.PushMaintenance, true))
		require.False(t, flags.Set(t.Context(), pg.PopMaintenance, true))
		require.False(t, flags.Set(t.Context(), pg.PopMaintenance, false))
		store.pops = true

		flags = start()
		require.True(t, flags.PushesPaused(), "before the database answers")
		require.False(t, flags.PopsPaused())
		store.away = false
		_, err := flags.Step(t.Context())
		require.NoError(t, err)
		require.True(t, store.pushes)
		require.False(t, store.pops, "off was asked for too")
		require.Empty(t, kept, "once")

		require.True(t, flags.Set(t.Context(), pg.PushMaintenance, false))
		require.Empty(t, kept, "the database was told")
		require.False(t, start().PushesPaused())
	})

	t.Run("NoteThatCannotBeUnderstoodTurnsNothing", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{"", "null", "{", `{"maintenance_mode":"yes"}`, `{"other":true}`} {
			store := &switches{}
			flags := upkeep.NewFlags(store, time.Minute, func() {}, discard)
			kept := notes{"switches": []byte(text)}
			_ = flags.KeepIn(kept) // an error for the log where it is none of ours
			require.False(t, flags.PushesPaused(), text)
			_, err := flags.Step(t.Context())
			require.NoError(t, err)
			require.Empty(t, kept, text)
		}
	})

	t.Run("RunReadsAtOnceAndOncePerIntervalAlsoAfterFailures", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			store := &switches{err: errors.New("away")}
			flags := upkeep.NewFlags(store, time.Minute, func() {}, discard)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- flags.Run(ctx) }()
			synctest.Wait()
			require.EqualValues(t, 1, store.reads.Load())
			time.Sleep(10 * time.Minute) // fake time
			synctest.Wait()
			require.InDelta(t, 11, store.reads.Load(), 1)
			cancel()
			require.NoError(t, <-ended)
		})
	})
}
