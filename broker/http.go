package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"queenmq/internal/telemetry"
)

const (
	// A client that cannot send its header in this time keeps a connection for nothing.
	readHeaderTimeout = 15 * time.Second
	// Longer than the idle timeouts of usual load balancers (60 s), so that they close first and never send into a closing one.
	idleTimeout = 3 * time.Minute
	// A transaction id of 65,535 bytes may stand percent-encoded in a path: 196,605 bytes and the other headers.
	maxHeaderBytes = 256 << 10
)

// listen opens the listeners, at least one. Unless QUEEN_BIND_ADDR says so, a broker that obeys everybody listens to this machine alone.
func (b *Broker) listen(ctx context.Context) ([]net.Listener, error) {
	hosts := []string{b.cfg.Server.BindAddr}
	if hosts[0] == "" && !authenticates(&b.cfg) {
		hosts = []string{"127.0.0.1", "::1"}
	}
	port := b.cfg.Server.Port
	var listeners []net.Listener
	for _, host := range hosts {
		address := net.JoinHostPort(host, strconv.Itoa(port))
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		switch {
		case err == nil:
			listeners = append(listeners, listener)
			port = listener.Addr().(*net.TCPAddr).Port // the same for both names of this machine
		case len(listeners) == 0:
			return nil, fmt.Errorf("cannot listen on %s (QUEEN_BIND_ADDR, PORT): %w", address, err)
		default:
			b.log.DebugContext(ctx, "this machine is not listened to under its second name", slog.String("address", address), slog.Any("error", err))
		}
	}
	return listeners, nil
}

func closeAll(listeners []net.Listener) {
	for _, listener := range listeners {
		_ = listener.Close()
	}
}

// authenticates tells whether callers must show who they are.
func authenticates(cfg *Config) bool { return cfg.Auth.Enabled || cfg.TLS.ClientCA != "" }

// newHTTPServer has no read or write timeout on purpose: a long poll may wait an hour and a large body may come over a slow
// line. HTTP/2 without TLS is served to clients that begin with it.
func (b *Broker) newHTTPServer(e *engine) *http.Server {
	server := &http.Server{
		Handler: e.requests.count(e.handler), ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: telemetry.ServerErrorLog(b.log), Protocols: new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	// Called when the listener is closed: from then on no pop can come that would wait in vain.
	server.RegisterOnShutdown(e.popper.Stop)
	server.RegisterOnShutdown(e.tail.Stop)
	return server
}

// serveOn serves, with TLS when the broker has certificates. The server cannot be asked: serving gives it a TLS configuration either way.
func serveOn(server *http.Server, listener net.Listener, secure bool) error {
	if secure {
		return server.ServeTLS(listener, "", "")
	}
	return server.Serve(listener)
}

// requests counts those that are being handled. http.Server waits for connections, and gives up on those it closes; what they began is
// still to be ended.
type requests struct {
	mu      sync.Mutex
	n       int
	waiters []chan struct{}
}

func (r *requests) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.add(1)
		defer r.add(-1)
		next.ServeHTTP(w, request)
	})
}

func (r *requests) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n += n
	if r.n == 0 {
		for _, done := range r.waiters {
			close(done)
		}
		r.waiters = nil
	}
}

// wait returns true when none is left, or false when ctx ends earlier.
func (r *requests) wait(ctx context.Context) bool {
	r.mu.Lock()
	if r.n == 0 {
		r.mu.Unlock()
		return true
	}
	done := make(chan struct{})
	r.waiters = append(r.waiters, done)
	r.mu.Unlock()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// waitFor waits for a group, but not longer than ctx.
func waitFor(ctx context.Context, group *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// mostHandBack is the part of the grace time, at most a quarter of it, in which what was handed out to requests that never got their answer
// is given back.
const mostHandBack = 2 * time.Second

// drain stops taking requests and waits for those in flight, for as long as the grace time lets it. The context that it returns ends with
// the grace time.
func (b *Broker) drain(ctx context.Context, server *http.Server, e *engine) (grace context.Context, cancel context.CancelFunc) {
	ctx = context.WithoutCancel(ctx)
	b.stopping.Store(true)
	b.log.InfoContext(ctx, "queen is stopping")
	if b.started.Load() && b.cfg.Server.ShutdownDelay > 0 {
		<-time.After(b.cfg.Server.ShutdownDelay)
	}
	timeout := b.cfg.Server.ShutdownTimeout
	grace, cancel = context.WithTimeout(ctx, timeout)
	finish, stop := context.WithTimeout(grace, timeout-min(timeout/4, mostHandBack))
	defer stop()
	if err := server.Shutdown(finish); err != nil {
		b.log.WarnContext(ctx, "requests did not finish in time, their connections are closed", slog.Any("error", err))
		_ = server.Close()
		e.requests.wait(grace)
	}
	e.popper.Stop()
	return grace, cancel
}

// ignoreClosed drops the error with which Serve reports that the server was shut down.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
