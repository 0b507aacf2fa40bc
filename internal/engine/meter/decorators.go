package meter

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/transaction"
	"queenmq/internal/pg"
)

// A tally adds up the items of a request per queue, in the order of first appearance: n items, ok of them successes. Requests
// name one queue nearly always.
type tally []tallied

type tallied struct {
	name  string
	n, ok int64
}

// fewQueues is how many queues a request may name before counting it takes memory from the heap.
const fewQueues = 4

// of returns the entry of a name, which is usually that of the item before, and the tally that holds it. It is returned and not
// changed in place, so that small tallies stay on the stack.
func (t tally) of(name string) (tally, int) {
	for i := len(t) - 1; i >= 0; i-- {
		if t[i].name == name {
			return t, i
		}
	}
	return append(t, tallied{name: name}), len(t)
}

// pusher is the part of the engine that stores messages.
type pusher interface {
	Push(ctx context.Context, r push.Request) ([]push.Verdict, error)
}

// Pusher counts pushes: a request in every queue that it names, and the messages that were stored or spooled.
type Pusher struct {
	meter *Meter
	next  pusher
}

// Pusher puts the meter around next.
func (m *Meter) Pusher(next pusher) *Pusher { return &Pusher{m, next} }

// Push calls the engine and counts.
func (p *Pusher) Push(ctx context.Context, r push.Request) ([]push.Verdict, error) {
	verdicts, err := p.next.Push(ctx, r)
	var buffer [fewQueues]tallied
	queues := tally(buffer[:0])
	for i := range r.Items {
		var at int
		queues, at = queues.of(r.Items[i].Queue)
		if i < len(verdicts) && (verdicts[i].Status == push.StatusQueued || verdicts[i].Status == push.StatusBuffered) {
			queues[at].ok++
		}
	}
	p.meter.total.pushRequests.Add(1)
	for i := range queues {
		p.meter.total.pushMessages.Add(queues[i].ok)
		if queue := p.meter.queue(r.Tenant, queues[i].name); queue != nil {
			queue.pushRequests.Add(1)
			queue.pushMessages.Add(queues[i].ok)
		}
	}
	return verdicts, err
}

// popper is the part of the engine that claims messages.
type popper interface {
	Pop(ctx context.Context, r pop.Request) (*pop.Result, error)
}

// Popper counts pops. What a discovery pop claims counts in the queues that it came from; an empty one in no queue.
type Popper struct {
	meter *Meter
	next  popper
}

// Popper puts the meter around next.
func (m *Meter) Popper(next popper) *Popper { return &Popper{m, next} }

// Pop calls the engine and counts.
func (p *Popper) Pop(ctx context.Context, r pop.Request) (*pop.Result, error) {
	result, err := p.next.Pop(ctx, r)
	if suspended, ok := errors.AsType[*pop.SuspendedError](err); ok {
		tenant, kind, queue := r.Tenant, r.Kind, r.Queue
		suspended.WhenEnded(func(result *pop.Result, err error) { p.count(tenant, kind, queue, result, err) })
		return nil, err
	}
	p.count(r.Tenant, r.Kind, r.Queue, result, err)
	return result, err
}

// count counts a pop that has come to its end.
func (p *Popper) count(tenant uuid.UUID, kind pop.Kind, queue string, result *pop.Result, err error) {
	m := p.meter
	m.total.popRequests.Add(1)
	if result == nil {
		if err == nil {
			m.total.popEmpty.Add(1)
			if kind != pop.Discovery {
				if queue := m.queue(tenant, queue); queue != nil {
					queue.popRequests.Add(1)
					queue.popEmpty.Add(1)
				}
			}
		}
		return
	}
	now := time.Now()
	var last *Queue
	for i := range result.Partitions {
		batch := &result.Partitions[i]
		if last == nil || last.Name != batch.Queue {
			if last = m.queue(tenant, batch.Queue); last != nil {
				last.popRequests.Add(1)
			}
		}
		m.total.popMessages.Add(int64(batch.Messages))
		if last != nil {
			last.popMessages.Add(int64(batch.Messages))
		}
		batch.EachSegment(func(createdAt time.Time, messages int) {
			age := m.age(now, createdAt)
			m.total.sampleLag(age, int64(messages))
			if last != nil {
				last.sampleLag(age, int64(messages))
			}
		})
	}
}

// acker is the part of the engine that acknowledges.
type acker interface {
	Ack(ctx context.Context, tenant uuid.UUID, group string, items []ack.Item) []ack.Result
	Extend(ctx context.Context, tenant uuid.UUID, leaseID string, seconds int) (pg.Renewal, error)
}

// Acker counts acknowledgments. An item is a success when it was carried out and did not report a failure of the consumer.
type Acker struct {
	acker
	meter *Meter
}

// Acker puts the meter around next.
func (m *Meter) Acker(next acker) *Acker { return &Acker{next, m} }

// Ack calls the engine and counts.
func (a *Acker) Ack(ctx context.Context, tenant uuid.UUID, group string, items []ack.Item) []ack.Result {
	results := a.acker.Ack(ctx, tenant, group, items)
	m := a.meter
	var buffer [fewQueues]tallied
	queues, deadLetters := tally(buffer[:0]), int64(0)
	for i := range results {
		var at int
		queues, at = queues.of(results[i].Queue)
		queues[at].n++
		if results[i].Success && i < len(items) && ack.Status(items[i].Status) == ack.Completed {
			queues[at].ok++
		}
		if results[i].DeadLetter {
			deadLetters++
		}
	}
	m.total.ackRequests.Add(1)
	m.total.ackMessages.Add(int64(len(results)))
	m.total.deadLetters.Add(deadLetters)
	for i := range queues {
		m.total.ackOK.Add(queues[i].ok)
		m.total.ackFailed.Add(queues[i].n - queues[i].ok)
		if queues[i].name == "" {
			continue // the partition is unknown
		}
		if queue := m.queue(tenant, queues[i].name); queue != nil {
			queue.ackRequests.Add(1)
			queue.ackMessages.Add(queues[i].n)
			queue.ackOK.Add(queues[i].ok)
			queue.ackFailed.Add(queues[i].n - queues[i].ok)
		}
	}
	return results
}

// transactor is the part of the engine that commits pushes and acknowledgments together.
type transactor interface {
	Run(ctx context.Context, tenant uuid.UUID, producerSub string, operations []transaction.Operation, requiredLeases []string) (transaction.Outcome, error)
}

// Transactor counts transactions that committed: one in every queue that they pushed to, and the messages pushed. Their
// acknowledgments count in the totals, because they name partitions and not queues.
type Transactor struct {
	meter *Meter
	next  transactor
}

// Transactor puts the meter around next.
func (m *Meter) Transactor(next transactor) *Transactor { return &Transactor{m, next} }

// Run calls the engine and counts.
func (t *Transactor) Run(ctx context.Context, tenant uuid.UUID, producerSub string, operations []transaction.Operation, requiredLeases []string) (transaction.Outcome, error) {
	outcome, err := t.next.Run(ctx, tenant, producerSub, operations, requiredLeases)
	if err != nil {
		return outcome, err
	}
	m := t.meter
	m.total.transactions.Add(1)
	var queues tally
	for i := range operations {
		var result transaction.Result
		if i < len(outcome.Results) {
			result = outcome.Results[i]
		}
		switch op := operations[i]; {
		case op.Push != nil:
			var at int
			queues, at = queues.of(op.Push.Queue)
			if !result.Duplicate {
				queues[at].ok++
			}
		case op.Ack != nil:
			m.total.ackMessages.Add(1)
			if ack.Status(op.Ack.Status) == ack.Completed {
				m.total.ackOK.Add(1)
			} else {
				m.total.ackFailed.Add(1)
			}
			if result.DeadLetter {
				m.total.deadLetters.Add(1)
			}
		}
	}
	for i := range queues {
		m.total.pushMessages.Add(queues[i].ok)
		if queue := m.queue(tenant, queues[i].name); queue != nil {
			queue.transactions.Add(1)
			queue.pushMessages.Add(queues[i].ok)
		}
	}
	return outcome, nil
}
