package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// The advisory locks of the background work that one broker at a time does. They are held by transactions, never by sessions:
// a session may go back to a pool with its lock.
const (
	RetentionLock     int64 = 737001
	StatsLock         int64 = 737002
	RetainedBytesLock int64 = 737003
)

// ErrLeadershipLost ends the work of a leader whose connection broke: the server has given its lock away.
var ErrLeadershipLost = errors.New("the connection that holds the leader's lock is gone")

// A Leader competes for one advisory lock on a connection of its own. It is used by one goroutine at a time.
type Leader struct {
	db   *DB
	lock int64
	conn *pgx.Conn
}

// NewLeader returns a competitor for the lock. It connects when it is first used; Close it at the end.
func (db *DB) NewLeader(lock int64) *Leader { return &Leader{db: db, lock: lock} }

// Close gives up the connection.
func (l *Leader) Close() {
	if l.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cancelGrace)
	defer cancel()
	_ = l.conn.Close(ctx) // nobody is left to act on it, and the server notices either way
	l.conn = nil
}

// Lead runs f while the lock is held, and returns its error. It returns false without running f when another session holds the
// lock. The transaction that holds the lock touches no table, so it holds back no vacuum. The context of f ends with
// ErrLeadershipLost as its cause as soon as the connection breaks, be it that the server went or that somebody ended the
// session. A broker that dies loses the lock at once, one whose machine vanishes within 12 s.
func (l *Leader) Lead(ctx context.Context, f func(context.Context) error) (led bool, err error) {
	if err := l.begin(ctx); err != nil {
		l.Close()
		return false, fmt.Errorf("compete for lock %d: %w", l.lock, err)
	}
	limited, cancel := context.WithTimeout(ctx, l.db.options.StatementTimeout)
	// The simple protocol ends its portal with the statement; the extended one would keep its snapshot for as long as the leader
	// works, and hold back every vacuum.
	err = l.conn.QueryRow(limited, `SELECT pg_catalog.pg_try_advisory_xact_lock($1)`, pgx.QueryExecModeSimpleProtocol, l.lock).Scan(&led)
	cancel()
	if err == nil && led {
		return true, l.guard(ctx, f)
	}
	if endErr := l.end(ctx); err == nil {
		err = endErr
	}
	if err != nil {
		l.Close()
		return false, fmt.Errorf("compete for lock %d: %w", l.lock, classify(ctx, ctx, err))
	}
	return false, nil
}

// begin connects where needed and opens the transaction. A connection that the server dropped meanwhile is replaced once.
func (l *Leader) begin(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, l.db.options.AcquireTimeout)
	defer cancel()
	if l.conn != nil {
		if _, err := l.conn.Exec(limited, "BEGIN"); err == nil {
			return nil
		}
		l.Close()
	}
	conn, err := pgx.ConnectConfig(limited, l.config())
	if err != nil {
		return classify(ctx, limited, err)
	}
	l.conn = conn
	if _, err := conn.Exec(limited, "BEGIN"); err != nil {
		return classify(ctx, limited, err)
	}
	return nil
}

// config is that of the pool's sessions, but the transaction may idle for as long as the leader works, the server asks early
// whether the leader's machine is still there, and giving up a wait leaves the connection usable.
func (l *Leader) config() *pgx.ConnConfig {
	config := directConfig(l.db.options)
	for name, value := range map[string]string{
		"idle_in_transaction_session_timeout": "0", "tcp_keepalives_idle": "4", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3",
	} {
		config.RuntimeParams[name] = value
	}
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	}
	return config
}

// guard runs f and watches the connection meanwhile.
func (l *Leader) guard(ctx context.Context, f func(context.Context) error) error {
	leading, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	watched, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// Nothing is ever notified here: the wait ends with the connection, or when f is done.
		for {
			if _, err := l.conn.WaitForNotification(watched); err != nil {
				break
			}
		}
		if watched.Err() == nil {
			lose(ErrLeadershipLost)
		}
	}()
	defer func() {
		stop()
		<-ended
		if l.end(context.WithoutCancel(ctx)) != nil {
			l.Close()
		}
	}()
	err := f(leading)
	if cause := context.Cause(leading); err != nil && errors.Is(cause, ErrLeadershipLost) {
		return errors.Join(ErrLeadershipLost, err)
	}
	return err
}

// end releases the lock.
func (l *Leader) end(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, cancelGrace)
	defer cancel()
	_, err := l.conn.Exec(limited, "ROLLBACK")
	return err
}
