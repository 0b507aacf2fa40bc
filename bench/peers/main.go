// Command peers puts the same load on Queen and on other queues, one after the other on the same machine.
//
// Absolute figures of a shared machine mean little; the ratios between the rows of one run mean something. Every message is
// stored as durably as the peer's row says, consumed and acknowledged, and every run is verified: what was confirmed is held
// against what was delivered. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"queenmq/bench/payload"
)

// options are the flags of a run.
type options struct {
	peers       string
	workloads   string
	payload     payload.Kind
	size        int
	consumers   int
	partitions  int
	claims      int
	open        int64
	keyed       int64
	warmUp      time.Duration
	length      time.Duration
	limit       time.Duration
	repetitions int
}

// A peer is a message queue under measurement. Its methods are called by one goroutine.
type peer interface {
	// start brings up the servers, with their data below dir, and returns their version.
	start(ctx context.Context, dir string) (version string, err error)
	// programs are the servers whose processor time and memory count.
	programs() []program
	// open makes an empty queue for a workload, errNotOffered when the peer has no such queue.
	open(ctx context.Context, name string, w workload) (queue, error)
	// stop ends everything that start has started, also after a failed start.
	stop()
}

var (
	errNotOffered   = errors.New("not offered")
	errNotInstalled = errors.New("is not installed")
)

// A kind is a peer by name.
type kind struct {
	name    string
	durable string // what a confirmation means
	make    func(o options) peer
}

var kinds = []kind{
	{"queen", "commit, flushed", func(o options) peer { return &queen{options: o} }},
	{"skip-locked", "commit, flushed", func(options) peer { return &table{} }},
	{"lease-table", "commit, flushed", func(options) peer { return &table{lease: true} }},
	{"river", "commit, flushed", func(options) peer { return &riverPeer{} }},
	{"jetstream-always", "flushed", func(options) peer { return &jetStream{always: true} }},
	{"jetstream-atomic", "flushed, atomic batches", func(options) peer { return &jetStream{always: true, atomic: true} }},
	{"jetstream-default", "in memory, flushed every 2 minutes", func(options) peer { return &jetStream{} }},
	{"rabbitmq", "quorum queue, flushed", func(options) peer { return &rabbitMQ{} }},
	{"redis", "append-only file, flushed", func(options) peer { return &redisStreams{} }},
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == natsCommand {
		exitOn(serveNATS(os.Args[2:]))
		return
	}
	var o options
	var body string
	flag.StringVar(&o.peers, "peers", strings.Join(kindNames(), ","), "peers to measure, in this order")
	flag.StringVar(&o.workloads, "workloads", strings.Join(workloadNames(), ","), "workloads to run, in this order")
	flag.StringVar(&body, "payload", string(payload.Random), "random (hardly compresses) or order (compresses well)")
	flag.IntVar(&o.size, "size", 256, "bytes of one payload")
	flag.IntVar(&o.consumers, "consumers", 16, "consumers of every workload")
	flag.IntVar(&o.partitions, "partitions", 100, "Queen: partitions that messages without a key are spread over")
	flag.IntVar(&o.claims, "claims", 10, "Queen: most partitions that one pop takes")
	flag.Int64Var(&o.open, "open", 50_000, "most messages that producers may be ahead of consumers")
	flag.Int64Var(&o.keyed, "keyed", 100_000, "messages of the keyed workload")
	flag.DurationVar(&o.warmUp, "warm-up", 500*time.Millisecond, "uncounted run before every counted one")
	flag.DurationVar(&o.length, "length", 3*time.Second, "how long producers store in a counted run")
	flag.DurationVar(&o.limit, "limit", 2*time.Minute, "most time for a run beyond its length")
	flag.IntVar(&o.repetitions, "repetitions", 1, "runs of everything; the median counts")
	flag.Parse()
	o.payload = payload.Kind(body)
	if o.payload != payload.Random && o.payload != payload.Order {
		exitOn(fmt.Errorf("-payload %s: choose %s or %s", body, payload.Random, payload.Order))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	exitOn(measure(ctx, o))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func kindNames() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

func workloadNames() []string {
	var names []string
	for _, w := range workloads {
		names = append(names, w.name)
	}
	return names
}

// measure runs everything o.repetitions times in turn, so that a slow spell of the machine hits all peers, and prints the
// medians.
func measure(ctx context.Context, o options) error {
	for _, name := range strings.Split(o.peers, ",") {
		if !slices.Contains(kindNames(), name) {
			return fmt.Errorf("unknown peer %q; known are %s", name, strings.Join(kindNames(), ", "))
		}
	}
	for _, name := range strings.Split(o.workloads, ",") {
		if !slices.Contains(workloadNames(), name) {
			return fmt.Errorf("unknown workload %q; known are %s", name, strings.Join(workloadNames(), ", "))
		}
	}
	t := newTable(o)
	for repetition := range o.repetitions {
		for _, name := range strings.Split(o.peers, ",") {
			k := kinds[slices.Index(kindNames(), name)]
			if err := t.measurePeer(ctx, k, fmt.Sprintf("%d/%d", repetition+1, o.repetitions)); err != nil {
				return err
			}
		}
	}
	return t.print(os.Stdout)
}

// measurePeer starts a peer, runs all workloads on it, and stops it. A peer that is not installed, and a workload that fails,
// become lines of the table; only the end of ctx is an error.
func (t *results) measurePeer(ctx context.Context, k kind, turn string) error {
	dir, err := os.MkdirTemp("", "queen-peers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// Servers that run as a user of their own when this program is root must be able to enter.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	p := k.make(t.options)
	defer p.stop()
	version, err := p.start(ctx, dir)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.versions[k.name] = version
	if err != nil {
		t.failures[k.name] = err
		fmt.Fprintf(os.Stderr, "%s %s: %v\n", turn, k.name, err)
		return nil
	}
	for _, name := range strings.Split(t.options.workloads, ",") {
		w := workloads[slices.Index(workloadNames(), name)]
		w.consumers = t.options.consumers
		for _, line := range t.options.measureWorkload(ctx, p, w) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			t.add(k.name, line)
			fmt.Fprintf(os.Stderr, "%s %-18s %-16s %10.0f messages/s %s\n", turn, k.name, line.workload, line.rate(), line.note)
		}
	}
	return nil
}

// measureWorkload returns one line, or two for a keyed workload.
func (o options) measureWorkload(ctx context.Context, p peer, w workload) []line {
	names := []string{w.name}
	if w.keys > 0 {
		names = []string{w.name + "-push", w.name + "-drain"}
	}
	outcomes, err := o.outcomes(ctx, p, w)
	lines := make([]line, len(names))
	for i, name := range names {
		lines[i].workload = name
		switch {
		case i < len(outcomes):
			lines[i].outcome = outcomes[i]
		case errors.Is(err, errNotOffered):
			lines[i].note = err.Error()
		default:
			lines[i].note = "failed: " + err.Error()
		}
	}
	return lines
}

// outcomes runs a workload, first without counting, and returns what was measured before the first error.
func (o options) outcomes(ctx context.Context, p peer, w workload) ([]outcome, error) {
	warm, err := p.open(ctx, "warm-"+w.name, w)
	if err != nil {
		return nil, err
	}
	err = o.warm(ctx, warm, w)
	warm.close()
	if err != nil {
		return nil, fmt.Errorf("warm-up: %w", err)
	}
	q, err := p.open(ctx, w.name, w)
	if err != nil {
		return nil, err
	}
	defer q.close()
	r := newRun(w, o, q)
	parts := []func() (outcome, error){func() (outcome, error) { return r.endToEnd(ctx, o.length) }}
	if w.keys > 0 {
		parts = []func() (outcome, error){func() (outcome, error) { return r.store(ctx, o.keyed) }, func() (outcome, error) { return r.drain(ctx) }}
	}
	var all []outcome
	for _, part := range parts {
		measured, err := metered(p, part)
		if err != nil {
			return all, err
		}
		all = append(all, measured)
	}
	return all, nil
}

// warm opens connections and fills caches on a queue of its own.
func (o options) warm(ctx context.Context, q queue, w workload) error {
	r := newRun(w, o, q)
	if w.keys == 0 {
		_, err := r.endToEnd(ctx, o.warmUp)
		return err
	}
	if _, err := r.store(ctx, int64(w.keys)); err != nil {
		return err
	}
	_, err := r.drain(ctx)
	return err
}

// metered adds what a part costs the peer's servers.
func metered(p peer, part func() (outcome, error)) (outcome, error) {
	before := make([]float64, len(p.programs()))
	for i, program := range p.programs() {
		before[i] = program.seconds()
	}
	o, err := part()
	for i, program := range p.programs() {
		o.cpu = append(o.cpu, program.seconds()-before[i])
		o.memory = append(o.memory, program.memory())
	}
	return o, err
}
