package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A result is what one measured run of a scenario gave.
type result struct {
	messages int64
	calls    int64
	// begin is when counting began, elapsed how long until the last counted call was answered.
	begin   time.Time
	elapsed time.Duration
	// counted is every message of the run, warm-up included: the base of the counters below.
	counted int64
	// p50 and p99 are call latencies, or what the scenario says it measures instead.
	p50, p99 time.Duration
	// paced runs have a given rate, which is therefore no measure of anything.
	paced bool
	// note is what else the scenario found, in words.
	note string
	// stages says where the processor time went, when profiles are collected.
	stages string
	// figures are what the targets need besides.
	figures figures

	commits, walBytes int64
	// loadCPU (of this program), brokerCPU and databaseCPU are processor seconds; rss is the broker's largest resident memory in the
	// run, in bytes.
	loadCPU, brokerCPU, databaseCPU, rss float64
}

// rate is messages per second.
func (r result) rate() float64 {
	if r.elapsed <= 0 {
		return 0
	}
	return float64(r.messages) / r.elapsed.Seconds()
}

// add sets the counters of the run from readings around it.
func (r *result) add(before, after counters) {
	r.commits, r.walBytes = after.commits-before.commits, after.walBytes-before.walBytes
	r.loadCPU = after.loadCPU - before.loadCPU
	r.brokerCPU, r.databaseCPU, r.rss = after.brokerCPU-before.brokerCPU, after.databaseCPU-before.databaseCPU, after.rss
}

// A worker makes one call and returns the number of messages it moved. It is called by one goroutine at a time.
type worker func(ctx context.Context) (int, error)

// errDrained is how a worker says that there is nothing left to do.
var errDrained = errors.New("nothing left")

// closedLoop lets every worker call as fast as it is answered, first for warmUp without counting, then for length. Calls that
// are open at the end are waited for. The first error of a worker ends the run.
func closedLoop(ctx context.Context, warmUp, length time.Duration, workers []worker) (result, error) {
	ctx, end := context.WithCancel(ctx) // lets workers give back what they hold
	defer end()
	begin := time.Now().Add(warmUp)
	running, stop := context.WithDeadline(ctx, begin.Add(length))
	defer stop()
	tallies := make([]tally, len(workers))
	failures := make([]error, len(workers))
	var wait sync.WaitGroup
	for i, work := range workers {
		wait.Go(func() {
			for running.Err() == nil {
				asked := time.Now()
				n, err := work(ctx)
				if err != nil {
					if !errors.Is(err, errDrained) {
						failures[i] = err
						stop()
					}
					return
				}
				tallies[i].counted += int64(n)
				if done := time.Now(); n > 0 && !asked.Before(begin) {
					tallies[i].add(n, done.Sub(asked), done)
				}
			}
		})
	}
	wait.Wait()
	return merge(begin, tallies), errors.Join(failures...)
}

// latest is how far an open loop may fall behind its rate before it counts as one that cannot be held.
const latest = 10 * time.Second

// openLoop starts rate calls a second for length, whether or not the earlier ones are answered, and gives call the moment
// at which it was due: latencies that are counted from there do not hide a stall. At most limit calls are open at once, a
// connection each; while a stall fills them the others wait, late by what they wait. Once one would start later than latest the run fails.
func openLoop(ctx context.Context, rate int, length time.Duration, call func(ctx context.Context, due time.Time) error) error {
	const limit = 4096
	open := make(chan struct{}, limit)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wait sync.WaitGroup
	defer wait.Wait()
	runtime.LockOSThread() // for pace
	defer runtime.UnlockOSThread()
	start := time.Now()
	for i := 0; ; i++ {
		due := start.Add(time.Duration(i) * time.Second / time.Duration(rate))
		if due.Sub(start) >= length {
			break
		}
		if err := pace(ctx, due); err != nil {
			return context.Cause(ctx)
		}
		if err := enter(ctx, open, due.Add(latest)); err != nil {
			return err
		}
		wait.Go(func() {
			defer func() { <-open }()
			if err := call(ctx, due); err != nil && ctx.Err() == nil {
				stop(err)
			}
		})
	}
	wait.Wait()
	return context.Cause(ctx)
}

// enter takes a place among the open calls, until the deadline at the latest.
func enter(ctx context.Context, open chan<- struct{}, deadline time.Time) error {
	select {
	case open <- struct{}{}:
		return nil
	default:
	}
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case open <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late.C:
		return fmt.Errorf("the rate cannot be held: %d calls are unanswered, and the next one is %s late", cap(open), latest)
	}
}

// pace is sleepUntil to within a tenth of a millisecond. Timers of Go programs on Linux come up to a millisecond late, which would count as
// latency of the broker; a thread of its own sleeps more exactly.
func pace(ctx context.Context, at time.Time) error {
	const coarse = 2 * time.Millisecond
	if time.Until(at) > 2*coarse {
		if err := sleepUntil(ctx, at.Add(-coarse)); err != nil {
			return err
		}
	}
	for rest := time.Until(at); rest > 0; rest = time.Until(at) {
		span := syscall.NsecToTimespec(int64(rest))
		_ = syscall.Nanosleep(&span, nil) // interrupted ones go on with what is left
	}
	return ctx.Err()
}

func sleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// A tally is one worker's count. Latencies are sampled without bias when there are more than a reservoir holds.
type tally struct {
	messages, calls, counted int64
	latencies                []time.Duration
	last                     time.Time
}

const reservoir = 20_000

func (t *tally) add(n int, latency time.Duration, done time.Time) {
	t.messages += int64(n)
	t.calls++
	t.last = done
	if len(t.latencies) < reservoir {
		t.latencies = append(t.latencies, latency)
	} else if i := rand.Int64N(t.calls); i < reservoir {
		t.latencies[i] = latency
	}
}

func merge(begin time.Time, tallies []tally) result {
	var out result
	var all []time.Duration
	last := begin
	for _, t := range tallies {
		out.messages += t.messages
		out.calls += t.calls
		out.counted += t.counted
		all = append(all, t.latencies...)
		if t.last.After(last) {
			last = t.last
		}
	}
	out.begin, out.elapsed = begin, last.Sub(begin)
	out.p50, out.p99 = percentiles(all)
	return out
}

// percentiles returns the 50th and the 99th of the given durations; it sorts them.
func percentiles(all []time.Duration) (p50, p99 time.Duration) {
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)/2], all[len(all)*99/100]
}

// median orders results by rate and returns the middle one; paced ones go by their 99th percentile.
func median(results []result) result {
	ordered := slices.Clone(results)
	slices.SortFunc(ordered, func(a, b result) int {
		x, y := a.rate(), b.rate()
		if a.paced {
			x, y = float64(a.p99), float64(b.p99)
		}
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		default:
			return 0
		}
	})
	return ordered[len(ordered)/2]
}
