package http1

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const patience = 20 * time.Second

// A pair is a server of this package and the one behind it.
type pair struct {
	*Server
	general *http.Server
	address string
	// gave counts what the general server answered.
	gave atomic.Int64
}

// start serves a handler: here what begins with /fast/, the rest in general.
func start(t *testing.T, handler http.HandlerFunc, change func(*Config)) *pair {
	t.Helper()
	cfg := Config{
		Handler: handler, Takes: func(_, path string) bool { return strings.HasPrefix(path, "/fast/") },
		ReadHeaderTimeout: patience, IdleTimeout: patience,
	}
	if change != nil {
		change(&cfg)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &pair{Server: New(cfg), address: listener.Addr().String()}
	p.general = &http.Server{ReadHeaderTimeout: cfg.ReadHeaderTimeout, IdleTimeout: cfg.IdleTimeout, ErrorLog: cfg.ErrorLog, Protocols: new(http.Protocols)}
	p.general.Protocols.SetHTTP1(true)
	p.general.Protocols.SetUnencryptedHTTP2(true)
	p.general.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.gave.Add(1)
		handler(w, r)
	})
	var serving sync.WaitGroup
	serving.Go(func() { _ = p.Serve(listener) })
	serving.Go(func() { _ = p.general.Serve(p.Others()) })
	t.Cleanup(func() {
		p.Close()
		_ = p.general.Close()
		serving.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, p.Shutdown(ctx))
	})
	return p
}

// dial connects and sends text.
func (p *pair) dial(t *testing.T, text string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", p.address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err = io.WriteString(c, text)
	require.NoError(t, err)
	return c.(*net.TCPConn)
}

// An answer is what a client sees of one.
type answer struct {
	Status int
	Header http.Header
	Body   string
	Close  bool
}

func readAnswer(t *testing.T, r *bufio.Reader) answer {
	t.Helper()
	response, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	response.Header.Del("Date")
	return answer{response.StatusCode, response.Header, string(body), response.Close}
}

// ended tells that the server has closed the connection.
func ended(t *testing.T, r io.Reader) {
	t.Helper()
	rest, err := io.ReadAll(r)
	if err != nil {
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		netErr, ok := errors.AsType[net.Error](err)
		require.True(t, ok && !netErr.Timeout(), "still open: %v", err)
	}
	require.Empty(t, string(rest))
}

func hello(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_, _ = io.WriteString(w, r.URL.Path+" "+string(body))
}

const (
	get  = "GET /fast/a HTTP/1.1\r\nHost: h\r\n\r\n"
	post = "POST /fast/b HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"
)

func TestPipelinedRequestsAreAnsweredInOrder(t *testing.T) {
	t.Parallel()
	p := start(t, hello, nil)
	c := p.dial(t, get+post+"\r\n"+get+post+"GET /other HTTP/1.1\r\nHost: h\r\n\r\n"+get)
	r := bufio.NewReader(c)
	for _, want := range []string{"/fast/a ", "/fast/b body", "/fast/a ", "/fast/b body", "/other ", "/fast/a "} {
		require.Equal(t, want, readAnswer(t, r).Body)
	}
	require.EqualValues(t, 2, p.gave.Load(), "from the first request of another kind on, the general server answers")
}

// A request may come in any pieces.
func TestRequestInSmallPieces(t *testing.T) {
	t.Parallel()
	p := start(t, hello, nil)
	c := p.dial(t, "")
	r := bufio.NewReader(c)
	for range 2 {
		for _, one := range []byte(post) {
			_, err := c.Write([]byte{one})
			require.NoError(t, err)
		}
		require.Equal(t, "/fast/b body", readAnswer(t, r).Body)
	}
	require.Zero(t, p.gave.Load())
}

func TestLargeBodies(t *testing.T) {
	t.Parallel()
	p := start(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header()["Content-Length"] = []string{r.Header.Get("Content-Length")}
		_, _ = w.Write(body[:len(body)/3])
		_, _ = w.Write(body[len(body)/3:])
	}, nil)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for _, size := range []int{1, 100, 4 << 10, 20 << 10, 3 << 20} {
		body := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
		response, err := client.Post("http://"+p.address+"/fast/x", "text/plain", bytes.NewReader(body))
		require.NoError(t, err)
		got, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.True(t, bytes.Equal(body, got), size)
	}
	require.Zero(t, p.gave.Load())
}

func TestUnencryptedHTTP2IsForTheOtherServer(t *testing.T) {
	t.Parallel()
	p := start(t, hello, nil)
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Get("http://" + p.address + "/fast/a")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 2, response.ProtoMajor)
	require.EqualValues(t, 1, p.gave.Load())
}

// A client that leaves ends the context of its request, whether it closes its connection or only its side of it.
func TestContextEndsWithTheClient(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*net.TCPConn) error{
		"Closed":     (*net.TCPConn).Close,
		"HalfClosed": (*net.TCPConn).CloseWrite,
		"Reset": func(c *net.TCPConn) error {
			if err := c.SetLinger(0); err != nil {
				return err
			}
			return c.Close()
		},
	} {
		for kind, request := range map[string]string{"Get": get, "Post": post, "Second": get + get} {
			t.Run(name+kind, func(t *testing.T) {
				t.Parallel()
				entered, left := make(chan struct{}, 2), make(chan struct{})
				var seen atomic.Int64
				last := int64(strings.Count(request, "HTTP/1.1"))
				p := start(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					if seen.Add(1) < last {
						return
					}
					entered <- struct{}{}
					<-r.Context().Done()
					w.WriteHeader(http.StatusServiceUnavailable)
					close(left)
				}, nil)
				c := p.dial(t, request)
				within(t, entered, "the request did not come")
				require.NoError(t, leave(c))
				within(t, left, "the context did not end")
				if name == "HalfClosed" {
					r := bufio.NewReader(c)
					for range last - 1 {
						readAnswer(t, r)
					}
					require.Equal(t, http.StatusServiceUnavailable, readAnswer(t, r).Status)
					ended(t, r)
				}
			})
		}
	}
}

func within(t *testing.T, done <-chan struct{}, otherwise string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		require.FailNow(t, otherwise)
	}
}

// Bytes of a next request are no reason to take the client for gone, and neither is the end of the input behind them.
func TestPipelinedBytesKeepTheContext(t *testing.T) {
	t.Parallel()
	entered, goOn := make(chan struct{}, 2), make(chan struct{})
	p := start(t, func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-goOn
		if r.Context().Err() != nil && r.Header.Get("First") != "" {
			w.WriteHeader(http.StatusTeapot)
		}
	}, nil)
	c := p.dial(t, "GET /fast/a HTTP/1.1\r\nHost: h\r\nFirst: 1\r\n\r\n")
	within(t, entered, "the request did not come")
	_, err := io.WriteString(c, get)
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	require.Eventually(t, func() bool { // the end was seen
		hung := false
		p.each(func(c *conn) {
			c.mu.Lock()
			hung = hung || c.hangup
			c.mu.Unlock()
		})
		return hung
	}, patience, time.Millisecond)
	close(goOn)
	r := bufio.NewReader(c)
	require.Equal(t, http.StatusOK, readAnswer(t, r).Status)
	require.Equal(t, http.StatusOK, readAnswer(t, r).Status)
	ended(t, r)
}

func TestSlowHeadersAndIdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"Nothing": "", "PartOfAHeader": get[:len(get)-4], "Idle": get, "IdleAfterPost": post} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, hello, func(c *Config) { c.ReadHeaderTimeout, c.IdleTimeout = 50*time.Millisecond, 100*time.Millisecond })
			c := p.dial(t, text)
			r := bufio.NewReader(c)
			if strings.HasPrefix(name, "Idle") {
				require.Equal(t, http.StatusOK, readAnswer(t, r).Status)
			}
			ended(t, r)
			require.Zero(t, p.gave.Load())
		})
	}
}

// A header that comes byte by byte has one time for all of it.
func TestHeaderThatTrickles(t *testing.T) {
	t.Parallel()
	p := start(t, hello, func(c *Config) { c.ReadHeaderTimeout = 100 * time.Millisecond })
	c := p.dial(t, "GET /fast/a HTTP/1.1\r\nHost: h\r\nX: ")
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for begin := time.Now(); ; <-again.C {
		require.Less(t, time.Since(begin), patience, "still open")
		if _, err := c.Write([]byte("x")); err != nil {
			return
		}
	}
}

func TestPanics(t *testing.T) {
	t.Parallel()
	var text lockedBuffer
	p := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/fast/abort" {
			w.Header()["Content-Length"] = []string{"10"}
			_, _ = io.WriteString(w, "12345")
			panic(http.ErrAbortHandler)
		}
		panic("a fault")
	}, func(c *Config) { c.ErrorLog = log.New(&text, "", 0) })
	ended(t, p.dial(t, get))
	require.Contains(t, text.String(), "a fault")
	cut, err := io.ReadAll(p.dial(t, strings.Replace(get, "/fast/a", "/fast/abort", 1)))
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(cut), "\r\n\r\n12345"))
	require.Equal(t, 1, strings.Count(text.String(), "panic serving"))
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Requests under way are answered, connections that wait are closed, and nobody is accepted any more.
func TestShutdown(t *testing.T) {
	t.Parallel()
	entered, goOn := make(chan struct{}), make(chan struct{})
	p := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/fast/b" {
			close(entered)
			<-goOn
		}
		hello(w, r)
	}, nil)
	idle := bufio.NewReader(p.dial(t, get))
	readAnswer(t, idle)
	busy := bufio.NewReader(p.dial(t, post))
	within(t, entered, "the request did not come")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Shutdown(short), context.DeadlineExceeded)
	ended(t, idle)
	_, err := net.Dial("tcp", p.address)
	require.Error(t, err)

	stopped := make(chan error, 1)
	go func() { stopped <- p.Shutdown(t.Context()) }()
	close(goOn)
	last := readAnswer(t, busy)
	require.Equal(t, "/fast/b body", last.Body)
	require.True(t, last.Close)
	ended(t, busy)
	require.NoError(t, <-stopped)
}

func TestCloseEndsRequests(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	p := start(t, func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	}, nil)
	c := p.dial(t, get)
	within(t, entered, "the request did not come")
	p.Close()
	ended(t, c)
	require.NoError(t, p.Shutdown(t.Context()))
}

// Thousands of connections that wait, or whose requests wait, have no buffers and no second goroutine.
func TestBuffersGoBackWhileRequestsWait(t *testing.T) {
	t.Parallel()
	entered, goOn := make(chan struct{}), make(chan struct{})
	p := start(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		if r.URL.Path == "/fast/b" {
			entered <- struct{}{}
			<-goOn
		}
	}, nil)
	for range 50 {
		readAnswer(t, bufio.NewReader(p.dial(t, get)))
		p.dial(t, post)
		within(t, entered, "the request did not come")
	}
	require.Eventually(t, func() bool { // an idle connection is one a moment after its answer
		idle := 0
		p.each(func(c *conn) {
			if c.state.Load() == stateIdle {
				idle++
			}
		})
		return idle == 50
	}, patience, time.Millisecond)
	p.mu.Lock()
	for _, c := range p.conns {
		if c.state.Load() == stateActive { // its goroutine waits in the handler
			require.Nil(t, c.buffer)
		}
	}
	p.mu.Unlock()
	close(goOn)
}

// What a handler leaves of a body is read if it is little; else the connection ends, after the answer.
func TestUnreadBodies(t *testing.T) {
	t.Parallel()
	p := start(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, nil)
	c := p.dial(t, post+post)
	r := bufio.NewReader(c)
	readAnswer(t, r)
	require.False(t, readAnswer(t, r).Close)

	c = p.dial(t, "POST /fast/b HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000\r\n\r\n")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		piece := make([]byte, 1<<20)
		for range 9 {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	}()
	r = bufio.NewReader(c)
	refused := readAnswer(t, r)
	require.Equal(t, http.StatusUnauthorized, refused.Status)
	require.True(t, refused.Close)
	ended(t, r)
	_ = c.Close()
	<-sent
}

// The answer is one answer, whatever the handler puts into its header.
func TestHeaderValuesCannotSplitAnAnswer(t *testing.T) {
	t.Parallel()
	p := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Text", "a\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK")
		_ = json.NewEncoder(w).Encode("b")
	}, nil)
	got := readAnswer(t, bufio.NewReader(p.dial(t, get)))
	require.Equal(t, "a  Content-Length: 0    HTTP/1.1 200 OK", got.Header.Get("X-Text"))
	require.Equal(t, "\"b\"\n", got.Body)
}

// A connection that was closed while its request was being read has no request: nobody could be told the answer.
func TestClosedConnectionIsNotServed(t *testing.T) {
	t.Parallel()
	for _, state := range []int32{stateNew, stateIdle} {
		c := &conn{}
		c.state.Store(state)
		require.True(t, c.activate())
		require.True(t, c.activate())
		c.state.Store(stateClosed)
		require.False(t, c.activate())
		require.Equal(t, stateClosed, c.state.Load())
	}
}

// While connections are closed one way or another, every request that was handled is answered.
func TestNoRequestIsHandledWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for range 20 {
		var handled, answered atomic.Int64
		p := start(t, func(w http.ResponseWriter, r *http.Request) {
			handled.Add(1)
			hello(w, r)
		}, nil)
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for {
					response, err := client.Post("http://"+p.address+"/fast/x", "text/plain", strings.NewReader("x"))
					if err != nil {
						return
					}
					if body, err := io.ReadAll(response.Body); err == nil && string(body) == "/fast/x x" {
						answered.Add(1)
					}
					_ = response.Body.Close()
				}
			})
		}
		require.Eventually(t, func() bool { return handled.Load() > 200 }, patience, time.Millisecond)
		require.NoError(t, p.Shutdown(t.Context()))
		clients.Wait()
		client.CloseIdleConnections()
		require.Equal(t, handled.Load(), answered.Load())
	}
}

// A client that sends requests and reads no answer must not keep its connection, and what its requests hold, for ever.
func TestClientThatReadsNothing(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"ShortAnswers": 100, "LongerThanOnePiece": maxCopied + 100, "NoLength": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var under atomic.Int64
			p := start(t, func(w http.ResponseWriter, _ *http.Request) {
				under.Add(1)
				defer under.Add(-1)
				text := strings.Repeat("x", max(size, 100))
				if size > 0 {
					w.Header()["Content-Length"] = []string{strconv.Itoa(size)}
				}
				_, _ = io.WriteString(w, text)
			}, func(c *Config) { c.WriteTimeout = 100 * time.Millisecond })
			c := p.dial(t, "")
			// Its receive buffer stays as it is: the kernel grows it only for who reads. A buffer made smaller than the window that was
			// offered drops acknowledgments with the data they come in, and both sides wait for retransmissions.
			many := []byte(strings.Repeat(get, 1000))
			for {
				if _, err := c.Write(many); err != nil {
					require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "still open")
					break
				}
			}
			require.Eventually(t, func() bool { return under.Load() == 0 && p.each(func(*conn) {}) == 0 }, patience, time.Millisecond)
		})
	}
}

// A client that reads slowly, but reads, gets everything.
func TestClientThatReadsSlowly(t *testing.T) {
	t.Parallel()
	p := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Length"] = []string{"1000"}
		_, _ = io.WriteString(w, strings.Repeat("x", 1000))
	}, func(c *Config) { c.WriteTimeout = patience })
	c := p.dial(t, "")
	const n = 20_000
	go func() { _, _ = io.WriteString(c, strings.Repeat(get, n)) }()
	require.Eventually(t, func() bool { // the answers do not fit in between
		blocked := false
		p.each(func(one *conn) { blocked = blocked || one.state.Load() == stateActive })
		return blocked
	}, patience, time.Millisecond)
	r := bufio.NewReader(c)
	for range n {
		answer := readAnswer(t, r)
		require.Equal(t, http.StatusOK, answer.Status)
		require.Equal(t, strings.Repeat("x", 1000), answer.Body)
	}
}

// A connection whose request took long is not taken for one that waited that long for its next.
func TestConnectionThatJustBecameIdleStays(t *testing.T) {
	t.Parallel()
	client, err := net.Dial("tcp", start(t, hello, nil).address)
	require.NoError(t, err)
	defer client.Close()
	c := &conn{server: New(Config{IdleTimeout: time.Second}), tcp: client.(*net.TCPConn)}
	const step = int64(time.Minute)
	var now atomic.Int64
	c.state.Store(stateActive)
	stop := make(chan struct{})
	var reaping sync.WaitGroup
	reaping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				c.closeIfLate(now.Load())
			}
		}
	})
	for k := range int64(1_000_000) {
		now.Store(k * step)
		c.since.Store(k * step)
		idle := c.state.CompareAndSwap(stateActive, stateIdle)
		for range 20 { // for long enough to be seen
			idle = idle && c.state.Load() == stateIdle
		}
		if !idle || !c.state.CompareAndSwap(stateIdle, stateActive) {
			break
		}
	}
	close(stop)
	reaping.Wait()
	require.Equal(t, stateActive, c.state.Load())
}

// Connections beyond the bound are closed at once, and there is room again when one ends, whoever has it.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	var text lockedBuffer
	p := start(t, hello, func(c *Config) { c.MaxConns, c.ErrorLog = 2, log.New(&text, "", 0) })
	mine, given := p.dial(t, get), p.dial(t, "GET /other HTTP/1.1\r\nHost: h\r\n\r\n")
	require.Equal(t, http.StatusOK, readAnswer(t, bufio.NewReader(mine)).Status)
	require.Equal(t, http.StatusOK, readAnswer(t, bufio.NewReader(given)).Status)
	for range 3 {
		c, err := net.Dial("tcp", p.address)
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		ended(t, c)
		require.NoError(t, c.Close())
	}
	require.Equal(t, 1, strings.Count(text.String(), "2 connections already"))
	for _, one := range []*net.TCPConn{mine, given} {
		require.NoError(t, one.Close())
		require.Eventually(t, func() bool { return p.open.Load() == 1 }, patience, time.Millisecond)
		next := p.dial(t, get)
		require.Equal(t, http.StatusOK, readAnswer(t, bufio.NewReader(next)).Status)
		require.EqualValues(t, 2, p.open.Load())
	}
}
