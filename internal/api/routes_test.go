package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/pop"
	"queenmq/internal/pg"
)

// concrete fills the parameters of a route's path.
func concrete(path string) string {
	return strings.NewReplacer("{queue}", "q", "{partition}", "p", "{leaseId}", "l", "{group}", "g", "{transactionId}", "t", "{traceName}", "n",
		"{partitionId}", partitionID.String(), "{id}", messageID.String(), "{traceId}", messageID.String()).Replace(path)
}

func TestRoutesAnswerOnlyTheirMethods(t *testing.T) {
	t.Parallel()
	server := serve(t, &world{})
	methods := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"}
	// A fixed path may also be an address under a parameter: "lagging" is a legal name of a group.
	allowed := map[string][]string{}
	for path := range paths() {
		for i := range routes {
			if !newRouter(routes[i : i+1]).knows(concrete(path)) {
				continue
			}
			allowed[path] = append(allowed[path], routes[i].method)
			if routes[i].method == "GET" {
				allowed[path] = append(allowed[path], "HEAD")
			}
		}
	}
	for path, own := range allowed {
		for _, method := range methods {
			answer := call(t, server, method, concrete(path), "{}")
			if slices.Contains(own, method) {
				require.NotContains(t, []int{404, 405}, answer.status, "%s %s", method, path)
				continue
			}
			require.Equal(t, 405, answer.status, "%s %s", method, path)
			for _, m := range own {
				require.Contains(t, answer.header.Get("Allow"), m, "%s %s", method, path)
			}
		}
	}
}

// knows reports whether a path has a route of any method.
func (r *router) knows(path string) bool {
	found, allow := r.find(httptest.NewRequest(http.MethodGet, path, nil), path)
	return found != nil || len(allow) > 0
}

func TestRoutesTableIsComplete(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range routes {
		require.False(t, seen[r.method+r.path], "%s %s stands twice", r.method, r.path)
		seen[r.method+r.path] = true
		require.NotNil(t, r.handler)
		require.Regexp(t, `^[A-Z].*\.$`, r.summary)
		require.Contains(t, []access{accessPublic, accessReadOnly, accessWriteOnly, accessReadWrite, accessAdmin}, r.access)
		if strings.HasPrefix(r.path, "/api/") {
			require.NotEqual(t, accessPublic, r.access, "%s: nothing of the API is public", r.path)
		}
	}
}

// oddNames are legal names that a careless router would take apart, decode twice or clean up.
var oddNames = []string{
	"plain", "a/b", "/", "//", "a//b", "..", ".", "a/../b", "%2F", "100%", "%", "a b", "a+b", `"quoted"`, `back\slash`, "semi;colon", "q?x=1", "a#b", "a&b=c",
	"é", "日本語", "😀", "\u202e", "\u0085", "\u007f", "{queue}", "a:b", "*", "'", "<script>", strings.Repeat("é", 255),
}

func TestNamesArriveAsTheyWereSent(t *testing.T) {
	t.Parallel()
	var queue, partition, lease, deleted string
	f := &world{
		pop: func(_ context.Context, r pop.Request) (popResult, error) {
			queue, partition = r.Queue, r.Partition
			return nil, nil
		},
		extend: func(leaseID string, _ int) (pg.Renewal, error) {
			lease = leaseID
			return pg.Renewal{}, nil
		},
		remove: func(queue string) (json.RawMessage, error) {
			deleted = queue
			return json.RawMessage(`{}`), nil
		},
	}
	server := serve(t, f)
	for _, name := range oddNames {
		escaped := strings.ReplaceAll(url.PathEscape(name), ".", "%2E")
		require.Equal(t, 204, call(t, server, "GET", "/api/v1/pop/queue/"+escaped, "").status, name)
		require.Equal(t, name, queue)
		require.Equal(t, 204, call(t, server, "GET", "/api/v1/pop/queue/"+escaped+"/partition/"+escaped, "").status, name)
		require.Equal(t, []string{name, name}, []string{queue, partition})
		require.Equal(t, 200, call(t, server, "POST", "/api/v1/lease/"+escaped+"/extend", "").status, name)
		require.Equal(t, name, lease)
		require.Equal(t, 200, call(t, server, "DELETE", "/api/v1/resources/queues/"+escaped, "").status, name)
		require.Equal(t, name, deleted)
		require.Equal(t, name, f.changed[len(f.changed)-1])
	}
}

// A wire is one raw connection.
type wire struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, server *httptest.Server) *wire {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &wire{t, conn, bufio.NewReader(conn)}
}

// head sends text and returns the status line and header lines of the answer.
func (w *wire) head(text string) []string {
	w.t.Helper()
	_, err := io.WriteString(w.conn, text)
	require.NoError(w.t, err)
	var lines []string
	for {
		line, err := w.in.ReadString('\n')
		require.NoError(w.t, err)
		if line = strings.TrimRight(line, "\r\n"); line == "" {
			return lines
		}
		lines = append(lines, line)
	}
}

func TestEmptyAnswersKeepTheConnectionUsable(t *testing.T) {
	t.Parallel()
	bothWays(t, testEmptyAnswersKeepTheConnectionUsable)
}

func testEmptyAnswersKeepTheConnectionUsable(t *testing.T, serve func(*testing.T, http.Handler) *httptest.Server) {
	w := dial(t, serve(t, (&world{}).server()))
	for range 3 {
		lines := w.head("GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: x\r\n\r\n")
		require.Equal(t, "HTTP/1.1 204 No Content", lines[0])
		for _, line := range lines[1:] {
			name, _, _ := strings.Cut(strings.ToLower(line), ":")
			require.NotContains(t, []string{"content-length", "content-type", "transfer-encoding", "connection"}, name)
		}
	}
	require.Zero(t, w.in.Buffered(), "an empty answer must not be followed by a body")
	// The next request on the same connection is answered as usual, also after a refused one with a body.
	lines := w.head("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{}x")
	require.Equal(t, "HTTP/1.1 400 Bad Request", lines[0])
	answer := struct{ Error, Code string }{}
	require.NoError(t, json.NewDecoder(io.LimitReader(w.in, int64(w.in.Buffered()))).Decode(&answer))
	require.Equal(t, "bad_body", answer.Code)
}

func TestUncleanPathsAreNeverRedirected(t *testing.T) {
	t.Parallel()
	server := serve(t, &world{})
	for _, path := range []string{
		"//", "//health", "/./health", "/../health", "/api/../health", "/api/v1/pop/queue/../queue/q", "/api/v1/pop/queue/./q", "/health/.", "/health/..",
		"/api/v1//push", "/api//v1/push", "/api/v1/push/", "/api/v1/pop/queue//", "/api/v1/resources/queues/",
	} {
		for _, method := range []string{"GET", "POST", "DELETE"} {
			lines := dial(t, server).head(method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
			require.Equal(t, "HTTP/1.1 400 Bad Request", lines[0], "%s %s", method, path)
		}
	}
}

func TestBodyWithoutTypeOrLengthIsRead(t *testing.T) {
	t.Parallel()
	w := dial(t, serve(t, &world{}))
	lines := w.head("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" +
		"c\r\n{\"items\":[{}\r\n3\r\n]}x\r\n0\r\n\r\n")
	require.Equal(t, "HTTP/1.1 400 Bad Request", lines[0])
	w = dial(t, serve(t, &world{}))
	lines = w.head("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{\"items\":[]}\r\n0\r\n\r\n")
	require.Equal(t, "HTTP/1.1 201 Created", lines[0])
}

func TestBodyLimitCountsUnannouncedBytes(t *testing.T) {
	t.Parallel()
	w := dial(t, serve(t, &world{maxBody: 8}))
	lines := w.head("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{\"items\":[]}\r\n0\r\n\r\n")
	require.Equal(t, "HTTP/1.1 413 Request Entity Too Large", lines[0])
	require.Contains(t, lines, "Content-Type: application/json")
	// Exactly at the limit is fine.
	require.Equal(t, 201, call(t, serve(t, &world{maxBody: 12}), "POST", "/api/v1/push", `{"items":[]}`).status)
}

// failingWriter is a connection whose client went away.
type failingWriter struct {
	*httptest.ResponseRecorder
	failWrite, failFlush bool
}

var errGone = errors.New("connection reset")

func (w *failingWriter) Write(b []byte) (int, error) {
	if w.failWrite {
		return 0, errGone
	}
	return w.ResponseRecorder.Write(b)
}

func (w *failingWriter) FlushError() error {
	if w.failFlush {
		return errGone
	}
	return nil
}

func TestPopGivesBackWhatItCannotSend(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name                string
		writer              failingWriter
		leave               bool
		released, abandoned int
	}{
		{name: "Sent", released: 1},
		{name: "LeftBeforeTheFirstByte", leave: true, abandoned: 1},
		{name: "WriteFails", writer: failingWriter{failWrite: true}, released: 1, abandoned: 1},
		{name: "FlushFails", writer: failingWriter{failFlush: true}, released: 1, abandoned: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			claimed := &batch{body: `{"success":true}`}
			f := &world{pop: func(context.Context, pop.Request) (popResult, error) {
				if tc.leave {
					cancel()
				}
				return claimed, nil
			}}
			tc.writer.ResponseRecorder = httptest.NewRecorder()
			f.server().ServeHTTP(&tc.writer, httptest.NewRequestWithContext(ctx, "GET", "/api/v1/pop/queue/q", http.NoBody))
			require.Equal(t, tc.released, claimed.released)
			require.Equal(t, 1, claimed.done, "its memory is counted until then")
			require.Equal(t, tc.abandoned, claimed.abandoned)
		})
	}
}

// A panic after the first byte must end the connection: the client would take the cut answer for a whole one.
func TestPanicAfterTheFirstByteEndsTheConnection(t *testing.T) {
	t.Parallel()
	s := (&world{}).server()
	broken := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &response{ResponseWriter: w}
		defer s.recovered(answer, r)
		answer.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(answer, "half")
		panic("later")
	})
	bothWays(t, func(t *testing.T, serve func(*testing.T, http.Handler) *httptest.Server) {
		server := serve(t, broken)
		request, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+"/api/v1/pop", http.NoBody)
		require.NoError(t, err)
		answer, err := server.Client().Do(request)
		if err == nil {
			_, err = io.ReadAll(answer.Body)
			_ = answer.Body.Close()
		}
		require.Error(t, err)
	})
}

func TestMetricsCountRequestsAndPassTheLinter(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	f := &world{}
	s := New(Config{}, Deps{
		Pusher: f, Popper: f, Acker: f, Transactor: f, Store: f, Registry: registry,
		Browser: f, Replayer: f, Streamer: fakeStreamer{&f.emptyBroker}, Flags: f,
	})
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	call(t, server, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1},{"queue":"q","payload":1}]}`)
	call(t, server, "POST", "/api/v1/push", `{`)
	call(t, server, "GET", "/api/v1/pop/queue/q", "")
	call(t, server, "POST", "/api/v1/ack/batch", `{"acknowledgments":[{},{},{}]}`)
	text := call(t, server, "GET", "/metrics/prometheus", "").body
	for _, line := range []string{
		"queen_process_push_requests_total 2", "queen_process_push_messages_total 2", "queen_process_pop_requests_total 1",
		"queen_process_ack_requests_total 1", "queen_process_ack_messages_total 3",
		`queen_http_requests_total{method="POST",route="/api/v1/push",status="2xx"} 1`,
		`queen_http_requests_total{method="POST",route="/api/v1/push",status="4xx"} 1`,
	} {
		require.Contains(t, text, line+"\n")
	}
	require.Contains(t, call(t, server, "GET", "/metrics", "").body, `"requests":{"total":4,"rate":0},"messages":{"total":5,"rate":0}`)
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}
