package http1

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// suspending is a handler that waits for a token, once for every request, and answers with the path.
func suspending(tokens <-chan struct{}, waiting chan<- context.Context) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		w.(interface{ Suspend(wait, resume func()) }).Suspend(
			func() {
				waiting <- ctx
				select {
				case <-tokens:
				case <-ctx.Done():
				}
			},
			func() {
				if r.URL.Path == "/fast/panic" {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(w, r.URL.Path)
			})
	}
}

// A balance is how many requests have begun and not ended.
func balance(balance *atomic.Int64) func(*Config) {
	return func(cfg *Config) {
		cfg.Began, cfg.Ended = func() { balance.Add(1) }, func() { balance.Add(-1) }
	}
}

func TestSuspendedHandlerAnswers(t *testing.T) {
	t.Parallel()
	tokens, waiting := make(chan struct{}), make(chan context.Context, 1)
	var open atomic.Int64
	p := start(t, suspending(tokens, waiting), balance(&open))
	c := p.dial(t, "GET /fast/a HTTP/1.1\r\nHost: h\r\n\r\nGET /fast/b HTTP/1.1\r\nHost: h\r\n\r\n")
	answers := bufio.NewReader(c)
	for _, path := range []string{"/fast/a", "/fast/b"} {
		<-waiting
		require.Equal(t, int64(1), open.Load(), "it is under way while it waits")
		tokens <- struct{}{}
		require.Equal(t, path, readAnswer(t, answers).Body)
	}
	_, err := io.WriteString(c, "GET /fast/c HTTP/1.1\r\nHost: h\r\n\r\n")
	require.NoError(t, err)
	<-waiting
	tokens <- struct{}{}
	require.Equal(t, "/fast/c", readAnswer(t, answers).Body)
	require.Zero(t, p.gave.Load())
	require.Eventually(t, func() bool { return open.Load() == 0 }, patience, time.Millisecond)
}

func TestSuspendedHandlerLearnsThatItsClientLeft(t *testing.T) {
	t.Parallel()
	waiting := make(chan context.Context, 1)
	var open atomic.Int64
	p := start(t, suspending(nil, waiting), balance(&open))
	c := p.dial(t, "GET /fast/a HTTP/1.1\r\nHost: h\r\n\r\n")
	ctx := <-waiting
	require.NoError(t, ctx.Err())
	require.NoError(t, c.Close())
	<-ctx.Done()
	require.Eventually(t, func() bool { return open.Load() == 0 && p.open.Load() == 0 }, patience, time.Millisecond)
}

func TestSuspendedHandlerThatPanicsEndsItsConnection(t *testing.T) {
	t.Parallel()
	tokens, waiting := make(chan struct{}, 1), make(chan context.Context, 1)
	var open atomic.Int64
	p := start(t, suspending(tokens, waiting), balance(&open))
	tokens <- struct{}{}
	c := p.dial(t, "GET /fast/panic HTTP/1.1\r\nHost: h\r\n\r\n")
	<-waiting
	ended(t, c)
	require.Eventually(t, func() bool { return open.Load() == 0 }, patience, time.Millisecond)
}

func TestShutdownWaitsForSuspendedHandlers(t *testing.T) {
	t.Parallel()
	tokens, waiting := make(chan struct{}), make(chan context.Context, 1)
	p := start(t, suspending(tokens, waiting), nil)
	c := p.dial(t, "GET /fast/a HTTP/1.1\r\nHost: h\r\n\r\n")
	<-waiting
	stopped := make(chan error, 1)
	go func() { stopped <- p.Shutdown(context.Background()) }()
	<-p.stop
	select {
	case err := <-stopped:
		require.Fail(t, "it did not wait", "%v", err)
	case tokens <- struct{}{}:
	}
	got := readAnswer(t, bufio.NewReader(c))
	require.Equal(t, "/fast/a", got.Body)
	require.True(t, got.Close)
	require.NoError(t, <-stopped)
}
