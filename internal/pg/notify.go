package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// Times of the sessions that carry notifications. A peer that vanished without a word is found after listenIdle + listenPing; with the
// back-off of whoever reconnects that stays below five seconds.
const (
	// listenIdle is how long a listening session may be silent before it has to prove that it lives.
	listenIdle = time.Second
	listenPing = 1500 * time.Millisecond
	// notifyTimeout bounds connecting, and one call, of the notifying session.
	notifyTimeout = 2 * time.Second
)

// A Notification is one message that a listener heard.
type Notification struct {
	// Sender is the process id of the session that sent it. The server fills it in; it cannot be forged.
	Sender  uint32
	Payload string
}

// A Listener is one session that hears a channel. It is used by one goroutine at a time.
type Listener struct{ conn *pgx.Conn }

// Listen opens a session of its own, outside the pool, that hears the channel from now on. It never opens a transaction: an open one would
// keep the server from clearing its queue of notifications.
func (db *DB) Listen(ctx context.Context, channel string) (*Listener, error) {
	limited, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(limited, db.hintConfig(" listen"))
	if err != nil {
		return nil, fmt.Errorf("open the listening session: %w", classify(ctx, limited, err))
	}
	l := &Listener{conn}
	if _, err := conn.Exec(limited, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen: %w", classify(ctx, limited, err))
	}
	return l, nil
}

// Wait returns the next notification. Every error means that the session is of no use any more: whatever was sent since the last
// notification may be lost.
func (l *Listener) Wait(ctx context.Context) (Notification, error) {
	for {
		idle, cancel := context.WithTimeout(ctx, listenIdle)
		heard, err := l.conn.WaitForNotification(idle)
		expired := idle.Err() != nil
		cancel()
		if err == nil {
			return Notification{Sender: heard.PID, Payload: heard.Payload}, nil
		}
		if ctx.Err() == nil && expired && !l.conn.IsClosed() {
			limited, cancel := context.WithTimeout(ctx, listenPing)
			err = l.conn.Ping(limited)
			cancel()
			if err == nil {
				continue
			}
		}
		return Notification{}, fmt.Errorf("wait for a notification: %w", classify(ctx, ctx, err))
	}
}

// Close ends the session.
func (l *Listener) Close() { closeSession(l.conn) }

// A Notifier sends notifications on a session of its own, never inside a transaction that writes data: commits that notify wait for each
// other across the whole server. It is used by one goroutine at a time.
type Notifier struct {
	db      *DB
	channel string
	conn    *pgx.Conn
}

// NewNotifier returns a sender for the channel. It connects when it is first used; Close it at the end.
func (db *DB) NewNotifier(channel string) *Notifier { return &Notifier{db: db, channel: channel} }

// Send sends the payloads, of at most 7,999 bytes each, in one commit that does not wait for the disk, and returns how full the server's
// queue of notifications is, from 0 to 1. No payloads is a look at that queue. After an error the payloads may or may not have been sent;
// the next call connects anew.
func (n *Notifier) Send(ctx context.Context, payloads []string) (usage float64, err error) {
	limited, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if n.conn == nil {
		conn, err := pgx.ConnectConfig(limited, n.db.hintConfig(" notify"))
		if err != nil {
			return 0, fmt.Errorf("open the notifying session: %w", classify(ctx, limited, err))
		}
		n.conn = conn
	}
	// The aggregate makes PostgreSQL call the function for each row and answers with one.
	err = n.conn.QueryRow(limited, `SELECT pg_catalog.pg_notification_queue_usage() FROM
(SELECT pg_catalog.count(pg_catalog.pg_notify($1::text, p)::text) FROM pg_catalog.unnest($2::text[]) p) AS sent (n)`, n.channel, payloads).Scan(&usage)
	if err != nil {
		n.Close()
		return 0, fmt.Errorf("notify: %w", classify(ctx, limited, err))
	}
	return usage, nil
}

// Close ends the session. The next Send opens another.
func (n *Notifier) Close() {
	closeSession(n.conn)
	n.conn = nil
}

func closeSession(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cancelGrace)
	defer cancel()
	_ = conn.Close(ctx) // nobody is left to act on it, and the server notices either way
}

// hintConfig is the configuration of the two sessions: losing what the last commits told costs nothing, so they do not wait for the disk. Giving
// up a wait leaves the connection usable.
func (db *DB) hintConfig(suffix string) *pgx.ConnConfig {
	config := directConfig(db.options)
	config.RuntimeParams["application_name"] += suffix
	config.RuntimeParams["synchronous_commit"] = "off"
	config.ConnectTimeout = min(config.ConnectTimeout, notifyTimeout)
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}
	}
	return config
}
