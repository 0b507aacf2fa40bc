package broker

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHeapPercent(t *testing.T) {
	t.Parallel()
	require.Equal(t, 100, heapPercent(32<<20, 32<<20))
	require.Equal(t, 50, heapPercent(32<<20, 64<<20))
	require.Equal(t, leastPercent, heapPercent(32<<20, 1<<30), "a large heap is not collected all the time")
	require.Equal(t, mostPercent, heapPercent(32<<20, 0))
}

func TestRest(t *testing.T) {
	t.Parallel()
	var r rest
	require.False(t, r.look(100<<20, 50<<20), "load")
	require.False(t, r.look(101<<20, returnBytes-1), "little to give back")
	require.True(t, r.look(102<<20, 50<<20))
	require.False(t, r.look(103<<20, 50<<20), "once is enough")
	require.False(t, r.look(200<<20, 50<<20), "load again")
	require.True(t, r.look(200<<20, 50<<20))
}

// It changes the collector of the whole process for a moment, so it runs alone.
func TestPaceMemory_FollowsWhatIsAlive(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	cfg := &Config{}
	cfg.Server.HeapHeadroom = 32
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		PaceMemory(ctx, cfg)
	}()
	ballast := make([]byte, 256<<20)
	percent := func() int {
		runtime.GC()
		now := debug.SetGCPercent(100)
		debug.SetGCPercent(now)
		return now
	}
	require.Eventually(t, func() bool { return percent() == leastPercent }, 30*time.Second, time.Millisecond)
	runtime.KeepAlive(ballast)
	ballast = nil
	require.Eventually(t, func() bool { return percent() > 2*leastPercent }, 30*time.Second, time.Millisecond)
	cancel()
	<-ended
	require.Equal(t, 100, debug.SetGCPercent(100), "what was set before")

	t.Setenv("GOGC", "50")
	stopped, stop := context.WithCancel(t.Context())
	stop()
	PaceMemory(stopped, cfg)
	require.Equal(t, 100, debug.SetGCPercent(100), "GOGC is the operator's word")
}
