package ready

import "github.com/google/uuid"

// EachWaiting calls f for every queue that has long polls subscribed, with their number, for metrics. f must be short and must
// not call g.
func (g *Gates) EachWaiting(f func(tenant uuid.UUID, queue string, waiting int)) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for key, one := range g.queues {
		if one.waiters > 0 {
			f(key.tenant, key.queue, one.waiters)
		}
	}
}
