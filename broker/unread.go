package broker

import (
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A boundedListener gives connections up whose clients take nothing of what is written to them: without that, one that sends requests and
// reads no answers would keep its connection, and what answers it, for ever.
type boundedListener struct {
	net.Listener
	// most is how long one write may take.
	most time.Duration
	// room bounds how many connections there are. Nil does not.
	room *connectionRoom
}

// Accept returns the next connection. Those beyond the bound are closed.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if leave, ok := l.room.enter(); ok {
			return &boundedConn{Conn: accepted, most: l.most, leave: leave}, nil
		}
		_ = accepted.Close()
	}
}

// A connectionRoom bounds the connections of several listeners together, so that files and connections to others are left for the work itself.
type connectionRoom struct {
	most int64
	open atomic.Int64
	log  *slog.Logger
	// complained is when the log said last that there are too many, in nanoseconds since 1970.
	complained atomic.Int64
}

// refusalInterval is how often the log says that there are too many connections.
const refusalInterval = time.Minute

// enter takes a place, until leave is called, if there is one.
func (r *connectionRoom) enter() (leave func(), ok bool) {
	if r == nil {
		return func() {}, true
	}
	if r.open.Add(1) <= r.most {
		return sync.OnceFunc(func() { r.open.Add(-1) }), true
	}
	r.open.Add(-1)
	now, last := time.Now().UnixNano(), r.complained.Load()
	if now-last >= int64(refusalInterval) && r.complained.CompareAndSwap(last, now) {
		r.log.Warn("there are too many connections, others are closed at once", slog.Int64("connections", r.most))
	}
	return nil, false
}

// reservedFiles is how many files beside the connections of the pool are kept for what is no client: the file buffer, logs, certificates,
// sessions of their own, and some to spare.
const reservedFiles = 128

// mostConnections is how many clients a process may have that can open so many files, with a pool of a size; 0, for a process without a limit,
// is any number. Half of the files are for clients in any case.
func mostConnections(files uint64, pool int) int {
	if files == 0 || files > math.MaxInt32 {
		return 0
	}
	return max(int(files)-pool-reservedFiles, int(files)/2) //nolint:gosec // bounded above
}

// A boundedConn bounds writes that have no deadline of their user's.
type boundedConn struct {
	net.Conn
	most  time.Duration
	leave func()

	mu  sync.Mutex
	own bool // the user has set one
}

// Write sends b, or fails when that takes too long.
func (c *boundedConn) Write(b []byte) (int, error) {
	if c.bound(time.Now().Add(c.most)) {
		defer c.bound(time.Time{})
	}
	return c.Conn.Write(b)
}

// bound sets the deadline unless the user has set one, and reports whether it did.
func (c *boundedConn) bound(at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.own && c.Conn.SetWriteDeadline(at) == nil
}

// SetWriteDeadline sets the deadline of the user, which counts instead.
func (c *boundedConn) SetWriteDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = !at.IsZero()
	return c.Conn.SetWriteDeadline(at)
}

// SetDeadline sets both deadlines of the user.
func (c *boundedConn) SetDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own = !at.IsZero()
	return c.Conn.SetDeadline(at)
}

// Close closes the connection.
func (c *boundedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// CloseWrite ends the output, so that a client sees the answer before its connection breaks.
func (c *boundedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
