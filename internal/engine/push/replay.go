package push

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
)

// An Accepted message was answered for earlier and is still to be stored.
type Accepted struct {
	Tenant      uuid.UUID
	ProducerSub string
	// ID is the message id that was answered. The transaction id of the item must not be empty.
	ID uuid.UUID
	Item
	// Sealed says that the payload is encrypted already.
	Sealed bool
}

// Replay stores messages in the order given and returns one verdict for each. It goes past the shards: the caller sees to it that no
// other push of the same partitions is under way, calls it from one goroutine at a time, and keeps what one call carries to a few
// megabytes. Bounded queues take the messages even when they are full, because that was promised. Repeating a call is safe within the
// de-duplication window of the queues. It fails as a whole only with ctx's error, having stored nothing.
func (p *Pusher) Replay(ctx context.Context, messages []Accepted) ([]Verdict, error) {
	slot, err := p.slots.Acquire(ctx, admission.Push)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	f := &flush{pusher: p, slot: slot, replay: true}
	f.originals = originals{db: p.db, log: p.cfg.Logger}
	defer slot.Release()
	defer f.originals.release()

	// A failure keeps the last answer; the database has the last word.
	for i := range messages {
		if i > 0 && messages[i].Tenant == messages[i-1].Tenant && messages[i].Queue == messages[i-1].Queue {
			continue
		}
		if _, err := p.settings.bounded(ctx, messages[i].Tenant, messages[i].Queue); err != nil {
			return nil, err
		}
	}
	calls, works := gather(messages, func(tenant uuid.UUID, queue string) bool { return p.settings.lastKnown(tenant, queue).Repeats })
	f.segments = works
	var live []*work
	for _, w := range works {
		w.prepare()
		if p.settings.encrypts(w.tenant, w.queue) && !f.seal(w) {
			continue
		}
		if f.pack(ctx, w) {
			live = append(live, w)
		}
	}
	f.store(ctx, live) //nolint:errcheck // the items carry it
	for _, w := range works {
		w.settle(fmt.Errorf("%w: no verdict", ErrInternal))
	}
	verdicts := make([]Verdict, 0, len(messages))
	for _, c := range calls {
		c.resolveFollowers()
		verdicts = append(verdicts, c.verdicts...)
	}
	return verdicts, nil
}

// gather makes one segment per partition, in order of first appearance. Messages of one producer that follow each other share a call. An id
// that comes again is left out, unless the queue takes repeats: they were accepted one after the other.
func gather(messages []Accepted, repeats func(tenant uuid.UUID, queue string) bool) (calls []*call, works []*work) {
	type place struct {
		tenant           uuid.UUID
		queue, partition string
	}
	byPlace := make(map[place]*work)
	for len(messages) > 0 {
		first, n := &messages[0], 1
		for n < len(messages) && messages[n].Tenant == first.Tenant && messages[n].ProducerSub == first.ProducerSub {
			n++
		}
		r := Request{Tenant: first.Tenant, ProducerSub: first.ProducerSub, Items: make([]Item, n)}
		for i := range n {
			r.Items[i] = messages[i].Item
		}
		c := newCallWithRepeats(r, func(queue string) bool { return repeats(r.Tenant, queue) })
		c.sealed = make([]bool, n)
		for i := range n {
			c.sealed[i], c.verdicts[i].MessageID = messages[i].Sealed, messages[i].ID
		}
		for _, p := range c.parts {
			at := place{c.tenant, p.queue, p.partition}
			w := byPlace[at]
			if w == nil {
				w = newWork(nil, p)
				w.repeats = repeats(c.tenant, p.queue)
				byPlace[at] = w
				works = append(works, w)
			}
			w.runs = append(w.runs, run{p, 0, len(p.items)})
		}
		calls = append(calls, c)
		messages = messages[n:]
	}
	return calls, works
}
