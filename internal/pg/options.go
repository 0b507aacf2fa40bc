package pg

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// DefaultTenant owns everything when tenancy is off.
var DefaultTenant = uuid.MustParse("00000000-0000-0000-0000-000000000001")

// Options describe a pool. The zero value of every field but ConnString means its default.
type Options struct {
	// ConnString is a postgres:// URL or a list of key=value pairs, as ParseConfig takes it. Required unless Config is set.
	ConnString string
	// Config is an already parsed configuration, made by ParseConfig. It wins over ConnString and is not modified.
	Config *pgx.ConnConfig
	// RootCertificates are the authorities (PEM) that the server's certificate is verified against, where the connection string
	// asks for verification. Empty are those of the system.
	RootCertificates string
	// DirectConnString says that the pool goes through a pooler which shares sessions among clients, and is how sessions that must be their
	// own reach the server itself: those that listen, lead, or apply the schema. In the form of ConnString. Default: as the pool, which is
	// then taken to reach the server.
	DirectConnString string
	// MaxConns is the most connections the pool opens; it opens them when they are needed. Default 160.
	MaxConns int
	// Warm lets every new session run the procedures of the data path once, without effect, before it is used. Without meaning behind a pooler.
	Warm bool
	// StatementTimeout bounds every statement on the client's side; the server's own limit is one second longer, so that the
	// client is the one who gives up first and cancels. Default 30 s.
	StatementTimeout time.Duration
	// LockTimeout bounds the wait for one row or table lock. Default 5 s.
	LockTimeout time.Duration
	// AcquireTimeout bounds the wait for a free connection, and the making of a new one. Default 5 s.
	AcquireTimeout time.Duration
	// ApplyPatience is how long ApplySchema fights for locks with running traffic before it names who holds them. Default 3 min.
	ApplyPatience time.Duration
	// ApplicationName is what the server's views call the sessions. Default "queen".
	ApplicationName string
	// Logger gets what heals by itself: a server that is not there yet, a schema apply that waits. Default: none.
	Logger *slog.Logger

	direct  *pgx.ConnConfig // DirectConnString, parsed
	pooled  bool            // the pool goes through a pooler
	sockets *sockets        // of the DB
}

// withDefaults returns the options with every default filled in and a parsed configuration.
func (o Options) withDefaults() (Options, error) {
	given := o.Config != nil
	if !given {
		config, err := ParseConfig(o.ConnString)
		if err != nil {
			return Options{}, err
		}
		o.Config = config
	}
	o.direct = o.Config
	if o.DirectConnString != "" {
		config, err := ParseConfig(o.DirectConnString)
		if err != nil {
			return Options{}, err
		}
		o.direct, o.pooled = config, true
	}
	if strings.TrimSpace(o.RootCertificates) != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(strings.ReplaceAll(o.RootCertificates, `\n`, "\n"))) {
			return Options{}, ErrRootCertificates
		}
		if given {
			isDirect := o.direct == o.Config
			if o.Config = o.Config.Copy(); isDirect {
				o.direct = o.Config
			}
		}
		setRoots(o.Config, roots)
		setRoots(o.direct, roots)
	}
	if o.MaxConns < 0 || o.StatementTimeout < 0 || o.LockTimeout < 0 || o.AcquireTimeout < 0 || o.ApplyPatience < 0 {
		return Options{}, errors.New("database pool: sizes and timeouts cannot be negative")
	}
	o.MaxConns = orDefault(o.MaxConns, 160)
	o.StatementTimeout = orDefault(o.StatementTimeout, 30*time.Second)
	o.LockTimeout = orDefault(o.LockTimeout, 5*time.Second)
	o.AcquireTimeout = orDefault(o.AcquireTimeout, 5*time.Second)
	o.ApplyPatience = orDefault(o.ApplyPatience, 3*time.Minute)
	o.ApplicationName = orDefault(o.ApplicationName, "queen")
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// ErrRootCertificates says that Options.RootCertificates holds no certificate.
var ErrRootCertificates = errors.New("the root certificates for PostgreSQL hold no certificate in PEM form")

// setRoots verifies against roots wherever config verifies at all. It writes into the configurations that the parser made: for
// sslmode=verify-ca its own check reads them.
func setRoots(config *pgx.ConnConfig, roots *x509.CertPool) {
	if config.TLSConfig != nil {
		config.TLSConfig.RootCAs = roots
	}
	for _, fallback := range config.Fallbacks {
		if fallback.TLSConfig != nil {
			fallback.TLSConfig.RootCAs = roots
		}
	}
}

func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

// ParseConfig reads a connection string: a postgres:// URL, or key=value pairs, in which host may be the directory of a Unix
// socket. sslmode=disable is a plain connection; require encrypts without proof of identity; verify-full checks chain and host
// name, against the system's roots unless sslrootcert names others; neither falls back to plain text. Errors never contain the
// password.
func ParseConfig(connString string) (*pgx.ConnConfig, error) {
	if connString == "" {
		return nil, errors.New("no database is configured: the connection string is empty")
	}
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		// The driver masks passwords as well as it can in a malformed string, which is not well enough for a log.
		return nil, fmt.Errorf("the connection string of the database cannot be read: %w", withoutConnString(err))
	}
	return config, nil
}

// withoutConnString keeps the reason of a parse error and drops the connection string that it repeats.
func withoutConnString(err error) error {
	if reason := errors.Unwrap(err); reason != nil {
		return errors.New("expected postgres://user:password@host:port/database?sslmode=..., or key=value pairs")
	}
	return errors.New("expected postgres://user:password@host:port/database, or key=value pairs")
}
