package broker

import (
	"crypto/tls"
	"io"
	"log/slog"
	"math"
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
			server.Listener = &boundedListener{server.Listener, 100 * time.Millisecond, nil}
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

// Connections beyond the bound are closed at once, over all listeners together, and there is room again when one ends.
func TestTooManyConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	room := &connectionRoom{most: 2, log: slog.New(slog.DiscardHandler)}
	var urls []string
	for range 2 {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
		server.Listener = &boundedListener{server.Listener, time.Minute, room}
		server.Start()
		t.Cleanup(server.Close)
		urls = append(urls, server.URL)
	}
	get := func(url string) (close func(), err error) {
		client := &http.Client{Transport: &http.Transport{}, Timeout: 30 * time.Second}
		response, err := client.Get(url)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		_, err = io.ReadAll(response.Body)
		return client.CloseIdleConnections, err
	}
	first, err := get(urls[0])
	require.NoError(t, err)
	second, err := get(urls[1])
	require.NoError(t, err)
	for _, url := range urls {
		_, err = get(url)
		require.Error(t, err)
	}
	first()
	second()
	require.Eventually(t, func() bool { return room.open.Load() == 0 }, 30*time.Second, time.Millisecond)
	third, err := get(urls[0])
	require.NoError(t, err)
	third()
}

func TestFilesAreLeftForTheWork(t *testing.T) {
	t.Parallel()
	require.Equal(t, 65_536-160-reservedFiles, mostConnections(65_536, 160))
	require.Equal(t, 128, mostConnections(256, 160), "half of them in any case")
	require.Zero(t, mostConnections(math.MaxUint64, 160))
	require.Zero(t, mostConnections(0, 160))
	require.Positive(t, openFiles())
}
