package ready

import "github.com/google/uuid"

// EachWaiting calls f for every queue that long polls wait for, with their number, for metrics.
func (g *Gates) EachWaiting(f func(tenant uuid.UUID, queue string, waiting int)) {
	counts := make(map[queueKey]int)
	if g.hot != nil {
		for _, r := range g.hot.rings() {
			if n := r.crowd.size(); n > 0 {
				counts[r.key] += n
			}
		}
	}
	g.mu.RLock()
	for key, one := range g.queues {
		counts[key] += one.waiters
	}
	g.mu.RUnlock()
	for key, n := range counts {
		f(key.tenant, key.queue, n)
	}
}

// Waiting returns how many long polls wait for a queue.
func (g *Gates) Waiting(tenant uuid.UUID, queue string) int {
	waiting := 0
	g.EachWaiting(func(t uuid.UUID, q string, n int) {
		if t == tenant && q == queue {
			waiting += n
		}
	})
	return waiting
}
