package ready

import (
	"sync"
	"time"
)

// A crowd is the long polls parked at one ring, the longest waiting first. It wakes as many as it takes to serve the partitions there
// are and not more: a push that one pop will take does not stir thousands.
//
// Whoever was woken looks, and afterwards says so ([Parked.Settle]); when there is still something it wakes the next. Whoever gives up
// while woken passes the wake on. So long as the ring has something, either nobody is parked or somebody is on the way.
type crowd struct {
	ring *Ring

	mu          sync.Mutex
	first, last *Parked
	waiting     int
	// woken is how many partitions those who were woken and have not looked yet will take.
	woken   int
	newest  time.Time   // of the newest wake that was not held back
	pending *time.Timer // the end of the coalescing interval
}

// A Parked is one long poll's place in a crowd. It belongs to one goroutine and can be used again and again, at different rings.
type Parked struct {
	// Woken gets a value when it is worth looking again.
	Woken chan struct{}
	// Takes is how many partitions the long poll takes at most; 0 acts as 1. It is set before the first use.
	Takes int
	// Enlistable says that the long poll may be enlisted, see [Ring.Enlist], and Owner is for whoever does. They are set before it parks.
	Enlistable bool
	Owner      any

	crowd      *crowd
	prev, next *Parked
	place      place
}

// place is where a long poll is.
type place uint8

const (
	outside place = iota
	inQueue
	onTheWay
	enlisted
	deserted
)

// NewParked returns a place that is not taken.
func NewParked() *Parked { return &Parked{Woken: make(chan struct{}, 1)} }

// Park puts the long poll at the end of the crowd. When the ring has something to do, the first of the crowd is woken at once, which
// may be this one: nothing that happened before the call is missed.
func (r *Ring) Park(p *Parked) {
	c := &r.crowd
	c.mu.Lock()
	p.crowd = c
	if r.dropped.Load() {
		c.mu.Unlock()
		p.signal()
		return
	}
	p.place, p.prev, p.next = inQueue, c.last, nil
	if c.last == nil {
		c.first = p
	} else {
		c.last.next = p
	}
	c.last = p
	c.waiting++
	c.mu.Unlock()
	r.turn(r.list.now())
	c.wake()
}

// Leave takes the long poll out of the crowd, to look or to give up. Settle must follow.
func (p *Parked) Leave() {
	if p.crowd == nil {
		return
	}
	p.crowd.mu.Lock()
	if p.place == inQueue {
		p.crowd.removeLocked(p)
		p.place = outside
	}
	p.crowd.mu.Unlock()
	select {
	case <-p.Woken:
	default:
	}
}

// Settle says that the long poll has looked, or will not look any more. If it was woken and the ring still has something, the next one
// is.
func (p *Parked) Settle() {
	if p.crowd == nil {
		return
	}
	c := p.crowd
	c.mu.Lock()
	wasOnTheWay := p.place == onTheWay
	if wasOnTheWay {
		c.woken -= p.takes()
		p.place = outside
	}
	c.mu.Unlock()
	p.crowd = nil
	if wasOnTheWay {
		c.wake()
	}
}

func (p *Parked) takes() int { return max(p.Takes, 1) }

func (p *Parked) signal() {
	select {
	case p.Woken <- struct{}{}:
	default:
	}
}

// wake wakes long polls for the listed partitions that nobody is on the way to.
func (c *crowd) wake() {
	if c.ring.ready.Load() <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeLocked()
}

func (c *crowd) wakeLocked() {
	for c.first != nil && int64(c.woken) < c.ring.ready.Load() {
		p := c.first
		c.removeLocked(p)
		p.place = onTheWay
		c.woken += p.takes()
		p.signal()
	}
}

// wakeSoon is wake for what comes in a stream. While nobody is on the way or claiming it passes at once; otherwise the work that comes is
// folded into one wake, at the end of the claim or of CoalesceInterval, and fewer pops get fuller batches.
func (c *crowd) wakeSoon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending != nil || c.first == nil {
		return
	}
	since := time.Since(c.newest)
	if since >= CoalesceInterval || c.woken == 0 && c.ring.flying.Load() <= 0 {
		c.newest = time.Now()
		c.wakeLocked()
		return
	}
	c.pending = time.AfterFunc(CoalesceInterval-since, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pending = nil
		c.newest = time.Now()
		c.wakeLocked()
	})
}

// wakeAll wakes everybody, for a change that concerns all of them.
func (c *crowd) wakeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.first != nil {
		p := c.first
		c.removeLocked(p)
		p.place = outside
		p.signal()
	}
}

// disperse wakes everybody for the last time.
func (c *crowd) disperse() {
	c.wakeAll()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending != nil {
		c.pending.Stop()
	}
}

// removeLocked takes p out of the queue. The caller holds the mutex.
func (c *crowd) removeLocked(p *Parked) {
	if p.prev == nil {
		c.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		c.last = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.prev, p.next = nil, nil
	c.waiting--
}

func (c *crowd) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.waiting
}
