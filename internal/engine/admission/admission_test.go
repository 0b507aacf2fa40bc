package admission

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sized returns a controller with exactly budget slots.
func sized(budget int) *Controller { return New(Config{PoolSize: 2 * budget, Reserve: budget}) }

// hold takes n slots of a lane, which must be free.
func hold(t *testing.T, c *Controller, l Lane, n int) []*Slot {
	t.Helper()
	slots := make([]*Slot, n)
	for i := range slots {
		s, ok := c.TryAcquire(l)
		require.True(t, ok, "slot %d of lane %s", i, l)
		slots[i] = s
	}
	return slots
}

func TestConfig_Budget(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		cfg  Config
		want int
	}{
		{"DefaultPool", Config{PoolSize: 160}, 128},
		{"PoolBelowMax", Config{PoolSize: 100}, 84},
		{"SmallMachine", Config{PoolSize: 160, Cores: 2}, 48},
		{"OneCore", Config{PoolSize: 160, Cores: 1}, 32},
		{"ManyCores", Config{PoolSize: 160, Cores: 64}, 128},
		{"ReserveAboveHalfOfThePool", Config{PoolSize: 10}, 5},
		{"OneConnection", Config{PoolSize: 1}, 1},
		{"ExplicitMax", Config{PoolSize: 160, Max: 8}, 8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, tt.cfg.Budget())
		})
	}
}

func TestController_CapsFollowTheShares(t *testing.T) {
	t.Parallel()
	s := New(Config{PoolSize: 160, MaintenanceCap: 9}).Stats()
	require.Equal(t, 38, s.Lanes[Ack].Cap)
	require.Equal(t, 51, s.Lanes[Pop].Cap)
	require.Equal(t, 32, s.Lanes[Push].Cap)
	require.Equal(t, 9, s.Lanes[Maintenance].Cap)
	for l, ln := range sized(4).Stats().Lanes {
		require.Equal(t, 2, ln.Cap, "floor of %s", Lane(l))
	}
}

func TestController_NeverAboveBudgetOrCap(t *testing.T) {
	t.Parallel()
	c := sized(6)
	hold(t, c, Push, 2)
	_, ok := c.TryAcquire(Push)
	require.False(t, ok, "lane cap")
	hold(t, c, Pop, 2)
	hold(t, c, Ack, 2)
	_, ok = c.TryAcquire(Maintenance)
	require.False(t, ok, "budget")
	require.Equal(t, 6, c.Stats().InFlight)
}

func TestSlot_ReleaseTwiceFreesOnce(t *testing.T) {
	t.Parallel()
	c := sized(4)
	s := hold(t, c, Push, 2)
	s[0].Release()
	s[0].Release()
	require.Equal(t, 1, c.Stats().InFlight)
	require.Equal(t, 1, c.Stats().Lanes[Push].InFlight)
}

func TestController_ServesLanesInOrderAndRequestsInTurn(t *testing.T) {
	t.Parallel()
	c := sized(1)
	slot := hold(t, c, Push, 1)[0]
	requests := []struct {
		name string
		lane Lane
	}{{"maintenance", Maintenance}, {"push 1", Push}, {"push 2", Push}, {"pop", Pop}, {"ack 1", Ack}, {"ack 2", Ack}}
	type granted struct {
		name string
		ch   chan *Slot
	}
	var waiting []granted
	for _, r := range requests {
		g := granted{r.name, make(chan *Slot, 1)}
		c.Request(r.lane, g.ch)
		waiting = append(waiting, g)
	}
	var order []string
	for range requests {
		slot.Release()
		slot = nil
		for _, g := range waiting {
			select {
			case s := <-g.ch:
				require.Nil(t, slot, "one release grants one slot")
				order = append(order, g.name)
				slot = s
			default:
			}
		}
		require.NotNil(t, slot, "a release with waiters grants its slot")
	}
	require.Equal(t, []string{"ack 1", "ack 2", "pop", "push 1", "push 2", "maintenance"}, order)
	slot.Release()
	require.Zero(t, c.Stats().InFlight)
}

func TestController_RequestIsGrantedAtOnceWhenFree(t *testing.T) {
	t.Parallel()
	c := sized(4)
	ch := make(chan *Slot, 1)
	w := c.Request(Push, ch)
	require.False(t, w.Cancel(), "already granted")
	(<-ch).Release()
	require.Zero(t, c.Stats().InFlight)
}

func TestController_CancelledWaiterLeavesTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := sized(1)
		slot := hold(t, c, Ack, 1)[0]
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 1)
		go func() {
			_, err := c.Acquire(ctx, Ack)
			errs <- err
		}()
		synctest.Wait()
		behind := make(chan *Slot, 1)
		c.Request(Push, behind)
		require.Equal(t, 1, c.Stats().Lanes[Ack].Waiting)

		cancel()
		require.ErrorIs(t, <-errs, context.Canceled)
		require.Zero(t, c.Stats().Lanes[Ack].Waiting)
		slot.Release()
		(<-behind).Release()
		require.Zero(t, c.Stats().InFlight)
	})
}

func TestController_AcquireWithEndedContextTakesNothing(t *testing.T) {
	t.Parallel()
	c := sized(4)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Acquire(ctx, Pop)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, c.Stats().InFlight)
}

// Every other lane asks without end; maintenance must still be served, and so must every one of the others.
func TestController_NoLaneStarvesUnderPermanentLoad(t *testing.T) {
	t.Parallel()
	for _, budget := range []int{4, 5, 7, 20} {
		c := sized(budget)
		ctx, cancel := context.WithCancel(t.Context())
		var served [laneCount]atomic.Int64
		var wg sync.WaitGroup
		for l := range laneCount {
			for range budget + 1 {
				wg.Go(func() {
					for {
						s, err := c.Acquire(ctx, l)
						if err != nil {
							return
						}
						served[l].Add(1)
						s.Release()
					}
				})
			}
		}
		require.Eventually(t, func() bool {
			for l := range served {
				if served[l].Load() < 100 {
					return false
				}
			}
			return true
		}, 20*time.Second, time.Millisecond, "budget %d: every lane gets its turn", budget)
		cancel()
		wg.Wait()
		require.Zero(t, c.Stats().InFlight)
	}
}

// A million random acquisitions, cancellations and releases: no grant is lost (everybody finishes), no bound is passed, and
// nothing stays behind.
func TestController_ChurnLosesNoGrant(t *testing.T) {
	t.Parallel()
	const workers, each = 32, 1_000_000 / 32
	c := sized(7)
	var inFlight atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 20)) //nolint:gosec // a reproducible schedule
			got := make(chan *Slot, 1)
			for range each {
				l := Lane(r.UintN(uint(laneCount)))
				var slot *Slot
				switch r.UintN(4) {
				case 0:
					slot, _ = c.TryAcquire(l)
				case 1: // ask and give up at once, before or after the grant
					if w := c.Request(l, got); !w.Cancel() {
						slot = <-got
					}
				case 2: // give up while waiting
					ctx, cancel := context.WithCancel(context.Background())
					go cancel()
					slot, _ = c.Acquire(ctx, l)
					cancel()
				default:
					slot, _ = c.Acquire(context.Background(), l)
				}
				if slot == nil {
					continue
				}
				if n := inFlight.Add(1); n > 7 {
					t.Errorf("%d slots in flight", n)
				}
				inFlight.Add(-1)
				slot.Release()
				if r.UintN(8) == 0 {
					slot.Release()
				}
			}
		})
	}
	wg.Wait()
	s := c.Stats()
	require.Zero(t, s.InFlight)
	for l, ln := range s.Lanes {
		require.Zero(t, ln.InFlight, "lane %s", Lane(l))
		require.Zero(t, ln.Waiting, "lane %s", Lane(l))
		require.Nil(t, c.lanes[l].first)
		require.Nil(t, c.lanes[l].last)
	}
	require.Len(t, hold(t, c, Ack, 2), 2, "the full capacity is there again")
}

func BenchmarkController_AcquireRelease(b *testing.B) {
	c := New(Config{PoolSize: 160})
	b.ReportAllocs()
	for b.Loop() {
		s, ok := c.TryAcquire(Push)
		if !ok {
			b.Fatal("no free slot")
		}
		s.Release()
	}
}

// Transactions that end together are one train; the cycle is known from the third train on and forgotten with the window.
func TestController_SeesTrains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := sized(20)
		train := func(n int) {
			slots := hold(t, c, Pop, n)
			time.Sleep(5 * time.Millisecond)
			for _, s := range slots {
				s.Release()
				time.Sleep(100 * time.Microsecond)
			}
		}
		require.Equal(t, TrainStats{}, c.Stats().Trains)
		train(4)
		train(4)
		require.Zero(t, c.Stats().Trains.Cycle, "two trains have no cycle")
		train(1)
		hold(t, c, Ack, 1)[0].Release() // too short to have waited for the disk
		require.Equal(t, TrainStats{PerSecond: 3, Aboard: 3, Cycle: 5400 * time.Microsecond}, c.Stats().Trains)

		time.Sleep(trainWindow / 2)
		require.InDelta(t, 3/5.0, c.Stats().Trains.PerSecond, 0.01)
		time.Sleep(trainWindow)
		require.Equal(t, TrainStats{}, c.Stats().Trains)
		for range 30 { // more than what is remembered of the cycle
			train(1)
		}
		require.Equal(t, 5100*time.Microsecond, c.Stats().Trains.Cycle)
		// An endless train is cut.
		slots := hold(t, c, Pop, 8)
		time.Sleep(time.Second)
		for range 100 {
			for i, s := range slots {
				s.Release()
				slots[i], _ = c.TryAcquire(Pop)
				time.Sleep(250 * time.Microsecond)
			}
		}
		require.InDelta(t, trainLimit, c.Stats().Trains.Cycle, float64(trainGap))
	})
}
