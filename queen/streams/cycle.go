package streams

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"queenmq/queen"
)

// What one cycle may hold. The broker's bound is 10,000 messages and 10,000 operations; one message may lead to thousands.
const (
	maxItems     = 4000
	maxOps       = 4000
	maxItemBytes = 8 << 20
)

// errMore stops the processing of a batch because the cycle has enough to commit; it goes on after that.
var errMore = errors.New("the cycle is full")

// A cycle is the work on a part of a batch, from its messages to what the broker commits.
type cycle struct {
	ctx   context.Context
	now   func() time.Time
	shard *shard

	items     []sinkItem
	itemBytes int
	ops       []stateOp
	emitted   int64 // windows
	// touched says that the message at hand has left something behind, so that it cannot be taken back without reading the state again.
	touched bool
}

// A sinkItem is a message for a sink.
type sinkItem struct {
	Queue, Partition string
	From             origin
	Payload          json.RawMessage // valid JSON
}

// appendJSON writes an item as the wire has it. The payload keeps its bytes, which encoding/json would change.
func (i *sinkItem) appendJSON(dst []byte) []byte {
	for _, member := range [...]struct{ name, value string }{{`{"queue":`, i.Queue}, {`,"partition":`, i.Partition}, {`,"traceId":`, i.From.trace}, {`,"traceparent":`, i.From.parent}} {
		if member.value != "" || member.name[0] == '{' {
			text, _ := json.Marshal(member.value) // a string always encodes
			dst = append(append(dst, member.name...), text...)
		}
	}
	dst = append(append(dst, `,"payload":`...), i.Payload...)
	return append(dst, '}')
}

// A stateOp changes one state row.
type stateOp struct {
	Type  string          `json:"type"`
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value,omitempty"`
}

func (c *cycle) push(queue, partition string, from origin, payload json.RawMessage) {
	c.touched = true
	c.items = append(c.items, sinkItem{Queue: queue, Partition: partition, From: from, Payload: payload})
	c.itemBytes += len(payload)
}

// full says that no more should be added before a commit.
func (c *cycle) full() bool {
	changes := c.shard.dirtyBuckets
	if w, ok := c.shard.windows.(interface{ changes() int }); ok {
		changes += w.changes()
	}
	return len(c.items) >= maxItems || c.itemBytes >= maxItemBytes || changes >= maxOps
}

// A stop says why the processing of a batch ended before its end.
type stop struct {
	// wait > 0: the next message may pass later.
	wait time.Duration
	// failed is why the next message fails.
	failed error
	// redo: the next message has left something behind; the messages before it must be processed anew.
	redo bool
}

// run processes messages until the end, or until one cannot be taken now. It returns how many were.
func (c *cycle) run(p *program, messages []queen.Message) (settled int, s stop) {
	for i := range messages {
		if i > 0 && c.full() {
			return i, stop{}
		}
		if err := c.ctx.Err(); err != nil {
			return i, stop{}
		}
		c.touched = false
		err := p.message(c, &messages[i])
		if err == nil {
			continue
		}
		var denied *deniedError
		switch {
		case errors.Is(err, errMore):
			return i, stop{}
		case errors.As(err, &denied):
			return i, stop{wait: denied.wait, redo: c.touched}
		default:
			return i, stop{failed: err, redo: c.touched}
		}
	}
	return len(messages), stop{}
}

// A shard is the state of a query for one source partition, as the runner knows it.
type shard struct {
	id, name string
	loaded   bool
	// expected is the control row as it is stored, nil when there is none: a cycle is refused when it has changed.
	expected json.RawMessage
	control  control
	// committedLate is the count of late records that is stored.
	committedLate int64
	rows          map[string]json.RawMessage // as loaded; the operators take what is theirs

	windows      any
	buckets      map[string]map[string]*bucket // by gate, then key
	dirtyBuckets int
}

// control is the row that every cycle of a query with state changes, so that two of them cannot both be computed from the same state.
type control struct {
	Version int64 `json:"version"`
	// Watermark is the latest event time (epoch ms); nil before the first record.
	Watermark *int64 `json:"watermark,omitempty"`
	// Late counts records that belonged to closed windows.
	Late int64 `json:"late"`
}

// controlKey is the state key of control.
const controlKey = "control"

// finish adds the operations of the operators and of the control row to the cycle, and returns the value of the latter.
func (c *cycle) finish(p *program) (json.RawMessage, error) {
	for _, collect := range p.collect {
		if err := collect(c); err != nil {
			return nil, err
		}
	}
	next := c.shard.control
	next.Version++
	value, err := json.Marshal(next)
	if err != nil {
		return nil, err
	}
	c.ops = append(c.ops, stateOp{Type: "upsert", Key: controlKey, Value: value})
	return value, nil
}

// adopt takes the rows of a partition as its state.
func (s *shard) adopt(p *program, rows map[string]json.RawMessage) error {
	if raw, ok := rows[controlKey]; ok {
		if err := json.Unmarshal(raw, &s.control); err != nil {
			return err
		}
		s.expected, s.committedLate = raw, s.control.Late
	}
	s.rows = rows
	for _, load := range p.load {
		if err := load(s); err != nil {
			return err
		}
	}
	s.rows, s.loaded = nil, true
	return nil
}
