package http1

import (
	"io"
	"net"
	"sync"
)

// A handover is a listener whose connections come from the server.
type handover struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	addr net.Addr
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// give waits until somebody accepts the connection; it is closed when nobody will.
func (h *handover) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		_ = c.Close()
	}
}

// Accept returns the next connection.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (h *handover) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h *handover) setAddr(addr net.Addr) {
	h.mu.Lock()
	h.addr = addr
	h.mu.Unlock()
}

// Addr is that of the listener served last.
func (h *handover) Addr() net.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.addr
}

// A replayed connection gives the bytes that were read from it already before those that come. net/http asks for the two methods of TCP
// connections beside those of every connection.
type replayed struct {
	net.Conn
	tcp    *net.TCPConn
	prefix []byte
	left   func() // called by every Close, does something once
}

// Close closes the connection.
func (r *replayed) Close() error {
	r.left()
	return r.Conn.Close()
}

// Read gives what was read before, and then what comes.
func (r *replayed) Read(p []byte) (int, error) {
	if len(r.prefix) == 0 {
		return r.tcp.Read(p)
	}
	n := copy(p, r.prefix)
	if r.prefix = r.prefix[n:]; len(r.prefix) == 0 {
		r.prefix = nil
	}
	return n, nil
}

// ReadFrom lets the kernel copy files.
func (r *replayed) ReadFrom(from io.Reader) (int64, error) { return r.tcp.ReadFrom(from) }

// CloseWrite ends the output.
func (r *replayed) CloseWrite() error { return r.tcp.CloseWrite() }
