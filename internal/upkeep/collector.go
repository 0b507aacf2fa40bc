package upkeep

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/meter"
	"queenmq/internal/pg"
)

const (
	// lagPeriod and parkedPeriod are how often the collector samples how late timers fire, and how many long polls are parked.
	lagPeriod    = 100 * time.Millisecond
	parkedPeriod = time.Second
	// idleQueue is how long a queue without traffic keeps its counters.
	idleQueue = time.Hour
	// lastFlushTime bounds the flush of a broker that stops.
	lastFlushTime = 3 * time.Second
	// workerID is the only one of this process: the brokers of older versions had several.
	workerID         = 0
	systemWorkerName = "worker-0"
)

// A CollectorStore is what the metrics collector needs of the database door.
type CollectorStore interface {
	DatabaseTime(ctx context.Context) (time.Time, error)
	Stats() pg.PoolStats
	InsertWorkerMetrics(ctx context.Context, s pg.WorkerSample) (stored bool, err error)
	InsertSystemMetrics(ctx context.Context, hostname string, port int, workerID string, seconds int, metrics json.RawMessage) error
	AddQueueMetrics(ctx context.Context, samples []pg.QueueSample) error
	SetParked(ctx context.Context, hostname string, workerID int, samples []pg.QueueSample) error
}

// CollectorConfig is who reports and how often.
type CollectorConfig struct {
	Hostname string // the broker's server id
	Port     int
	Interval time.Duration
}

// Collector stores what this broker counted. What could not be stored is stored later: the figures of a flush are the
// difference to the last flush that succeeded, table by table.
type Collector struct {
	*Loop
	cfg     CollectorConfig
	store   CollectorStore
	meter   *meter.Meter
	parked  func(func(tenant uuid.UUID, queue string, waiting int))
	started time.Time
	sampler sampler

	// All below belong to the goroutine that makes the passes.
	worker struct {
		counts   meter.Counts
		failures int64
		lagMax   int64
	}
	queues   map[*meter.Queue]*queueBaseline
	retiring []*meter.Queue
	usage    processUsage
	flushed  time.Time
}

// queueBaseline is what the database already has of a queue.
type queueBaseline struct {
	counts meter.Counts
	active time.Time
}

// NewCollector makes the loop. parked calls its argument for every queue with parked long polls; it must be quick.
func NewCollector(cfg CollectorConfig, store CollectorStore, counted *meter.Meter, parked func(func(tenant uuid.UUID, queue string, waiting int)), log *slog.Logger) *Collector {
	c := &Collector{
		cfg: cfg, store: store, meter: counted, parked: parked, started: time.Now(), queues: map[*meter.Queue]*queueBaseline{},
		usage: readUsage(), flushed: time.Now(),
	}
	c.sampler.parked = map[queueKey]int64{}
	c.Loop = newLoop("metrics", cfg.Interval, cfg.Interval, log, c.Step)
	return c
}

// Run samples and flushes until ctx ends, then flushes once more.
func (c *Collector) Run(ctx context.Context) error {
	var sampling sync.WaitGroup
	sampling.Go(func() { c.sample(ctx) })
	err := c.Loop.Run(ctx)
	sampling.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFlushTime)
	defer cancel()
	if flushErr := c.Step(last); flushErr != nil {
		c.log.InfoContext(last, "the last metrics were not stored", slog.Any("error", flushErr))
	}
	return err
}

// LoopLag is how late timers of this process fired since the last flush, on average: beyond some milliseconds the processors
// are overloaded.
func (c *Collector) LoopLag() time.Duration {
	avg, _ := c.sampler.lag()
	return avg
}

// Step flushes once. The tables fail independently of each other.
func (c *Collector) Step(ctx context.Context) error {
	now := time.Now()
	c.followClock(ctx)
	seconds := max(int(now.Sub(c.flushed).Round(time.Second)/time.Second), 1)
	samples := c.sampler.take()
	var faults []error
	if err := c.flushWorker(ctx, samples); err != nil {
		faults = append(faults, err)
		c.sampler.giveBackLag(samples)
	}
	if err := c.flushSystem(ctx, seconds); err != nil {
		faults = append(faults, err)
	}
	parked, err := c.flushQueues(ctx, now, samples.parked, seconds)
	if err != nil {
		// The sums stay and are divided by the longer time.
		c.sampler.giveBackParked(samples)
		return errors.Join(append(faults, err)...)
	}
	c.flushed = now
	// Of this table, a minute that is lost is lost: its rows are not sums.
	faults = append(faults, c.store.SetParked(ctx, c.cfg.Hostname, workerID, parked))
	return errors.Join(faults...)
}

// followClock measures how far the database's clock is ahead, for the age of messages. A measurement that took long says little.
func (c *Collector) followClock(ctx context.Context) {
	began := time.Now()
	clock, err := c.store.DatabaseTime(ctx)
	if took := time.Since(began); err == nil && took < time.Second {
		c.meter.SetClockOffset(clock.Sub(began.Add(took / 2)))
	}
}

// flushWorker stores the totals since the last flush that stored them.
func (c *Collector) flushWorker(ctx context.Context, samples sampled) error {
	now, pool := c.meter.Total(), c.store.Stats()
	was := c.worker.counts
	c.worker.lagMax = max(c.worker.lagMax, c.meter.TakeLagMax())
	avgLoop, maxLoop := samples.lag()
	stored, err := c.store.InsertWorkerMetrics(ctx, pg.WorkerSample{
		Hostname: c.cfg.Hostname, WorkerID: workerID, PID: os.Getpid(),
		AvgLoopLag: avgLoop.Milliseconds(), MaxLoopLag: maxLoop.Milliseconds(), PoolIdle: pool.Idle, PoolActive: pool.InUse,
		PushRequests: now.PushRequests - was.PushRequests, PushMessages: now.PushMessages - was.PushMessages,
		PopRequests: now.PopRequests - was.PopRequests, PopMessages: now.PopMessages - was.PopMessages,
		AckRequests: now.AckRequests - was.AckRequests, AckMessages: now.AckMessages - was.AckMessages,
		AckOK: now.AckOK - was.AckOK, AckFailed: now.AckFailed - was.AckFailed,
		Transactions: now.Transactions - was.Transactions, DeadLetters: now.DeadLetters - was.DeadLetters,
		DatabaseErrors: pool.Failures - c.worker.failures,
		AvgLag:         average(now.LagSum-was.LagSum, now.LagCount-was.LagCount), MaxLag: c.worker.lagMax, LagCount: now.LagCount - was.LagCount,
	})
	if err != nil || !stored {
		return err
	}
	c.worker.counts, c.worker.failures, c.worker.lagMax = now, pool.Failures, 0
	return nil
}

// pending is a queue whose figures are on the way to the database.
type pending struct {
	queue  *meter.Queue
	counts meter.Counts
	lagMax int64
}

// flushQueues stores what happened per queue, forgets queues that were idle for long, and returns the samples that have parked
// polls.
func (c *Collector) flushQueues(ctx context.Context, now time.Time, parked map[queueKey]int64, seconds int) ([]pg.QueueSample, error) {
	// What was counted in a queue while it was being forgotten is in the value that was forgotten.
	retired := c.retiring
	active, samples := c.difference(now, append(retired, c.meter.Queues()...))
	for key, sum := range parked {
		if n := (sum + int64(seconds)/2) / int64(seconds); n > 0 {
			addSample(samples, pg.QueueSample{Tenant: key.tenant, Queue: key.name, Parked: n})
		}
	}
	rows := slices.Collect(maps.Values(samples))
	if err := c.store.AddQueueMetrics(ctx, rows); err != nil {
		for _, p := range active {
			p.queue.ReturnLagMax(p.lagMax)
		}
		return nil, err
	}
	for _, p := range active {
		c.queues[p.queue].counts, c.queues[p.queue].active = p.counts, now
	}
	for _, queue := range retired {
		delete(c.queues, queue)
	}
	c.retiring = nil
	for queue, baseline := range c.queues {
		if now.Sub(baseline.active) >= idleQueue {
			c.meter.Forget(queue)
			c.retiring = append(c.retiring, queue)
		}
	}
	return slices.DeleteFunc(rows, func(s pg.QueueSample) bool { return s.Parked == 0 }), nil
}

// difference returns what happened in the queues since their figures were last stored.
func (c *Collector) difference(now time.Time, queues []*meter.Queue) ([]pending, map[queueKey]pg.QueueSample) {
	var active []pending
	samples := map[queueKey]pg.QueueSample{}
	for _, queue := range queues {
		baseline := c.queues[queue]
		if baseline == nil {
			baseline = &queueBaseline{active: now}
			c.queues[queue] = baseline
		}
		counts, was := queue.Counts(), baseline.counts
		if counts == was {
			continue
		}
		lagMax := queue.TakeLagMax()
		active = append(active, pending{queue, counts, lagMax})
		addSample(samples, pg.QueueSample{
			Tenant: queue.Tenant, Queue: queue.Name,
			PushRequests: counts.PushRequests - was.PushRequests, PushMessages: counts.PushMessages - was.PushMessages,
			PopMessages: counts.PopMessages - was.PopMessages, PopEmpty: counts.PopEmpty - was.PopEmpty,
			AckRequests: counts.AckRequests - was.AckRequests, AckOK: counts.AckOK - was.AckOK, AckFailed: counts.AckFailed - was.AckFailed,
			Transactions: counts.Transactions - was.Transactions,
			LagSum:       counts.LagSum - was.LagSum, LagCount: counts.LagCount - was.LagCount, LagMax: lagMax,
		})
	}
	return active, samples
}

// addSample adds a sample to that of the same queue: a queue that is being forgotten and used again has two.
func addSample(samples map[queueKey]pg.QueueSample, s pg.QueueSample) {
	key := queueKey{s.Tenant, s.Queue}
	sum := samples[key]
	sum.Tenant, sum.Queue = s.Tenant, s.Queue
	sum.PushRequests += s.PushRequests
	sum.PushMessages += s.PushMessages
	sum.PopMessages += s.PopMessages
	sum.PopEmpty += s.PopEmpty
	sum.AckRequests += s.AckRequests
	sum.AckOK += s.AckOK
	sum.AckFailed += s.AckFailed
	sum.Transactions += s.Transactions
	sum.LagSum += s.LagSum
	sum.LagCount += s.LagCount
	sum.LagMax = max(sum.LagMax, s.LagMax)
	sum.Parked += s.Parked
	samples[key] = sum
}

func average(sum, count int64) int64 { return sum / max(count, 1) }
