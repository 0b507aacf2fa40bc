package pop

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
)

func longPoll(timeout time.Duration) Request {
	return Request{Tenant: tenant, Queue: "orders", Group: "billing", Batch: 10, MaxPartitions: 1, Wait: true, Timeout: timeout}
}

// errServed stands for a delivery where the clock is fake: what ends the wait is the same, and the decoders that a real delivery
// would take from their pool must not be born in a bubble.
var errServed = errors.New("served")

// serveAfter makes the n-th claiming call and those after it deliver.
func (f *fakeStore) serveAfter(n int64) {
	var calls atomic.Int64
	f.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
		if calls.Add(1) < n {
			return pg.Claim{}, nil
		}
		return pg.Claim{}, errServed
	}
}

func TestPopWithoutWaitLooksOnceAndAnswersEmpty(t *testing.T) {
	t.Parallel()
	server, db, gates := setup(t, Config{})
	req := longPoll(time.Minute)
	req.Wait = false
	result, err := server.Pop(t.Context(), req)
	require.NoError(t, err)
	require.Nil(t, result)
	require.Equal(t, []string{"settings", "wildcard"}, db.log())
	queues, _ := gates.Size()
	require.Zero(t, queues, "only long polls have gates")
}

func TestLongPoll(t *testing.T) {
	t.Parallel()

	t.Run("WakeDuringTheLookIsNotLost", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, db, gates := setup(t, Config{})
			looks := 0
			db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
				looks++
				if looks == 1 {
					gates.Wake(tenant, "orders", "eu") // a push commits after our snapshot and before we park
					return pg.Claim{}, nil
				}
				return pg.Claim{}, errServed
			}
			start := time.Now()
			_, err := server.Pop(t.Context(), longPoll(30*time.Second))
			require.ErrorIs(t, err, errServed)
			require.Zero(t, time.Since(start), "delivered by the wake, not by the back-off")
		})
	})

	t.Run("WakeWhileParkedDeliversAtOnce", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, db, gates := setup(t, Config{Backoff: Backoff{Initial: time.Hour}})
			db.serveAfter(2)
			start := time.Now()
			go func() {
				synctest.Wait()
				time.Sleep(7 * time.Second)
				gates.Wake(tenant, "orders", "eu")
			}()
			_, err := server.Pop(t.Context(), longPoll(30*time.Second))
			require.ErrorIs(t, err, errServed)
			require.Equal(t, 7*time.Second, time.Since(start))
		})
	})

	t.Run("DeadlineAnswersEmptyOnTime", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, _, gates := setup(t, Config{})
			start := time.Now()
			result, err := server.Pop(t.Context(), longPoll(2345*time.Millisecond))
			require.NoError(t, err)
			require.Nil(t, result)
			require.Equal(t, 2345*time.Millisecond, time.Since(start))
			queues, _ := gates.Size()
			require.Zero(t, queues)
		})
	})

	t.Run("StopAnswersEmptyAtOnce", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, db, _ := setup(t, Config{})
			start := time.Now()
			time.AfterFunc(3*time.Second+time.Millisecond, server.Stop)
			result, err := server.Pop(t.Context(), longPoll(30*time.Second))
			require.NoError(t, err)
			require.Nil(t, result)
			require.Equal(t, 3*time.Second+time.Millisecond, time.Since(start))

			server.Stop()
			db.log()
			result, err = server.Pop(t.Context(), longPoll(30*time.Second))
			require.NoError(t, err)
			require.Nil(t, result)
			require.Empty(t, db.log(), "a stopped server does not ask the database")
		})
	})

	t.Run("MaintenanceAnswersEmptyAtOnce", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var paused atomic.Bool
			server, db, gates := setup(t, Config{Paused: paused.Load, Backoff: Backoff{Initial: time.Hour}})
			start := time.Now()
			time.AfterFunc(4*time.Second, func() { paused.Store(true); gates.WakeAll() })
			result, err := server.Pop(t.Context(), longPoll(30*time.Second))
			require.NoError(t, err)
			require.Nil(t, result)
			require.Equal(t, 4*time.Second, time.Since(start))

			db.log()
			result, err = server.Pop(t.Context(), longPoll(30*time.Second))
			require.NoError(t, err)
			require.Nil(t, result)
			require.Empty(t, db.log())
		})
	})

	t.Run("CallerWhoLeavesEndsTheWait", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, _, _ := setup(t, Config{})
			ctx, cancel := context.WithCancel(t.Context())
			start := time.Now()
			time.AfterFunc(5*time.Second+time.Millisecond, cancel)
			result, err := server.Pop(ctx, longPoll(30*time.Second))
			require.ErrorIs(t, err, context.Canceled)
			require.Nil(t, result)
			require.Equal(t, 5*time.Second+time.Millisecond, time.Since(start))
		})
	})

	t.Run("CallerWhoLeavesDuringTheClaimHoldsNoLease", func(t *testing.T) {
		t.Parallel()
		server, db, _ := setup(t, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
			cancel() // the statement had committed already
			return claimOf(stored(t, 0, message(1))), nil
		}
		result, err := server.Pop(ctx, longPoll(30*time.Second))
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, result)
		require.Len(t, db.released, 1)
	})

	t.Run("BackoffFindsWhatNobodyAnnounced", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, db, _ := setup(t, Config{})
			register(t, server, db, longPoll(0))
			var visible atomic.Bool // a delayed message: pending all the time, claimable later
			db.setPending(true)
			db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
				if !visible.Load() {
					return pg.Claim{}, nil
				}
				return pg.Claim{}, errServed
			}
			start := time.Now()
			time.AfterFunc(9*time.Second, func() { visible.Store(true) })
			_, err := server.Pop(t.Context(), longPoll(30*time.Second))
			require.ErrorIs(t, err, errServed)
			require.Less(t, time.Since(start), 10200*time.Millisecond, "at most one longest back-off later")
		})
	})

	t.Run("ErrorEndsTheWait", func(t *testing.T) {
		t.Parallel()
		server, db, _ := setup(t, Config{})
		broken := errors.New("broken")
		db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) { return pg.Claim{}, broken }
		_, err := server.Pop(t.Context(), longPoll(30*time.Second))
		require.ErrorIs(t, err, broken)
	})

	t.Run("WaitForASlotEndsWithThePoll", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, db, _ := setup(t, Config{})
			block := make(chan struct{})
			db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
				<-block
				return pg.Claim{}, nil
			}
			var held sync.WaitGroup
			for range 100 { // more than there are slots
				held.Go(func() {
					req := longPoll(0)
					req.Wait = false
					_, _ = server.Pop(t.Context(), req)
				})
			}
			synctest.Wait()
			start := time.Now()
			result, err := server.Pop(t.Context(), longPoll(2*time.Second))
			require.NoError(t, err, "overload shows as waiting, never as a refusal")
			require.Nil(t, result)
			require.Equal(t, 2*time.Second+answerGrace, time.Since(start))
			close(block)
			held.Wait()
		})
	})
}

// Two thousand long polls on one idle queue: nothing is held while they are parked, the database hears a few statements a second
// from all of them together, and one wake reaches them all.
func TestParkedPopsHoldNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const polls = 2000
		server, db, gates := setup(t, Config{})
		register(t, server, db, longPoll(0))
		var served atomic.Int64
		var waiting sync.WaitGroup
		for range polls {
			waiting.Go(func() {
				if _, err := server.Pop(t.Context(), longPoll(time.Minute)); errors.Is(err, errServed) {
					served.Add(1)
				}
			})
		}
		synctest.Wait()
		require.EqualValues(t, polls, server.Stats().Parked)
		require.Equal(t, polls, gates.Waiting(tenant, "orders"))
		require.Zero(t, db.inFlight)
		require.Zero(t, server.slots.Stats().InFlight)

		time.Sleep(2 * time.Second) // let the back-off reach its longest interval
		db.log()
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, len(db.log()), 10*10+1, "one shared look per initial interval")

		var left atomic.Int64
		left.Store(1)
		db.claim = func(_ context.Context, call string, r pg.PopRequest) (pg.Claim, error) {
			if left.Add(-1) >= 0 {
				return pg.Claim{}, errServed
			}
			return pg.Claim{States: []pg.CandidateState{{Partition: "eu", Verdict: pg.CandidateLeased}}}, nil
		}
		gates.Wake(tenant, "orders", "eu")
		synctest.Wait()
		require.EqualValues(t, 1, served.Load(), "one message, one delivery, at once")
		require.EqualValues(t, polls-1, server.Stats().Parked)
		require.Zero(t, server.slots.Stats().InFlight)

		server.Stop()
		waiting.Wait()
		require.Zero(t, server.Stats().Parked)
	})
}

func TestWokenPopTriesTheNamedPartitionsFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, gates := setup(t, Config{Backoff: Backoff{Initial: time.Hour}})
		register(t, server, db, longPoll(0))
		done := make(chan error, 1)
		go func() {
			_, err := server.Pop(t.Context(), longPoll(time.Minute))
			done <- err
		}()
		synctest.Wait()
		require.Equal(t, []string{"pending"}, db.log(), "a known group looks read-only first")

		db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
			return pg.Claim{States: []pg.CandidateState{{Partition: "eu", Verdict: pg.CandidateLeased}}}, nil
		}
		gates.Wake(tenant, "orders", "eu")
		synctest.Wait()
		require.Equal(t, []string{"list"}, db.log(), "others were faster: no search of the whole queue")
		require.Equal(t, []string{"eu"}, db.last().Candidates)

		time.Sleep(ready.CoalesceInterval)
		gates.Wake(tenant, "orders", "")
		synctest.Wait()
		require.Equal(t, []string{"pending"}, db.log(), "a wake without a name is a look at the whole queue")

		time.Sleep(ready.CoalesceInterval)
		db.setPending(true)
		db.claim = func(_ context.Context, call string, _ pg.PopRequest) (pg.Claim, error) {
			if call == "list" {
				return pg.Claim{}, nil // the names were not reached
			}
			return pg.Claim{}, errServed
		}
		gates.Wake(tenant, "orders", "us")
		require.ErrorIs(t, <-done, errServed)
		require.Equal(t, []string{"list", "pending", "wildcard"}, db.log())
	})
}

func TestPartitionPopIgnoresWakesOfItsNeighbours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, gates := setup(t, Config{Backoff: Backoff{Initial: time.Hour}})
		req := longPoll(time.Minute)
		req.Kind, req.Partition = Partition, "eu"
		done := make(chan error, 1)
		go func() {
			_, err := server.Pop(t.Context(), req)
			done <- err
		}()
		synctest.Wait()
		require.Equal(t, []string{"settings", "specific"}, db.log())
		gates.Wake(tenant, "orders", "us")
		synctest.Wait()
		require.Empty(t, db.log())
		time.Sleep(ready.CoalesceInterval)
		db.serveAfter(1)
		gates.Wake(tenant, "orders", "eu")
		require.ErrorIs(t, <-done, errServed)
		require.Equal(t, []string{"specific"}, db.log())
	})
}

// A busy queue wakes its long polls all the time, for partitions that others are faster to take. That must not keep them from
// looking at the rest, where a delayed message becomes visible without anybody saying so.
func TestWakesForOthersDoNotPutOffTheBackoff(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]Kind{"queue": Queue, "partition": Partition} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, db, gates := setup(t, Config{})
				register(t, server, db, longPoll(0))
				db.setPending(true)
				start := time.Now()
				db.claim = func(_ context.Context, call string, _ pg.PopRequest) (pg.Claim, error) {
					if call != "list" && time.Since(start) > 5*time.Second {
						return pg.Claim{}, errServed
					}
					return pg.Claim{States: []pg.CandidateState{{Partition: "busy", Verdict: pg.CandidateLeased}}}, nil
				}
				stop := make(chan struct{})
				go func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(20 * time.Millisecond):
							gates.Wake(tenant, "orders", "busy")
						}
					}
				}()
				req := longPoll(time.Minute)
				req.Kind, req.Partition = kind, "eu"
				_, err := server.Pop(t.Context(), req)
				require.ErrorIs(t, err, errServed)
				require.Less(t, time.Since(start), 6200*time.Millisecond)
				close(stop)
			})
		})
	}
}

func TestDiscoveryPopIsWokenByAnyQueueOfItsTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, gates := setup(t, Config{Backoff: Backoff{Initial: time.Hour}})
		db.serveAfter(2)
		req := longPoll(time.Minute)
		req.Kind, req.Queue, req.Namespace = Discovery, "", "shop"
		time.AfterFunc(3*time.Second, func() { gates.Wake(tenant, "whatever", "p") })
		start := time.Now()
		_, err := server.Pop(t.Context(), req)
		require.ErrorIs(t, err, errServed)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Equal(t, []string{"discover", "discover"}, db.log())
	})
}

func TestBackoffGrowsAndStaysInBounds(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	cases := []struct {
		name    string
		backoff Backoff
		want    []time.Duration
	}{
		{"default", Backoff{}, []time.Duration{100 * ms, 100 * ms, 100 * ms, 800 * ms, 1000 * ms, 1000 * ms}},
		{"configured", Backoff{Initial: 10 * ms, Threshold: 1, Multiplier: 1.5, Max: 50 * ms}, []time.Duration{10 * ms, 30 * ms, 45 * ms, 50 * ms}},
		{"no threshold", Backoff{Initial: 10 * ms, Threshold: -1, Multiplier: 1, Max: 30 * ms}, []time.Duration{10 * ms, 20 * ms, 30 * ms, 30 * ms}},
		{"longest below initial", Backoff{Initial: 2 * time.Second}, []time.Duration{2 * time.Second, 2 * time.Second, 2 * time.Second, 2 * time.Second}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			backoff := c.backoff.withDefaults()
			for i, want := range c.want {
				require.Equal(t, want, backoff.interval(i+1), "wait %d", i+1)
			}
			require.Equal(t, backoff.Max, backoff.interval(1<<40), "no overflow")
		})
	}
	for range 1000 {
		require.InDelta(t, float64(time.Second), float64(jitter(time.Second)), float64(100*ms))
	}
	require.Equal(t, 3*time.Nanosecond, jitter(3*time.Nanosecond))
}
