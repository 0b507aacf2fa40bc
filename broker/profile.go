package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"

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
		Handler: telemetry.NewProfileHandler(), ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: telemetry.ServerErrorLog(b.log),
	}
	return server, listener, nil
}
