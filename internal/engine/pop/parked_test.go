package pop

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A parked pop is a goroutine and little else.
func TestMemoryOfAParkedPop(t *testing.T) { //nolint:paralleltest // measures the heap
	const parked = 2000
	server, db, gates := setupHot(t, Config{})
	warm(t, server, db)
	ctx, leave := context.WithCancel(t.Context())
	var pops sync.WaitGroup
	before := memory()
	for range parked {
		pops.Go(func() { _, _ = server.Pop(ctx, longPoll(time.Hour)) })
	}
	require.Eventually(t, func() bool { return gates.Waiting(tenant, "orders") == parked }, 30*time.Second, 10*time.Millisecond)
	each := (memory() - before) / parked
	leave()
	pops.Wait()
	t.Logf("%d bytes", each)
	require.Less(t, each, int64(parkedBytes))
}

// memory is what the heap and the stacks hold. A stack that is hardly used halves with every collection.
func memory() int64 {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse) //nolint:gosec // far below the limit
}
