package pop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

// suspend begins a pop that has to wait.
func suspend(ctx context.Context, t *testing.T, server *Server, timeout time.Duration) *SuspendedError {
	t.Helper()
	request := longPoll(timeout)
	request.Suspends = true
	result, err := server.Pop(ctx, request)
	require.Nil(t, result)
	suspended, ok := errors.AsType[*SuspendedError](err)
	require.True(t, ok, "%v", err)
	return suspended
}

func TestSuspendedPopGetsWhatComes(t *testing.T) {
	t.Parallel()
	server, db, gates := setupHot(t, Config{})
	warm(t, server, db)
	before := server.Stats()
	suspended := suspend(t.Context(), t, server, time.Hour)
	require.Equal(t, 1, gates.Waiting(tenant, "orders"))
	var told []int
	suspended.WhenEnded(func(result *Result, _ error) { told = append(told, result.Messages()) })
	db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
		return took(r, 0, stored(t, 0, message(0))), nil
	}
	gates.Stored(tenant, "orders", "eu", 1)
	suspended.Wait(t.Context())
	result, err := suspended.Resume(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, result.Messages())
	require.Equal(t, []int{1}, told)
	result.Done()
	after := server.Stats()
	require.Equal(t, int64(1), after.Requests-before.Requests, "one request, however often it was suspended")
	require.Equal(t, int64(1), after.Messages-before.Messages)
	require.Zero(t, after.Empty-before.Empty)
}

// A wake for nothing: the pop looks, and waits again.
func TestPopIsSuspendedAgain(t *testing.T) {
	t.Parallel()
	server, db, gates := setupHot(t, Config{})
	warm(t, server, db)
	before := server.Stats()
	suspended := suspend(t.Context(), t, server, time.Hour)
	ended := 0
	suspended.WhenEnded(func(*Result, error) { ended++ })
	db.claim = verdicts(pg.CandidateEmpty, 0)
	gates.Stored(tenant, "orders", "eu", 1)
	suspended.Wait(t.Context())
	_, err := suspended.Resume(t.Context())
	again, ok := errors.AsType[*SuspendedError](err)
	require.True(t, ok, "%v", err)
	require.Zero(t, ended)
	require.Equal(t, 1, gates.Waiting(tenant, "orders"))
	server.Stop()
	again.Wait(t.Context())
	result, err := again.Resume(t.Context())
	require.NoError(t, err)
	require.Nil(t, result)
	require.Equal(t, 1, ended)
	require.Zero(t, gates.Waiting(tenant, "orders"))
	require.Zero(t, server.Stats().Parked)
	require.Equal(t, int64(1), server.Stats().Empty-before.Empty)
}

func TestSuspendedPopEnds(t *testing.T) {
	t.Parallel()
	t.Run("when its caller leaves", func(t *testing.T) {
		t.Parallel()
		server, db, gates := setupHot(t, Config{})
		warm(t, server, db)
		ctx, leave := context.WithCancel(t.Context())
		suspended := suspend(ctx, t, server, time.Hour)
		leave()
		suspended.Wait(ctx)
		_, err := suspended.Resume(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, gates.Waiting(tenant, "orders"))
	})
	t.Run("at its deadline", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, db, gates := setupHot(t, Config{})
			warm(t, server, db)
			start := time.Now()
			suspended, more := suspend(t.Context(), t, server, 70*time.Second), true
			for more {
				suspended.Wait(t.Context())
				result, err := suspended.Resume(t.Context())
				require.Nil(t, result)
				if suspended, more = errors.AsType[*SuspendedError](err); !more { // it looks now and then
					require.NoError(t, err)
				}
			}
			require.Equal(t, 70*time.Second, time.Since(start))
			require.Zero(t, gates.Waiting(tenant, "orders"))
		})
	})
}
