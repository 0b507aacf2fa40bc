package queen

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
	"uuid"
)

// ProducerOptions bounds a [Producer]. The zero value is the default.
type ProducerOptions struct {
	// Buffer is the most messages that wait in memory; Send blocks beyond it. Default 10,000.
	Buffer int
	// Batch is the most messages of one request. Default 500, at most 100,000.
	Batch int
	// Linger is how long the first message of a batch waits for others. Default 0: batches grow while a request is under way, so
	// that a busy producer fills them by itself and an idle one sends at once.
	Linger time.Duration
	// OnResult is told what became of each message, in order, from one goroutine. Messages that are refused for good - too large, not
	// allowed - end there too; without OnResult they come back from Close.
	OnResult func(item Item, result PushResult)
	// OnError is told of requests that failed and are sent again.
	OnError func(error)
}

// A Producer sends messages in the background, many in one request. It keeps the order in which Send was called, and holds on to what
// it could not send until it can. Make it with [Client.NewProducer] and end it with Close; it is safe for concurrent use.
type Producer struct {
	client *Client
	o      ProducerOptions
	slots  chan struct{} // one for each message in the buffer
	wake   chan struct{} // something was added
	closed chan struct{} // no more is accepted
	cancel context.CancelFunc
	ended  chan struct{} // the sender has returned
	close  sync.Once

	mu       sync.Mutex
	buffer   []Item        // in order; the front may be under way
	sent     uint64        // messages that left the buffer
	accepted uint64        // messages that entered it
	progress chan struct{} // closed and replaced when sent grows
	refused  []Item        // for good
	firstErr error         // why the first of them was
}

// ErrProducerClosed: Send came after Close.
var ErrProducerClosed = errors.New("queen: the producer is closed")

// NewProducer starts a producer.
func (c *Client) NewProducer(o ProducerOptions) *Producer {
	o.Buffer = max(orElse(o.Buffer, 10_000), 1)
	o.Batch = min(max(orElse(o.Batch, 500), 1), 100_000)
	ctx, cancel := context.WithCancel(context.Background())
	p := &Producer{
		client: c, o: o, slots: make(chan struct{}, o.Buffer), wake: make(chan struct{}, 1), closed: make(chan struct{}),
		cancel: cancel, ended: make(chan struct{}), progress: make(chan struct{}),
	}
	go p.run(ctx)
	return p
}

// Send puts a message into the buffer, and waits for room while that is full. A message without a transaction id gets one, so that it is
// stored once however often it has to be sent. Its payload must not be changed afterwards. Errors: [ErrInvalid], [ErrProducerClosed],
// and that of ctx.
func (p *Producer) Send(ctx context.Context, item Item) error {
	if item.TransactionID == "" {
		item.TransactionID = uuid.NewV7().String()
	}
	if _, err := appendItem(nil, &item, item.TransactionID); err != nil {
		return invalidItem(0, err)
	}
	select {
	case <-p.closed:
		return ErrProducerClosed
	default:
	}
	select {
	case p.slots <- struct{}{}:
	case <-p.closed:
		return ErrProducerClosed
	case <-ctx.Done():
		return fmt.Errorf("queen: wait for room in the producer's buffer: %w", context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed: // Close has taken stock
		<-p.slots
		return ErrProducerClosed
	default:
	}
	p.buffer = append(p.buffer, item)
	p.accepted++
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return nil
}

// Flush waits until everything that Send accepted before has left the buffer.
func (p *Producer) Flush(ctx context.Context) error {
	p.mu.Lock()
	target := p.accepted
	p.mu.Unlock()
	for {
		p.mu.Lock()
		done, progress := p.sent >= target, p.progress
		p.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-progress:
		case <-ctx.Done():
			return fmt.Errorf("queen: flush: %w", context.Cause(ctx))
		case <-p.ended:
			return ErrProducerClosed
		}
	}
}

// Close accepts no more, sends what is in the buffer until ctx ends, and returns what was not stored, in order: nothing and nil, or
// the messages with the reason. A message that was under way when ctx ended may have been stored; pushed again with the transaction id
// that it has, it is stored once.
func (p *Producer) Close(ctx context.Context) (unsent []Item, err error) {
	p.close.Do(func() {
		p.mu.Lock()
		close(p.closed)
		p.mu.Unlock()
	})
	err = p.Flush(ctx)
	p.cancel()
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	unsent = slices.Concat(p.refused, p.buffer)
	switch {
	case len(unsent) == 0:
		return nil, nil
	case p.firstErr != nil:
		return unsent, fmt.Errorf("queen: %d messages were not sent: %w", len(unsent), p.firstErr)
	}
	return unsent, fmt.Errorf("queen: %d messages were not sent: %w", len(unsent), err)
}

// run sends until ctx ends.
func (p *Producer) run(ctx context.Context) {
	defer close(p.ended)
	for failures := 0; ; {
		batch := p.next(ctx)
		if batch == nil {
			return
		}
		err := p.send(ctx, batch)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
			continue
		}
		if p.o.OnError != nil {
			p.o.OnError(err)
		}
		if p.client.pause(ctx, jittered(backoff(failures))) != nil {
			return
		}
		failures++
	}
}

// next waits for messages and returns the front of the buffer, which stays there until it was sent. nil is the end.
func (p *Producer) next(ctx context.Context) []Item {
	for lingered := p.o.Linger == 0; ; {
		p.mu.Lock()
		n := len(p.buffer)
		batch := p.buffer[:min(n, p.o.Batch):min(n, p.o.Batch)]
		p.mu.Unlock()
		if n >= p.o.Batch || n > 0 && lingered {
			return batch
		}
		if n > 0 {
			select {
			case <-p.closed: // nobody else comes
			default:
				if p.client.pause(ctx, p.o.Linger) != nil {
					return nil
				}
			}
			lingered = true
			continue
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// send pushes a batch. After an error it is still at the front of the buffer.
func (p *Producer) send(ctx context.Context, batch []Item) error {
	results, err := p.client.push(ctx, batch, true)
	refused, _ := errors.AsType[*Error](err)
	switch {
	case results != nil && ctx.Err() == nil:
		p.remove(batch, results)
		return nil
	case refused != nil && refused.Status == http.StatusRequestEntityTooLarge && len(batch) > 1:
		if err := p.send(ctx, batch[:len(batch)/2]); err != nil {
			return err
		}
		return p.send(ctx, batch[len(batch)/2:])
	case refused != nil && errors.Is(refused, ErrInvalid):
		if len(batch) > 1 { // one of them is to blame
			for i := range batch {
				if err := p.send(ctx, batch[i:i+1]); err != nil {
					return err
				}
			}
			return nil
		}
		p.remove(batch, []PushResult{{Status: Failed, TransactionID: batch[0].TransactionID, Err: refused}})
		return nil
	}
	return err
}

// remove takes what has an answer off the front of the buffer.
func (p *Producer) remove(batch []Item, results []PushResult) {
	for i := range results {
		if p.o.OnResult != nil {
			p.o.OnResult(batch[i], results[i])
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.o.OnResult == nil {
		for i := range results {
			if results[i].Err != nil {
				p.refused = append(p.refused, batch[i])
				if p.firstErr == nil {
					p.firstErr = results[i].Err
				}
			}
		}
	}
	clear(p.buffer[:len(results)]) // so that payloads can be collected
	p.buffer = p.buffer[len(results):]
	p.sent += uint64(len(results))
	close(p.progress)
	p.progress = make(chan struct{})
	for range results {
		<-p.slots
	}
}
