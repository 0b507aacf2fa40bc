package broker

import (
	"net"
	"sync"
	"time"
)

// A boundedListener gives connections up whose clients take nothing of what is written to them: without that, one that sends requests and
// reads no answers would keep its connection, and what answers it, for ever.
type boundedListener struct {
	net.Listener
	// most is how long one write may take.
	most time.Duration
}

// Accept returns the next connection.
func (l *boundedListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &boundedConn{Conn: accepted, most: l.most}, nil
}

// A boundedConn bounds writes that have no deadline of their user's.
type boundedConn struct {
	net.Conn
	most time.Duration

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

// CloseWrite ends the output, so that a client sees the answer before its connection breaks.
func (c *boundedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
