package http1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The states of a connection. It is closed by its own goroutine while active, and by whoever moves it to stateClosed while it waits.
const (
	stateNew    int32 = iota // nothing has come yet
	stateIdle                // waits for the next request
	stateActive              // from the first byte of a request to the last of its answer
	stateClosed
)

// bufferSize is the longest header that is read here, and how much of a body may come with it.
const bufferSize = 8 << 10

var readBuffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// leastNext is how much of a next request must come before net/http looks at it: less, at the end of the input, is nothing. As many line ends
// are forgiven after the body of a POST.
const leastNext = 4

// A conn is one connection, served by one goroutine.
type conn struct {
	server *Server
	tcp    *net.TCPConn
	raw    syscall.RawConn
	id     uint64

	// state is one of those above; since is when it became new or idle.
	state atomic.Int32
	since atomic.Int64

	// in holds what was read and not used yet, in part of buffer. Without such bytes there is no buffer.
	buffer *[bufferSize]byte
	in     []byte
	// receive is receiveNow, made once; count and fault are its result.
	receive func(fd uintptr) (done bool)
	count   int
	fault   error
	// transmit is transmitNow, made once: it sends the beginning of rest, which it takes off.
	transmit func(fd uintptr) (done bool)
	rest     []byte

	watched   bool
	answered  bool // at least one request
	afterPost bool // the last one was a POST

	mu     sync.Mutex
	hangup bool               // the input of the connection has ended, perhaps with bytes left to be read
	broken bool               // so has its output
	cancel context.CancelFunc // of the request under way, or nil
}

// serve reads requests until the connection ends, goes to the others, or waits for a handler that has suspended itself. It begins with the
// rest of such a request unless suspended is nil.
func (c *conn) serve(suspended *exchange) {
	kept, waits := true, false
	defer func() {
		if waits {
			return
		}
		c.releaseBuffer()
		c.server.forget(c)
		if kept {
			c.server.open.Add(-1)
		}
		if kept && c.state.Swap(stateClosed) != stateClosed {
			_ = c.tcp.Close()
		}
	}()
	for x := suspended; ; x = nil {
		next := over
		if x != nil {
			next = c.run(x, x.takeRest())
		} else {
			var ok bool
			x, ok = c.next()
			switch {
			case !ok:
				return
			case x == nil:
				kept = false
				c.handOver()
				return
			}
			next = c.answer(x)
		}
		switch next {
		case over:
			return
		case waiting:
			waits = true
			c.server.work.Add(1)
			go c.wait(x)
			return
		case again:
		}
	}
}

// wait is where a suspended request waits: in a goroutine of its own, because the stack of the one that ran the handler has grown and stays so.
func (c *conn) wait(x *exchange) {
	defer c.server.work.Done()
	x.wait()
	c.serve(x)
}

// next waits for a request and reads its header. Nil with true says that the others shall have the connection, false that it has ended.
func (c *conn) next() (*exchange, bool) {
	if len(c.in) == 0 && !c.fill() {
		return nil, false
	}
	if !c.activate() {
		return nil, false
	}
	deadline := false
	for c.answered && len(c.in) < leastNext {
		if !c.patient(&deadline) {
			return nil, false
		}
	}
	if c.afterPost {
		for range leastNext {
			if c.in[0] != '\r' && c.in[0] != '\n' {
				break
			}
			c.in = c.in[1:]
		}
	}
	for {
		x, verdict := c.parse()
		if verdict != incomplete {
			if deadline {
				_ = c.tcp.SetReadDeadline(time.Time{})
			}
			return x, true
		}
		if !c.patient(&deadline) {
			// The buffer is full, or the input has ended in the middle: the others say so.
			return nil, !errors.Is(c.fault, os.ErrDeadlineExceeded)
		}
	}
}

// activate says that a request has begun, and reports false when the connection was closed meanwhile.
func (c *conn) activate() bool {
	switch from := c.state.Load(); from {
	case stateActive: // a pipelined request
		return true
	case stateClosed:
		return false
	default: // only this goroutine leaves these states for another one than stateClosed
		return c.state.CompareAndSwap(from, stateActive)
	}
}

// patient waits for more bytes of a header, of which one has a deadline, and reports whether some came.
func (c *conn) patient(deadline *bool) bool {
	if !*deadline {
		*deadline = true
		_ = c.tcp.SetReadDeadline(time.Now().Add(c.server.cfg.ReadHeaderTimeout))
	}
	return c.more()
}

// fill waits for bytes without a buffer, and reports whether some came.
func (c *conn) fill() bool {
	c.releaseBuffer()
	return c.read()
}

// more waits for bytes behind those that are there, and reports whether some came.
func (c *conn) more() bool {
	if len(c.in) > 0 && &c.in[0] != &c.buffer[0] {
		c.in = c.buffer[:copy(c.buffer[:], c.in)]
	}
	if len(c.in) == bufferSize {
		c.fault = nil
		return false
	}
	return c.read()
}

func (c *conn) read() bool {
	c.count, c.fault = 0, nil
	if err := c.raw.Read(c.receive); err != nil {
		c.fault = err
		return false
	}
	if c.count <= 0 {
		if c.fault == nil {
			c.fault = io.EOF
		}
		return false
	}
	c.in = c.buffer[:len(c.in)+c.count]
	return true
}

// receiveNow reads what is there into the buffer, which it takes only when there is something.
func (c *conn) receiveNow(fd uintptr) bool {
	borrowed := c.buffer == nil
	if borrowed {
		c.buffer = readBuffers.Get().(*[bufferSize]byte) //nolint:forcetypeassert // the pool holds nothing else
	}
	for {
		c.count, c.fault = syscall.Read(int(fd), c.buffer[len(c.in):])
		if c.fault != syscall.EINTR {
			break
		}
	}
	if c.fault != syscall.EAGAIN {
		return true
	}
	if borrowed {
		c.releaseBuffer()
	}
	return false
}

// releaseBuffer gives the buffer back unless it holds something.
func (c *conn) releaseBuffer() {
	if c.buffer != nil && len(c.in) == 0 {
		readBuffers.Put(c.buffer)
		c.buffer, c.in = nil, nil
	}
}

// handOver gives the connection to the others.
func (c *conn) handOver() {
	prefix := bytes.Clone(c.in)
	c.in = nil
	c.releaseBuffer()
	if c.watched {
		c.server.watch.remove(c.raw)
	}
	_ = c.tcp.SetDeadline(time.Time{})
	c.server.others.give(&replayed{Conn: c.tcp, tcp: c.tcp, prefix: prefix, left: sync.OnceFunc(func() { c.server.open.Add(-1) })})
}

// An outcome is what comes after a request.
type outcome int

const (
	over    outcome = iota // nothing, the connection ends
	again                  // another request
	waiting                // the rest of it
)

// answer runs the handler.
func (c *conn) answer(x *exchange) outcome {
	ctx, cancel := context.WithCancel(context.Background())
	if !c.begin(cancel) {
		cancel()
		return over
	}
	x.cancel = cancel
	x.request = *x.request.WithContext(ctx)
	c.server.cfg.Began()
	return c.run(x, func() { c.server.cfg.Handler.ServeHTTP(x, &x.request) })
}

// run calls the handler, or the rest of it, and ends the answer.
func (c *conn) run(x *exchange, handler func()) (next outcome) {
	done, finished := false, false
	defer func() {
		if done {
			return
		}
		if !finished {
			c.finish(x)
		}
		if cause := recover(); cause != nil && cause != http.ErrAbortHandler { //nolint:errorlint // the value itself, as net/http compares it
			c.server.logf("http: panic serving %v: %v\n%s", c.tcp.RemoteAddr(), cause, debug.Stack())
		}
		next = over
	}()
	handler()
	if x.wait != nil {
		done = true
		return waiting
	}
	finished = true
	c.finish(x)
	more := x.finish()
	done = true
	c.answered, c.afterPost = true, x.request.Method == http.MethodPost
	if !more && x.body.left > 0 {
		c.linger()
	}
	x.recycle()
	switch {
	case !more, c.server.closing.Load() && len(c.in) > 0:
		return over
	case len(c.in) > 0:
		return again
	}
	c.since.Store(c.server.clock.now())
	if !c.state.CompareAndSwap(stateActive, stateIdle) || c.server.closing.Load() {
		return over
	}
	return again
}

// begin makes the request known to those who watch the connection.
func (c *conn) begin(cancel context.CancelFunc) bool {
	if !c.watched {
		c.watched = true
		if c.server.watch.add(c.raw, c.id) != nil {
			return false // closed by the server
		}
	}
	c.mu.Lock()
	c.cancel = cancel
	hangup, broken := c.hangup, c.broken
	c.mu.Unlock()
	if hangup && (broken || inputEnded(c.raw)) {
		cancel()
	}
	return true
}

// finish ends what the handler is part of.
func (c *conn) finish(x *exchange) {
	c.mu.Lock()
	c.cancel = nil
	c.mu.Unlock()
	x.cancel()
	c.server.cfg.Ended()
}

// hungUp ends the context of the request under way, unless more requests wait to be read.
func (c *conn) hungUp(broken bool) {
	c.mu.Lock()
	c.hangup, c.broken = true, c.broken || broken
	cancel := c.cancel
	c.mu.Unlock()
	if cancel != nil && (broken || inputEnded(c.raw)) {
		cancel()
	}
}

// bodyRead looks again for the end of the input when the rest of a body has been read from the connection.
func (c *conn) bodyRead() {
	c.mu.Lock()
	cancel, hangup := c.cancel, c.hangup
	c.mu.Unlock()
	if hangup && cancel != nil && inputEnded(c.raw) {
		cancel()
	}
}

// lingerTime is how long a client may go on sending what nobody reads, so that it sees the answer before its connection breaks.
const lingerTime = 500 * time.Millisecond

func (c *conn) linger() {
	_ = c.tcp.CloseWrite()
	_ = c.tcp.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.Copy(io.Discard, c.tcp) // until the time is over or the client leaves
}

// closeIf closes the connection if it is still in a state.
func (c *conn) closeIf(state int32) {
	if c.state.CompareAndSwap(state, stateClosed) {
		_ = c.tcp.Close()
	}
}

// closeIfLate closes the connection when it waited too long.
func (c *conn) closeIfLate(now int64) {
	// The state first: a connection that becomes idle says since when before it says so.
	state := c.state.Load()
	waited := time.Duration(now - c.since.Load())
	if state == stateNew && waited > c.server.cfg.ReadHeaderTimeout || state == stateIdle && waited > c.server.cfg.IdleTimeout {
		c.closeIf(state)
	}
}

// abort closes the connection whatever it does.
func (c *conn) abort() {
	c.mu.Lock()
	cancel := c.cancel
	c.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if c.state.Swap(stateClosed) != stateClosed {
		_ = c.tcp.Close()
	}
}

// write sends b. Usually the kernel takes it at once; only when it does not, because the client does not read, there is a timeout, so that
// it costs nothing otherwise. Without bounded there is none.
func (c *conn) write(b []byte, bounded bool) error {
	c.rest = b
	err := c.raw.Write(c.transmit)
	b, c.rest = c.rest, nil
	if err != nil || len(b) == 0 {
		return err
	}
	defer c.boundWrite(bounded)()
	_, err = c.tcp.Write(b)
	return err
}

// transmitNow sends as much of rest as the kernel takes now. What is wrong with the connection the next write finds.
func (c *conn) transmitNow(fd uintptr) bool {
	if n, err := syscall.Write(int(fd), c.rest); err == nil {
		c.rest = c.rest[n:]
	}
	return true
}

// writeBoth sends two pieces with one system call.
func (c *conn) writeBoth(head, rest []byte, bounded bool) error {
	defer c.boundWrite(bounded)()
	pieces := net.Buffers{head, rest}
	_, err := pieces.WriteTo(c.tcp)
	return err
}

// boundWrite gives the next write its deadline until the returned function is called.
func (c *conn) boundWrite(bounded bool) (over func()) {
	if !bounded || c.server.cfg.WriteTimeout <= 0 {
		return func() {}
	}
	_ = c.tcp.SetWriteDeadline(time.Now().Add(c.server.cfg.WriteTimeout))
	return func() { _ = c.tcp.SetWriteDeadline(time.Time{}) }
}
