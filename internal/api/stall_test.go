package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
)

// send opens a connection to the server and sends text.
func send(t *testing.T, server *httptest.Server, text string) *net.TCPConn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	return conn.(*net.TCPConn)
}

// Bodies that do not come as announced are answered with what is wrong with them, and nothing of them is done.
func TestBrokenBodies(t *testing.T) {
	t.Parallel()
	bothWays(t, testBrokenBodies)
}

func testBrokenBodies(t *testing.T, serve func(*testing.T, http.Handler) *httptest.Server) {
	const head = "POST /api/v1/push HTTP/1.1\r\nHost: queen\r\n"
	for _, tc := range []struct {
		name, request string
		ends          bool // the client sends no more
		status        string
		contains      string
	}{
		{"Stalled", head + "Content-Length: 100\r\n\r\n{\"items\":[", false, "408", `"code":"request_timeout"`},
		{"StalledChunk", head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{", false, "408", `"code":"request_timeout"`},
		{"CutShort", head + "Content-Length: 100\r\n\r\n{\"items\":[]}", true, "400", "ended before the announced length"},
		{"CutShortChunk", head + "Transfer-Encoding: chunked\r\n\r\nC\r\n{\"items\"", true, "400", "ended before the announced length"},
		{"MalformedChunk", head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", false, "400", `"code":"bad_body"`},
		{"ChunkLongerThanItsLength", head + "Transfer-Encoding: chunked\r\n\r\n3\r\n{\"items\":[]}\r\n0\r\n\r\n", false, "400", `"code":"bad_body"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			conn := send(t, serve(t, (&world{stall: 100 * time.Millisecond}).server()), tc.request)
			if tc.ends {
				require.NoError(t, conn.CloseWrite())
			}
			answer, err := io.ReadAll(conn)
			require.NoError(t, err, "the connection is closed")
			require.True(t, strings.HasPrefix(string(answer), "HTTP/1.1 "+tc.status), "%s", answer)
			require.Contains(t, string(answer), tc.contains)
		})
	}
}

// A deadlineRecorder notes what becomes of the read deadline of a connection.
type deadlineRecorder struct {
	http.ResponseWriter
	events []string
}

func (d *deadlineRecorder) SetReadDeadline(at time.Time) error {
	if at.IsZero() {
		d.events = append(d.events, "cleared")
	} else {
		d.events = append(d.events, "set")
	}
	return nil
}

// byteByByte is a slow line.
type byteByByte struct {
	text string
	d    *deadlineRecorder
}

func (b *byteByByte) Read(p []byte) (int, error) {
	b.d.events = append(b.d.events, "read")
	if b.text == "" {
		return 0, io.EOF
	}
	n := copy(p[:1], b.text)
	b.text = b.text[n:]
	return n, nil
}

// Every read has the whole time, and the request that follows has none to fear.
func TestSlowBodyIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	recorder := &deadlineRecorder{ResponseWriter: httptest.NewRecorder()}
	request := httptest.NewRequestWithContext(t.Context(), "POST", "/", &byteByByte{"[]", recorder})
	body, err := (&world{}).server().readBody(recorder, request, nil)
	require.NoError(t, err)
	require.Equal(t, "[]", string(body))
	require.Equal(t, []string{"set", "read", "set", "read", "set", "read", "cleared"}, recorder.events)
}

// A client that does not read its batch must not keep it, nor the memory it takes.
func TestStalledReaderGivesItsBatchBack(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, serve func(*testing.T, http.Handler) *httptest.Server) {
		abandoned := make(chan struct{})
		claimed := &abandonedBatch{batch: batch{body: strings.Repeat("x", 64<<20)}, done: abandoned}
		w := &world{stall: 100 * time.Millisecond, pop: func(context.Context, pop.Request) (popResult, error) { return claimed, nil }}
		conn := send(t, serve(t, w.server()), "GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: queen\r\n\r\n")
		select {
		case <-abandoned:
		case <-time.After(20 * time.Second):
			require.FailNow(t, "the batch is still held")
		}
		require.Equal(t, 1, claimed.released)
		_, err := io.ReadAll(conn)
		if err != nil { // what was on its way ends without warning
			_, isNet := errors.AsType[net.Error](err)
			require.True(t, isNet, err)
		}
	})
}

// Over HTTP/2 a client can open no window for an answer, however short it is, while its connection takes everything that is written.
func TestClosedWindowGivesItsBatchBack(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"Short": 10, "Long": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			abandoned := make(chan struct{})
			claimed := &abandonedBatch{batch: batch{body: strings.Repeat("x", size)}, done: abandoned}
			w := &world{stall: 100 * time.Millisecond, pop: func(context.Context, pop.Request) (popResult, error) { return claimed, nil }}
			server := httptest.NewUnstartedServer(w.server())
			server.Config.Protocols = new(http.Protocols)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			server.Start()
			t.Cleanup(server.Close)
			const path = "/api/v1/pop/queue/q"
			fields := "\x82\x86\x01\x01h\x04" + string(rune(len(path))) + path // GET, http, authority h
			conn := send(t, server, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+
				"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00"+ // SETTINGS: INITIAL_WINDOW_SIZE 0
				"\x00\x00"+string(rune(len(fields)))+"\x01\x05\x00\x00\x00\x01"+fields) // HEADERS, all of them, and no body
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			select {
			case <-abandoned:
			case <-time.After(20 * time.Second):
				require.FailNow(t, "the batch is still held")
			}
		})
	}
}

// A large answer that others must not wait for any longer is given up at once, not when its client has read nothing for long enough.
func TestSlowReaderGivesWay(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, serve func(*testing.T, http.Handler) *httptest.Server) {
		abandoned, sending := make(chan struct{}), make(chan func(), 1)
		claimed := &abandonedBatch{batch: batch{body: strings.Repeat("x", 64<<20), sending: sending}, done: abandoned}
		w := &world{stall: time.Hour, pop: func(context.Context, pop.Request) (popResult, error) { return claimed, nil }}
		send(t, serve(t, w.server()), "GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: queen\r\n\r\n")
		giveUp := <-sending
		again := time.NewTicker(time.Millisecond)
		defer again.Stop()
		for late := time.After(20 * time.Second); ; { // it may not have begun
			giveUp()
			select {
			case <-abandoned:
				return
			case <-again.C:
			case <-late:
				require.FailNow(t, "the batch is still held")
			}
		}
	})
}

// A client that leaves while its pop waits ends it at once.
func TestWaitingPopEndsWithItsClient(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, serve func(*testing.T, http.Handler) *httptest.Server) {
		waiting, ended := make(chan struct{}), make(chan error, 1)
		w := &world{pop: func(ctx context.Context, _ pop.Request) (popResult, error) {
			close(waiting)
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		}}
		conn := send(t, serve(t, w.server()), "GET /api/v1/pop/queue/q?wait=true HTTP/1.1\r\nHost: queen\r\n\r\n")
		<-waiting
		require.NoError(t, conn.Close())
		select {
		case err := <-ended:
			require.ErrorIs(t, err, context.Canceled)
		case <-time.After(20 * time.Second):
			require.FailNow(t, "the pop still waits")
		}
	})
}

type abandonedBatch struct {
	batch
	done chan struct{}
}

func (b *abandonedBatch) Abandon(context.Context) { close(b.done) }

// What a client that left has asked for does not wait for long.
func TestPushOfAClientThatLeftEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, leave := context.WithCancel(context.WithValue(t.Context(), tenantKey{}, "t"))
		ctx, cancel := outliving(client)
		defer cancel()
		require.Equal(t, "t", ctx.Value(tenantKey{}))
		began := time.Now()
		leave()
		synctest.Wait()
		require.NoError(t, ctx.Err())
		<-ctx.Done()
		require.Equal(t, leavingGrace, time.Since(began))

		client, leave = context.WithCancel(t.Context())
		ctx, cancel = outliving(client)
		cancel()
		require.Error(t, ctx.Err())
		leave()
	})
}

type tenantKey struct{}

// A client that sends its push and ends its side of the connection, as pipes of a shell do, is told what became of it.
func TestHalfClosedPushIsAnswered(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, serve func(*testing.T, http.Handler) *httptest.Server) {
		w := &world{push: func(ctx context.Context, r push.Request) ([]push.Verdict, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(200 * time.Millisecond): // the server has seen the end of the input by then
			}
			return (&world{}).Push(ctx, r)
		}}
		const body = `{"items":[{"queue":"q","payload":1}]}`
		conn := send(t, serve(t, w.server()), "POST /api/v1/push HTTP/1.1\r\nHost: queen\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
		require.NoError(t, conn.CloseWrite())
		text, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Contains(t, string(text), "HTTP/1.1 201 Created")
		require.Contains(t, string(text), `"status":"queued"`)
	})
}
