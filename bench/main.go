// Command bench measures Queen against the PostgreSQL below it, in one run on one machine.
//
// Absolute figures of a shared machine mean little; the ratios between scenarios of one run mean something. Every run
// therefore measures the raw ceiling (direct calls of log_push_multi_v1 with ready-made segments) beside the same work
// through HTTP, repeats both in turn, and prints medians.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

// options are the flags of one run.
type options struct {
	database    string
	scenarios   string
	payload     payloadKind
	size        int
	partitions  int
	producers   int
	consumers   int
	warmUp      time.Duration
	length      time.Duration
	repetitions int
}

func main() {
	var o options
	var kind string
	flag.StringVar(&o.database, "database", "", "connection string of an empty database; empty starts a private durable PostgreSQL")
	flag.StringVar(&o.scenarios, "scenarios", "ceiling-1,ceiling-16,push-100,push-1,drain", "scenarios to run, in this order")
	flag.StringVar(&kind, "payload", string(randomPayload), "random (hardly compresses) or order (compresses well)")
	flag.IntVar(&o.size, "size", 256, "bytes of one payload")
	flag.IntVar(&o.partitions, "partitions", 100, "partitions that the load is spread over")
	flag.IntVar(&o.producers, "producers", 32, "producers of push-100 and connections of the ceiling; push-1 has 64")
	flag.IntVar(&o.consumers, "consumers", 16, "consumers of drain")
	flag.DurationVar(&o.warmUp, "warm-up", time.Second, "uncounted start of every run")
	flag.DurationVar(&o.length, "length", 5*time.Second, "counted length of every run")
	flag.IntVar(&o.repetitions, "repetitions", 3, "runs of every scenario; the median counts")
	flag.Parse()
	o.payload = payloadKind(kind)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// measure runs every scenario o.repetitions times in turn, so that a slow spell of the machine hits all of them, and
// prints the medians.
func measure(ctx context.Context, o options) error {
	stand, err := newStand(ctx, o)
	if err != nil {
		return err
	}
	defer stand.close()
	names := strings.Split(o.scenarios, ",")
	results := map[string][]result{}
	for repetition := range o.repetitions {
		for _, name := range names {
			r, err := stand.scenario(ctx, name, fmt.Sprintf("bench.%s.%d", name, repetition))
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "%d/%d %-12s %10.0f messages/s\n", repetition+1, o.repetitions, name, r.rate())
			results[name] = append(results[name], r)
		}
	}
	fmt.Printf("%s, %d CPUs, %s payload of %d bytes, %d partitions, %d producers, %d consumers, median of %d x %s\n\n", stand.version,
		runtime.NumCPU(), o.payload, o.size, o.partitions, o.producers, o.consumers, o.repetitions, o.length)
	table := tabwriter.NewWriter(os.Stdout, 2, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "scenario\tmessages/s\tof ceiling\tp50 ms\tp99 ms\tmessages/commit\tWAL bytes/message\tbroker CPU s/M\tdatabase CPU s/M\t")
	best := 0.0
	for _, name := range names {
		if strings.HasPrefix(name, "ceiling") {
			best = max(best, median(results[name]).rate())
		}
	}
	for _, name := range names {
		r := median(results[name])
		ratio := "-"
		if best > 0 {
			ratio = fmt.Sprintf("%.2f", r.rate()/best)
		}
		perMillion := 1e6 / float64(r.counted)
		fmt.Fprintf(table, "%s\t%.0f\t%s\t%.2f\t%.2f\t%.1f\t%.0f\t%.1f\t%.1f\t\n", name, r.rate(), ratio, milliseconds(r.p50), milliseconds(r.p99),
			float64(r.counted)/float64(max(r.commits, 1)), float64(r.walBytes)/float64(r.counted), r.brokerCPU*perMillion, r.databaseCPU*perMillion)
	}
	return table.Flush()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// scenario runs one scenario on a queue of its own, with the counters of the machine read around it.
func (s *stand) scenario(ctx context.Context, name, queue string) (result, error) {
	b := &bench{options: s.options, pool: s.pool, base: s.base, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	defer b.client.CloseIdleConnections()
	var workers []worker
	var seen *ledger
	length := s.options.length
	switch name {
	case "ceiling-1":
		workers = b.ceiling(queue, 100, 1, s.options.producers)
	case "ceiling-16":
		workers = b.ceiling(queue, 100, 16, s.options.producers)
	case "push-100":
		workers = b.push(queue, 100, s.options.producers)
	case "push-1":
		workers = b.push(queue, 1, 64)
	case "drain":
		if _, err := run(ctx, name, 0, s.options.length, b.push(queue, 100, s.options.producers)); err != nil {
			return result{}, err
		}
		backlog, err := b.settled(ctx, queue)
		if err != nil {
			return result{}, err
		}
		seen, length = newLedger(backlog), 10*time.Minute
		workers = b.drain(queue, "bench", 100, s.options.consumers, seen)
	default:
		return result{}, fmt.Errorf("unknown scenario %q", name)
	}
	warmUp := s.options.warmUp
	if seen != nil {
		warmUp = 0
	}
	before, err := s.counters(ctx)
	if err != nil {
		return result{}, err
	}
	r, err := run(ctx, name, warmUp, length, workers)
	if err != nil {
		return result{}, err
	}
	after, err := s.counters(ctx)
	if err != nil {
		return result{}, err
	}
	r.add(before, after)
	return r, b.verify(ctx, name, queue, r, seen)
}

// verify holds what the clients were told against what the database holds, or what was delivered against what was stored.
func (b *bench) verify(ctx context.Context, name, queue string, r result, seen *ledger) error {
	if seen != nil {
		if lost, repeated := seen.verify(); lost != 0 || repeated != 0 {
			return fmt.Errorf("%s: %d messages lost, %d delivered more than once", name, lost, repeated)
		}
		return nil
	}
	stored, err := b.stored(ctx, queue)
	if err != nil {
		return err
	}
	// Calls that the end of the run cut off may have committed; what was answered must be there.
	if stored < r.counted {
		return fmt.Errorf("%s: %d messages were answered queued, only %d are stored", name, r.counted, stored)
	}
	return nil
}
