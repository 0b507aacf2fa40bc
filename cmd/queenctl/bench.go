package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"uuid"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
	"queenmq/queen"
)

// benchOptions are the flags of bench.
type benchOptions struct {
	queue                       string
	rate                        float64
	length                      time.Duration
	batch, size                 int
	producers, consumers, lanes int
	keep                        bool
}

func (a *app) benchCommand() *cobra.Command {
	command := &cobra.Command{Use: "bench", Short: "Measure a broker with load of your shape", RunE: group}
	command.AddCommand(a.benchOne("push", "Push, and measure how long until the messages are committed", false), a.benchOne("pipeline", "Push, pop and acknowledge, and measure from push to delivery", true))
	return command
}

func (a *app) benchOne(name, short string, pipeline bool) *cobra.Command {
	o := benchOptions{}
	command := &cobra.Command{
		Use: name, Short: short, Args: args(cobra.NoArgs),
		Long: short + `.

With --rate the requests are sent when they are due, whether or not earlier ones were answered in time (as far as --producers go), and
times count from when they were due: a broker that stalls does not look better for it. Without --rate every producer sends as fast
as it gets answers. The queue is made for the run and deleted afterwards, unless --keep is given.`,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return a.bench(command.Context(), o, pipeline)
		},
	}
	f := command.Flags()
	f.StringVar(&o.queue, "queue", "", "queue to use; it must not exist (default: a name of its own)")
	f.Float64Var(&o.rate, "rate", 0, "messages a second; 0 is as fast as answers come")
	f.DurationVar(&o.length, "duration", 5*time.Second, "length of the run")
	f.IntVar(&o.batch, "batch", 1, "messages in one push and most of one pop")
	f.IntVar(&o.size, "size", 256, "bytes of one payload")
	f.IntVar(&o.producers, "producers", 16, "pushes under way at a time")
	f.IntVar(&o.lanes, "partitions", 16, "partitions")
	f.BoolVar(&o.keep, "keep", false, "keep the queue")
	if pipeline {
		f.IntVar(&o.consumers, "consumers", 4, "consumers")
	}
	return command
}

func (o *benchOptions) check() error {
	switch {
	case o.batch < 1 || o.batch > 10_000, o.size < 20 || o.size > 1<<20, o.producers < 1 || o.producers > 1000, o.lanes < 1 || o.lanes > 100_000:
		return usage("--batch is 1 to 10000, --size 20 to 1048576 bytes, --producers 1 to 1000, --partitions 1 to 100000")
	case o.rate < 0, o.length < 100*time.Millisecond, o.consumers < 0, o.consumers > 1000:
		return usage("--rate must not be negative, --duration at least 100ms, --consumers 0 to 1000")
	}
	return nil
}

// A benchRun is one measurement under way.
type benchRun struct {
	*app
	o       benchOptions
	payload string
	started time.Time
	ended   time.Time
	pushed  atomic.Int64
	popped  atomic.Int64
	failed  atomic.Int64

	mu       sync.Mutex
	commits  []time.Duration // by push
	arrivals []time.Duration // by message
	fault    error
}

func (a *app) bench(ctx context.Context, o benchOptions, pipeline bool) error {
	if o.queue == "" {
		o.queue = "queenctl-bench-" + uuid.NewV7().String()
	}
	path := queen.Path("api", "v1", "resources", "queues", o.queue)
	if _, exists, err := a.queueOptions(ctx, o.queue); err != nil || exists {
		return errors.Join(err, usageIf(exists, "the queue %s exists; a measurement needs one of its own", o.queue))
	}
	if _, err := a.call(ctx, http.MethodPost, "/api/v1/configure", nil, map[string]any{"queue": o.queue, "options": map[string]any{}}); err != nil {
		return err
	}
	r := &benchRun{app: a, o: o, payload: strings.Repeat("x", max(o.size-len(`{"due":1234567890123456789,"x":""}`), 0))}
	err := r.measure(ctx, pipeline)
	if !o.keep {
		_, deleted := a.client.Do(context.WithoutCancel(ctx), http.MethodDelete, path, nil, nil)
		err = errors.Join(err, deleted)
	}
	if err != nil {
		return err
	}
	return r.report(pipeline)
}

func usageIf(wrong bool, format string, args ...any) error {
	if !wrong {
		return nil
	}
	return usage(format, args...)
}

func (r *benchRun) measure(ctx context.Context, pipeline bool) error {
	producing, stop := context.WithTimeout(ctx, r.o.length)
	defer stop()
	consuming, drained := context.WithCancel(ctx)
	defer drained()
	progress := r.progress("pushed", "messages", int64(r.o.rate*r.o.length.Seconds()))
	r.started = r.now()
	var consumers, producers sync.WaitGroup
	if pipeline {
		for range r.o.consumers {
			consumers.Go(func() { r.consume(consuming) })
		}
	}
	turns := make(chan time.Time)
	go r.schedule(producing, turns)
	for range r.o.producers {
		producers.Go(func() {
			for due := range turns {
				r.push(ctx, due)
				progress.Set(r.pushed.Load(), 0, "")
			}
		})
	}
	producers.Wait()
	progress.Finish()
	if pipeline {
		r.drain(ctx)
	}
	r.ended = r.now()
	drained()
	consumers.Wait()
	return r.fault
}

// schedule hands out turns: each when it is due, or without a rate at once.
func (r *benchRun) schedule(ctx context.Context, turns chan<- time.Time) {
	defer close(turns)
	for i := 0; ; i++ {
		due := r.now()
		if r.o.rate > 0 {
			due = r.started.Add(time.Duration(float64(i*r.o.batch) / r.o.rate * float64(time.Second)))
			if sleep(ctx, due.Sub(r.now())) != nil {
				return
			}
		}
		select {
		case turns <- due:
		case <-ctx.Done():
			return
		}
	}
}

func (r *benchRun) push(ctx context.Context, due time.Time) {
	if r.o.rate == 0 {
		due = r.now()
	}
	items := make([]queen.Item, r.o.batch)
	for i := range items {
		items[i] = queen.Item{
			Queue: r.o.queue, Partition: fmt.Sprintf("p%d", rand.IntN(r.o.lanes)),
			Payload: fmt.Appendf(nil, `{"due":%d,"x":%q}`, due.UnixNano(), r.payload),
		}
	}
	results, err := r.client.Push(ctx, items...)
	took := r.now().Sub(due)
	stored := 0
	for _, result := range results {
		if result.Status == queen.Queued {
			stored++
		}
	}
	r.pushed.Add(int64(stored))
	r.failed.Add(int64(len(items) - stored))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commits = append(r.commits, took)
	if err != nil && r.fault == nil && ctx.Err() == nil {
		r.fault = err
	}
}

func (r *benchRun) consume(ctx context.Context) {
	for ctx.Err() == nil {
		batch, err := r.client.Pop(ctx, r.o.queue, queen.PopOptions{Group: "bench", Batch: max(r.o.batch, 100), Partitions: -1, Wait: time.Second})
		if err == nil && len(batch.Messages) > 0 {
			r.arrived(batch.Messages)
			_, err = r.client.Ack(context.WithoutCancel(ctx), batch.Completed()...)
		}
		if err != nil && ctx.Err() == nil {
			r.mu.Lock()
			if r.fault == nil {
				r.fault = err
			}
			r.mu.Unlock()
			return
		}
	}
}

func (r *benchRun) arrived(messages []queen.Message) {
	now := r.now()
	r.popped.Add(int64(len(messages)))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range messages {
		var sent struct {
			Due int64 `json:"due"`
		}
		if json.Unmarshal(m.Payload, &sent) == nil {
			r.arrivals = append(r.arrivals, now.Sub(time.Unix(0, sent.Due)))
		}
	}
}

// drain waits until consumers have all that was pushed, for as long as the run took at most.
func (r *benchRun) drain(ctx context.Context) {
	deadline := r.now().Add(r.o.length + 5*time.Second)
	for r.popped.Load() < r.pushed.Load() && r.now().Before(deadline) && sleep(ctx, 10*time.Millisecond) == nil {
		r.mu.Lock()
		broken := r.fault != nil
		r.mu.Unlock()
		if broken {
			return
		}
	}
}

func (r *benchRun) report(pipeline bool) error {
	seconds := max(r.ended.Sub(r.started).Seconds(), 0.001)
	var items []json.RawMessage
	add := func(step string, n int64, times []time.Duration) {
		slices.Sort(times)
		at := func(share float64) float64 {
			if len(times) == 0 {
				return 0
			}
			return float64(times[min(int(share*float64(len(times))), len(times)-1)].Microseconds()) / 1000
		}
		items = append(items, fmt.Appendf(nil, `{"step":%q,"messages":%d,"perSecond":%.0f,"p50Ms":%.2f,"p90Ms":%.2f,"p99Ms":%.2f,"maxMs":%.2f}`,
			step, n, float64(n)/seconds, at(0.5), at(0.9), at(0.99), at(1)))
	}
	add("push", r.pushed.Load(), r.commits)
	if pipeline {
		add("delivery", r.popped.Load(), r.arrivals)
	}
	if err := r.printer.List("steps", items, benchColumns); err != nil {
		return err
	}
	switch {
	case r.failed.Load() > 0:
		return differs("%d messages were not stored", r.failed.Load())
	case pipeline && r.popped.Load() < r.pushed.Load():
		return differs("%d of %d messages were delivered in time", r.popped.Load(), r.pushed.Load())
	}
	return nil
}

var benchColumns = []output.Column{
	output.Col("STEP", "step"), output.Num("MESSAGES", "messages"), output.Num("PER-SECOND", "perSecond"), output.Num("P50-MS", "p50Ms"),
	output.Num("P90-MS", "p90Ms"), output.Num("P99-MS", "p99Ms"), output.Num("MAX-MS", "maxMs"),
}
