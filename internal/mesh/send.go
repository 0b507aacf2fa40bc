package mesh

import (
	"context"
	"log/slog"
	"time"
)

// proofTime is how long a heartbeat may take to come back until hearing counts as broken.
const proofTime = 3 * time.Second

// pacing is the state of the sending loop.
type pacing struct {
	flushed  time.Time // of the last flush
	messages time.Time // when messages may be sent again
	retry    time.Time // when sending may be tried again
	wait     backoff
	failing  complaint
	deaf     complaint
	muted    bool
}

// send flushes the outbox and sends heartbeats.
func (m *Mesh) send(ctx context.Context) {
	beats := time.NewTicker(beatInterval)
	defer beats.Stop()
	// later ends a wait for the turn of what is left in the outbox.
	later := time.NewTimer(time.Hour)
	defer later.Stop()
	var p pacing
	for {
		beat := false
		select {
		case <-ctx.Done():
			return
		case <-beats.C:
			beat = true
			m.checkProof(ctx, &p)
		case <-m.beatNow:
			beat = true
		case <-m.outbox.filled:
		case <-later.C:
		}
		if !sleep(ctx, max(time.Until(p.flushed.Add(flushInterval)), time.Until(p.retry))) {
			return
		}
		if left := m.flush(ctx, &p, beat); left {
			later.Reset(max(time.Until(p.messages), flushInterval))
		}
	}
}

// flush sends what has gathered. left tells that messages wait for their turn.
func (m *Mesh) flush(ctx context.Context, p *pacing, beat bool) (left bool) {
	now := time.Now()
	c, left := m.outbox.take(!now.Before(p.messages))
	if p.muted && len(c.queues) > 0 {
		m.count.suppressed.Add(uint64(len(c.queues)))
		c.queues = nil
	}
	if p.muted {
		c.released = nil
	}
	payloads, weight, partial := c.encode(m.sender)
	if beat {
		payloads = append(payloads, m.sender.heartbeat(m.cfg.Version, m.cfg.Address(), now.Sub(m.begun).Milliseconds()))
		weight++
	}
	if len(payloads) == 0 {
		return left
	}
	if beat && m.listening.Load() {
		m.unheard.CompareAndSwap(0, int64(now.Sub(m.begun))+1)
	}
	if m.suspect.Swap(false) {
		m.transport.Close()
	}
	usage, err := m.transport.Send(ctx, payloads)
	p.flushed = time.Now()
	if err != nil {
		if ctx.Err() != nil {
			return false
		}
		m.count.failed.Add(uint64(len(payloads)))
		m.unheard.Store(0) // it may never have been sent
		if p.failing.due() {
			m.cfg.Log.WarnContext(ctx, "hints cannot be sent to other brokers, trying again", slog.Any("error", err))
		}
		p.retry = p.flushed.Add(p.wait.delay())
		m.outbox.putBack(c)
		if beat {
			m.wantBeat()
		}
		return left
	}
	p.wait.reset()
	m.count.sent.Add(uint64(len(payloads)))
	m.count.usage.Store(uint64(usage * 1e6))
	m.mute(ctx, p, usage)
	// Staying below what receivers accept of one sender: the more was sent, the longer the next messages gather. A flush of changes only
	// does not cut a pause short.
	gather := time.Duration(float64(weight) / sentRate * float64(time.Second))
	if partial {
		m.count.partial.Add(1)
		gather = partialPause
	}
	if next := p.flushed.Add(gather); next.After(p.messages) {
		p.messages = next
	}
	return left
}

// mute stops hints about messages while the server's queue of notifications is half full: somebody listens and does not read, and when the
// queue is full, commits that notify fail.
func (m *Mesh) mute(ctx context.Context, p *pacing, usage float64) {
	if muted := usage > crowded; muted != p.muted {
		p.muted = muted
		if muted {
			m.cfg.Log.WarnContext(ctx, "the server's queue of notifications is more than half full: a listening session does not read; hints about messages stop",
				slog.Float64("usage", usage))
			return
		}
		m.cfg.Log.InfoContext(ctx, "hints about messages are sent again", slog.Float64("usage", usage))
	}
}

// checkProof warns when heartbeats do not come back although the session that hears is open.
func (m *Mesh) checkProof(ctx context.Context, p *pacing) {
	if m.isDeaf() && p.deaf.due() {
		m.heardSelf.Store(false)
		m.cfg.Log.WarnContext(ctx, "hints between brokers do not arrive: LISTEN needs a session of its own. If a pooler that shares sessions is in front of "+
			"PostgreSQL, set QUEEN_LISTEN_URL to the server itself. Everything works without, with more latency")
	}
}

func (m *Mesh) isDeaf() bool {
	sent := m.unheard.Load()
	return sent != 0 && time.Since(m.begun)-time.Duration(sent) > proofTime && m.listening.Load()
}
