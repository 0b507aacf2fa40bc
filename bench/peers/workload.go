package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"queenmq/bench/payload"
)

// A workload is one kind of load, the same for every peer.
type workload struct {
	name string
	// batch is how many messages a producer stores with one confirmation.
	batch     int
	producers int
	// keys is the number of ordered keys; 0 is a queue without order. Keyed workloads store first and drain then.
	keys int
	// consumers is how many take messages at once.
	consumers int
}

var workloads = []workload{
	{name: "batch-100x8", batch: 100, producers: 8},
	{name: "batch-100x32", batch: 100, producers: 32},
	{name: "batch-1x32", batch: 1, producers: 32},
	{name: "batch-1x256", batch: 1, producers: 256},
	{name: "keys-10000", batch: 100, producers: 16, keys: 10_000},
}

// fetch is the most messages that a consumer asks for at once, in every workload.
const fetch = 100

// idle is how long a consumer waits for messages before it looks whether the run is over.
const idle = 200 * time.Millisecond

// A message is what producers store. Its body begins with {"seq":SEQUENCE.
type message struct {
	sequence int64
	// key is the ordered key, -1 in queues without order.
	key  int
	body []byte
}

// A queue is one peer's queue for one run. A produce or consume function is called by one goroutine at a time.
type queue interface {
	// producer returns a function that returns when all given messages are confirmed as durable as the peer promises.
	producer(ctx context.Context) (produce, error)
	// consumer returns the i-th consumer's function. It takes up to fetch messages, or none after idle, hands each to
	// handle, acknowledges them, and returns.
	consumer(ctx context.Context, i int) (consume, error)
	// settle returns when all acknowledgments have been carried out.
	settle(ctx context.Context) error
	close()
}

type (
	produce func(ctx context.Context, messages []message) error
	consume func(ctx context.Context, handle func(sequence int64)) error
)

// An outcome is one measured run of a workload on a peer.
type outcome struct {
	messages int64
	elapsed  time.Duration
	cpu      []float64 // processor seconds by server program
	memory   []float64 // bytes by server program, at the end of the run
	// lost were confirmed and never delivered, again were delivered more than once, disorder came after a later message
	// of their key.
	lost, again, disorder int64
	note                  string
}

// rate is messages per second, 0 for a run that failed.
func (o outcome) rate() float64 {
	if o.elapsed <= 0 {
		return 0
	}
	return float64(o.messages) / o.elapsed.Seconds()
}

// A run is one workload on one queue.
type run struct {
	workload
	options options
	queue   queue
	ledger  *ledger
	// open holds back producers that are options.open messages ahead of the consumers.
	open     *semaphore.Weighted
	produced atomic.Bool
	settled  atomic.Int64
	last     atomic.Int64 // when settled grew, in nanoseconds
}

func newRun(w workload, o options, q queue) *run {
	return &run{workload: w, options: o, queue: q, ledger: newLedger(w.producers, w.keys), open: semaphore.NewWeighted(o.open)}
}

// endToEnd stores and consumes at the same time for length, and waits until everything is acknowledged.
func (r *run) endToEnd(ctx context.Context, length time.Duration) (outcome, error) {
	ctx, stop := context.WithTimeout(ctx, length+r.options.limit)
	defer stop()
	begin := time.Now()
	var failures [2]error
	var sides sync.WaitGroup
	sides.Go(func() {
		if failures[0] = r.produceAll(ctx, begin.Add(length), 0); failures[0] != nil {
			stop()
		}
		r.produced.Store(true)
	})
	sides.Go(func() {
		if failures[1] = r.consumeAll(ctx); failures[1] != nil {
			stop()
		}
	})
	sides.Wait()
	// Where both sides failed, one was stopped by the other.
	err := failures[0]
	if err == nil || failures[1] != nil && errors.Is(err, context.Canceled) {
		err = failures[1]
	}
	return r.finish(ctx, begin, err)
}

// store is the first half of a keyed workload: messages of all keys in turn.
func (r *run) store(ctx context.Context, total int64) (outcome, error) {
	ctx, stop := context.WithTimeout(ctx, r.options.limit)
	defer stop()
	r.open = nil
	begin := time.Now()
	err := r.produceAll(ctx, begin.Add(r.options.limit), total/int64(r.producers))
	r.produced.Store(true)
	return outcome{messages: r.ledger.confirmed(), elapsed: time.Since(begin)}, err
}

// drain is the second half.
func (r *run) drain(ctx context.Context) (outcome, error) {
	ctx, stop := context.WithTimeout(ctx, r.options.limit)
	defer stop()
	begin := time.Now()
	return r.finish(ctx, begin, r.consumeAll(ctx))
}

func (r *run) finish(ctx context.Context, begin time.Time, err error) (outcome, error) {
	// Consumers that still waited when the last message was acknowledged are no part of the time.
	o := outcome{messages: r.ledger.confirmed(), elapsed: time.Unix(0, r.last.Load()).Sub(begin)}
	if err == nil {
		settling := time.Now()
		err = r.queue.settle(ctx)
		o.elapsed += time.Since(settling)
	}
	o.lost, o.again, o.disorder = r.ledger.verdict()
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("not done within the limit, %d of %d messages are left: %w", o.lost, o.messages, err)
	}
	return o, err
}

// produceAll lets every producer store until deadline, or until it has stored each messages when each is not 0.
func (r *run) produceAll(ctx context.Context, deadline time.Time, each int64) error {
	return together(ctx, r.producers, func(ctx context.Context, i int) error {
		produce, err := r.queue.producer(ctx)
		if err != nil {
			return err
		}
		source := payload.NewSource(r.options.payload, r.options.size, uint64(i))
		messages := make([]message, r.batch)
		for n := int64(0); time.Now().Before(deadline) && (each == 0 || n < each); {
			if r.open != nil {
				if err := r.open.Acquire(ctx, int64(r.batch)); err != nil {
					return err
				}
			}
			for k := range messages {
				n++
				m := &messages[k]
				m.sequence = sequenceOf(i, n)
				m.key = r.ledger.key(i, n)
				m.body = source.Append(m.body[:0], m.sequence)
			}
			if err := produce(ctx, messages); err != nil {
				return fmt.Errorf("store: %w", err)
			}
			r.ledger.confirm(i, n)
		}
		return nil
	})
}

// consumeAll lets every consumer work until all that was confirmed has been acknowledged.
func (r *run) consumeAll(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	return together(ctx, r.consumers, func(ctx context.Context, i int) error {
		consume, err := r.queue.consumer(ctx, i)
		if err != nil {
			return err
		}
		for {
			if r.produced.Load() && r.settled.Load() >= r.ledger.confirmed() {
				stop() // whoever still waits for messages waits in vain
				return nil
			}
			first := int64(0)
			err := consume(ctx, func(sequence int64) {
				if r.ledger.deliver(sequence) {
					first++
				}
			})
			if first > 0 {
				r.last.Store(time.Now().UnixNano())
				r.settled.Add(first)
			}
			if r.open != nil {
				r.open.Release(first)
			}
			if done := r.produced.Load() && r.settled.Load() >= r.ledger.confirmed(); err != nil && !done {
				return fmt.Errorf("consume: %w", err)
			}
		}
	})
}

// together runs n goroutines; the first error ends the others' ctx. Errors that follow from that are left out.
func together(ctx context.Context, n int, work func(ctx context.Context, i int) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var first atomic.Pointer[error]
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() {
			if err := work(ctx, i); err != nil {
				first.CompareAndSwap(nil, &err)
				stop()
			}
		})
	}
	wait.Wait()
	if err := first.Load(); err != nil {
		return *err
	}
	return nil
}
