package push

import (
	"sync/atomic"
	"time"

	"queenmq/internal/pg"
)

type counters struct {
	requests, items, commits, segments, frames, duplicates atomic.Uint64
	calls, failures, isolations, panics                    atomic.Uint64
	nanos                                                  atomic.Int64
	trips                                                  pg.RoundTrips
}

// flushed counts one call of the store that took d.
func (c *counters) flushed(d time.Duration, err error) {
	c.calls.Add(1)
	if err != nil {
		c.failures.Add(1)
	}
	c.nanos.Add(int64(d))
	c.trips.Add(d)
}

// Stats are the pusher's counters since its start. All grow.
type Stats struct {
	// Requests and Items came in through Push.
	Requests, Items uint64
	// Commits stored at least one segment; Segments and Frames are what they stored. Segments per commit is the gain from
	// fusing partitions, frames per segment the gain inside a partition.
	Commits, Segments, Frames uint64
	// Duplicates were found by the database (repeats inside one flush are not counted).
	Duplicates uint64
	// Calls of the store, and how many of them failed; what the store repeats by itself is one call.
	Calls, Failures uint64
	// Isolations counts bundles that were repeated segment by segment, Panics flushes that ended in one.
	Isolations, Panics uint64
	// RoundTripSum is the time spent in Calls, RoundTrips counts them by duration.
	RoundTripSum time.Duration
	RoundTrips   pg.RoundTripCounts
}

// Stats reads the counters. They are read one by one, so that sums may be off by what happens meanwhile.
func (p *Pusher) Stats() Stats {
	c := &p.counters
	return Stats{
		Requests: c.requests.Load(), Items: c.items.Load(),
		Commits: c.commits.Load(), Segments: c.segments.Load(), Frames: c.frames.Load(), Duplicates: c.duplicates.Load(),
		Calls: c.calls.Load(), Failures: c.failures.Load(), Isolations: c.isolations.Load(), Panics: c.panics.Load(),
		RoundTripSum: time.Duration(c.nanos.Load()), RoundTrips: c.trips.Load(),
	}
}
