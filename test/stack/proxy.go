package stack

import (
	"net"
	"sync"
	"testing"
)

// A Proxy is a network that a test can cut: it forwards TCP connections to one address. Its methods are safe for concurrent use.
type Proxy struct {
	target   string
	listener net.Listener

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when cut changes
	cut     bool
	closed  bool
	links   map[*link]struct{}
	copies  sync.WaitGroup
}

// A link is one forwarded connection.
type link struct {
	client       net.Conn
	lost         chan struct{} // closed when nothing of it will ever arrive
	ended        chan struct{} // closed when both ends are
	once, losing sync.Once
}

// StartProxy forwards what comes to Address to target until the test ends.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: target, listener: listener, changed: make(chan struct{}), links: map[*link]struct{}{}}
	p.copies.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Address is the host:port to connect to.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Cut makes the network a black hole: connections stay open, new ones are accepted, and nothing arrives until Heal.
func (p *Proxy) Cut() { p.set(true) }

// Heal ends a Cut: what was under way arrives late, as TCP does it.
func (p *Proxy) Heal() { p.set(false) }

func (p *Proxy) set(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	close(p.changed)
	p.changed = make(chan struct{})
}

// Lose makes the connections that are open now go silent for good, as when a firewall forgets them: nobody is told. New ones work.
func (p *Proxy) Lose() {
	for _, l := range p.open() {
		l.losing.Do(func() { close(l.lost) })
	}
}

// Reset ends the connections that are open now, which both sides notice at once.
func (p *Proxy) Reset() {
	for _, l := range p.open() {
		l.close()
	}
}

// Open returns the number of open connections.
func (p *Proxy) Open() int { return len(p.open()) }

func (p *Proxy) open() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := make([]*link, 0, len(p.links))
	for l := range p.links {
		links = append(links, l)
	}
	return links
}

func (p *Proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Heal()
	p.Reset()
	p.copies.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // the test is over
		}
		p.copies.Go(func() { p.forward(client) })
	}
}

// forward connects one connection through.
func (p *Proxy) forward(client net.Conn) {
	l := &link{client: client, lost: make(chan struct{}), ended: make(chan struct{})}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		_ = client.Close()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()
	defer func() {
		l.close()
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	if !p.passable(l) {
		return
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return // refused: so is the client, as far as a proxy can
	}
	defer server.Close()
	var both sync.WaitGroup
	both.Go(func() { p.copy(l, server, client) })
	both.Go(func() { p.copy(l, client, server) })
	both.Wait()
}

// copy carries one direction. The end of one direction is the end of the connection, as the protocols carried here want it.
func (p *Proxy) copy(l *link, to, from net.Conn) {
	defer func() { _ = to.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if !p.passable(l) {
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// passable waits while the network is cut, and for ever on a link that is lost. It returns false when the link is over.
func (p *Proxy) passable(l *link) bool {
	for {
		p.mu.Lock()
		cut, changed := p.cut, p.changed
		p.mu.Unlock()
		select {
		case <-l.lost:
			<-l.ended
			return false
		default:
		}
		if !cut {
			return true
		}
		select {
		case <-changed:
		case <-l.lost:
		case <-l.ended:
			return false
		}
	}
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.ended)
		_ = l.client.Close()
	})
}
