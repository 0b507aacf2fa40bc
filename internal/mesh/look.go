package mesh

import (
	"context"
	"log/slog"
	"sync"
)

// maxSomewhere bounds the queues that wait to be walked. Those beyond are found by the hot list's own walks.
const maxSomewhere = 10_000

// due gathers looks at the database that hints ask for, so that any number of hints is one look. Safe for concurrent use.
type due struct {
	asked chan struct{} // has a value when there is something to do

	mu    *sync.Mutex
	round *round
}

// round is what is due.
type round struct {
	missed, flags bool
	queues        map[queueKey]struct{}
}

func newDue() due {
	return due{asked: make(chan struct{}, 1), mu: new(sync.Mutex), round: &round{queues: make(map[queueKey]struct{})}}
}

func (d due) add(f func(*round)) {
	d.mu.Lock()
	f(d.round)
	d.mu.Unlock()
	select {
	case d.asked <- struct{}{}:
	default: // whoever looks sees this too
	}
}

func (d due) missed() { d.add(func(r *round) { r.missed = true }) }

func (d due) flags() { d.add(func(r *round) { r.flags = true }) }

func (d due) somewhere(key queueKey) {
	d.add(func(r *round) {
		if len(r.queues) < maxSomewhere {
			r.queues[key] = struct{}{}
		}
	})
}

func (d due) take() round {
	d.mu.Lock()
	defer d.mu.Unlock()
	taken := *d.round
	*d.round = round{queues: make(map[queueKey]struct{})}
	return taken
}

// look does what is due, at most once in lookInterval.
func (m *Mesh) look(ctx context.Context) {
	var complain complaint
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.due.asked:
		}
		r := m.due.take()
		var err error
		switch {
		case r.missed: // reads the switches too
			if err = m.cfg.Receiver.Missed(ctx); err != nil && ctx.Err() == nil {
				m.due.missed()
			}
		case r.flags:
			err = m.cfg.Receiver.Flags(ctx) // read again soon by their own loop
		}
		if err != nil && ctx.Err() == nil && complain.due() {
			m.cfg.Log.WarnContext(ctx, "what other brokers changed could not be read", slog.Any("error", err))
		}
		for key := range r.queues {
			m.cfg.Receiver.Messages(key.tenant, key.queue, "")
		}
		pause := lookInterval
		if err != nil {
			pause *= 10
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}
