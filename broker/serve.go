package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"queenmq/internal/localpg"
	"queenmq/internal/pg"
)

// serve runs the parts that need a pool, and stops them.
func (b *Broker) serve(ctx context.Context, db *pg.DB, private *localpg.Server, trusted trust) error {
	engine, err := b.newEngine(db, trusted)
	if err != nil {
		return err
	}
	doors, err := b.openDoors(ctx, engine)
	if err != nil {
		engine.close()
		return err
	}

	// running ends with ctx, or with the first part that fails: its error is then the cause. background outlives it, because
	// requests in flight need the engine until they are answered.
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	var parts sync.WaitGroup
	start := func(part string, run func(context.Context) error) {
		parts.Go(func() {
			if err := run(background); err != nil {
				fail(fmt.Errorf("%s: %w", part, err))
			}
		})
	}
	start("push", engine.pusher.Run)
	start("ack", engine.acker.Run)
	if engine.buffer != nil {
		start("file buffer", engine.buffer.spool.Run)
	}
	doors.serve(start)
	if trusted.verifier != nil {
		start("token keys", trusted.verifier.Run)
	}
	if private != nil {
		start("database", func(ctx context.Context) error { return watch(ctx, private) })
	}

	err = b.prepareDatabase(running, db, engine)
	if err == nil {
		err = checkKeys(running, trusted, engine.loops.keys)
	}
	if err != nil {
		fail(err)
	} else {
		startOnDatabase(start, engine)
		b.address = doors.listeners[0].Addr().String()
		b.started.Store(true)
		close(b.ready)
		startNeighbours(start, engine.neighbours)
		b.log.InfoContext(ctx, "queen is ready", slog.String("address", b.address), slog.String("server_id", b.cfg.Server.ServerID),
			slog.String("version", Version()), slog.Int("pool", b.cfg.Database.PoolSize))
	}
	<-running.Done()

	grace, cancel := b.drain(running, doors.front, engine)
	defer cancel()
	doors.stopProfiles()
	stopBackground()
	b.awaitParts(grace, db, &parts, engine)
	engine.close()
	if ctx.Err() != nil {
		b.log.InfoContext(ctx, "queen has stopped")
		return nil
	}
	return context.Cause(running)
}

// A starter runs a part in a goroutine of its own, with the context of what runs in the background. A part that fails ends the broker.
type starter func(part string, run func(context.Context) error)

// startOnDatabase starts what needs the schema.
func startOnDatabase(start starter, e *engine) {
	start("maintenance switches", e.flags.Run)
	for _, loop := range e.loops.all() {
		start(loop.Status().Name, loop.Run)
	}
	if e.buffer != nil {
		start("drain of the file buffer", e.buffer.drain.Run)
	}
	start("pop", e.popper.Run)
	if list := e.gates.HotList(); list != nil {
		start("hot list", list.Run)
	}
}

// startNeighbours starts what tells other brokers of this one; its address is known by now.
func startNeighbours(start starter, n *neighbours) {
	start("list of brokers", n.registration.Run)
	if n.mesh != nil {
		start("mesh", n.mesh.Run)
	}
}

// awaitParts waits for the parts and for the requests in flight. When grace ends before them, the database does not answer: what is under
// way is given up then.
func (b *Broker) awaitParts(grace context.Context, db *pg.DB, parts *sync.WaitGroup, e *engine) {
	if waitFor(grace, parts) && e.requests.wait(grace) {
		return
	}
	b.log.WarnContext(grace, "the database does not answer, what is under way is given up")
	db.Abort()
	parts.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(grace), mostHandBack)
	defer cancel()
	e.requests.wait(last)
}

// doors are the ways into a broker: its listeners with the servers behind them.
type doors struct {
	listeners       []net.Listener
	front           *httpFront
	tls             bool
	profiles        *http.Server // nil: no profiles
	profileListener net.Listener
}

// openDoors listens. Nothing is served before [doors.serve]. When it fails, nothing is left open.
func (b *Broker) openDoors(ctx context.Context, e *engine) (*doors, error) {
	listeners, err := b.listen(ctx)
	if err != nil {
		return nil, err
	}
	d := &doors{listeners: listeners, front: b.newHTTPFront(e), tls: b.cfg.TLS.Cert != ""}
	if d.tls {
		source, err := b.newCertificateSource()
		if err != nil {
			closeAll(listeners)
			return nil, err
		}
		d.front.general.TLSConfig = source.tlsConfig()
	}
	if d.profiles, d.profileListener, err = b.newProfileServer(ctx); err != nil {
		closeAll(listeners)
		return nil, err
	}
	return d, nil
}

// serve starts the servers.
func (d *doors) serve(start starter) {
	d.front.serveOn(d.listeners, d.tls, func(part string, run func() error) {
		start(part, func(context.Context) error { return run() })
	})
	if d.profiles != nil {
		start("profiles", func(context.Context) error { return ignoreClosed(d.profiles.Serve(d.profileListener)) })
	}
}

// stopProfiles ends the server of profiles: one under way is of no use to anybody.
func (d *doors) stopProfiles() {
	if d.profiles != nil {
		_ = d.profiles.Close()
	}
}
