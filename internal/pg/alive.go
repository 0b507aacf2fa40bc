package pg

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How a server that vanished without a word is noticed: a machine that lost its power, a network that swallows packets, a firewall that
// forgot the connection. A statement on such a connection would wait for its whole timeout.
const (
	// keepAliveIdle is how long a connection may be silent until the kernel asks whether the other side is there, keepAliveInterval how long it
	// waits for each of keepAliveCount answers. A statement that runs long keeps its connection silent, and the other kernel answers.
	keepAliveIdle     = 3 * time.Second
	keepAliveInterval = time.Second
	keepAliveCount    = 2
	// unacknowledgedTimeout is how long the other kernel may take to confirm what was sent.
	unacknowledgedTimeout = 5 * time.Second
	// pingAfter is how long a connection of the pool may have been idle to be used without a question, pingTimeout how long the answer may take.
	pingAfter   = time.Second
	pingTimeout = 1500 * time.Millisecond
)

// dialer makes connections whose death is noticed.
func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount},
		Control:         limitUnacknowledged,
	}
}

// sockets are the open connections of a DB, those for cancel requests included.
type sockets struct {
	mu     sync.Mutex
	open   map[*socket]struct{}
	closed bool
}

// A socket is one of them.
type socket struct {
	net.Conn
	owner *sockets
}

// Close closes the connection.
func (c *socket) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.open, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// dial opens a connection within timeout.
func (s *sockets) dial(timeout time.Duration) pgconn.DialFunc {
	dial := dialer()
	dial.Timeout = timeout
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &socket{conn, s}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			_ = conn.Close()
			return nil, net.ErrClosed
		}
		s.open[c] = struct{}{}
		return c, nil
	}
}

// abort closes all, without a word to the server, and lets none be opened again.
func (s *sockets) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for c := range s.open {
		_ = c.Conn.Close()
	}
}

// liveness looks at connections of a pool before they are used. One that died in silence is rarely alone: all that were opened before the
// discovery are given up at once, or every one of them would cost somebody the same wait.
type liveness struct {
	pool   *pgxpool.Pool
	doubts atomic.Int64 // when a silent connection was found last, in ns since begun
	begun  time.Time
}

// birthKey is where a connection keeps when it was opened, in ns since liveness.begun.
const birthKey = "queen.opened"

func newLiveness() *liveness { return &liveness{begun: time.Now()} }

// opened notes when a connection was opened.
func (l *liveness) opened(conn *pgx.Conn) {
	conn.PgConn().CustomData()[birthKey] = int64(time.Since(l.begun))
}

// shouldPing returns true for a connection that is dead, which the ping then finds out at once.
func (l *liveness) shouldPing(ctx context.Context, p pgxpool.ShouldPingParams) bool {
	if p.IdleDuration <= pingAfter {
		return false
	}
	// A deadline of the socket and not of a context: nothing runs that the server could be asked to cancel.
	line := p.Conn.PgConn().Conn()
	began := time.Now()
	_ = line.SetDeadline(began.Add(pingTimeout)) // of a closed one; the ping tells
	err := p.Conn.Ping(context.WithoutCancel(ctx))
	if err == nil {
		_ = line.SetDeadline(time.Time{})
		return false
	}
	silent := time.Since(began) >= pingTimeout
	closeSession(p.Conn)
	birth, _ := p.Conn.PgConn().CustomData()[birthKey].(int64)
	if last := l.doubts.Load(); silent && birth > last && l.doubts.CompareAndSwap(last, int64(time.Since(l.begun))) {
		l.pool.Reset()
	}
	return true
}
