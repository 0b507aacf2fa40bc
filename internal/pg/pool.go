package pg

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// cachedStatements is more than a session ever prepares. The cache takes its memory at once, for every session.
	cachedStatements = 128
	// cancelGrace is how long a statement abandoned by its caller may take to end after the server was asked to cancel it;
	// then its connection is closed.
	cancelGrace = time.Second
	// minServerMajor is the oldest PostgreSQL whose unique indexes know NULLS NOT DISTINCT.
	minServerMajor = 15
)

// A DB is a pool of connections to one database and the procedures that may be called through it. It is safe for concurrent
// use.
type DB struct {
	pool    *pgxpool.Pool
	options Options
	lookout *lookout
	// partitions are those that pushes wrote to.
	partitions partitionIDs
	// aborted ends with Abort.
	aborted context.Context //nolint:containedctx // the end of the pool, which no call decides
	abort   context.CancelFunc

	waiting  atomic.Int64
	failures atomic.Int64
}

// Open makes a pool. It opens no connection, so the server does not need to be there yet; the error is about the options.
func Open(ctx context.Context, o Options) (*DB, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	o.sockets = &sockets{open: make(map[*socket]struct{})}
	// A pool configuration is only valid when the parser made it; what it says about the connection is replaced.
	config, err := pgxpool.ParseConfig(o.Config.ConnString())
	if err != nil {
		return nil, fmt.Errorf("database pool: %w", err)
	}
	config.ConnConfig = connConfig(o)
	config.MaxConns = int32(min(o.MaxConns, 1<<20)) //nolint:gosec // bounded in this line
	config.MinConns = 0
	config.MaxConnLifetime = time.Hour
	config.MaxConnLifetimeJitter = 10 * time.Minute
	config.MaxConnIdleTime = 5 * time.Minute
	alive := newLiveness()
	config.ShouldPing = alive.shouldPing
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		alive.opened(conn)
		if err := refuseServer(conn); err != nil || !o.Warm || o.pooled {
			return err
		}
		warm(ctx, conn)
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database pool: %w", err)
	}
	alive.pool = pool
	db := &DB{pool: pool, options: o}
	db.lookout = newLookout(db)
	db.aborted, db.abort = context.WithCancel(context.Background())
	return db, nil
}

// connConfig returns the configuration of every session of the pool. The settings travel in the start-up packet and cost no
// round trip; they outrank what the connection string and the role say. A pooler that shares sessions takes no settings in that
// packet and gives every transaction another session: then nothing is prepared by name, and the settings come from the role, see
// [DB.StoreSessionSettings].
func connConfig(o Options) *pgx.ConnConfig {
	config := o.Config.Copy()
	config.RuntimeParams = maps.Clone(config.RuntimeParams)
	config.RuntimeParams["application_name"] = o.ApplicationName
	// Poolers follow these from client to client. Texts are stored as they came, times that travel as text are read as they were written, and
	// the simple protocol, which the leader and the statistics speak, is refused by the driver without the last one.
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.RuntimeParams["TimeZone"] = "UTC"
	config.RuntimeParams["DateStyle"] = "ISO, MDY"
	config.RuntimeParams["standard_conforming_strings"] = "on"
	if o.pooled {
		config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		config.StatementCacheCapacity, config.DescriptionCacheCapacity = 0, cachedStatements
	} else {
		config.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
		config.StatementCacheCapacity, config.DescriptionCacheCapacity = cachedStatements, 0
		maps.Copy(config.RuntimeParams, sessionSettings(o))
	}
	// A connection must not be in the making for longer than somebody waits for it.
	if most := o.AcquireTimeout * 4 / 5; config.ConnectTimeout <= 0 || config.ConnectTimeout > most {
		config.ConnectTimeout = most
	}
	config.DialFunc = o.sockets.dial(config.ConnectTimeout)
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, CancelRequestDelay: 0, DeadlineDelay: cancelGrace}
	}
	return config
}

// sessionSettings are the settings that every session of the pool must have.
func sessionSettings(o Options) map[string]string {
	return map[string]string{
		"statement_timeout":                   milliseconds(o.StatementTimeout + time.Second),
		"lock_timeout":                        milliseconds(o.LockTimeout),
		"idle_in_transaction_session_timeout": "60000",
		// A session that the server ends for idling is found out by the statement that would have used it.
		"idle_session_timeout": "0",
		// A compiled plan has never paid off for these short statements and cost 300 ms where it was chosen.
		"jit":                           "off",
		"default_transaction_isolation": "read committed",
	}
}

// directConfig is connConfig for sessions of their own, which hold locks or listen: they go to the server itself, where a pooler serves
// the pool.
func directConfig(o Options) *pgx.ConnConfig {
	o.Config, o.pooled = o.direct, false
	return connConfig(o)
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// refuseServer reads the version and the encoding that every server sends while it greets.
func refuseServer(conn *pgx.Conn) error {
	if err := checkServerVersion(conn.PgConn().ParameterStatus("server_version")); err != nil {
		return err
	}
	return checkServerEncoding(conn.PgConn().ParameterStatus("server_encoding"))
}

// checkServerEncoding takes the encoding of the database, "" where a pooler keeps it to itself. Names and payloads are UTF-8: LATIN1 has
// no place for most of them, and SQL_ASCII, which servers get that were made without a locale, cannot read the escapes in JSON.
func checkServerEncoding(encoding string) error {
	if encoding == "" || encoding == "UTF8" {
		return nil
	}
	return fmt.Errorf("%w but in %s, which cannot be changed: make one with CREATE DATABASE name ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0",
		ErrNotUTF8, encoding)
}

// checkServerVersion takes a text like "15.3 (Debian 15.3-1)" or "18beta1".
func checkServerVersion(version string) error {
	end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(version)
	}
	major, err := strconv.Atoi(version[:end])
	if err != nil {
		return fmt.Errorf("the server says that its version is %q: is this PostgreSQL?", version)
	}
	if major < minServerMajor {
		return fmt.Errorf("%w: the server is version %s, Queen needs %d or newer", ErrServerTooOld, version, minServerMajor)
	}
	return nil
}

// Abort makes the calls in progress, and all later ones, return ErrUnavailable, and ends all other sessions too: for a stop that must not
// wait for a server which does not answer. What was under way may have happened or not, as after a lost connection. Close is still to be called.
func (db *DB) Abort() {
	db.abort()
	db.lookout.abort()
	db.options.sockets.abort()
}

// Close waits for the calls in progress and closes every connection. Later calls return ErrUnavailable.
func (db *DB) Close() {
	db.pool.Close()
	db.lookout.close()
	db.abort()
}

// Ping makes one round trip.
func (db *DB) Ping(ctx context.Context) error {
	return db.run(ctx, "ping", neverRepeat, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.Ping(ctx)
	})
}

// PoolStats describe the pool at one moment.
type PoolStats struct {
	// Max is the most connections there may be; Total is Idle, InUse and those being opened.
	Max, Total, Idle, InUse int
	// Waiting is the number of calls that wait for a connection.
	Waiting int
	// Failures counts the calls that failed since Open, for whatever reason but a caller that left.
	Failures int64
}

// Stats returns the state of the pool without touching the server.
func (db *DB) Stats() PoolStats {
	stat := db.pool.Stat()
	return PoolStats{
		Max:      int(stat.MaxConns()),
		Total:    int(stat.TotalConns()),
		Idle:     int(stat.IdleConns()),
		InUse:    int(stat.AcquiredConns()),
		Waiting:  int(db.waiting.Load()),
		Failures: db.failures.Load(),
	}
}
