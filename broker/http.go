package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
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

func (b *Broker) listen(ctx context.Context) (net.Listener, error) {
	address := net.JoinHostPort(b.cfg.Server.BindAddr, strconv.Itoa(b.cfg.Server.Port))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s (QUEEN_BIND_ADDR, PORT): %w", address, err)
	}
	return listener, nil
}

// newHTTPServer has no read or write timeout on purpose: a long poll may wait an hour and a large body may come over a slow
// line. HTTP/2 without TLS is served to clients that begin with it.
func (b *Broker) newHTTPServer(e *engine) *http.Server {
	server := &http.Server{
		Handler: e.handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
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

// serveOn serves with TLS when the server has certificates.
func serveOn(server *http.Server, listener net.Listener) error {
	if server.TLSConfig != nil {
		return server.ServeTLS(listener, "", "")
	}
	return server.Serve(listener)
}

// drain stops taking requests and waits for those in flight, up to the configured time.
func (b *Broker) drain(ctx context.Context, server *http.Server, e *engine) {
	ctx = context.WithoutCancel(ctx)
	b.stopping.Store(true)
	b.log.InfoContext(ctx, "queen is stopping")
	if b.started.Load() && b.cfg.Server.ShutdownDelay > 0 {
		<-time.After(b.cfg.Server.ShutdownDelay)
	}
	finish, cancel := context.WithTimeout(ctx, b.cfg.Server.ShutdownTimeout)
	defer cancel()
	if err := server.Shutdown(finish); err != nil {
		b.log.WarnContext(ctx, "requests did not finish in time, their connections are closed", slog.Any("error", err))
		_ = server.Close()
	}
	e.popper.Stop()
	e.tail.Stop()
}

// ignoreClosed drops the error with which Serve reports that the server was shut down.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
