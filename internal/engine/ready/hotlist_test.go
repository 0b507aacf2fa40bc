package ready

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestDeferral(t *testing.T) {
	t.Parallel()
	const delay, window = 10 * time.Second, 4 * time.Second
	for _, c := range []struct {
		name     string
		deferral Deferral
		act      func(*HotList, *Ring)
		after    time.Duration // when the partition is ready, not before
	}{
		{"plain", Deferral{}, func(l *HotList, _ *Ring) { l.mark(testKey, "a", 1, true) }, 0},
		{"delayed", Deferral{Delay: delay}, func(l *HotList, _ *Ring) { l.mark(testKey, "a", 1, true) }, delay},
		{"delayed, many", Deferral{Delay: delay}, func(l *HotList, _ *Ring) { l.mark(testKey, "a", 1000, true) }, delay},
		{"window", Deferral{Window: window}, func(l *HotList, _ *Ring) { l.mark(testKey, "a", 99, true) }, window},
		{"window full at once", Deferral{Window: window}, func(l *HotList, _ *Ring) { l.mark(testKey, "a", 100, true) }, 0},
		{"window filled later", Deferral{Window: window}, func(l *HotList, _ *Ring) { l.mark(testKey, "a", 60, true); l.mark(testKey, "a", 60, true) }, 0},
		{"delay and window", Deferral{Delay: delay, Window: window}, func(l *HotList, _ *Ring) {
			l.mark(testKey, "a", 60, true)
			l.mark(testKey, "a", 60, true)
		}, delay},
		{"exact time of the database", Deferral{Delay: delay}, func(l *HotList, r *Ring) {
			r.SetDeferral(Deferral{})
			l.mark(testKey, "a", 1, true)
			r.SetDeferral(Deferral{Delay: delay})
			c := r.Take(1, 1)
			c.Deferred(0, 7*time.Second)
			c.Return()
		}, 7 * time.Second},
		{"held by another for long", Deferral{}, func(l *HotList, r *Ring) {
			l.mark(testKey, "a", 1, true)
			c := r.Take(1, 1)
			c.HeldByOther(0, time.Hour)
			c.Return()
		}, revisitMost},
		{"held by another for a moment", Deferral{}, func(l *HotList, r *Ring) {
			l.mark(testKey, "a", 1, true)
			c := r.Take(1, 1)
			c.HeldByOther(0, 200*time.Millisecond)
			c.Return()
		}, 200*time.Millisecond + revisitSlack},
		{"auto-ack in a window", Deferral{Window: window}, func(l *HotList, r *Ring) {
			l.mark(testKey, "a", 100, true)
			c := r.Take(1, 1)
			c.Consumed(0, 1)
			c.Return()
		}, window},
		{"reseed of a delayed queue", Deferral{Delay: delay}, reseedOf("a"), 0},
		{"reseed of a window queue", Deferral{Window: window}, reseedOf("a"), 0},
		{"reseed of a held partition", Deferral{}, func(l *HotList, r *Ring) {
			l.mark(testKey, "a", 1, true)
			c := r.Take(1, 1)
			c.Leased(0, "lease", time.Hour, 0)
			c.Return()
			reseedOf("a")(l, r)
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			list := NewHotList(HotConfig{})
			clock := int64(1)
			list.now = func() int64 { return clock }
			ring := list.Ring(tenant, "q", "g")
			ring.SetDeferral(c.deferral)
			c.act(list, ring)
			if c.after > 0 {
				clock += int64(c.after) - 1
				require.False(t, ring.HasReady(), "too early")
				require.Empty(t, ringNames(ring, 1))
				clock++
			}
			require.True(t, ring.HasReady())
			require.Equal(t, []string{"a"}, ringNames(ring, 1))
		})
	}
}

func reseedOf(name string) func(*HotList, *Ring) {
	return func(_ *HotList, r *Ring) {
		walk, _ := r.BeginWalk()
		walk.Page([]string{name}, []int64{1}, time.Time{}, uuid.Nil)
		walk.End(true, false)
	}
}

// The wheel wakes parked pops by itself.
func TestRunWakesForWhatComesDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		list := NewHotList(HotConfig{IdleSweep: time.Hour})
		var running sync.WaitGroup
		running.Go(func() { require.NoError(t, list.Run(ctx)) })
		ring := list.Ring(tenant, "q", "g")
		ring.SetDeferral(Deferral{Window: 3 * time.Second})
		all := parkAll(ring, 2)
		list.mark(testKey, "a", 1, true)
		start := time.Now()
		<-all[0].Woken
		require.InDelta(t, 3.0, time.Since(start).Seconds(), 2*wheelTick.Seconds())
		require.Empty(t, wokenOf(all))
		cancel()
		running.Wait()
	})
}

func TestSweepDropsWhatNobodyUses(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{})
	used, parked, held := list.Ring(tenant, "q", "used"), list.Ring(tenant, "q", "parked"), list.Ring(tenant, "q", "held")
	left := list.Ring(tenant, "other", "g")
	list.mark(testKey, "a", 1, false)
	list.mark(queueKey{tenant, "other"}, "a", 1, false)
	out := held.Take(1, 1)
	place := NewParked()
	c := parked.Take(1, 1)
	c.Empty(0)
	c.Return()
	parked.Park(place)
	list.Sweep()
	require.Equal(t, 4, list.Stats().Rings, "all were used since the sweep before")
	require.Same(t, used, list.Ring(tenant, "q", "used"))
	list.Sweep()
	require.Equal(t, HotStats{Queues: 1, Rings: 3, Partitions: 1, Ready: 1, InFlight: 1}, list.Stats())
	require.False(t, left.IsCurrent())
	out.Return()
	place.Leave()
	list.Sweep()
	list.Sweep()
	require.Equal(t, HotStats{}, list.Stats())
}

// A queue may get a new partition for every order. Those of last year must not fill the memory.
func TestSweepForgetsTheNamesOfPartitionsThatAreIdle(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{})
	clock := int64(1)
	list.now = func() int64 { return clock }
	ring, place := list.Ring(tenant, "q", "g"), NewParked()
	const n = manyNames
	consume := func(from int) {
		for i := from; i < from+n; i++ {
			list.mark(testKey, fmt.Sprint(i), 1, true)
			out := list.Ring(tenant, "q", "g").Take(1, 1)
			out.Consumed(0, 0)
			out.Return()
		}
	}
	consume(0)
	ring.Park(place)
	list.Sweep()
	require.Equal(t, n, list.Stats().Partitions, "they may come again soon")
	require.True(t, ring.IsCurrent())
	clock += int64(tableLife)
	for i := range n / 2 {
		list.mark(testKey, fmt.Sprint(i), 1, true)
	}
	require.Same(t, ring, list.Ring(tenant, "q", "g"))
	list.Sweep()
	require.True(t, ring.IsCurrent(), "half of them have messages")
	place.Leave()
	place.Settle()
	out := ring.Take(n, n)
	for i := range out.Names() {
		out.Empty(i)
	}
	out.Return()
	ring.Park(place)
	list.Sweep()
	require.Equal(t, HotStats{}, list.Stats())
	require.False(t, ring.IsCurrent())
	require.Len(t, place.Woken, 1, "who waits looks again, and finds a ring that asks the database")
	require.True(t, list.Ring(tenant, "q", "g").IsCold())
}

func TestRingsAreLimitedPerTenantAndMinute(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{RingsPerMinute: 3})
	clock := int64(1)
	list.now = func() int64 { return clock }
	for i := range 5 {
		require.Equal(t, i < 3, list.Ring(tenant, "q", fmt.Sprint(i)) != nil)
	}
	require.NotNil(t, list.Ring(tenant, "q", "0"), "rings there are stay in use")
	require.NotNil(t, list.Ring(uuid.New(), "q", "0"), "other tenants are not concerned")
	clock += int64(time.Minute)
	require.NotNil(t, list.Ring(tenant, "q", "4"))
}

func TestWalksWhenAndHowFar(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{})
	clock := int64(1)
	list.now = func() int64 { return clock }
	ring := list.Ring(tenant, "q", "g")
	do := func(complete bool) time.Duration {
		walk, busy := ring.BeginWalk()
		require.Nil(t, busy)
		second, busy := ring.BeginWalk()
		require.Nil(t, second, "one walk of a ring at a time")
		walk.End(complete, false)
		<-busy
		return walk.Window
	}
	require.True(t, ring.IsCold())
	require.Zero(t, do(false), "the first walk is over everything")
	require.False(t, ring.IsCold())
	require.True(t, ring.NeedsWalk(), "it stopped between two pages")
	require.Len(t, list.DueWalks(), 0, "nobody popped since it began")
	list.Ring(tenant, "q", "g")
	require.Len(t, list.DueWalks(), 1)
	require.Zero(t, do(true))
	require.False(t, ring.NeedsWalk())

	list.Ring(tenant, "q", "g")
	clock += int64(30 * time.Second)
	require.False(t, ring.NeedsWalk(), "pops leave it to the background")
	require.Len(t, list.DueWalks(), 1)
	clock += int64(7500 * time.Millisecond)
	require.True(t, ring.NeedsWalk())
	require.Equal(t, 2*time.Minute, do(true), "then over what was written lately")
	clock += int64(100 * time.Second)
	require.Zero(t, do(true), "not when that could miss something")
	ring.force()
	require.True(t, ring.IsCold())
	walk, _ := ring.BeginWalk()
	require.Zero(t, walk.Window, "a repair asks for everything")
	require.True(t, ring.NeedsWalk(), "which has not come yet")
	walk.End(false, true)
	require.True(t, ring.IsCold(), "and is not answered by a walk that failed")
	require.Zero(t, do(true))
	for range 9 {
		clock += int64(32 * time.Second)
		require.NotZero(t, do(true))
	}
	clock += int64(32 * time.Second)
	require.Zero(t, do(true), "now and then over everything")
}

// A million partitions must fit: this is the list's memory beyond the names themselves.
func TestMemoryPerPartition(t *testing.T) { //nolint:paralleltest // measures the heap
	list := NewHotList(HotConfig{})
	ring, second := list.Ring(tenant, "q", "g"), list.Ring(tenant, "q", "h")
	const n = 200_000
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("lane-%d", i)
	}
	before := heapBytes()
	for _, name := range names {
		list.mark(testKey, name, 1, true)
	}
	both := float64(heapBytes()-before) / n
	list.mu.Lock()
	list.dropLocked(list.tables[testKey], second)
	list.mu.Unlock()
	second = nil
	one := float64(heapBytes()-before) / n
	runtime.KeepAlive(ring)
	require.Nil(t, second)
	t.Logf("%.0f bytes per partition and ring, %.0f per partition", both-one, one-(both-one))
	require.Less(t, both-one, 40.0, "per partition and ring")
	require.Less(t, both, 200.0, "per partition with two groups")
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
