package pg

import (
	"sync/atomic"
	"time"
)

// roundTripBounds are the upper bounds of the buckets of [RoundTrips]: from a commit without a disk to the statement timeout.
var roundTripBounds = [...]time.Duration{
	250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

// RoundTrips counts calls of the database by how long they took, the wait for a connection and repetitions included. The zero value has
// none. It is safe for concurrent use and takes no lock.
type RoundTrips struct {
	counts [len(roundTripBounds) + 1]atomic.Uint64
}

// Add counts one call that took d.
func (r *RoundTrips) Add(d time.Duration) {
	i := 0
	for i < len(roundTripBounds) && d > roundTripBounds[i] {
		i++
	}
	r.counts[i].Add(1)
}

// Load returns what was counted so far.
func (r *RoundTrips) Load() RoundTripCounts {
	var c RoundTripCounts
	for i := range r.counts {
		c[i] = r.counts[i].Load()
	}
	return c
}

// RoundTripCounts are [RoundTrips] at one moment: how many calls took at most each bound and more than the one before. The last element
// has no bound.
type RoundTripCounts [len(roundTripBounds) + 1]uint64

// Quantile estimates how long the given share (0 to 1) of the calls took at most: it lies in the bucket where the share is reached, as far
// into it as the calls of the bucket are used up. 0 without calls; beyond the last bound that bound.
func (c *RoundTripCounts) Quantile(share float64) time.Duration {
	total := uint64(0)
	for _, n := range c {
		total += n
	}
	rank := share * float64(total)
	below, lower := 0.0, time.Duration(0)
	for i, upper := range roundTripBounds {
		n := float64(c[i])
		if n > 0 && below+n >= rank {
			return lower + time.Duration(float64(upper-lower)*(rank-below)/n)
		}
		below, lower = below+n, upper
	}
	if total == 0 {
		return 0
	}
	return lower
}
