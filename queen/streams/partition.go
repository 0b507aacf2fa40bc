package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"queenmq/queen"
)

// holdTime is how long a runner keeps a batch in hand that a rate limit holds back; for longer it is given back with a delay.
const holdTime = time.Second

// partition processes the messages of one partition in order. It returns an error only for what should end the runner; everything else
// leads to the messages coming again.
func (r *Runner) partition(ctx context.Context, lease string, messages []queen.Message) error {
	entry := r.shards.use(messages[0].PartitionID, messages[0].Partition)
	defer r.shards.done(entry)
	entry.Lock()
	defer entry.Unlock()

	limit := len(messages) // process no more than this at once
	failures := 0
	for len(messages) > 0 {
		if ctx.Err() != nil {
			r.giveBack(ctx, entry.shard, lease)
			entry.reset()
			return nil
		}
		if err := r.load(ctx, entry.shard); err != nil {
			entry.reset()
			if ctx.Err() == nil && (lasting(err) || !isWireError(err)) {
				return err
			}
			failures++
			r.pause(ctx, backoff(failures))
			continue
		}
		c := r.newCycle(ctx, entry.shard)
		settled, why := c.run(&r.program, messages[:min(limit, len(messages))])
		if why.redo {
			entry.reset()
			if settled > 0 {
				limit = settled
				continue
			}
		} else if err := r.commit(ctx, c, lease, settled, settled == len(messages)); err != nil {
			entry.reset()
			next, lasts, end := r.refused(ctx, err, lease, entry.shard, limit, &failures)
			if end != nil || !lasts {
				return end
			}
			if next == 0 { // a single message that the broker does not take
				settled, why = 0, stop{failed: err}
			} else {
				limit = next
				continue
			}
		}
		messages, limit = messages[settled:], max(len(messages)-settled, 1)
		if len(messages) == 0 {
			break
		}
		switch {
		case why.failed != nil:
			done, err := r.fail(ctx, &messages[0], lease, why.failed)
			if err != nil {
				r.giveBack(ctx, entry.shard, lease)
			}
			if err != nil || done {
				return err
			}
			messages = messages[1:]
		case why.wait > holdTime:
			_, err := r.wire.client.Ack(ctx, messages[0].Retried(why.wait))
			r.counts.held.Add(1)
			r.warn(ctx, "a held message could not be given back", err)
			return nil
		case why.wait > 0:
			r.counts.held.Add(1)
			r.pause(ctx, why.wait)
		}
	}
	return nil
}

// refused decides what to do about a cycle that was not committed. next is the number of messages to try at once, 0 when the one message
// at hand is to blame; goOn false drops the batch.
func (r *Runner) refused(ctx context.Context, err error, lease string, s *shard, limit int, failures *int) (next int, goOn bool, end error) {
	var refused *refusedError
	switch {
	case errors.Is(err, errStateChanged):
		r.counts.recomputed.Add(1)
		return limit, true, nil
	case errors.Is(err, errLeaseLost):
		return 0, false, nil
	case errors.Is(err, errSinkFull):
		*failures++
		r.warn(ctx, "a sink is full; the cycle is repeated", err)
		r.pause(ctx, backoff(*failures))
		return limit, true, nil
	case errors.As(err, &refused), errors.Is(err, queen.ErrInvalid):
		if limit > 1 {
			return 1, true, nil
		}
		return 0, true, nil
	case ctx.Err() == nil && lasting(err):
		return 0, false, fmt.Errorf("streams: commit a cycle: %w", err)
	default:
		// Whether it was committed is not known. The broker knows where the cursor is: let it deliver from there.
		r.warn(ctx, "a cycle has no answer; the batch is delivered again", err)
		r.giveBack(ctx, s, lease)
		return 0, false, nil
	}
}

// isWireError says that an error came from talking to a broker, not from the query.
func isWireError(err error) bool {
	var wire *queen.Error
	return errors.As(err, &wire)
}

func (r *Runner) newCycle(ctx context.Context, s *shard) *cycle {
	return &cycle{ctx: ctx, now: r.config.now, shard: s}
}

// load reads the state of a partition unless it is known.
func (r *Runner) load(ctx context.Context, s *shard) error {
	if s.loaded || !r.stateful() {
		return nil
	}
	rows, err := r.wire.load(ctx, s.id)
	if err != nil {
		return err
	}
	return s.adopt(&r.program, rows)
}

// commit sends a cycle that covers the first settled messages of a batch; all says that these are the whole batch. After an error the
// shard no longer fits what is stored.
func (r *Runner) commit(ctx context.Context, c *cycle, lease string, settled int, all bool) error {
	late := c.shard.control.Late - c.shard.committedLate
	request := cycleRequest{PartitionID: c.shard.id, ReleaseLease: all}
	if settled > 0 {
		request.Ack = &cycleAck{LeaseID: lease, Status: "completed", Count: settled}
	}
	var stored json.RawMessage
	if r.stateful() {
		var err error
		if stored, err = c.finish(&r.program); err != nil {
			return err
		}
		request.IfState = []expectation{{Key: controlKey, Value: c.shard.expected}}
	}
	if settled == 0 && len(c.items) == 0 && len(c.ops) <= 1 { // nothing but the control row
		return nil
	}
	request.StateOps, request.PushItems = c.ops, c.items
	if err := r.wire.cycle(ctx, &request); err != nil {
		return err
	}
	if stored != nil {
		c.shard.expected = stored
		c.shard.control.Version++
		c.shard.committedLate = c.shard.control.Late
	}
	r.counts.cycles.Add(1)
	r.counts.messages.Add(int64(settled))
	r.counts.windows.Add(c.emitted)
	r.counts.late.Add(late)
	return nil
}

// fail deals with a message that cannot be processed. done ends the work on the batch.
func (r *Runner) fail(ctx context.Context, m *queen.Message, lease string, why error) (done bool, err error) {
	why = fmt.Errorf("query %s: %w", r.name, why)
	if ctx.Err() != nil { // the function may have failed for that reason
		return false, nil
	}
	switch r.config.failure {
	case Stop:
		return true, fmt.Errorf("streams: message %s of %s/%s: %w", m.TransactionID, m.Queue, m.Partition, why)
	case Skip:
		r.config.logger.Warn("streams: a message was skipped", "query", r.name, "partition", m.Partition, "transactionId", m.TransactionID, "err", why)
		request := cycleRequest{PartitionID: m.PartitionID, Ack: &cycleAck{LeaseID: lease, Status: "completed", Count: 1}}
		if err := r.wire.cycle(ctx, &request); err != nil {
			return true, nil // it comes again
		}
		r.counts.failed.Add(1)
		return false, nil
	}
	r.counts.failed.Add(1)
	r.config.logger.Warn("streams: a message failed", "query", r.name, "partition", m.Partition, "transactionId", m.TransactionID, "err", why)
	_, err = r.wire.client.Ack(ctx, m.Rejected(why))
	r.warn(ctx, "a failed message could not be given back", err)
	return true, nil
}

// giveBack ends a lease without moving the cursor, so that the messages come again at once. It is tried for a short time, also when ctx has
// ended: otherwise they come when the lease ends by itself.
func (r *Runner) giveBack(ctx context.Context, s *shard, lease string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	request := cycleRequest{PartitionID: s.id, Ack: &cycleAck{LeaseID: lease, Status: "retry"}, ReleaseLease: true}
	_ = r.wire.cycle(ctx, &request)
}

func (r *Runner) warn(ctx context.Context, text string, err error) {
	if err != nil && ctx.Err() == nil {
		r.config.logger.Warn("streams: "+text, "query", r.name, "err", err)
	}
}

// maxShards is how many partitions a runner keeps in memory that it is not working on.
const maxShards = 1024

// shards are the partitions that a runner knows the state of. What it knows may have become old: a cycle finds that out.
type shards struct {
	mu    sync.Mutex
	known map[string]*shardEntry
}

// A shardEntry is one of them. Its mutex is held while it is worked on.
type shardEntry struct {
	sync.Mutex
	shard *shard
	users int // guarded by shards.mu
}

// reset forgets the state.
func (e *shardEntry) reset() { e.shard = &shard{id: e.shard.id, name: e.shard.name} }

func (s *shards) use(id, name string) *shardEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry := s.known[id]
	if entry == nil {
		entry = &shardEntry{shard: &shard{id: id, name: name}}
		s.known[id] = entry
	}
	entry.users++
	return entry
}

func (s *shards) done(entry *shardEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entry.users--
	if len(s.known) <= maxShards {
		return
	}
	for id, other := range s.known { // any one will do
		if other.users == 0 {
			delete(s.known, id)
			return
		}
	}
}
