package mesh

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// deadAfter is the silence after which a peer counts as dead.
	deadAfter = 15 * time.Second
	// forgottenAfter is the silence after which it is no longer listed.
	forgottenAfter = 10 * time.Minute
	// maxPeers bounds the list: heartbeats can be forged.
	maxPeers = 256
)

// A Peer is another broker that was heard.
type Peer struct {
	Instance uuid.UUID
	ServerID string
	Version  string
	Address  string
	// Uptime is what the peer said last about how long it has been running.
	Uptime time.Duration
	// Silence is the time since its last heartbeat.
	Silence time.Duration
	Alive   bool
}

// peers remembers who was heard. It decides nothing but whether hints are worth sending. Safe for concurrent use.
type peers struct {
	mu    sync.Mutex
	heard map[uuid.UUID]heard
}

type heard struct {
	payload payload
	at      time.Time
}

// hear notes a heartbeat and tells whether the peer is new.
func (p *peers) hear(beat payload, now time.Time) (isNew bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.heard[beat.Instance]; !known {
		for id, h := range p.heard {
			if now.Sub(h.at) > forgottenAfter {
				delete(p.heard, id)
			}
		}
		if len(p.heard) >= maxPeers {
			return false
		}
		isNew = true
	}
	beat.Items = nil
	p.heard[beat.Instance] = heard{beat, now}
	return isNew
}

func (p *peers) anyAlive(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.heard {
		if now.Sub(h.at) < deadAfter {
			return true
		}
	}
	return false
}

// list is sorted by server id.
func (p *peers) list(now time.Time) []Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Peer, 0, len(p.heard))
	for _, h := range p.heard {
		silence := now.Sub(h.at)
		if silence > forgottenAfter {
			continue
		}
		all = append(all, Peer{
			Instance: h.payload.Instance, ServerID: h.payload.Server, Version: h.payload.Build, Address: h.payload.Address,
			Uptime: time.Duration(h.payload.Started) * time.Millisecond, Silence: silence, Alive: silence < deadAfter,
		})
	}
	slices.SortFunc(all, func(a, b Peer) int {
		return strings.Compare(a.ServerID+a.Instance.String(), b.ServerID+b.Instance.String())
	})
	return all
}
