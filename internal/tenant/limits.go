package tenant

import (
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"
)

// maxTracked bounds the memory for tenants: the header is not authenticated, so that anybody may invent some.
const maxTracked = 10_000

// Limits bound what one tenant may ask of one broker. The zero value bounds nothing.
type Limits struct {
	// Rate is the requests per second, 0 for any; Burst how many may come at once, at least 1, 0 for one second's worth.
	Rate  float64
	Burst int
	// Parked is how many pops may wait at a time, 0 for any.
	Parked int
}

// A Meter holds tenants to their limits.
type Meter struct {
	limits Limits

	mu      sync.Mutex
	tenants map[uuid.UUID]*usage
}

type usage struct {
	requests *rate.Limiter
	parked   int
}

// NewMeter returns a meter for limits.
func NewMeter(limits Limits) *Meter {
	if limits.Burst <= 0 {
		limits.Burst = max(1, int(math.Ceil(limits.Rate)))
	}
	return &Meter{limits: limits, tenants: make(map[uuid.UUID]*usage)}
}

// Allow takes one request of the tenant into account. When that is one too many it returns after how long another will be
// welcome, more than 0.
func (m *Meter) Allow(tenant uuid.UUID, now time.Time) (wait time.Duration) {
	if m.limits.Rate <= 0 {
		return 0
	}
	m.mu.Lock()
	requests := m.usage(tenant, now).requests
	m.mu.Unlock()
	reservation := requests.ReserveN(now, 1)
	if wait = reservation.DelayFrom(now); wait > 0 {
		reservation.CancelAt(now) // refused requests must not push the moment away
	}
	return wait
}

// Park counts a pop that waits, and reports whether it may. Call Unpark when it is over, only after a true.
func (m *Meter) Park(tenant uuid.UUID) bool {
	if m.limits.Parked <= 0 {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.usage(tenant, time.Now())
	if u.parked >= m.limits.Parked {
		return false
	}
	u.parked++
	return true
}

// Unpark ends what Park began.
func (m *Meter) Unpark(tenant uuid.UUID) {
	if m.limits.Parked <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.tenants[tenant]; u != nil && u.parked > 0 {
		u.parked--
	}
}

// usage finds or makes the entry of a tenant. The caller holds the mutex.
func (m *Meter) usage(tenant uuid.UUID, now time.Time) *usage {
	u := m.tenants[tenant]
	if u == nil {
		if len(m.tenants) >= maxTracked {
			m.forgetIdle(now)
		}
		u = &usage{requests: rate.NewLimiter(rate.Limit(m.limits.Rate), m.limits.Burst)}
		m.tenants[tenant] = u
	}
	return u
}

// forgetIdle drops tenants whose entry says nothing that a new one would not. Parked pops are never forgotten; when all the rest
// are busy too, their counts start anew: memory is worth more than their exactness.
func (m *Meter) forgetIdle(now time.Time) {
	for id, u := range m.tenants {
		if u.parked == 0 && u.requests.TokensAt(now) >= float64(m.limits.Burst) {
			delete(m.tenants, id)
		}
	}
	if len(m.tenants) < maxTracked {
		return
	}
	for id, u := range m.tenants {
		if u.parked == 0 {
			delete(m.tenants, id)
		}
	}
}
