package http1

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Config says what a [Server] serves and how long it waits.
type Config struct {
	// Handler answers the requests that are served here. It must not keep the request or its body when it returns. RemoteAddr is empty, and
	// the context holds no values.
	Handler http.Handler
	// Began and Ended are called before the handler is, and when its request is answered or given up, also when it was suspended in between.
	// Nil calls nothing.
	Began, Ended func()
	// Takes reports whether requests with a method (GET or POST) and an escaped path are served here. Routes whose answers are short or whole
	// are of this kind: an answer without a Content-Length is held back until the handler returns.
	Takes func(method, path string) bool
	// ReadHeaderTimeout is how long a client may take from the first byte of a header to its last, and from connecting to the first byte.
	ReadHeaderTimeout time.Duration
	// IdleTimeout is how long a connection may wait for its next request.
	IdleTimeout time.Duration
	// WriteTimeout is how long a client may keep a part of an answer from being sent, which it does by reading nothing, before its connection
	// is given up. A deadline that the handler sets counts instead. 0 is for ever.
	WriteTimeout time.Duration
	// MaxConns is the most connections at a time, with those that were given away and are still open. More are closed at once, so that
	// files and connections to others are left for the work itself. 0 is no bound.
	MaxConns int
	// ErrorLog takes panics of handlers and failures to accept. Nil drops them.
	ErrorLog *log.Logger
}

// A Server serves connections. Make one with [New].
type Server struct {
	cfg    Config
	others *handover
	clock  clock

	closing atomic.Bool
	open    atomic.Int64 // connections, with those that were given away
	// refusedAt is when the log said last that there are too many.
	refusedAt atomic.Int64
	began     sync.Once
	stop      chan struct{} // closed by the first Shutdown or Close
	work      sync.WaitGroup

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[uint64]*conn
	lastID    uint64
	watch     *watcher
	watchErr  error
}

// New returns a server that does nothing until Serve is called.
func New(cfg Config) *Server {
	if cfg.Began == nil {
		cfg.Began = func() {}
	}
	if cfg.Ended == nil {
		cfg.Ended = func() {}
	}
	return &Server{
		cfg: cfg, others: newHandover(), stop: make(chan struct{}),
		listeners: map[net.Listener]struct{}{}, conns: map[uint64]*conn{},
	}
}

// Others is where the connections arrive that are not served here, to be given to the Serve method of an http.Server. Their bytes are all
// there, from the first request on that was not served. It closes with the server.
func (s *Server) Others() net.Listener { return s.others }

// Serve accepts connections until the listener fails or the server is stopped, which is http.ErrServerClosed. It closes the listener.
func (s *Server) Serve(listener net.Listener) error {
	defer listener.Close()
	if err := s.begin(listener); err != nil {
		return err
	}
	defer func() {
		s.mu.Lock()
		delete(s.listeners, listener)
		s.mu.Unlock()
	}()
	var pause time.Duration
	for {
		accepted, err := listener.Accept()
		switch {
		case err == nil:
			pause = 0
			s.accept(accepted)
		case s.closing.Load():
			return http.ErrServerClosed
		case !isTemporary(err):
			return err
		default: // out of file descriptors, most likely
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.logf("http: Accept error: %v; retrying in %v", err, pause)
			select {
			case <-time.After(pause):
			case <-s.stop:
			}
		}
	}
}

func isTemporary(err error) bool {
	temporary, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err)
	return ok && temporary.Temporary()
}

// begin makes a listener known and starts what runs beside all connections.
func (s *Server) begin(listener net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return http.ErrServerClosed
	}
	s.others.setAddr(listener.Addr())
	s.began.Do(func() {
		if s.watch, s.watchErr = newWatcher(); s.watchErr != nil {
			return
		}
		s.work.Go(func() { s.watch.run(s.hungUp) })
		s.work.Go(s.reap)
	})
	if s.watchErr != nil {
		return s.watchErr
	}
	s.listeners[listener] = struct{}{}
	return nil
}

// accept serves a connection in a goroutine of its own. What is no TCP connection goes to the others at once.
func (s *Server) accept(accepted net.Conn) {
	tcp, ok := accepted.(*net.TCPConn)
	if !ok {
		s.others.give(accepted)
		return
	}
	if n := s.open.Add(1); s.cfg.MaxConns > 0 && n > int64(s.cfg.MaxConns) {
		s.open.Add(-1)
		_ = tcp.Close()
		s.logRefusal()
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		s.open.Add(-1)
		_ = tcp.Close()
		return
	}
	c := &conn{server: s, tcp: tcp, raw: raw}
	c.receive, c.transmit = c.receiveNow, c.transmitNow
	c.since.Store(s.clock.now())
	s.mu.Lock()
	if s.closing.Load() {
		s.mu.Unlock()
		s.open.Add(-1)
		_ = tcp.Close()
		return
	}
	s.lastID++
	c.id = s.lastID
	s.conns[c.id] = c
	s.work.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.work.Done()
		c.serve(nil)
	}()
}

// refusalInterval is how often the log says that there are too many connections.
const refusalInterval = time.Minute

func (s *Server) logRefusal() {
	now, last := s.clock.now(), s.refusedAt.Load()
	if (last == 0 || time.Duration(now-last) >= refusalInterval) && s.refusedAt.CompareAndSwap(last, now) {
		s.logf("http: there are %d connections already, others are closed at once", s.cfg.MaxConns)
	}
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	delete(s.conns, c.id)
	s.mu.Unlock()
}

// hungUp is called by the watcher when the input of a connection has ended; broken says that its output has, too.
func (s *Server) hungUp(id uint64, broken bool) {
	s.mu.Lock()
	c := s.conns[id]
	s.mu.Unlock()
	if c != nil {
		c.hungUp(broken)
	}
}

// each calls f for every connection. The connections may be gone by then.
func (s *Server) each(f func(*conn)) (n int) {
	s.mu.Lock()
	all := make([]*conn, 0, len(s.conns))
	for _, c := range s.conns {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		f(c)
	}
	return len(all)
}

// reap closes connections that waited too long. Timers for each of them would have to be set anew for every request.
func (s *Server) reap() {
	again := time.NewTicker(min(max(min(s.cfg.ReadHeaderTimeout, s.cfg.IdleTimeout)/8, 5*time.Millisecond), 2*time.Second))
	defer again.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-again.C:
		}
		now := s.clock.now()
		s.mu.Lock()
		for _, c := range s.conns {
			c.closeIfLate(now)
		}
		s.mu.Unlock()
	}
}

// newGrace is how long a connection that was just made, and on which nothing has come, is taken for one whose request is on its way.
const newGrace = 5 * time.Second

// Shutdown stops accepting, closes connections that wait for a request, and waits for the requests under way. It returns the error of ctx when
// that ends first; Close is then what ends the rest. Connections that were given away are the business of the other server.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopAccepting()
	pause := time.Millisecond
	for {
		now := s.clock.now()
		left := s.each(func(c *conn) {
			state := c.state.Load()
			if state == stateIdle || state == stateNew && time.Duration(now-c.since.Load()) > newGrace {
				c.closeIf(state)
			}
		})
		if left == 0 {
			s.end()
			return nil
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 100*time.Millisecond)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close stops accepting and closes all connections; the contexts of requests under way end. It does not wait for their handlers: Shutdown
// does, before or after.
func (s *Server) Close() {
	s.stopAccepting()
	s.each((*conn).abort)
	s.stopWatching()
}

func (s *Server) stopAccepting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Swap(true) {
		return
	}
	for listener := range s.listeners {
		_ = listener.Close()
	}
	_ = s.others.Close()
	close(s.stop)
}

// end waits for the goroutines once no connection is left to wait for requests.
func (s *Server) end() {
	s.stopWatching()
	s.work.Wait()
}

func (s *Server) stopWatching() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch != nil {
		s.watch.close()
	}
}

func (s *Server) logf(format string, args ...any) {
	if s.cfg.ErrorLog != nil {
		s.cfg.ErrorLog.Printf(format, args...)
	}
}
