// Command bench measures Queen against the PostgreSQL below it, in one run on one machine.
//
// Absolute figures of a shared machine mean little; the ratios between scenarios of one run mean something. Every run
// therefore measures the raw ceiling (direct calls of log_push_multi_v1 with ready-made segments) beside the same work
// through HTTP, repeats all scenarios in turn, and prints medians. Every run is verified: what clients were told is held
// against what the database has, and what was stored against what was delivered.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"queenmq/bench/payload"
)

// options are the flags of one run.
type options struct {
	database    string
	scenarios   string
	payload     payload.Kind
	size        int
	partitions  int
	producers   int
	singles     int
	consumers   int
	many        int
	parked      int
	backlog     int64
	soak        time.Duration
	soakShare   float64
	warmUp      time.Duration
	length      time.Duration
	repetitions int
	settings    string
	profiles    string
	record      string
}

// quick are the scenarios of the short run; the others are long or need many rows.
const quick = "ceiling-1,ceiling-16,rows,push-100,push-1,drain,pipeline,sparse,latency,longpoll"

// declare puts the flags of a run into flags, which set o.
func (o *options) declare(flags *flag.FlagSet) {
	flags.StringVar(&o.database, "database", "", "connection string of an empty database; empty starts a private durable PostgreSQL")
	flags.StringVar(&o.scenarios, "scenarios", quick, "scenarios to run, in this order; known: "+strings.Join(scenarioNames(), ", ")+"; cells is all cells with their ceilings")
	o.payload = payload.Random
	flags.Func("payload", "random (hardly compresses) or order (compresses well) (default random)", func(kind string) error {
		o.payload = payload.Kind(kind)
		if o.payload != payload.Random && o.payload != payload.Order {
			return fmt.Errorf("choose %s or %s", payload.Random, payload.Order)
		}
		return nil
	})
	flags.IntVar(&o.size, "size", 256, "bytes of one payload")
	flags.IntVar(&o.partitions, "partitions", 100, "partitions that the load is spread over")
	flags.IntVar(&o.producers, "producers", 32, "producers of push-100 and connections of the ceiling")
	flags.IntVar(&o.singles, "singles", 64, "producers of push-1")
	flags.IntVar(&o.consumers, "consumers", 16, "consumers of drain, pipeline (per group) and backlog")
	flags.IntVar(&o.many, "many", 1_000_000, "partitions of cardinality")
	flags.IntVar(&o.parked, "parked", 5000, "parked pops of longpoll")
	flags.Int64Var(&o.backlog, "backlog", 5_000_000, "messages of backlog")
	flags.DurationVar(&o.soak, "soak", 10*time.Minute, "length of soak")
	flags.Float64Var(&o.soakShare, "soak-share", 0.7, "part of the measured peak that soak holds; less on a machine that others use")
	flags.DurationVar(&o.warmUp, "warm-up", time.Second, "uncounted start of every run")
	flags.DurationVar(&o.length, "length", 5*time.Second, "counted length of every run")
	flags.IntVar(&o.repetitions, "repetitions", 3, "runs of every scenario; the median counts")
	flags.StringVar(&o.settings, "settings", "", "settings of the broker, NAME=value separated by commas")
	flags.StringVar(&o.profiles, "profiles", "", "existing directory for profiles of the broker, see docs/performance.md; they cost a few percent")
	flags.StringVar(&o.record, "record", "", "existing directory for a file with the report, the machine, versions and settings; bench/results keeps those worth keeping")
}

func main() {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	var o options
	o.declare(flags)
	_ = flags.Parse(os.Args[1:]) // ends the process on an error
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
	names := expand(strings.Split(o.scenarios, ","))
	for _, name := range names {
		if scenarioOf(name) == nil {
			return fmt.Errorf("unknown scenario %q; known are %s", name, strings.Join(scenarioNames(), ", "))
		}
	}
	s, err := newStand(ctx, o)
	if err != nil {
		return err
	}
	defer s.close()
	began := time.Now()
	results := map[string][]result{}
	for repetition := range o.repetitions {
		for _, name := range names {
			r, err := s.run(ctx, scenarioOf(name), fmt.Sprintf("bench.%s.%d", name, repetition))
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fmt.Fprintf(os.Stderr, "%d/%d %-12s %10.0f messages/s %s\n", repetition+1, o.repetitions, name, r.rate(), r.note)
			results[name] = append(results[name], r)
		}
	}
	var text strings.Builder
	if err := report(&text, s, names, results); err != nil {
		return err
	}
	fmt.Print(text.String())
	if o.record == "" {
		return nil
	}
	return record(ctx, s, began, text.String())
}
