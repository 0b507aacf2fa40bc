package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/config"
	"queenmq/internal/engine/segment"
	"queenmq/internal/localpg"
	"queenmq/internal/pg"
	"queenmq/internal/telemetry"
)

// Config is the settings of a broker. Take it from [LoadConfig], which fills in defaults and checks bounds, and change fields
// afterwards at will.
type Config = config.Config

// LoadConfig reads settings through lookup; os.LookupEnv reads the process environment, a function that finds nothing gives
// the defaults. names are the variables that are set, to report misspelt ones; nil skips that. Faults come joined, one line
// each, and each names its variable.
func LoadConfig(lookup func(name string) (value string, set bool), names []string) (*Config, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // only the default of one setting depends on it, and says so
	}
	cfg, err := config.Load(lookup, names, config.ThisMachine(os.Geteuid() == 0, home))
	if err != nil {
		return nil, err
	}
	if err := checkTrust(cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// NewLogger writes events to w in the form and from the level on that cfg asks for.
func NewLogger(cfg *Config, w io.Writer) (*slog.Logger, error) {
	return telemetry.NewLogger(w, cfg.Log.Level, cfg.Log.JSON)
}

// A Broker is one broker. Make it with [New], run it once with Run.
type Broker struct {
	cfg      Config
	log      *slog.Logger
	instance uuid.UUID // of this run, because two brokers may carry one name by mistake

	ran      atomic.Bool
	started  atomic.Bool // the schema is there
	stopping atomic.Bool
	ready    chan struct{}
	address  string // written before ready is closed
}

// An Option changes what New makes.
type Option func(*Broker)

// WithLogger makes the broker write its events to logger. Without it they are discarded.
func WithLogger(logger *slog.Logger) Option { return func(b *Broker) { b.log = logger } }

// New returns a broker that does nothing until it is run. It keeps a copy of cfg.
func New(cfg *Config, options ...Option) *Broker {
	b := &Broker{cfg: *cfg, log: slog.New(slog.DiscardHandler), instance: segment.NewID(), ready: make(chan struct{})}
	for _, option := range options {
		option(b)
	}
	return b
}

// Ready is closed when the broker serves requests. It is never closed when the start fails.
func (b *Broker) Ready() <-chan struct{} { return b.ready }

// URL is where the broker serves on this machine. It is known when Ready is closed, "" before.
func (b *Broker) URL() string {
	select {
	case <-b.ready:
	default:
		return ""
	}
	host, port, _ := net.SplitHostPort(b.address) // the listener made it
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http://"
	if b.cfg.TLS.Cert != "" {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port)
}

// privateStopTimeout is how long the private server may take for its shutdown checkpoint.
const privateStopTimeout = time.Minute

// Run starts the broker, serves until ctx ends, and stops it in good order; that is a nil error. An error says in one line
// why the broker could not start or had to stop. When Run returns, nothing of the broker runs any more. A Broker runs once.
func (b *Broker) Run(ctx context.Context) (err error) {
	if !b.ran.CompareAndSwap(false, true) {
		return errors.New("this broker has run already: make a new one")
	}
	b.reportSettings(ctx)
	if err := b.checkListenURL(); err != nil {
		return err
	}
	trusted, err := newTrust(&b.cfg, b.log)
	if err != nil {
		return err
	}
	trusted.report(ctx, &b.cfg, b.log)
	private, connString, err := b.startDatabase(ctx)
	if err != nil {
		return endedBy(ctx, err)
	}
	if private != nil {
		defer func() {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), privateStopTimeout)
			defer cancel()
			// A server that was lost already ended the run with this error.
			if stopErr := private.Stop(stop); stopErr != nil && err == nil {
				err = stopErr
			}
		}()
	}
	db, err := pg.Open(ctx, pg.Options{
		ConnString: connString, DirectConnString: b.cfg.Mesh.ListenURL.Reveal(),
		MaxConns: b.cfg.Database.PoolSize, StatementTimeout: b.cfg.Database.StatementTimeout,
		Warm:            true,
		ApplicationName: "queen " + b.cfg.Server.ServerID, Logger: b.log, RootCertificates: b.cfg.Database.SSLRootCert,
	})
	switch {
	case errors.Is(err, pg.ErrRootCertificates):
		return fmt.Errorf("PG_SSL_ROOT_CERT: %w", err)
	case err != nil:
		return fmt.Errorf("%s: %w", b.databaseVariable(), err)
	}
	defer db.Close()
	return b.serve(ctx, db, private, trusted)
}

// startDatabase starts the private PostgreSQL unless a database is configured, and returns how to connect.
func (b *Broker) startDatabase(ctx context.Context) (*localpg.Server, string, error) {
	if b.cfg.Database.Configured {
		return nil, b.cfg.Database.ConnString(), nil
	}
	private, err := localpg.Start(ctx, localpg.Options{
		DataDir: b.cfg.Private.DataDir, MaxConnections: b.cfg.Database.PoolSize, Logger: b.log,
	})
	if err != nil {
		return nil, "", err
	}
	return private, private.ConnString(), nil
}

// databaseVariable is the setting to blame for a database that cannot be used.
func (b *Broker) databaseVariable() string {
	if b.cfg.Database.URL.IsSet() {
		return "DATABASE_URL"
	}
	return "PG_HOST and the other PG_ variables"
}

const (
	// preparePause is how long a start that lost the database waits before it begins anew.
	preparePause = 500 * time.Millisecond
	// prepareLogEvery keeps a start beside a standby, which may take hours to be promoted, from filling the log.
	prepareLogEvery = time.Minute
)

// prepareDatabase waits for the database and prepares it. A database that goes away in the middle is waited for again: a broker that
// starts while the server does must not need somebody to start it once more.
func (b *Broker) prepareDatabase(ctx context.Context, db *pg.DB, e *engine) error {
	var lastLog time.Time
	for {
		err := b.tryPrepareDatabase(ctx, db)
		if err == nil {
			err = b.prepareBuffer(ctx, db, e)
		}
		if !errors.Is(err, pg.ErrUnavailable) && !errors.Is(err, pg.ErrTimeout) {
			return err
		}
		if now := time.Now(); ctx.Err() == nil && now.Sub(lastLog) >= prepareLogEvery {
			lastLog = now
			b.log.WarnContext(ctx, "the database cannot be prepared now, trying again", slog.Any("error", err))
		}
		select {
		case <-time.After(preparePause):
		case <-ctx.Done():
			return err
		}
	}
}

// prepareBuffer learns, before the first push is taken and the first kept one stored, whether the file buffer belongs to this database and
// whether pushes are to stay out of it.
func (b *Broker) prepareBuffer(ctx context.Context, db *pg.DB, e *engine) error {
	if err := b.tieBuffer(ctx, db, e.buffer); err != nil {
		return err
	}
	if err := e.flags.Refresh(ctx); err != nil {
		return fmt.Errorf("database %s: read the maintenance switches: %w", b.target(), err)
	}
	return nil
}

func (b *Broker) tryPrepareDatabase(ctx context.Context, db *pg.DB) error {
	if err := db.WaitReady(ctx); err != nil {
		return fmt.Errorf("database %s: %w", b.target(), err)
	}
	if b.cfg.Database.ApplySchema {
		if err := db.ApplySchema(ctx); err != nil {
			return fmt.Errorf("apply the schema to database %s: %w", b.target(), err)
		}
	}
	if err := db.StoreSessionSettings(ctx); err != nil {
		b.log.WarnContext(ctx, "sessions behind the pooler may have no timeouts: give the role those of docs/pooler.md", slog.Any("error", err))
	}
	found, err := db.Inspect(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("database %s: %w", b.target(), err)
	case found.SchemaVersion == 0:
		return fmt.Errorf("database %s has no schema and QUEEN_APPLY_SCHEMA is off: run queen schema apply with a role that may create it", b.target())
	}
	for _, f := range judge(found, nil, b.cfg.Database.PoolSize) {
		if !f.OK {
			b.log.WarnContext(ctx, "the database is not as it should be", slog.String("subject", f.Subject), slog.String("finding", f.Text))
		}
	}
	return nil
}

func (b *Broker) target() string {
	if b.cfg.Database.Configured {
		return b.cfg.Database.Target() + " (" + b.databaseVariable() + ")"
	}
	return b.cfg.Private.DataDir
}

// watch ends with an error when the private server is lost for good.
func watch(ctx context.Context, private *localpg.Server) error {
	select {
	case <-ctx.Done():
		return nil
	case <-private.Done():
		return private.Err()
	}
}

// endedBy makes a start that was cancelled a clean stop.
func endedBy(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// reportSettings says once what the environment asks for and does not get.
func (b *Broker) reportSettings(ctx context.Context) {
	for _, unknown := range b.cfg.Unknown {
		if unknown.Nearest == "" {
			b.log.WarnContext(ctx, "unknown setting is ignored", slog.String("variable", unknown.Name))
			continue
		}
		b.log.WarnContext(ctx, "unknown setting is ignored", slog.String("variable", unknown.Name), slog.String("did_you_mean", unknown.Nearest))
	}
	byReason := map[string][]string{}
	var reasons []string
	for _, unused := range b.cfg.Unused {
		if byReason[unused.Why] == nil {
			reasons = append(reasons, unused.Why)
		}
		byReason[unused.Why] = append(byReason[unused.Why], unused.Name)
	}
	for _, reason := range reasons {
		b.log.WarnContext(ctx, "settings without effect", slog.String("variables", strings.Join(byReason[reason], " ")), slog.String("reason", reason))
	}
}
