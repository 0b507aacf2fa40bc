package broker

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever the protocol, a client that reads no answers is given up, and so are its requests.
func TestClientThatReadsNothingIsGivenUp(t *testing.T) {
	t.Parallel()
	const patience = 30 * time.Second
	for _, secure := range []bool{false, true} {
		name := "Plain"
		if secure {
			name = "TLS"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var open atomic.Int64
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, strings.Repeat("x", 1000))
			}))
			server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				switch state {
				case http.StateNew:
					open.Add(1)
				case http.StateClosed:
					open.Add(-1)
				default:
				}
			}
			server.Listener = &boundedListener{server.Listener, 100 * time.Millisecond}
			dial := func() (net.Conn, error) { return net.Dial("tcp", server.Listener.Addr().String()) }
			if secure {
				server.StartTLS()
				config := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
				config.ServerName = "example.com"
				dial = func() (net.Conn, error) { return tls.Dial("tcp", server.Listener.Addr().String(), config) }
			} else {
				server.Start()
			}
			defer server.Close()
			c, err := dial()
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
			many := []byte(strings.Repeat("GET / HTTP/1.1\r\nHost: h\r\n\r\n", 1000))
			for {
				if _, err := c.Write(many); err != nil {
					require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "still open")
					break
				}
			}
			require.Eventually(t, func() bool { return open.Load() == 0 }, patience, time.Millisecond)
		})
	}
}
