package model

import (
	"fmt"
	"slices"
)

// none is the batch end of a cursor that holds no batch.
const none = -1

// A queue is the model of one queue: its options and lanes.
type queue struct {
	retryLimit  int
	deadLetters bool
	// maxDeliveries is how often a message may lead a batch; 0 is any number.
	maxDeliveries int
	partitions    map[string]*partition
	// registered holds the groups that have a subscription record: their first queue-wide pop creates cursors everywhere.
	registered map[string]bool
}

// A partition is an ordered lane; the index in log is the offset.
type partition struct {
	id      string
	log     []message
	byTxn   map[string]int
	cursors map[string]*cursor
}

type message struct {
	txn, id, payload string
}

// A cursor is the position of one group in one partition.
type cursor struct {
	committed int
	// batchEnd is the last offset of the batch handed out, or none. It outlives the lease's expiry.
	batchEnd int
	worker   string
	live     bool
	retries  int
	// attempts counts the deliveries of batches that begin at attemptOffset, or none; messages up to isolateEnd come one by one.
	attemptOffset, attempts, isolateEnd int

	dead    []int
	dropped []int
}

func newQueue() *queue {
	return &queue{retryLimit: 3, deadLetters: true, partitions: map[string]*partition{}, registered: map[string]bool{}}
}

func (q *queue) partition(name string) *partition {
	p := q.partitions[name]
	if p == nil {
		p = &partition{byTxn: map[string]int{}, cursors: map[string]*cursor{}}
		q.partitions[name] = p
	}
	return p
}

// push appends a message unless its transaction id is known; it returns the offset of the stored one and whether it is new.
func (p *partition) push(m message) (int, bool) {
	if offset, known := p.byTxn[m.txn]; known {
		return offset, false
	}
	p.log = append(p.log, m)
	p.byTxn[m.txn] = len(p.log) - 1
	return len(p.log) - 1, true
}

// cursor returns the group's cursor, created at the beginning when it is missing.
func (p *partition) cursor(group string) *cursor {
	c := p.cursors[group]
	if c == nil {
		c = &cursor{committed: -1, batchEnd: none, attemptOffset: none, isolateEnd: none}
		p.cursors[group] = c
	}
	return c
}

// register makes the group's cursors in every partition that exists now, as the first queue-wide pop of a group does.
func (q *queue) register(group string) {
	if q.registered[group] {
		return
	}
	q.registered[group] = true
	for _, p := range q.partitions {
		p.cursor(group)
	}
}

// claimable says how many messages a pop of the group would get from p without a budget.
func (p *partition) claimable(group string) int {
	c := p.cursors[group]
	if c == nil {
		return len(p.log)
	}
	if c.live {
		return 0
	}
	return len(p.log) - c.committed - 1
}

// poison says that the next message may not be delivered to the group any more.
func (q *queue) poison(p *partition, group string) bool {
	c := p.cursors[group]
	return c != nil && q.maxDeliveries > 0 && p.claimable(group) > 0 && c.attemptOffset == c.committed+1 && c.attempts >= q.maxDeliveries
}

// file moves the cursor past a poison message.
func (q *queue) file(p *partition, group string) {
	c := p.cursors[group]
	c.isolateEnd = max(c.isolateEnd, c.batchEnd)
	c.dead = append(c.dead, c.committed+1)
	c.committed++
	c.release()
	c.retries = 0
	c.startAnew()
}

// takes is how many messages a claim with a budget takes.
func (q *queue) takes(p *partition, group string, budget int, autoAck bool) int {
	take := min(p.claimable(group), budget)
	c := p.cursors[group]
	switch {
	case take <= 0 || !autoAck && q.poison(p, group):
		return 0
	case c != nil && !autoAck && q.maxDeliveries > 0 && max(c.isolateEnd, c.batchEnd) > c.committed: // what is left of a batch comes one by one
		return 1
	default:
		return take
	}
}

// claim takes up to budget messages for the group and returns them.
func (q *queue) claim(p *partition, group, worker string, budget int, autoAck bool) []message {
	take := min(p.claimable(group), budget)
	if take <= 0 || !autoAck && q.poison(p, group) {
		return nil
	}
	c := p.cursor(group)
	first := c.committed + 1
	if autoAck {
		c.committed += take
		c.batchEnd, c.worker, c.live = none, "", false
		return p.log[first : first+take]
	}
	if q.maxDeliveries > 0 {
		c.isolateEnd = max(c.isolateEnd, c.batchEnd) // what is left of a batch has run out
		if c.isolateEnd >= first {
			take = 1
		}
	}
	if c.attemptOffset != first {
		c.attempts = 0
	}
	c.attemptOffset, c.attempts = first, c.attempts+1
	c.batchEnd, c.worker, c.live = c.committed+take, worker, true
	return p.log[first : first+take]
}

// startAnew forgets the deliveries of a head that is done.
func (c *cursor) startAnew() { c.attemptOffset, c.attempts = none, 0 }

// move advances the cursor; the first message that is still to be done inherits the deliveries of its batch.
func (c *cursor) move(position int) {
	if position > c.committed && c.attemptOffset != none && c.attemptOffset <= position {
		c.attemptOffset = position + 1
	}
	c.committed = position
}

// An ack is one item of an acknowledgment; an outcome is what the model expects for it.
type ack struct {
	txn, status string
}

type outcome struct {
	success, noop, dlq, released bool
	// lenient outcomes may be reported either way; only the state after them is fixed.
	lenient bool
}

// acknowledge judges one group of items that share (partition, group, worker), changes the state, and returns one outcome
// per item.
func (q *queue) acknowledge(p *partition, group, worker string, items []ack) []outcome {
	outcomes := make([]outcome, len(items))
	c := p.cursors[group]
	if c == nil {
		return outcomes
	}
	if worker != "" && (c.worker != worker || !c.live) {
		// The lease is lost. Completing what is completed is a repetition and does no harm.
		for i, j := range p.resolve(c, items) {
			outcomes[i] = outcome{success: j.below && !j.isSignal(), noop: j.below && !j.isSignal()}
		}
		return outcomes
	}
	leased := c.batchEnd != none
	judged := p.resolve(c, items)
	head, signal := firstSignal(judged)
	position := c.committed
	for _, j := range judged {
		if j.offset != none && !j.isSignal() && (head == none || j.offset < head) {
			position = max(position, j.offset)
		}
	}
	verdict := q.decide(c, leased, head, signal, position)
	for i, j := range judged {
		outcomes[i] = j.outcome(c, leased, head, verdict)
	}
	return outcomes
}

// A verdict is what an acknowledgment did to the cursor.
type verdict struct {
	released, deadLettered, refused bool
}

func (q *queue) decide(c *cursor, leased bool, head int, signal string, position int) verdict {
	reachedEnd := head == none && leased && position >= c.batchEnd
	switch {
	case head != none && leased && (signal == "dlq" || (signal == "failed" && c.retries >= q.retryLimit && q.deadLetters)):
		c.move(position)
		if !c.live {
			return verdict{refused: true}
		}
		c.dead = append(c.dead, head)
		c.committed = head
		c.release()
		c.retries = 0
		c.startAnew()
		return verdict{released: true, deadLettered: true}
	case head != none && leased && signal == "failed" && c.retries < q.retryLimit:
		c.move(position)
		c.release()
		c.retries++
		return verdict{released: true}
	case head != none && leased && signal == "failed":
		c.dropped = append(c.dropped, head)
		c.committed = head
		c.release()
		c.retries = 0
		c.startAnew()
		return verdict{released: true}
	case head != none && leased:
		c.move(position)
		c.release()
		return verdict{released: true}
	case reachedEnd:
		c.committed = position
		c.release()
		c.retries = 0
		c.startAnew()
		return verdict{released: true}
	default:
		c.move(position)
		return verdict{}
	}
}

func (c *cursor) release() {
	c.batchEnd, c.worker, c.live = none, "", false
}

// A judged item is an ack item with the offset it addresses.
type judged struct {
	ack
	// offset is the position inside the reachable span, or none; below says that the message lies at or under the cursor.
	offset int
	below  bool
}

func (j judged) isSignal() bool { return j.status != "completed" }

func (p *partition) resolve(c *cursor, items []ack) []judged {
	out := make([]judged, len(items))
	for i, item := range items {
		out[i] = judged{ack: item, offset: none}
		offset, known := p.byTxn[item.txn]
		if !known {
			continue
		}
		out[i].below = offset <= c.committed
		if offset > c.committed && (c.batchEnd == none || offset <= c.batchEnd) {
			out[i].offset = offset
		}
	}
	return out
}

// firstSignal returns the lowest offset that an explicit failed, retry or dlq names, and which one it is.
func firstSignal(items []judged) (int, string) {
	head, signal := none, ""
	for _, j := range items {
		if j.isSignal() && j.offset != none && (head == none || j.offset < head) {
			head, signal = j.offset, j.status
		}
	}
	return head, signal
}

func (j judged) outcome(_ *cursor, leased bool, head int, v verdict) outcome {
	switch {
	case j.offset == none && j.below && j.isSignal():
		return outcome{}
	case j.offset == none && j.below:
		return outcome{success: true, noop: true, released: v.released}
	case j.offset == none:
		return outcome{}
	case j.isSignal() && !leased:
		return outcome{}
	case v.refused:
		return outcome{lenient: true}
	default:
		return outcome{success: true, dlq: v.deadLettered && j.offset == head, released: v.released}
	}
}

// settled lists the offsets of the group that never come back: everything up to the cursor.
func (c *cursor) settled() int { return c.committed + 1 }

// clone copies the queue so that a transaction can be tried on the copy.
func (q *queue) clone() *queue {
	out := *q
	out.registered = map[string]bool{}
	for g, v := range q.registered {
		out.registered[g] = v
	}
	out.partitions = map[string]*partition{}
	for name, p := range q.partitions {
		np := &partition{id: p.id, log: slices.Clone(p.log), byTxn: map[string]int{}, cursors: map[string]*cursor{}}
		for k, v := range p.byTxn {
			np.byTxn[k] = v
		}
		for g, c := range p.cursors {
			nc := *c
			nc.dead, nc.dropped = slices.Clone(c.dead), slices.Clone(c.dropped)
			np.cursors[g] = &nc
		}
		out.partitions[name] = np
	}
	return &out
}

// String shows the state for a failing test.
func (q *queue) String() string {
	text := fmt.Sprintf("retryLimit=%d deadLetters=%v maxDeliveries=%d", q.retryLimit, q.deadLetters, q.maxDeliveries)
	for name, p := range q.partitions {
		text += fmt.Sprintf("\n  %s: %d messages", name, len(p.log))
		for g, c := range p.cursors {
			text += fmt.Sprintf(" [%s committed=%d batchEnd=%d live=%v retries=%d attempts=%d of %d isolateEnd=%d dead=%v]", g, c.committed, c.batchEnd, c.live, c.retries,
				c.attempts, c.attemptOffset, c.isolateEnd, c.dead)
		}
	}
	return text
}
