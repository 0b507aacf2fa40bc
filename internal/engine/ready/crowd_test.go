package ready

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var testKey = queueKey{tenant, "q"}

// parkAll parks n long polls one after the other.
func parkAll(ring *Ring, n int) []*Parked {
	all := make([]*Parked, n)
	for i := range all {
		all[i] = NewParked()
		ring.Park(all[i])
	}
	return all
}

func wokenOf(all []*Parked) (woken []int) {
	for i, p := range all {
		select {
		case <-p.Woken:
			woken = append(woken, i)
		default:
		}
	}
	return woken
}

func TestWakesAsManyAsCanBeServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		list := NewHotList(HotConfig{})
		ring := list.Ring(tenant, "q", "g")
		all := parkAll(ring, 100)
		list.mark(testKey, "a", 1, true)
		require.Equal(t, []int{0}, wokenOf(all), "one partition is work for one pop, the one that waited longest")
		for _, name := range []string{"b", "c"} {
			list.mark(testKey, name, 1, true)
		}
		require.Empty(t, wokenOf(all), "wakes in quick succession are folded")
		time.Sleep(CoalesceInterval)
		synctest.Wait()
		require.Equal(t, []int{1, 2}, wokenOf(all))
		list.mark(testKey, "a", 1, false)
		require.Empty(t, wokenOf(all), "a partition that is known to have work wakes nobody again")
	})
}

// A pop that takes several partitions is enough for as many.
func TestWakesByWhatPopsTake(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{})
	ring := list.Ring(tenant, "q", "g")
	all := make([]*Parked, 4)
	for i := range all {
		all[i] = NewParked()
		all[i].Takes = 10
		ring.Park(all[i])
	}
	for i := range 11 {
		list.mark(testKey, fmt.Sprint(i), 1, false)
	}
	require.Equal(t, []int{0, 1}, wokenOf(all))
	all[0].Settle() // took nothing after all: two pops are on the way to eleven partitions again
	require.Equal(t, []int{2}, wokenOf(all))
}

func TestWakeIsPassedOn(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{})
	ring := list.Ring(tenant, "q", "g")
	all := parkAll(ring, 3)
	list.mark(testKey, "a", 1, false)
	require.Equal(t, []int{0}, wokenOf(all))
	all[0].Leave()
	all[0].Settle() // gave up without looking
	require.Equal(t, []int{1}, wokenOf(all))

	all[1].Leave()
	c := ring.Take(1, 10)
	all[1].Settle()
	require.Empty(t, wokenOf(all), "what there was is taken")
	c.Return() // the claim failed
	require.Equal(t, []int{2}, wokenOf(all))
}

func TestParkLooksBeforeItWaits(t *testing.T) {
	t.Parallel()
	list := NewHotList(HotConfig{})
	ring := list.Ring(tenant, "q", "g")
	list.mark(testKey, "a", 1, true) // between the look and the park
	require.Equal(t, []int{0}, wokenOf(parkAll(ring, 1)))

	list.forgetQueue(testKey)
	require.Equal(t, []int{0, 1}, wokenOf(parkAll(ring, 2)), "nobody waits at a ring that is gone")
	require.NotSame(t, ring, list.Ring(tenant, "q", "g"))
}

func TestChangesThatConcernEverybodyWakeEverybody(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Gates){
		"switch":        func(g *Gates) { g.WakeAll() },
		"queue deleted": func(g *Gates) { g.ForgetQueue(tenant, "q") },
		"group moved":   func(g *Gates) { g.ForgetGroup(tenant, "q", "g") },
		"all groups":    func(g *Gates) { g.ForgetGroup(tenant, "", "") },
		"missed hints":  func(g *Gates) { g.ForgetAll() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gates := NewHot(NewHotList(HotConfig{}))
			ring := gates.HotList().Ring(tenant, "q", "g")
			all := parkAll(ring, 3)
			require.Equal(t, 3, gates.Waiting(tenant, "q"))
			change(gates)
			require.Equal(t, []int{0, 1, 2}, wokenOf(all))
			require.Zero(t, gates.Waiting(tenant, "q"))
		})
	}
}

// Many pops park, look and leave while partitions come and go: nothing may be left over while somebody is parked.
func TestCrowdMissesNothing(t *testing.T) {
	t.Parallel()
	const partitions = 2000
	list := NewHotList(HotConfig{})
	list.Ring(tenant, "q", "g") // marks before the first pop are for its walk to find
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var served atomic.Int64
	done := make(chan struct{})
	var working sync.WaitGroup
	for worker := range 16 {
		working.Go(func() {
			place := NewParked()
			defer func() { place.Leave(); place.Settle() }()
			for i := 0; ; i++ {
				ring := list.Ring(tenant, "q", "g")
				c := ring.Take(1+i%3, 1000)
				for k := range c.Names() {
					if (i+k+worker)%7 == 0 {
						continue // not reported: goes back
					}
					c.Empty(k)
					if served.Add(1) == partitions {
						close(done)
					}
				}
				c.Return()
				place.Settle()
				ring.Park(place)
				select {
				case <-place.Woken:
				case <-done:
					return
				case <-ctx.Done():
					return
				}
				place.Leave()
			}
		})
	}
	for i := range partitions {
		list.mark(testKey, fmt.Sprint(i), 1, true)
		if i%100 == 0 {
			runtime.Gosched()
		}
	}
	working.Wait()
	require.EqualValues(t, partitions, served.Load())
}
