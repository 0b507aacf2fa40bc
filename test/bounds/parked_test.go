package bounds

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
)

// memoryAfterGC is what the heap of this process holds that is in use, and what the stacks take.
func memoryAfterGC() (heap, stacks int64) {
	runtime.GC()
	runtime.GC() // what pools keep goes with the second one
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64()), int64(samples[1].Value.Uint64()) //nolint:gosec // this machine has less
}

// A pop that waits takes one goroutine with a small stack, and no buffer. Client and broker share this process, so that the client's end of the
// connection counts too: it takes no goroutine and less than a kilobyte. With the stack on which the request was read and the pop looked into
// the database it takes 8 kilobytes more, with the buffers of net/http 27 kilobytes and two goroutines. Other tests of this process would be measured with it, so it
// runs alone.
func TestParkedPopsTakeLittleMemory(t *testing.T) {
	const before, pops = 100, 2000
	s := stack.Start(t)
	address := strings.TrimPrefix(s.URL, "http://")
	var clients []net.Conn
	t.Cleanup(func() {
		for _, c := range clients {
			_ = c.Close()
		}
	})
	park := func(n, all int) {
		for range n {
			c, err := net.Dial("tcp", address)
			require.NoError(t, err)
			clients = append(clients, c)
			_, err = io.WriteString(c, "GET /api/v1/pop/queue/q?wait=true&timeout=600000 HTTP/1.1\r\nHost: "+address+"\r\n\r\n")
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool {
			answer, err := http.Get(s.URL + "/metrics/prometheus")
			if err != nil {
				return false
			}
			defer answer.Body.Close()
			page, err := io.ReadAll(answer.Body)
			return err == nil && bytes.Contains(page, fmt.Appendf(nil, "\nqueen_parked_long_polls{queue=\"q\"} %d\n", all))
		}, time.Minute, 10*time.Millisecond)
	}
	park(before, before) // what the first ones need stays
	heap, stacks := memoryAfterGC()
	goroutines := runtime.NumGoroutine()
	park(pops, before+pops)
	heapThen, stacksThen := memoryAfterGC()
	t.Logf("a parked pop takes %d bytes of heap and %d of stacks", (heapThen-heap)/pops, (stacksThen-stacks)/pops)
	require.Less(t, (heapThen-heap)/pops, int64(7000))
	require.Less(t, (heapThen-heap+stacksThen-stacks)/pops, int64(parkedBytes))
	require.Less(t, runtime.NumGoroutine()-goroutines, pops+pops/4)
}
