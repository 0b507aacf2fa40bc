package mesh

import "time"

// Stats are figures of a mesh at one moment. Counters are since the start.
type Stats struct {
	// Listening tells that the session that hears is open, Proven that a heartbeat of this broker came back over it.
	Listening, Proven bool
	// Peers are the other brokers heard in the last minutes.
	Peers []Peer
	// Sent and Received count payloads of this broker and of others. Failed could not be sent, Dropped exceeded the allowance of their
	// sender, Malformed could not be understood.
	Sent, Received, Failed, Dropped, Malformed uint64
	// Suppressed counts queues not told because the server's queue of notifications was crowded, Partial flushes in which queues stood
	// for partitions, Lost changes that found the outbox full.
	Suppressed, Partial, Lost uint64
	// Sessions counts the sessions opened to hear.
	Sessions uint64
	// Usage is how full the server's queue of notifications was last, from 0 to 1.
	Usage float64
}

// Stats returns the figures. It is safe for concurrent use.
func (m *Mesh) Stats() Stats {
	m.outbox.mu.Lock()
	lost := m.outbox.lost
	m.outbox.mu.Unlock()
	c := &m.count
	return Stats{
		Listening: m.listening.Load(), Proven: m.heardSelf.Load() && !m.isDeaf(), Peers: m.peers.list(time.Now()),
		Sent: c.sent.Load(), Received: c.received.Load(), Failed: c.failed.Load(), Dropped: c.dropped.Load(), Malformed: c.malformed.Load(),
		Suppressed: c.suppressed.Load(), Partial: c.partial.Load(), Lost: lost, Sessions: c.sessions.Load(),
		Usage: float64(c.usage.Load()) / 1e6,
	}
}
