package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"

	"queenmq/internal/telemetry"
)

// newProfileServer opens the listener of QUEEN_PPROF_ADDR. Without the setting both are nil, and the process has no profiles.
func (b *Broker) newProfileServer(ctx context.Context) (*http.Server, net.Listener, error) {
	address := b.cfg.Server.ProfileAddr
	if address == "" {
		return nil, nil, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot listen on %s (QUEEN_PPROF_ADDR): %w", address, err)
	}
	b.log.WarnContext(ctx, "profiles are served without authentication to everybody on this machine",
		slog.String("setting", "QUEEN_PPROF_ADDR"), slog.String("address", listener.Addr().String()))
	server := &http.Server{
		Handler: newProfileHandler(), ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: telemetry.ServerErrorLog(b.log),
	}
	return server, listener, nil
}

// mutexProfileFraction reports one in so many contentions, and blockProfileRate one blocking event for so many nanoseconds blocked:
// both cost less than a thousandth of a processor.
const (
	mutexProfileFraction = 100
	blockProfileRate     = 1_000_000
)

// newProfileHandler serves the profiles of the process below /debug/pprof/, as net/http/pprof does, and turns on the profiles of mutexes
// and of blocking, which are those of the whole process. Profiles name functions and command-line arguments and hold no messages; whoever
// reads them can slow the process down, so that the handler belongs on a listener of its own, on the loopback interface. A request whose
// Host is no loopback address is refused: a page in a browser on this machine must not reach it under a name of its own.
func newProfileHandler() http.Handler {
	runtime.SetMutexProfileFraction(mutexProfileFraction)
	runtime.SetBlockProfileRate(blockProfileRate)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(hostOf(r.Host)) {
			http.Error(w, "profiles are served under a loopback address only", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// hostOf is the host of host or host:port.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
