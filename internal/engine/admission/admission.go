// Package admission bounds and orders the write transactions in flight, so that the connection pool, the WAL and the row
// locks are used well without refusing work.
//
// Every write transaction takes a [Slot] before it takes a connection and holds it until its commit was answered. The order
// is fixed everywhere: slot, then connection, then row locks; the reverse deadlocks on the pool. Reads and management calls
// need no slot: the pool reserve is theirs.
//
// Being wrong here costs throughput or latency, except for two duties: never more slots than the budget, and never a slot
// that is granted to nobody.
//
// # Concurrency
//
// One mutex guards everything and is held for counting and list work only. Grants are sent on channels that always have
// room, so that no send can block under it.
package admission

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// A Lane is a class of write transactions with a share of the budget. The order of the constants is the order in which
// waiting lanes are served: acks free leases, pops feed consumers, pushes can be batched while they wait.
type Lane uint8

// The lanes, most urgent first.
const (
	Ack Lane = iota
	Pop
	Push
	Maintenance
	laneCount
)

// String returns the lane's name as it stands in metrics.
func (l Lane) String() string {
	switch l {
	case Ack:
		return "ack"
	case Pop:
		return "pop"
	case Push:
		return "push"
	case Maintenance:
		return "maintenance"
	default:
		return fmt.Sprintf("lane(%d)", uint8(l))
	}
}

// shares are the guaranteed parts of the budget per lane.
var shares = [laneCount]float64{Ack: 0.30, Pop: 0.40, Push: 0.25, Maintenance: 0.05}

const (
	// DefaultReserve is the part of the connection pool that is kept for reads and management.
	DefaultReserve = 16
	// DefaultMax is the most write transactions in flight, whatever the size of the pool.
	DefaultMax = 128
	// laneFloor is the smallest cap of a lane: with a cap of one, a single slow transaction would stop its lane.
	laneFloor = 2
	// perCore bounds the budget on small machines. Write transactions mostly wait for the WAL, so that many more than one
	// per core are useful, but beyond this they only take memory and lock each other out.
	perCore = 24
)

// Config sizes a [Controller]. All fields are counts.
type Config struct {
	// PoolSize is the size of the connection pool the slots lead to; at least 1.
	PoolSize int
	// Reserve is kept free of write transactions; 0 is DefaultReserve. It is never more than half of the pool.
	Reserve int
	// Max bounds the budget; 0 is DefaultMax.
	Max int
	// Cores bounds the budget to 24 for each processor that serves it, but not below 32; 0 is no such bound.
	Cores int
	// MaintenanceCap is the least cap of the maintenance lane, for loops that hold more than one slot; 0 is the usual floor
	// of 2.
	MaintenanceCap int
}

// Budget returns the number of slots that c allows.
func (c Config) Budget() int {
	reserve := c.Reserve
	if reserve <= 0 {
		reserve = DefaultReserve
	}
	pool := max(c.PoolSize, 1)
	reserve = min(reserve, pool/2)
	limit := c.Max
	if limit <= 0 {
		limit = DefaultMax
	}
	if c.Cores > 0 {
		limit = min(limit, max(perCore*c.Cores, 32))
	}
	return max(min(pool-reserve, limit), 1)
}

// A Controller hands out the slots. Make one with [New]; it has no goroutines and needs no closing.
type Controller struct {
	budget int

	mu     sync.Mutex
	total  int
	lanes  [laneCount]lane
	trains trains
}

type lane struct {
	inFlight   int
	cap        int
	guaranteed int
	// first and last are the ends of the FIFO of waiters.
	first, last *Waiter
	waiting     int
	granted     uint64
	saturated   uint64
	overBudget  uint64
}

// New returns a controller with the budget and caps of cfg.
func New(cfg Config) *Controller {
	c := &Controller{budget: cfg.Budget()}
	for i := range c.lanes {
		share := int(float64(c.budget) * shares[i])
		c.lanes[i].cap = max(share, laneFloor)
		c.lanes[i].guaranteed = max(share, 1)
	}
	c.lanes[Maintenance].cap = max(c.lanes[Maintenance].cap, cfg.MaintenanceCap)
	return c
}

// A Slot is the right to run one write transaction. Its holder releases it exactly when the transaction has ended; further
// calls of Release do nothing.
type Slot struct {
	controller *Controller
	lane       Lane
	taken      time.Time
	released   bool // guarded by controller.mu
}

// Lane is the lane the slot was taken in.
func (s *Slot) Lane() Lane { return s.lane }

// Release gives the slot back and grants it to the most urgent waiter. It is safe to call from any goroutine, repeatedly.
func (s *Slot) Release() {
	c := s.controller
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.released {
		return
	}
	s.released = true
	c.trains.ended(now, now.Sub(s.taken))
	c.total--
	c.lanes[s.lane].inFlight--
	c.grantLocked()
}

// A Waiter is a place in a lane's queue; see [Controller.Request].
type Waiter struct {
	controller *Controller
	lane       Lane
	granted    chan<- *Slot
	prev, next *Waiter
	queued     bool // guarded by controller.mu
}

// Cancel gives up the place. False means that the grant came first: the slot is in the channel, and the caller takes it
// out and uses or releases it.
func (w *Waiter) Cancel() bool {
	c := w.controller
	c.mu.Lock()
	defer c.mu.Unlock()
	if !w.queued {
		return false
	}
	c.removeLocked(w)
	return true
}

// TryAcquire takes a slot if one is free at this moment.
func (c *Controller) TryAcquire(l Lane) (*Slot, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A free slot and a waiter for it never coexist: every release grants as long as it can.
	if !c.freeLocked(l) {
		return nil, false
	}
	return c.takeLocked(l), true
}

// Request asks for a slot without waiting: it is sent to granted at once or when the caller's turn comes, in the order of
// the requests of a lane. The channel must have room for it. Loops that must not block use this instead of Acquire.
func (c *Controller) Request(l Lane, granted chan<- *Slot) *Waiter {
	w := &Waiter{controller: c, lane: l, granted: granted}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freeLocked(l) {
		granted <- c.takeLocked(l)
		return w
	}
	ln := &c.lanes[l]
	ln.saturated++
	if ln.inFlight < ln.cap {
		ln.overBudget++
	}
	w.queued = true
	w.prev = ln.last
	if ln.last == nil {
		ln.first = w
	} else {
		ln.last.next = w
	}
	ln.last = w
	ln.waiting++
	return w
}

// Acquire waits for a slot. It fails only with ctx's error, and then holds nothing.
func (c *Controller) Acquire(ctx context.Context, l Lane) (*Slot, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("wait for a %s slot: %w", l, err)
	}
	if s, ok := c.TryAcquire(l); ok {
		return s, nil
	}
	granted := make(chan *Slot, 1)
	w := c.Request(l, granted)
	select {
	case s := <-granted:
		return s, nil
	case <-ctx.Done():
		if !w.Cancel() {
			(<-granted).Release()
		}
		return nil, fmt.Errorf("wait for a %s slot: %w", l, ctx.Err())
	}
}

func (c *Controller) freeLocked(l Lane) bool {
	return c.total < c.budget && c.lanes[l].inFlight < c.lanes[l].cap
}

func (c *Controller) takeLocked(l Lane) *Slot {
	c.total++
	c.lanes[l].inFlight++
	c.lanes[l].granted++
	return &Slot{controller: c, lane: l, taken: time.Now()}
}

// grantLocked hands free slots to waiters: first to lanes below their guaranteed share, so that an urgent lane cannot
// starve the others, then to whoever has room under the cap.
func (c *Controller) grantLocked() {
	for c.total < c.budget {
		w := c.nextLocked()
		if w == nil {
			return
		}
		c.removeLocked(w)
		w.granted <- c.takeLocked(w.lane)
	}
}

func (c *Controller) nextLocked() *Waiter {
	var second *Waiter
	for i := range c.lanes {
		ln := &c.lanes[i]
		if ln.first == nil || ln.inFlight >= ln.cap {
			continue
		}
		if ln.inFlight < ln.guaranteed {
			return ln.first
		}
		if second == nil {
			second = ln.first
		}
	}
	return second
}

func (c *Controller) removeLocked(w *Waiter) {
	ln := &c.lanes[w.lane]
	if w.prev == nil {
		ln.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		ln.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
	ln.waiting--
}

// LaneStats describes one lane at one moment.
type LaneStats struct {
	// InFlight is the number of slots held, Cap the most that may be, Waiting the length of the queue.
	InFlight, Cap, Waiting int
	// Granted counts slots handed out, Saturated the requests that had to wait, and OverBudget those of them that waited
	// for the whole budget although their lane had room. They only grow.
	Granted, Saturated, OverBudget uint64
}

// Stats describes the controller at one moment.
type Stats struct {
	// Budget is the most slots in flight, InFlight how many there are.
	Budget, InFlight int
	// Lanes is indexed by [Lane].
	Lanes [laneCount]LaneStats
	// Trains are those of all lanes together.
	Trains TrainStats
}

// Stats returns a consistent picture.
func (c *Controller) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{Budget: c.budget, InFlight: c.total, Trains: c.trains.stats(time.Now())}
	for i := range c.lanes {
		ln := &c.lanes[i]
		s.Lanes[i] = LaneStats{
			InFlight: ln.inFlight, Cap: ln.cap, Waiting: ln.waiting,
			Granted: ln.granted, Saturated: ln.saturated, OverBudget: ln.overBudget,
		}
	}
	return s
}
