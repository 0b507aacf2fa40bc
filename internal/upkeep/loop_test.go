package upkeep

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var quiet = slog.New(slog.DiscardHandler)

// running starts a loop inside a synctest bubble and stops it when the test ends.
func running(t *testing.T, l *Loop) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	synctest.Wait()
}

func TestLoop(t *testing.T) {
	t.Parallel()

	t.Run("KeepsTimeFromTheStartOfAPass", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var passes atomic.Int64
			l := newLoop("x", 10*time.Second, time.Second, quiet, func(context.Context) error {
				passes.Add(1)
				time.Sleep(5 * time.Second)
				return nil
			})
			running(t, l)
			require.Zero(t, passes.Load())
			time.Sleep(time.Second)
			synctest.Wait()
			require.EqualValues(t, 1, passes.Load())
			time.Sleep(100 * time.Second)
			synctest.Wait()
			require.InDelta(t, 11, passes.Load(), 1)
			require.NoError(t, l.Check(t.Context()))
		})
	})

	t.Run("APassLongerThanTheIntervalIsFollowedByAPause", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var passes atomic.Int64
			l := newLoop("x", time.Second, 0, quiet, func(context.Context) error {
				passes.Add(1)
				time.Sleep(2 * time.Second)
				return nil
			})
			running(t, l)
			time.Sleep(45 * time.Second)
			synctest.Wait()
			require.InDelta(t, 20, passes.Load(), 1)
		})
	})

	t.Run("FailuresAndPanicsAreRepeatedEverMoreRarely", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var passes atomic.Int64
			l := newLoop("x", time.Second, 0, quiet, func(context.Context) error {
				if passes.Add(1)%2 == 0 {
					panic("a fault")
				}
				return errors.New("away")
			})
			running(t, l)
			require.NoError(t, l.Check(t.Context()), "a failure now and then is no news")
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			require.Less(t, passes.Load(), int64(25))
			require.Greater(t, passes.Load(), int64(10))
			require.ErrorContains(t, l.Check(t.Context()), "x has not succeeded for")
			status := l.Status()
			require.Equal(t, passes.Load(), status.Failures)
			require.True(t, status.LastSuccess.IsZero())
		})
	})

	t.Run("ASuccessEndsTheBackOff", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var fails atomic.Bool
			fails.Store(true)
			var passes atomic.Int64
			l := newLoop("x", time.Second, 0, quiet, func(context.Context) error {
				passes.Add(1)
				if fails.Load() {
					return errors.New("away")
				}
				return nil
			})
			running(t, l)
			time.Sleep(5 * time.Minute)
			fails.Store(false)
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			passes.Store(0)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			require.InDelta(t, 10, passes.Load(), 2)
			require.NoError(t, l.Check(t.Context()))
		})
	})

	t.Run("StoppedIsNotHealthy", func(t *testing.T) {
		t.Parallel()
		l := newLoop("x", time.Second, 0, quiet, func(context.Context) error { return nil })
		require.ErrorContains(t, l.Check(t.Context()), "not running")
	})

	t.Run("StartsAndStopsAnyNumberOfTimes", func(t *testing.T) {
		t.Parallel()
		var passes atomic.Int64
		l := newLoop("x", time.Millisecond, 0, quiet, func(ctx context.Context) error {
			passes.Add(1)
			return ctx.Err()
		})
		for i := range 200 {
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			group.Go(func() { _ = l.Run(ctx) })
			for i%10 == 0 && l.Status().Passes < int64(i/10+1) {
				time.Sleep(50 * time.Microsecond)
			}
			cancel()
			group.Wait()
			_ = l.Status()
		}
		require.GreaterOrEqual(t, passes.Load(), int64(20))
	})
}
