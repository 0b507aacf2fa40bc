package broker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/broker"
	"queenmq/internal/testdb"
)

// A run is a broker that runs in this process.
type run struct {
	*broker.Broker
	client *http.Client
	log    *lines
	stop   context.CancelFunc
	ended  chan error
}

// begin runs a broker with the given settings on a free port.
func begin(t *testing.T, env map[string]string) *run {
	t.Helper()
	r := &run{log: &lines{}, ended: make(chan error, 1), client: &http.Client{Transport: &http.Transport{}, Timeout: time.Minute}}
	cfg := settings(t, env)
	r.Broker = broker.New(cfg, broker.WithLogger(slog.New(slog.NewTextHandler(r.log, nil))))
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-r.ended
		r.client.CloseIdleConnections()
	})
	return r
}

func settings(t *testing.T, env map[string]string) *broker.Config {
	t.Helper()
	dir := t.TempDir()
	cfg, err := broker.LoadConfig(func(name string) (string, bool) {
		if text, set := env[name]; set {
			return text, true
		}
		switch name {
		case "PORT":
			return "0", true
		case "QUEEN_BIND_ADDR":
			return "127.0.0.1", true
		case "FILE_BUFFER_DIR":
			return dir, true
		}
		return "", false
	}, nil)
	require.NoError(t, err)
	return cfg
}

// ready waits until the broker serves.
func (r *run) ready(t *testing.T) *run {
	t.Helper()
	select {
	case <-r.Ready():
	case err := <-r.ended:
		r.ended <- err
		require.FailNow(t, "the broker ended instead of starting", "%v\n%s", err, r.log)
	case <-time.After(90 * time.Second):
		require.FailNow(t, "the broker does not start", r.log.String())
	}
	return r
}

// end stops the broker and returns what Run returned.
func (r *run) end(t *testing.T) error {
	t.Helper()
	r.stop()
	return r.result(t)
}

func (r *run) result(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err
		return err
	case <-time.After(90 * time.Second):
		require.FailNow(t, "the broker does not end", r.log.String())
		return nil
	}
}

// answer is what a request got.
type answer struct {
	status int
	body   string
}

func (r *run) do(method, url, body string) (answer, error) {
	request, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, string(text)}, err
}

func (r *run) call(t *testing.T, method, path, body string) answer {
	t.Helper()
	a, err := r.do(method, r.URL()+path, body)
	require.NoError(t, err)
	return a
}

func (r *run) push(t *testing.T, queue, payload string) {
	t.Helper()
	a := r.call(t, "POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":%s}]}`, queue, payload))
	require.Equal(t, http.StatusCreated, a.status, a.body)
	require.Contains(t, a.body, `"status":"queued"`)
}

// payloads pops what is there and returns the payloads as they stand in the answer.
func (r *run) payloads(t *testing.T, queue string) []string {
	t.Helper()
	a := r.call(t, "GET", "/api/v1/pop/queue/"+queue+"?batch=100", "")
	if a.status == http.StatusNoContent {
		return nil
	}
	require.Equal(t, http.StatusOK, a.status, a.body)
	var result struct {
		Messages []struct{ Data json.RawMessage }
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &result))
	var payloads []string
	for _, m := range result.Messages {
		payloads = append(payloads, string(m.Data))
	}
	return payloads
}

// lines collects what a logger writes.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// privateDir is a data directory that an unprivileged server may reach.
func privateDir(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	return filepath.Join(root, "data")
}

func countMessages(t *testing.T, database *testdb.Database) int {
	t.Helper()
	var n int
	err := database.Pool(t).QueryRow(context.Background(), "SELECT COALESCE(sum(end_offset - base_offset + 1), 0) FROM queen.log_segments").Scan(&n)
	require.NoError(t, err)
	return n
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

// forward makes address the server of database, until the test ends.
func forward(t *testing.T, address string, database *testdb.Database) {
	t.Helper()
	target := database.Pool(t).Config().ConnConfig
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	var copies sync.WaitGroup
	copies.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", net.JoinHostPort(target.Host, fmt.Sprint(target.Port)))
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				copies.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		copies.Wait()
	})
}
