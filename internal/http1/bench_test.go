package http1

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// answerLikeAPush reads the body and answers with a few headers.
func answerLikeAPush(w http.ResponseWriter, r *http.Request) {
	var body [512]byte
	n, _ := io.ReadFull(r.Body, body[:])
	header := w.Header()
	header["X-Content-Type-Options"] = []string{"nosniff"}
	header["X-Frame-Options"] = []string{"DENY"}
	header["Content-Security-Policy"] = []string{"default-src 'none'; frame-ancestors 'none'"}
	header["Referrer-Policy"] = []string{"no-referrer"}
	header["Cache-Control"] = []string{"no-store"}
	header["Content-Type"] = []string{"application/json"}
	header["Content-Length"] = []string{strconv.Itoa(n)}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body[:n])
}

// BenchmarkRequest is one request of 300 bytes and its answer over the loopback interface, with the client's system calls.
func BenchmarkRequest(b *testing.B) {
	handler := http.HandlerFunc(answerLikeAPush)
	for name, serve := range map[string]func(net.Listener) func(){
		"FastPath": func(l net.Listener) func() {
			s := New(Config{Handler: handler, Takes: func(string, string) bool { return true }, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute})
			go func() { _ = s.Serve(l) }()
			return func() { s.Close(); s.end() }
		},
		"NetHTTP": func(l net.Listener) func() {
			s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute}
			go func() { _ = s.Serve(l) }()
			return func() { _ = s.Close() }
		},
	} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(b, err)
			defer serve(l)()
			c, err := net.Dial("tcp", l.Addr().String())
			require.NoError(b, err)
			defer c.Close()
			request := []byte("POST /api/v1/push HTTP/1.1\r\nHost: 127.0.0.1:6632\r\nUser-Agent: x\r\nContent-Type: application/json\r\nContent-Length: 300\r\n\r\n" + string(make([]byte, 300)))
			in := bufio.NewReader(c)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Write(request); err != nil {
					b.Fatal(err)
				}
				for length := 0; ; {
					line, err := in.ReadSlice('\n')
					if err != nil {
						b.Fatal(err)
					}
					if len(line) == 2 {
						_, _ = in.Discard(300)
						break
					}
					length += len(line)
				}
			}
		})
	}
}
