package ready

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var tenant = uuid.MustParse("00000000-0000-0000-0000-000000000001")

// isOpen says whether a wake has closed the channel.
func isOpen(opened <-chan struct{}) bool {
	select {
	case <-opened:
		return true
	default:
		return false
	}
}

func TestWakeReachesEveryWaiterOfTheQueueAndNobodyElse(t *testing.T) {
	t.Parallel()
	gates := New()
	first, second := gates.Subscribe(tenant, "orders"), gates.Subscribe(tenant, "orders")
	other, foreign := gates.Subscribe(tenant, "bills"), gates.Subscribe(uuid.New(), "orders")
	discovery := gates.SubscribeDiscovery(tenant)
	var opened []<-chan struct{}
	for _, w := range []*Waiter{first, second, discovery, other, foreign} {
		defer w.Release()
		ch, _ := w.Arm()
		opened = append(opened, ch)
	}

	gates.Wake(tenant, "orders", "eu")

	var got []bool
	for _, ch := range opened {
		got = append(got, isOpen(ch))
	}
	require.Equal(t, []bool{true, true, true, false, false}, got)
}

func TestWakeBetweenArmAndWaitIsNotLost(t *testing.T) {
	t.Parallel()
	gates := New()
	waiter := gates.Subscribe(tenant, "orders")
	defer waiter.Release()

	opened, _ := waiter.Arm()
	gates.Wake(tenant, "orders", "eu") // while the attempt runs

	require.True(t, isOpen(opened))
	reopened, _ := waiter.Arm()
	require.False(t, isOpen(reopened), "a wake counts once")
}

func TestGateLivesOnlyWhileSomebodyWaits(t *testing.T) {
	t.Parallel()
	gates := New()
	gates.Wake(tenant, "orders", "eu")
	queues, tenants := gates.Size()
	require.Equal(t, [2]int{0, 0}, [2]int{queues, tenants}, "a wake must not create a gate")

	one, two, any := gates.Subscribe(tenant, "orders"), gates.Subscribe(tenant, "orders"), gates.SubscribeDiscovery(tenant)
	require.Equal(t, 2, gates.Waiting(tenant, "orders"))
	one.Release()
	require.Equal(t, 1, gates.Waiting(tenant, "orders"))
	two.Release()
	any.Release()
	queues, tenants = gates.Size()
	require.Equal(t, [2]int{0, 0}, [2]int{queues, tenants})
}

func TestWakesInQuickSuccessionAreFoldedIntoOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gates := New()
		waiter := gates.Subscribe(tenant, "orders")
		defer waiter.Release()
		opened, _ := waiter.Arm()
		gates.Wake(tenant, "orders", "p0")
		require.True(t, isOpen(opened), "the first wake passes at once")

		opened, _ = waiter.Arm()
		for i := range 100 {
			gates.Wake(tenant, "orders", fmt.Sprintf("p%d", i%3))
		}
		require.False(t, isOpen(opened), "the next ones wait for the end of the interval")
		start := time.Now()
		<-opened
		require.Equal(t, CoalesceInterval, time.Since(start))

		opened, hints := waiter.Arm()
		require.ElementsMatch(t, []string{"p0", "p1", "p2"}, hints)
		time.Sleep(10 * CoalesceInterval)
		require.False(t, isOpen(opened), "a folded wake fires once")
	})
}

func TestReleaseStopsAFoldedWake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gates := New()
		waiter := gates.Subscribe(tenant, "orders")
		opened, _ := waiter.Arm()
		gates.Wake(tenant, "orders", "eu")
		require.True(t, isOpen(opened))
		opened, _ = waiter.Arm()
		gates.Wake(tenant, "orders", "eu")
		waiter.Release()
		time.Sleep(10 * CoalesceInterval)
		require.False(t, isOpen(opened))
	})
}

func TestArmNamesThePartitionsOrNone(t *testing.T) {
	t.Parallel()
	names := func(n int) []string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("p%02d", i))
		}
		return all
	}
	cases := []struct {
		name  string
		wakes []string
		want  []string
	}{
		{"no wake", nil, nil},
		{"each once, oldest first", []string{"a", "b", "a"}, []string{"b", "a"}},
		{"a wake without a name asks for a full look", []string{"a", "", "b"}, nil},
		{"as many as fit", names(maxHints), names(maxHints)},
		{"more than fit asks for a full look", names(maxHints + 1), nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			gates := New()
			keeper := gates.Subscribe(tenant, "orders")
			defer keeper.Release()
			gates.Wake(tenant, "orders", "before")
			waiter := gates.Subscribe(tenant, "orders")
			defer waiter.Release()
			_, hints := waiter.Arm()
			require.Nil(t, hints, "the first look is at the whole queue")

			for _, partition := range c.wakes {
				gates.Wake(tenant, "orders", partition)
			}
			_, hints = waiter.Arm()
			require.Equal(t, c.want, hints)

			_, hints = waiter.Arm()
			require.Nil(t, hints, "a hint is given once")
		})
	}
}

func TestWakeAllOpensEveryGate(t *testing.T) {
	t.Parallel()
	gates := New()
	queue, discovery := gates.Subscribe(tenant, "orders"), gates.SubscribeDiscovery(uuid.New())
	defer queue.Release()
	defer discovery.Release()
	a, _ := queue.Arm()
	b, _ := discovery.Arm()
	gates.WakeAll()
	require.True(t, isOpen(a))
	require.True(t, isOpen(b))
}

// Subscribers come and go while wakes arrive: every armed waiter must be released by a wake that follows, and nothing may stay.
func TestGatesSurviveChurn(t *testing.T) {
	t.Parallel()
	gates := New()
	stop := make(chan struct{})
	var waker, waiters sync.WaitGroup
	waker.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				gates.Wake(tenant, "orders", fmt.Sprint(i%100))
			}
		}
	})
	for range 16 {
		waiters.Go(func() {
			for range 20 {
				waiter := gates.Subscribe(tenant, "orders")
				opened, _ := waiter.Arm()
				<-opened
				waiter.Release()
			}
		})
	}
	waiters.Wait()
	close(stop)
	waker.Wait()
	queues, _ := gates.Size()
	require.Zero(t, queues)
}

func TestPostponedWakesAtTheEndOfTheDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gates := New()
		var told int
		gates.Tell(func(uuid.UUID, string, string) { t.Error("nothing was pushed") }, func(_ uuid.UUID, queue, partition, group string) {
			require.Equal(t, "orders/eu/g", queue+"/"+partition+"/"+group)
			told++
		})
		waiter := gates.Subscribe(tenant, "orders")
		defer waiter.Release()
		opened, _ := waiter.Arm()
		start := time.Now()
		gates.Postponed(tenant, "orders", "eu", "g", 3*time.Second)
		synctest.Wait()
		require.False(t, isOpen(opened))
		<-opened
		require.Equal(t, 3*time.Second, time.Since(start))
		synctest.Wait()
		require.Equal(t, 1, told, "other brokers hear of it when there is something to take")
		require.Zero(t, gates.postponed.Load())

		gates.postponed.Store(maxPostponed)
		opened, _ = waiter.Arm()
		gates.Postponed(tenant, "orders", "eu", "g", time.Second)
		time.Sleep(2 * time.Second)
		require.False(t, isOpen(opened), "too many are waiting")
		require.EqualValues(t, maxPostponed, gates.postponed.Load())
	})
}
