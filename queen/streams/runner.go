package streams

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"queenmq/queen"
)

// A Runner runs one query. Any number of them, in one program or in many, may run the same query at once.
type Runner struct {
	name   string
	query  Query
	config runnerConfig
	wire   wire

	program program
	shards  shards
	counts  counts
}

type runnerConfig struct {
	group      string
	version    string
	reset      bool
	start      queen.Start
	workers    int
	batch      int
	partitions int
	lease      time.Duration
	failure    Failure
	logger     *slog.Logger
	now        func() time.Time
}

// A RunnerOption changes how a query is run.
type RunnerOption func(*runnerConfig)

// Group reads the source as a consumer group other than "streams." and the name of the query.
func Group(name string) RunnerOption { return func(c *runnerConfig) { c.group = name } }

// Version is part of the description of a query. Change it when a function changes what stored state means.
func Version(version string) RunnerOption { return func(c *runnerConfig) { c.version = version } }

// Reset deletes the state of the query if it was made by other operators or another [Version], instead of refusing to run. It does
// not move the consumer group: to read the source again from its start, run the query under a new name, or seek the group.
func Reset() RunnerOption { return func(c *runnerConfig) { c.reset = true } }

// StartAt says where a query that has never read its source begins; the default is the oldest message.
func StartAt(start queen.Start) RunnerOption { return func(c *runnerConfig) { c.start = start } }

// Workers is how many batches are worked on at once, each of one or more partitions. Default 2.
func Workers(n int) RunnerOption { return func(c *runnerConfig) { c.workers = n } }

// BatchSize is how many messages are asked for at once, from at most so many partitions. Default 1,000 from 16.
func BatchSize(messages, partitions int) RunnerOption {
	return func(c *runnerConfig) { c.batch, c.partitions = messages, partitions }
}

// Lease is how long a batch is ours without a sign of life; it is renewed at a third of that. Default 60 s. After a crash, this is how
// long the partitions at hand wait for another runner.
func Lease(d time.Duration) RunnerOption { return func(c *runnerConfig) { c.lease = d } }

// A Failure is what becomes of a message that a function returned an error for.
type Failure int

// What can become of them.
const (
	// Reject gives the message back as failed: it is delivered again until the queue's retryLimit, then it is a dead letter. Its partition
	// waits meanwhile, so that order is kept.
	Reject Failure = iota
	// Skip counts and logs the message and goes on behind it.
	Skip
	// Stop ends [Runner.Run] with the error.
	Stop
)

// OnFailure chooses what becomes of messages that fail; the default is [Reject].
func OnFailure(f Failure) RunnerOption { return func(c *runnerConfig) { c.failure = f } }

// Logger takes warnings. The default is [slog.Default].
func Logger(l *slog.Logger) RunnerOption { return func(c *runnerConfig) { c.logger = l } }

// Stats are counts since the runner was made; what was rolled back is not in them.
type Stats struct {
	// Messages were processed and acknowledged, in this many commits.
	Messages, Cycles int64
	// Windows were emitted; LateRecords belonged to windows that were closed.
	Windows, LateRecords int64
	// Failed messages were rejected or skipped. Held counts how often a rate limit held a partition back.
	Failed, Held int64
	// Recomputed counts batches whose state another runner had changed meanwhile.
	Recomputed int64
}

type counts struct {
	messages, cycles, windows, late, failed, held, recomputed atomic.Int64
}

// NewRunner checks a query and prepares to run it under a name, which its state and its consumer group belong to. The error names the
// first mistake in the description of the query.
func NewRunner(client *queen.Client, name string, query Query, options ...RunnerOption) (*Runner, error) {
	config := runnerConfig{
		group: "streams." + name, workers: 2, batch: 1000, partitions: 16, lease: time.Minute, start: queen.StartOldest,
		logger: slog.Default(), now: time.Now,
	}
	for _, option := range options {
		option(&config)
	}
	switch {
	case query.def.err != nil:
		return nil, query.def.err
	case query.build == nil:
		return nil, errors.New("streams: the query has no end; use To or Foreach")
	case name == "":
		return nil, errors.New("streams: a query needs a name")
	case config.workers < 1 || config.batch < 1 || config.partitions < 1:
		return nil, errors.New("streams: workers, batch size and partitions must be at least 1")
	case config.lease < time.Second:
		return nil, fmt.Errorf("streams: the lease %v must be at least a second", config.lease)
	}
	r := &Runner{name: name, query: query, config: config, program: query.build()}
	r.wire = wire{client: client, group: config.group}
	r.shards.known = make(map[string]*shardEntry)
	return r, nil
}

// Stats returns the counts of this runner.
func (r *Runner) Stats() Stats {
	c := &r.counts
	return Stats{
		Messages: c.messages.Load(), Cycles: c.cycles.Load(), Windows: c.windows.Load(), LateRecords: c.late.Load(),
		Failed: c.failed.Load(), Held: c.held.Load(), Recomputed: c.recomputed.Load(),
	}
}

// hash describes the operators of the query.
func (r *Runner) hash() string {
	text, _ := json.Marshal([]any{r.query.def.ops, r.config.version}) // strings always encode
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12])
}

// stateful says whether the query keeps state.
func (r *Runner) stateful() bool { return len(r.program.load) > 0 }

// Run registers the query and runs it until ctx ends, which is no error: then the batches at hand are given back, and nil is returned. It
// goes on through everything that may pass - brokers and databases that are away, full sinks, lost leases - and ends with an error
// otherwise: [ErrQueryChanged], a refused token, a message that failed under [Stop]. Call it once.
func (r *Runner) Run(ctx context.Context) error {
	if err := r.wire.register(ctx, r.name, r.query.def.queue, r.query.sink, r.hash(), r.config.reset); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range r.config.workers {
		all.Go(func() {
			if err := r.work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	if r.program.flush != nil && r.query.def.idle >= 0 {
		all.Go(func() { r.closeIdle(ctx) })
	}
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// pollTime is how long one pop waits.
const pollTime = 20 * time.Second

// work pops and processes batches until ctx ends, or something happens that will not pass.
func (r *Runner) work(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		batch, err := r.wire.client.Pop(ctx, r.query.def.queue, queen.PopOptions{
			Group: r.config.group, Batch: r.config.batch, Partitions: r.config.partitions, Wait: pollTime,
			Lease: r.config.lease, Start: r.config.start,
		})
		if err == nil {
			failures = 0
			if len(batch.Messages) > 0 {
				if err = r.batch(ctx, batch); err != nil {
					return err
				}
			}
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		if lasting(err) {
			return fmt.Errorf("streams: read from %q: %w", r.query.def.queue, err)
		}
		failures++
		r.config.logger.Warn("streams: a pop failed and is repeated", "query", r.name, "err", err)
		r.pause(ctx, backoff(failures))
	}
	return nil
}

// lasting says that repeating a request does not help.
func lasting(err error) bool {
	return errors.Is(err, queen.ErrUnauthenticated) || errors.Is(err, queen.ErrForbidden) || errors.Is(err, queen.ErrRouteMissing) || errors.Is(err, queen.ErrInvalid)
}

// backoff is exponential from 100 ms to 5 s, with jitter.
func backoff(failures int) time.Duration {
	d := min(100*time.Millisecond<<min(failures, 10), 5*time.Second)
	return d/2 + rand.N(d)
}

// pause waits for d or the end of ctx.
func (r *Runner) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// batch processes what one pop delivered, the partitions side by side, under a lease that is kept alive.
func (r *Runner) batch(ctx context.Context, batch *queen.Batch) error {
	held, release := context.WithCancel(ctx) // ends with the lease
	var renewal, all sync.WaitGroup
	renewal.Go(func() { r.renew(held, release, batch.LeaseID) })
	var failed error
	var once sync.Once
	for first, messages := 0, batch.Messages; first < len(messages); {
		end := first + 1
		for end < len(messages) && messages[end].PartitionID == messages[first].PartitionID {
			end++
		}
		part := messages[first:end:end]
		all.Go(func() {
			if err := r.partition(held, batch.LeaseID, part); err != nil {
				once.Do(func() { failed = err })
			}
		})
		first = end
	}
	all.Wait()
	release()
	renewal.Wait()
	return failed
}

// renew keeps a lease alive until ctx ends, and ends the work when it is lost.
func (r *Runner) renew(ctx context.Context, lost context.CancelFunc, lease string) {
	ticker := time.NewTicker(r.config.lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := r.wire.client.Extend(ctx, lease, r.config.lease); errors.Is(err, queen.ErrLeaseLost) {
			lost()
			return
		}
	}
}
