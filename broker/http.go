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
	"sync/atomic"
	"time"

	"queenmq/internal/api"
	"queenmq/internal/http1"
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

// A httpFront is what listens: the general server, and in front of it, where it can be used, the one for the busy routes.
type httpFront struct {
	general *http.Server
	fast    *http1.Server // nil: everything is for the general one
	// room is for the connections of the general server; nil when the fast one counts them.
	room *connectionRoom
}

// newHTTPFront makes the servers.
func (b *Broker) newHTTPFront(e *engine) *httpFront {
	f := &httpFront{general: b.newHTTPServer(e)}
	most := mostConnections(openFiles(), b.cfg.Database.PoolSize)
	if b.cfg.Server.FastPath && b.cfg.TLS.Cert == "" && http1.Supported {
		f.fast = http1.New(http1.Config{
			Handler: e.handler, Began: e.requests.begin, Ended: e.requests.done, Takes: api.Busy, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, WriteTimeout: api.DefaultStallTimeout,
			ErrorLog: f.general.ErrorLog, MaxConns: most,
		})
	} else if most > 0 {
		f.room = &connectionRoom{most: int64(most), log: b.log}
	}
	return f
}

// serveOn starts what serves the listeners, with TLS when the general server has certificates.
func (f *httpFront) serveOn(listeners []net.Listener, secure bool, start func(part string, run func() error)) {
	general := func(l net.Listener) error {
		l = &boundedListener{l, api.DefaultStallTimeout, f.room}
		if secure { // the server cannot be asked: serving gives it a TLS configuration either way
			return f.general.ServeTLS(l, "", "")
		}
		return f.general.Serve(l)
	}
	serve := general
	if f.fast != nil {
		start("http server", func() error { return ignoreClosed(general(f.fast.Others())) })
		serve = f.fast.Serve
	}
	for _, listener := range listeners {
		start("http server", func() error { return ignoreClosed(serve(listener)) })
	}
}

// shutdown stops taking requests and waits for those in flight.
func (f *httpFront) shutdown(ctx context.Context) error {
	if f.fast == nil {
		return f.general.Shutdown(ctx)
	}
	general := make(chan error, 1)
	go func() { general <- f.general.Shutdown(ctx) }() // both at once: parked pops end with it
	return errors.Join(f.fast.Shutdown(ctx), <-general)
}

// close closes all connections.
func (f *httpFront) close() {
	if f.fast != nil {
		f.fast.Close()
	}
	_ = f.general.Close()
}

// requests counts those that are being handled. The servers wait for connections, and give up on those they close; what they began is
// still to be ended.
type requests struct {
	n atomic.Int64

	mu sync.Mutex
	// waiting is closed by the request that was the last one, nil while nobody waits.
	waiting chan struct{}
}

func (r *requests) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.begin()
		defer r.done()
		next.ServeHTTP(w, request)
	})
}

func (r *requests) begin() { r.n.Add(1) }

func (r *requests) done() {
	if r.n.Add(-1) > 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting != nil {
		close(r.waiting)
		r.waiting = nil
	}
}

// wait returns true when none is left, or false when ctx ends earlier.
func (r *requests) wait(ctx context.Context) bool {
	r.mu.Lock()
	if r.waiting == nil {
		r.waiting = make(chan struct{})
	}
	done := r.waiting
	r.mu.Unlock()
	if r.n.Load() == 0 { // the last one was done before it could see the channel
		return true
	}
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
func (b *Broker) drain(ctx context.Context, front *httpFront, e *engine) (grace context.Context, cancel context.CancelFunc) {
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
	if err := front.shutdown(finish); err != nil {
		b.log.WarnContext(ctx, "requests did not finish in time, their connections are closed", slog.Any("error", err))
		front.close()
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
