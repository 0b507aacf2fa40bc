package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A result is what one measured run of a scenario gave.
type result struct {
	scenario string
	messages int64
	calls    int64
	elapsed  time.Duration
	// counted is every message of the run, warm-up included: the base of the counters below.
	counted int64
	// p50 and p99 are call latencies.
	p50, p99 time.Duration
	// commits and walBytes are the database's own counts over the run.
	commits, walBytes int64
	// brokerCPU and databaseCPU are processor seconds; zero when the part took no part.
	brokerCPU, databaseCPU float64
}

// rate is messages per second.
func (r result) rate() float64 { return float64(r.messages) / r.elapsed.Seconds() }

// add sets the counters of the run from readings around it.
func (r *result) add(before, after counters) {
	r.commits, r.walBytes = after.commits-before.commits, after.walBytes-before.walBytes
	r.brokerCPU, r.databaseCPU = after.brokerCPU-before.brokerCPU, after.databaseCPU-before.databaseCPU
}

// counters are readings of database and processors that only grow.
type counters struct {
	commits, walBytes      int64
	brokerCPU, databaseCPU float64
}

// A worker makes one call and returns the number of messages it moved. It is called by one goroutine at a time.
type worker func(ctx context.Context) (int, error)

// run lets every worker call in a closed loop, first for warmUp without counting, then for length. The first error of a
// worker ends the run, unless the run is over.
func run(ctx context.Context, name string, warmUp, length time.Duration, workers []worker) (result, error) {
	ctx, stop := context.WithTimeout(ctx, warmUp+length)
	defer stop()
	begin := time.Now().Add(warmUp)
	tallies := make([]tally, len(workers))
	failures := make([]error, len(workers))
	var wait sync.WaitGroup
	for i, work := range workers {
		wait.Go(func() {
			for ctx.Err() == nil {
				asked := time.Now()
				n, err := work(ctx)
				if err != nil {
					if ctx.Err() == nil && !errors.Is(err, errDrained) {
						failures[i] = err
						stop()
					}
					return
				}
				tallies[i].counted += int64(n)
				if done := time.Now(); asked.After(begin) {
					tallies[i].add(n, done.Sub(asked), done)
				}
			}
		})
	}
	wait.Wait()
	if err := errors.Join(failures...); err != nil {
		return result{}, fmt.Errorf("%s: %w", name, err)
	}
	return merge(name, begin, tallies), nil
}

// errDrained is how a worker says that there is nothing left to do.
var errDrained = errors.New("nothing left")

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

func merge(name string, begin time.Time, tallies []tally) result {
	out := result{scenario: name}
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
	out.elapsed = last.Sub(begin)
	slices.Sort(all)
	if len(all) > 0 {
		out.p50, out.p99 = all[len(all)/2], all[len(all)*99/100]
	}
	return out
}

// median orders results by rate and returns the middle one.
func median(results []result) result {
	ordered := slices.Clone(results)
	slices.SortFunc(ordered, func(a, b result) int {
		switch {
		case a.rate() < b.rate():
			return -1
		case a.rate() > b.rate():
			return 1
		default:
			return 0
		}
	})
	return ordered[len(ordered)/2]
}

// clockTicks is the unit of processor times in /proc (USER_HZ), fixed at 100 by the Linux ABI.
const clockTicks = 100

// processorSeconds returns user and system time of a process and of its finished children.
func processorSeconds(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The command name may hold spaces; everything after its closing parenthesis is plain fields.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	total := 0.0
	for _, field := range fields[11:15] {
		ticks, _ := strconv.ParseFloat(field, 64)
		total += ticks
	}
	return total / clockTicks
}

// treeSeconds returns the processor time of a process, its living children, and those that it has waited for.
func treeSeconds(parent int) float64 {
	total := processorSeconds(parent)
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if fields[1] == strconv.Itoa(parent) {
			total += processorSeconds(pid)
		}
	}
	return total
}
