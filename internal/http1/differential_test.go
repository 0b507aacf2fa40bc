package http1

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// mirror answers with everything that it sees of a request, in one of the ways in which handlers answer.
func mirror(w http.ResponseWriter, r *http.Request) {
	kind, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/fast/"), "/")
	switch kind {
	case "unread":
		w.WriteHeader(http.StatusUnauthorized)
		return
	case "none":
		w.WriteHeader(http.StatusNoContent)
		return
	case "silent":
		return
	case "close":
		w.Header().Set("Connection", "close")
	}
	body, err := io.ReadAll(r.Body)
	fault := ""
	if err != nil {
		fault = err.Error()
	}
	seen, _ := json.Marshal(map[string]any{
		"method": r.Method, "path": r.URL.Path, "raw": r.URL.RawPath, "escaped": r.URL.EscapedPath(), "query": r.URL.RawQuery, "force": r.URL.ForceQuery,
		"url": r.URL.String(), "uri": r.RequestURI, "host": r.Host, "header": r.Header, "length": r.ContentLength, "close": r.Close, "coding": r.TransferEncoding,
		"proto": r.Proto, "body": body, "fault": fault, "trailer": r.Trailer,
	})
	if kind == "length" || len(seen) > 2000 { // a longer answer without a length is chunked by the other
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", itoa(len(seen)))
		w.WriteHeader(http.StatusCreated)
	}
	_, _ = w.Write(seen)
}

func itoa(n int) string {
	text, _ := json.Marshal(n)
	return string(text)
}

// exchangeBytes sends text in two pieces and the end of the input behind it, and returns all answers. What cannot be read as an answer comes last
// as it is.
func exchangeBytes(t *testing.T, address string, text []byte, cut int) (answers []answer, rest string) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	cut = min(cut, len(text))
	_, _ = c.Write(text[:cut]) // a server that has seen enough may have closed
	_, _ = c.Write(text[cut:])
	_ = c.(*net.TCPConn).CloseWrite()
	all, err := io.ReadAll(c)
	if netErr, ok := err.(net.Error); ok && netErr.Timeout() {
		t.Fatalf("no end after %q", all)
	}
	r := bufio.NewReader(bytes.NewReader(all))
	for {
		before, _ := r.Peek(r.Buffered())
		rest = string(before)
		response, err := http.ReadResponse(r, nil)
		if err != nil {
			return answers, rest
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return answers, rest
		}
		response.Header.Del("Date")
		answers = append(answers, answer{response.StatusCode, response.Header, string(body), response.Close})
	}
}

// seeds are requests as they should be and as they should not.
var seeds = []string{
	get, post, get + post + get, post + "\r\n" + get, post + "\r\n\r\n\r\n" + get, get + "\r\n" + get,
	"GET /fast/length/x?a=b&c=%20 HTTP/1.1\r\nHost: localhost:6632\r\nUser-Agent: x\r\nAccept-Encoding: gzip\r\n\r\n",
	"GET /fast/none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" + get,
	"GET /fast/silent? HTTP/1.1\r\nHost: h\r\nconnection: Keep-Alive\r\n\r\n" + get,
	"POST /fast/unread HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody" + get,
	"POST /fast/unread HTTP/1.1\r\nHost: h\r\nContent-Length: 40\r\n\r\nbody",
	"POST /fast/close HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n" + get,
	"POST /fast/length HTTP/1.1\r\nHost: h\r\nContent-Length: 007\r\n\r\n0123456" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\n\r\n" + get,
	"HEAD /fast/x HTTP/1.1\r\nHost: h\r\n\r\n" + get,
	"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
	// Where one request ends and the next begins.
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4, 4\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: +4\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: -4\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 0x4\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: \r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4 4\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length:4\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length : 4\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\n Content-Length: 4\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\nbody",
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 999999999999999999\r\n\r\nbody",
	"GET /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbo",
	// Lines.
	"GET /fast/x HTTP/1.1\nHost: h\n\n" + get, "GET /fast/x HTTP/1.1\r\nHost: h\n\r\n" + get, "GET /fast/x HTTP/1.1\r\nHost: h\r\n\n" + get,
	"GET /fast/x HTTP/1.1\r\nHost: h\rX: y\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n",
	"GET /fast/x HTTP/1.1\r\nHost: h\r\nX: \xff\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost: h\r\nX\x80: a\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost: h\r\n: a\r\n\r\n",
	"GET /fast/x HTTP/1.1\r\nHost: h\r\nX\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost: h\r\nX:\r\nX: \r\nx:  a  b  \r\nX:\tc\t\r\n\r\n",
	"GET  /fast/x HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast/x  HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast/x HTTP/1.1 \r\nHost: h\r\n\r\n", " GET /fast/x HTTP/1.1\r\nHost: h\r\n\r\n",
	"get /fast/x HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast/x HTTP/1.0\r\nHost: h\r\n\r\n", "GET /fast/x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + get, "GET /fast/x HTTP/2.0\r\nHost: h\r\n\r\n",
	"GET /fast/x HTTP/1.2\r\nHost: h\r\n\r\n", "GET /fast/x\r\n\r\n", "GET /fast/x HTTP/1.1", "GET", "", "\r\n\r\n", "\x16\x03\x01\x02\x00\x01",
	// Host and the other fields with a meaning.
	"GET /fast/x HTTP/1.1\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost:\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost: a/b\r\n\r\n",
	"GET /fast/x HTTP/1.1\r\nHost: a b\r\n\r\n", "GET /fast/x HTTP/1.1\r\nhost: [::1]:80\r\n\r\n", "GET http://g/fast/x HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET /fast/x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n", "POST /fast/x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody",
	"GET /fast/x HTTP/1.1\r\nHost: h\r\nExpect: x\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost: h\r\nConnection: close, x\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost: h\r\nConnection: x\r\nConnection: close\r\n\r\n" + get,
	"GET /fast/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
	"GET /fast/x HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "GET /fast/x HTTP/1.1\r\nHost: h\r\nPragma: no-cache\r\n\r\n",
	"GET /fast/x HTTP/1.1\r\nHost: h\r\nTE: trailers\r\n\r\n", "POST /fast/x HTTP/1.1\r\nHost: h\r\nTrailer: X\r\nContent-Length: 1\r\n\r\nx",
	"GET /fast/x HTTP/1.1\r\nHost: h\r\naUTHORIZATION: Bearer a\r\nx-queen-tenant: b\r\nX_y: c\r\ncookie: d\r\nCookie: e\r\n\r\n",
	// Targets.
	"GET /fast/a%2Fb/%C3%A9?%zz HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast/%zz HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast/a!*'()b HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast/a#b?c HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET /fast/../x HTTP/1.1\r\nHost: h\r\n\r\n", "GET //fast/x HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast//x HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast/a?b?c HTTP/1.1\r\nHost: h\r\n\r\n",
	"GET /fast/\"<>\\^`{|} HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast/a;b=c,d@e+f$g&h=:i HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast/\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n", "GET /fast/x?\x7f HTTP/1.1\r\nHost: h\r\n\r\n",
	"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET /other HTTP/1.1\r\nHost: h\r\n\r\n" + get,
	"GET /fast/x HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("A: b\r\n", 40) + "\r\n", "GET /fast/x HTTP/1.1\r\nHost: h\r\nA: " + strings.Repeat("b", 9000) + "\r\n\r\n" + get,
	"POST /fast/x HTTP/1.1\r\nHost: h\r\nContent-Length: 12000\r\n\r\n" + strings.Repeat("c", 12000) + get,
}

// FuzzAnswersAreThoseOfNetHTTP sends the same bytes to a server of this package and to net/http alone. Every byte of the answers must be the
// same, but for the order of the header and its date.
func FuzzAnswersAreThoseOfNetHTTP(f *testing.F) {
	for _, text := range seeds {
		f.Add([]byte(text), uint16(1<<15))
		f.Add([]byte(text), uint16(len(text)/2))
	}
	var once twin
	f.Cleanup(func() { once.stop() })
	once.start(f)
	f.Fuzz(func(t *testing.T, text []byte, cut uint16) {
		once.compare(t, text[:min(len(text), 64<<10)], int(cut)) // nothing new beyond the buffers
	})
}

// A twin is a server of this package and one of net/http with the same handler.
type twin struct {
	here  *Server
	other *http.Server
	plain *httptest.Server
	at    string
	done  chan struct{}
}

func (w *twin) start(t testing.TB) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w.at, w.done = listener.Addr().String(), make(chan struct{})
	w.here = New(Config{
		Handler: http.HandlerFunc(mirror), Takes: func(_, path string) bool { return strings.HasPrefix(path, "/fast/") },
		ReadHeaderTimeout: patience, IdleTimeout: patience,
	})
	w.plain = httptest.NewServer(http.HandlerFunc(mirror))
	w.other = &http.Server{Handler: http.HandlerFunc(mirror)}
	go func() {
		defer close(w.done)
		_ = w.here.Serve(listener)
	}()
	go func() { _ = w.other.Serve(w.here.Others()) }()
}

func (w *twin) stop() {
	w.here.Close()
	_ = w.other.Close()
	w.plain.Close()
	<-w.done
	w.here.end()
}

func (w *twin) compare(t *testing.T, text []byte, cut int) {
	t.Helper()
	want, wantRest := exchangeBytes(t, w.plain.Listener.Addr().String(), text, cut)
	got, gotRest := exchangeBytes(t, w.at, text, cut)
	if diff := cmp.Diff(want, got); diff != "" || wantRest != gotRest {
		t.Fatalf("%.1000q: (-net/http +here)\n%s%q %q", text, diff, wantRest, gotRest)
	}
}
