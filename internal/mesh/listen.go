package mesh

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// steadyAfter is how long a session has to live for the next loss to be taken as a new one.
const steadyAfter = 5 * time.Second

// listen keeps a session open.
func (m *Mesh) listen(ctx context.Context) {
	var wait backoff
	var complain complaint
	for {
		began := time.Now()
		err := m.hear(ctx)
		m.listening.Store(false)
		m.heardSelf.Store(false)
		m.suspect.Store(true)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > steadyAfter {
			wait.reset()
		}
		if complain.due() {
			m.cfg.Log.WarnContext(ctx, "hints of other brokers are not heard, connecting again", slog.Any("error", err))
		}
		if !wait.pause(ctx) {
			return
		}
	}
}

// hear opens a session and follows its hints until it breaks.
func (m *Mesh) hear(ctx context.Context) error {
	session, err := m.transport.Listen(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	m.count.sessions.Add(1)
	m.unheard.Store(0)
	m.listening.Store(true)
	// The heartbeat makes others send to a broker they did not know, and coming back it proves that the session hears. Whatever was
	// told before this moment is lost.
	m.wantBeat()
	m.due.missed()
	accepted := allowances{senders: make(map[uint32]*allowance), swept: time.Now()}
	for {
		heard, err := session.Wait(ctx)
		if err != nil {
			return err
		}
		m.receive(heard, &accepted)
	}
}

// receive follows one notification.
func (m *Mesh) receive(heard pg.Notification, accepted *allowances) {
	if strings.HasPrefix(heard.Payload, m.ownHead) {
		if strings.HasPrefix(heard.Payload[len(m.ownHead):], string(kindAlive)+`"`) {
			m.unheard.Store(0)
			m.heardSelf.Store(true)
		}
		return
	}
	now := time.Now()
	m.count.received.Add(1)
	// Reading it is charged before its contents are.
	if !accepted.take(heard.Sender, 1, now) {
		m.count.dropped.Add(1)
		return
	}
	p, err := decode(heard.Payload)
	if err != nil {
		m.count.malformed.Add(1)
		return
	}
	if p.Instance == m.cfg.Instance {
		return
	}
	if !accepted.take(heard.Sender, p.weight()-1, now) {
		m.count.dropped.Add(1)
		return
	}
	m.follow(p, now)
}

// follow does what a hint asks for.
func (m *Mesh) follow(p payload, now time.Time) {
	switch p.Kind {
	case kindAlive:
		if m.peers.hear(p, now) {
			if p.Server == m.cfg.ServerID {
				m.cfg.Log.Warn("another broker has the name of this one: give each its own QUEEN_SERVER_ID", slog.String("server_id", p.Server), slog.String("address", p.Address))
			}
			m.cfg.Log.Info("another broker was heard", slog.String("server_id", p.Server), slog.String("address", p.Address), slog.String("version", p.Build))
			m.wantBeat() // so that it knows this one at once
		}
	case kindFlags:
		m.due.flags()
	case kindMessages:
		for _, it := range p.Items {
			for _, partition := range it.Partitions {
				m.cfg.Receiver.Messages(m.tenant(it), it.Queue, partition)
			}
			if len(it.Partitions) == 0 {
				m.due.somewhere(queueKey{m.tenant(it), it.Queue})
			}
		}
	case kindReleased:
		for _, it := range p.Items {
			for _, partition := range it.Partitions {
				m.cfg.Receiver.Released(m.tenant(it), it.Queue, partition, it.Group)
			}
		}
	case kindQueue:
		for _, it := range p.Items {
			m.cfg.Receiver.QueueChanged(m.tenant(it), it.Queue)
		}
	case kindGroup:
		for _, it := range p.Items {
			m.cfg.Receiver.GroupChanged(m.tenant(it), it.Queue, it.Group)
		}
	}
}

func (m *Mesh) tenant(it item) uuid.UUID {
	if it.Tenant == nil {
		return m.cfg.DefaultTenant
	}
	return *it.Tenant
}

func (m *Mesh) wantBeat() {
	select {
	case m.beatNow <- struct{}{}:
	default: // one is wanted already
	}
}
