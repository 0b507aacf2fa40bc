package upkeep

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
)

type queueKey struct {
	tenant uuid.UUID
	name   string
}

// sampled is what was sampled since the last flush.
type sampled struct {
	lagSum, lagMax time.Duration
	lagCount       int64
	// parked sums the parked long polls of every second.
	parked map[queueKey]int64
}

func (s sampled) lag() (avg, most time.Duration) {
	if s.lagCount == 0 {
		return 0, 0
	}
	return s.lagSum / time.Duration(s.lagCount), s.lagMax
}

// sampler adds up samples. What could not be stored is given back.
type sampler struct {
	mu sync.Mutex
	sampled
}

func (s *sampler) lag() (avg, most time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sampled.lag()
}

func (s *sampler) addLag(late time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lagSum += late
	s.lagMax = max(s.lagMax, late)
	s.lagCount++
}

func (s *sampler) addParked(tenant uuid.UUID, queue string, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parked[queueKey{tenant, queue}] += int64(waiting)
}

// take returns what was sampled and starts anew.
func (s *sampler) take() sampled {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.sampled
	s.sampled = sampled{parked: make(map[queueKey]int64, len(taken.parked))}
	return taken
}

func (s *sampler) giveBackLag(taken sampled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lagSum += taken.lagSum
	s.lagMax = max(s.lagMax, taken.lagMax)
	s.lagCount += taken.lagCount
}

func (s *sampler) giveBackParked(taken sampled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, sum := range taken.parked {
		s.parked[key] += sum
	}
}

// sample runs until ctx ends.
func (c *Collector) sample(ctx context.Context) {
	ticks := time.NewTimer(lagPeriod)
	defer ticks.Stop()
	parked := time.Now().Add(parkedPeriod)
	for due := time.Now().Add(lagPeriod); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		now := time.Now()
		c.sampler.addLag(max(now.Sub(due), 0))
		if now.After(parked) {
			c.parked(c.sampler.addParked)
			parked = now.Add(parkedPeriod)
		}
		due = time.Now().Add(lagPeriod)
		ticks.Reset(lagPeriod)
	}
}
