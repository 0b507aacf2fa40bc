package queen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// ConsumeOptions says what a consumer reads and how. The zero value reads the queue with one worker, without a group.
type ConsumeOptions struct {
	// PopOptions are those of every pop. Here Batch defaults to 100, Wait to 30 seconds and Lease to one minute; a longer Lease delays
	// only the redelivery after a crash, because leases are renewed. With AutoAck nothing is acknowledged or renewed.
	PopOptions
	// Concurrency is the number of workers, each with batches of its own; 0 is 1. Messages of one partition are never handled
	// at the same time.
	Concurrency int
	// OwnAck leaves acknowledging to the handler, which may do it inside its own database transaction. Leases are renewed all the same,
	// and what the handler returns an error for is rejected.
	OwnAck bool
	// ShutdownTimeout is how long handlers may go on after the context of Consume has ended, before their own ends; 0 is 30 seconds.
	ShutdownTimeout time.Duration
	// OnError is told of what the consumer survives: pops that failed, acknowledgments that came too late, messages that were rejected.
	// Workers call it concurrently. nil ignores them.
	OnError func(error)
}

// The defaults of [ConsumeOptions].
const (
	defaultConsumeBatch    = 100
	defaultConsumeWait     = 30 * time.Second
	defaultConsumeLease    = time.Minute
	defaultShutdownTimeout = 30 * time.Second
	// settleTimeout bounds what is still to be said to the broker about a batch after the consumer was stopped.
	settleTimeout = 15 * time.Second
)

// ErrShutdown is the cause with which the context of a handler ends that is still busy ShutdownTimeout after its consumer was stopped.
var ErrShutdown = errors.New("queen: the consumer was stopped")

// Consume decodes every payload into a T and gives it to handle; see [Client.Consume] for the rest. A payload that is no T becomes a
// dead letter at once, because it will never be one.
func Consume[T any](ctx context.Context, c *Client, queue string, o ConsumeOptions, handle func(ctx context.Context, value T, m *Message) error) error {
	return c.Consume(ctx, queue, o, func(ctx context.Context, m *Message) error {
		value, err := Decode[T](m.Payload)
		if err != nil {
			return Unprocessable(err)
		}
		return handle(ctx, value, m)
	})
}

// Consume reads a queue until ctx ends, and gives every message to handle, those of one partition one after the other and in
// order. A message for which handle returns nil is acknowledged, together with its batch. An error rejects it: it and those
// behind it in its partition are delivered again, until the queue's retryLimit makes it a dead letter. [RetryIn] and [Unprocessable] make
// errors that say otherwise; a panic is an error. Delivery is at least once: what was handled and not yet acknowledged when the
// process dies is delivered again.
//
// The lease of a batch is renewed at a third of its length for as long as it takes. When it is lost all the same, the context of the
// handler ends with the cause [ErrLeaseLost], and nothing of the rest of the batch is handled or acknowledged.
//
// When ctx ends, no more is popped, handlers that run may finish, what they did is acknowledged, and the rest of their batches is given
// back untouched. Consume returns nil when all of that is done, or the error that makes going on pointless: a token that is
// not accepted, a request that makes no sense. Everything else is tried again for ever.
func (c *Client) Consume(ctx context.Context, queue string, o ConsumeOptions, handle func(ctx context.Context, m *Message) error) error {
	return c.consume(ctx, queue, o, func(ctx context.Context, b *Batch, stopping func() bool, o *ConsumeOptions) []Ack {
		return handleEach(ctx, c.observer, b, stopping, o, handle)
	})
}

// ConsumeBatches is [Client.Consume] for handlers that want a whole batch at a time: nil acknowledges all of it, an error rejects its
// first message of each partition, and with it those behind.
func (c *Client) ConsumeBatches(ctx context.Context, queue string, o ConsumeOptions, handle func(ctx context.Context, b *Batch) error) error {
	return c.consume(ctx, queue, o, func(ctx context.Context, b *Batch, _ func() bool, o *ConsumeOptions) []Ack {
		err := guarded(func() error { return handle(ctx, b) })
		if err == nil {
			if o.OwnAck {
				return nil
			}
			return b.Completed()
		}
		o.report(fmt.Errorf("queen: handle %d messages: %w", len(b.Messages), err))
		var acks []Ack
		b.firsts(func(m *Message) { acks = append(acks, nack(m, err)) })
		return acks
	})
}

func (o *ConsumeOptions) report(err error) {
	if o.OnError != nil && err != nil {
		o.OnError(err)
	}
}

// process handles a batch and returns what to tell the broker about it.
type process func(ctx context.Context, b *Batch, stopping func() bool, o *ConsumeOptions) []Ack

// consume runs the workers until ctx ends or one of them cannot go on.
func (c *Client) consume(ctx context.Context, queue string, o ConsumeOptions, do process) error {
	o.Batch = orElse(o.Batch, defaultConsumeBatch)
	o.Wait = orElse(o.Wait, defaultConsumeWait)
	o.Lease = orElse(o.Lease, defaultConsumeLease)
	o.Concurrency = max(o.Concurrency, 1)
	o.ShutdownTimeout = orElse(o.ShutdownTimeout, defaultShutdownTimeout)

	popping, stop := context.WithCancel(ctx)
	defer stop()
	// handling outlives popping, so that handlers can finish.
	handling, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	var patience sync.WaitGroup
	patience.Go(func() {
		select {
		case <-popping.Done():
			if c.pause(handling, o.ShutdownTimeout) == nil {
				abort(ErrShutdown)
			}
		case <-handling.Done():
		}
	})
	defer patience.Wait()
	defer abort(nil)

	var workers sync.WaitGroup
	var once sync.Once
	var fatal error
	for range o.Concurrency {
		workers.Go(func() {
			if err := c.work(popping, handling, queue, &o, do); err != nil {
				once.Do(func() { fatal = err })
				stop()
			}
		})
	}
	workers.Wait()
	return fatal
}

func orElse[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// work pops and handles batches until popping ends. Its error is final.
func (c *Client) work(popping, handling context.Context, queue string, o *ConsumeOptions, do process) error {
	misses := 0 // failures and strangely quick empty answers in a row
	for popping.Err() == nil {
		pop := o.PopOptions
		pop.Wait -= rand.N(pop.Wait/10 + 1) //nolint:gosec // so that consumers that started together do not come back together
		sent := time.Now()
		batch, err := c.pop(popping, queue, &pop, true)
		switch {
		case popping.Err() != nil && (err != nil || len(batch.Messages) == 0):
			return nil
		case err != nil:
			if refused, ok := errors.AsType[*Error](err); ok && !refused.Retryable() {
				return err
			}
			o.report(err)
			misses++
		case len(batch.Messages) > 0:
			misses = 0
			c.handleBatch(popping, handling, batch, o, do)
			continue
		case time.Since(sent) < pop.Wait/2:
			misses++ // pops are in maintenance: the broker does not let us wait
		default:
			misses = 0
			continue
		}
		_ = c.pause(popping, jittered(backoff(misses))) // the loop ends with popping
	}
	return nil
}

// handleBatch handles one batch under its lease and tells the broker what became of it.
func (c *Client) handleBatch(popping, handling context.Context, batch *Batch, o *ConsumeOptions, do process) {
	ctx, lose := context.WithCancelCause(handling)
	defer lose(nil)
	if !o.AutoAck {
		renewing := c.renew(ctx, batch, lose)
		defer renewing()
	}
	acks := do(ctx, batch, func() bool { return popping.Err() != nil }, o)
	if o.AutoAck || len(acks) == 0 {
		return
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrLeaseLost) {
		o.report(cause) // others have the messages: there is nothing to say about them
		return
	}
	settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if popping.Err() == nil { // as long as it takes, when nobody waits for us to end
		settling = context.WithoutCancel(ctx)
	}
	_, err := c.Ack(settling, acks...)
	o.report(err)
}

// renew keeps the lease of a batch until the returned function is called. When it is lost, lose is called with the reason.
func (c *Client) renew(ctx context.Context, batch *Batch, lose context.CancelCauseFunc) (stop func()) {
	renewing, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// By this machine's clock, which started to count before the database's did.
		ends := batch.ReceivedAt.Add(batch.Lease)
		for {
			wait := batch.Lease / 3
			if c.pause(renewing, min(wait, max(time.Until(ends), 0))) != nil {
				return
			}
			asked := time.Now()
			limited, done := context.WithDeadline(renewing, ends)
			_, err := c.extend(limited, batch.LeaseID, batch.Lease, batch.server)
			done()
			switch {
			case renewing.Err() != nil:
				return
			case err == nil:
				ends = asked.Add(batch.Lease)
			case errors.Is(err, ErrLeaseLost):
				lose(err)
				return
			case !time.Now().Before(ends):
				lose(&Error{Code: codeLeaseLost, Message: "the lease could not be renewed before it ended: " + err.Error(), Cause: err})
				return
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// handleEach handles the messages of a batch in order.
func handleEach(ctx context.Context, observer Observer, b *Batch, stopping func() bool, o *ConsumeOptions, handle func(context.Context, *Message) error) []Ack {
	acks := make([]Ack, 0, len(b.Messages))
	skipped := "" // the partition whose rest is not to be handled
	for i := range b.Messages {
		m := &b.Messages[i]
		if skipped != "" && m.PartitionID == skipped {
			continue
		}
		skipped = ""
		if context.Cause(ctx) != nil || stopping() {
			acks = append(acks, m.Retried(0)) // untouched, and so are those behind it
			skipped = m.PartitionID
			continue
		}
		err := observed(ctx, observer, m, handle)
		if err == nil {
			if !o.OwnAck {
				acks = append(acks, m.Completed())
			}
			continue
		}
		o.report(fmt.Errorf("queen: handle message %s of queue %q: %w", m.ID, m.Queue, err))
		if errors.Is(context.Cause(ctx), ErrShutdown) {
			acks = append(acks, m.Retried(0)) // we interrupted it
		} else {
			acks = append(acks, nack(m, err))
		}
		skipped = m.PartitionID
	}
	return acks
}

func observed(ctx context.Context, observer Observer, m *Message, handle func(context.Context, *Message) error) error {
	if observer == nil {
		return guarded(func() error { return handle(ctx, m) })
	}
	ctx, done := observer.Handling(ctx, m)
	err := guarded(func() error { return handle(ctx, m) })
	done(err)
	return err
}

// guarded makes a panic an error: a message that makes its consumer panic must end as a dead letter, not in a loop of crashes.
func guarded(f func() error) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v", fault)
		}
	}()
	return f()
}

// nack is the acknowledgment for a message whose handler returned err.
func nack(m *Message, err error) Ack {
	if later, ok := errors.AsType[*retryError](err); ok {
		return m.Retried(later.delay)
	}
	if poison, ok := errors.AsType[*unprocessableError](err); ok {
		return m.DeadLettered(poison.error)
	}
	return m.Rejected(err)
}

// RetryIn is an error for handlers: the message is delivered again after delay, and no retry is spent.
func RetryIn(delay time.Duration) error { return &retryError{delay} }

// Unprocessable is an error for handlers: the message becomes a dead letter at once, with err as the reason.
func Unprocessable(err error) error { return &unprocessableError{err} }

type retryError struct{ delay time.Duration }

func (e *retryError) Error() string { return fmt.Sprintf("to be tried again in %v", e.delay) }

type unprocessableError struct{ error }

func (e *unprocessableError) Unwrap() error { return e.error }

// firsts calls f with the first message of each partition, which stands for those behind it.
func (b *Batch) firsts(f func(*Message)) {
	last := ""
	for i := range b.Messages {
		if m := &b.Messages[i]; m.PartitionID != last {
			last = m.PartitionID
			f(m)
		}
	}
}
