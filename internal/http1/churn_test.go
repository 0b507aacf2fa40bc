package http1

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// churned is how many connections TestChurn makes; more find more.
var churned = flag.Int("http1.connections", 2000, "how many connections come and go in TestChurn")

// A visitor is one connection of the churn. What it sends carries its own words, and so must what it gets.
type visitor struct {
	t      *testing.T
	c      *net.TCPConn
	r      *bufio.Reader
	random *rand.Rand
	words  string
	n      int
}

// next is a text that no other request has, of a length that varies.
func (v *visitor) next() string {
	v.n++
	return fmt.Sprint(v.words, ".", v.n, strings.Repeat("x", v.random.IntN(300)*v.random.IntN(100)))
}

func (v *visitor) post(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\nX-Words: %s\r\nContent-Length: %d\r\n\r\n%s", path, v.words, len(body), body)
}

func (v *visitor) send(text string) {
	_, err := io.WriteString(v.c, text)
	require.NoError(v.t, err)
}

// expect reads the answer to a body that was sent to a path.
func (v *visitor) expect(path, body string) {
	a := readAnswer(v.t, v.r)
	require.Equal(v.t, http.StatusOK, a.Status)
	require.Equal(v.t, path+" "+v.words+" "+body, a.Body)
}

func (v *visitor) exchange(path string) {
	body := v.next()
	v.send(v.post(path, body))
	v.expect(path, body)
}

// reset ends the connection without a goodbye.
func (v *visitor) reset() { _ = v.c.SetLinger(0) }

// visits are what a connection may do; it is closed afterwards.
var visits = map[string]func(*visitor){
	"Polite": func(v *visitor) {
		for range v.random.IntN(5) {
			v.exchange("/fast/echo")
		}
	},
	"Pipelined": func(v *visitor) {
		var bodies []string
		var text strings.Builder
		for range 1 + v.random.IntN(20) {
			body := v.next()
			bodies = append(bodies, body)
			text.WriteString(v.post("/fast/echo", body))
		}
		go func() { _, _ = io.WriteString(v.c, text.String()) }()
		for _, body := range bodies {
			v.expect("/fast/echo", body)
		}
	},
	"PipelinedAndGone": func(v *visitor) {
		for range 1 + v.random.IntN(20) {
			v.send(v.post("/fast/echo", v.next()))
		}
		if v.random.IntN(2) == 0 {
			v.reset()
		}
	},
	"PartOfAHeader": func(v *visitor) {
		text := v.post("/fast/echo", "")
		v.send(text[:v.random.IntN(len(text))])
	},
	"PartOfABody": func(v *visitor) {
		text := v.post("/fast/echo", v.next())
		v.send(text[:len(text)-1-v.random.IntN(20)])
		v.reset()
	},
	"LeavesWhileItWaits":  func(v *visitor) { v.send(v.post("/fast/wait", v.next())) },
	"BreaksWhileItWaits":  func(v *visitor) { v.send(v.post("/fast/wait", v.next())); v.reset() },
	"ServedThenLeaves":    func(v *visitor) { v.exchange("/fast/echo"); v.send(v.post("/fast/wait", v.next())) },
	"GivenAway":           func(v *visitor) { v.exchange("/other"); v.exchange("/fast/echo") },
	"ServedThenGivenAway": func(v *visitor) { v.exchange("/fast/echo"); v.exchange("/other"); v.exchange("/fast/echo") },
	"GivenAwayWithMoreBehind": func(v *visitor) {
		first, second, third := v.next(), v.next(), v.next()
		v.send(v.post("/fast/echo", first) + v.post("/other", second) + v.post("/fast/echo", third))
		v.expect("/fast/echo", first)
		v.expect("/other", second)
		v.expect("/fast/echo", third)
	},
	"GivenAwayAndGone": func(v *visitor) { v.send(v.post("/fast/echo", v.next()) + v.post("/other", v.next())); v.reset() },
	"HalfClosed": func(v *visitor) {
		body := v.next()
		v.send(v.post("/fast/echo", body))
		require.NoError(v.t, v.c.CloseWrite())
		v.expect("/fast/echo", body)
		ended(v.t, v.r)
	},
	"LongHeader": func(v *visitor) {
		body := v.next()
		v.send(strings.Replace(v.post("/fast/echo", body), "Host:", "X-Long: "+strings.Repeat("y", bufferSize)+"\r\nHost:", 1))
		v.expect("/fast/echo", body)
	},
	"Idle": func(v *visitor) { v.exchange("/fast/echo"); ended(v.t, v.r) },
}

// Connections that come and go in every way leave nothing behind, and none gets what is another's.
func TestChurn(t *testing.T) {
	var waiting atomic.Int64
	p := start(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if r.URL.Path == "/fast/wait" {
			waiting.Add(1)
			defer waiting.Add(-1)
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, r.URL.Path+" "+r.Header.Get("X-Words")+" "+string(body))
	}, func(c *Config) { c.IdleTimeout, c.WriteTimeout = 3*time.Second, patience })
	before := openDescriptors(t)
	names := make([]string, 0, len(visits))
	for name := range visits {
		names = append(names, name)
	}
	var next atomic.Int64
	var visiting sync.WaitGroup
	for range 64 {
		visiting.Go(func() {
			for n := next.Add(1); n <= int64(*churned) && !t.Failed(); n = next.Add(1) {
				random := rand.New(rand.NewPCG(uint64(n), 1))
				name := names[random.IntN(len(names))]
				if name == "Idle" && n > int64(*churned)/10 { // it takes its time
					name = "Polite"
				}
				c, err := net.Dial("tcp", p.address)
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(patience))
				v := &visitor{t: t, c: c.(*net.TCPConn), r: bufio.NewReader(c), random: random, words: fmt.Sprint(name, n)}
				visits[name](v)
				_ = c.Close()
			}
		})
	}
	visiting.Wait()
	require.Eventually(t, func() bool { return p.open.Load() == 0 && waiting.Load() == 0 }, patience, time.Millisecond)
	require.Zero(t, p.each(func(*conn) {}))
	require.Eventually(t, func() bool { return openDescriptors(t) <= before }, patience, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, p.Shutdown(ctx))
}

// openDescriptors counts the files that the process has open.
func openDescriptors(t *testing.T) int {
	t.Helper()
	runtime.GC() // what nobody holds is closed
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(names)
}
