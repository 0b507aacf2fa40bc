package bounds

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
)

// heapAfterGC is what the heap of this process holds that is in use.
func heapAfterGC() uint64 {
	runtime.GC()
	runtime.GC() // what pools keep goes with the second one
	return heapBytes()
}

// A pop that waits takes one goroutine and no buffer. Client and broker share this process, so that the client's end of the connection counts too:
// it takes no goroutine and less than a kilobyte. With the buffers of net/http a pop takes 17 kilobytes and two goroutines. Other tests of this
// process would be measured with it, so it runs alone.
func TestParkedPopsTakeLittleMemory(t *testing.T) {
	const before, pops = 100, 1000
	s := stack.Start(t)
	address := strings.TrimPrefix(s.URL, "http://")
	park := func(n, all int) {
		for range n {
			c, err := net.Dial("tcp", address)
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
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
	heap, goroutines := heapAfterGC(), runtime.NumGoroutine()
	park(pops, before+pops)
	each := float64(heapAfterGC()-heap) / pops
	t.Logf("%.0f bytes of heap a pop", each)
	require.Less(t, each, 8192.0)
	require.Less(t, runtime.NumGoroutine()-goroutines, pops+pops/4)
}
