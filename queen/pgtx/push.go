package pgtx

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"queenmq/internal/engine/segment"
	"queenmq/queen"
)

// Bounds of names, those of the brokers.
const (
	maxQueueCharacters = 255
	maxPartitionBytes  = 1024
)

// pushRounds bounds how often segments are sent again: for duplicates, for encryption, and for what these two held back. Each
// round settles what was in its way, so that more means that somebody changes a queue's settings all the time.
const pushRounds = 8

// PushTx stores items in tx: others see them when tx is committed, and never when it is rolled back. The results are parallel to
// items; a duplicate, whose transaction id the partition has seen inside the queue's de-duplication window, stores nothing and is no
// error. The id of the message that came first is not looked up. Items of one partition keep their order. Queues and partitions are
// created when they are new.
//
// Errors, after which tx must be rolled back: [queen.ErrQueueFull]; [queen.ErrUnavailable] when pushes are in maintenance or the
// queue is encrypted and no key was given (the Code tells them apart); [queen.ErrInvalid] for items that make no sense and for a
// push after an acknowledgment; those of the database.
func (c *Client) PushTx(ctx context.Context, tx pgx.Tx, items ...queen.Item) ([]queen.PushResult, error) {
	if len(items) == 0 {
		return nil, nil
	}
	results := make([]queen.PushResult, len(items))
	lanes, err := c.lanes(items, results)
	if err != nil {
		return nil, err
	}
	for range pushRounds {
		if lanes, err = c.store(ctx, tx, lanes, results); err != nil {
			return nil, err
		}
		if len(lanes) == 0 {
			return results, nil
		}
	}
	return nil, &queen.Error{Status: 503, Code: "conflict", Message: "pgtx: push: the settings of the queue keep changing; roll the transaction back and repeat it"}
}

// A lane is the messages for one partition.
type lane struct {
	queue, partition string
	frames           []segment.Frame
	items            []int // parallel to frames
	sealed           bool
}

// lanes sorts items into partitions. Of items with one transaction id the first is stored.
func (c *Client) lanes(items []queen.Item, results []queen.PushResult) ([]*lane, error) {
	type address struct{ queue, partition string }
	type key struct {
		address
		transactionID string
	}
	var lanes []*lane
	places := map[address]*lane{}
	seen := map[key]int{}
	for i := range items {
		item := &items[i]
		if err := check(i, item); err != nil {
			return nil, err
		}
		at := address{item.Queue, item.Partition}
		if at.partition == "" {
			at.partition = "Default"
		}
		frame := segment.Frame{ID: segment.NewID(), TransactionID: item.TransactionID, Payload: item.Payload}
		if frame.TransactionID == "" {
			frame.TransactionID = frame.ID.String()
		}
		if trace, err := uuid.Parse(item.TraceID); err == nil {
			frame.TraceID = uuid.NullUUID{UUID: trace, Valid: true}
		}
		frame.Context = segment.ParseTraceparent([]byte(item.Traceparent))
		results[i] = queen.PushResult{Status: queen.Queued, MessageID: frame.ID.String(), TransactionID: frame.TransactionID}
		if first, repeated := seen[key{at, frame.TransactionID}]; repeated {
			results[i].Status, results[i].MessageID = queen.Duplicate, results[first].MessageID
			continue
		}
		seen[key{at, frame.TransactionID}] = i
		l := places[at]
		if l == nil {
			l = &lane{queue: at.queue, partition: at.partition}
			places[at] = l
			lanes = append(lanes, l)
		}
		l.frames = append(l.frames, frame)
		l.items = append(l.items, i)
	}
	return lanes, nil
}

func check(i int, item *queen.Item) error {
	switch {
	case item.Queue == "" || utf8.RuneCountInString(item.Queue) > maxQueueCharacters:
		return invalid("push", "message %d: the name of its queue has 1 to %d characters", i, maxQueueCharacters)
	case len(item.Partition) > maxPartitionBytes:
		return invalid("push", "message %d: the name of its partition has at most %d bytes", i, maxPartitionBytes)
	case len(item.TransactionID) > segment.MaxTransactionIDBytes:
		return invalid("push", "message %d: its transaction id has at most %d bytes", i, segment.MaxTransactionIDBytes)
	case !json.Valid(item.Payload):
		return invalid("push", "message %d: its payload is not JSON", i)
	}
	for _, name := range [...]string{item.Queue, item.Partition, item.TransactionID} {
		if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 }) {
			return invalid("push", "message %d: names are UTF-8 without control characters", i)
		}
	}
	return nil
}

// A verdict is what log_caller_push_v1 says about one segment.
type verdict struct {
	Status      string `json:"status"`
	PartitionID string `json:"partitionId"`
	Limit       *int64 `json:"limit"`
	Depth       int64  `json:"depth"`
	Remaining   int64  `json:"remaining"`
	Duplicates  []struct {
		Frame int `json:"i"`
	} `json:"dups"`
}

const pushStatement = `SELECT queen.log_caller_push_v1($1::text::uuid, $2::text[], $3::text[], $4::int[], $5::bytea[], $6::bytea[], $7::boolean[], $8::text::jsonb, $9::boolean, $10::boolean)`

// store sends the lanes once and returns those that have to be sent again.
func (c *Client) store(ctx context.Context, tx pgx.Tx, lanes []*lane, results []queen.PushResult) (again []*lane, err error) {
	n := len(lanes)
	queues, partitions, counts := make([]string, n), make([]string, n), make([]int32, n)
	hashes, blobs, plain := make([][]byte, n), make([][]byte, n), make([]bool, n)
	var traces []trace
	for i, l := range lanes {
		queues[i], partitions[i], plain[i] = l.queue, l.partition, !l.sealed
		counts[i] = int32(len(l.frames)) //nolint:gosec // frames of one call fit into memory
		if blobs[i], hashes[i], err = segment.Pack(l.frames); err != nil {
			return nil, invalid("push", "queue %q partition %q: %v", l.queue, l.partition, err)
		}
		for k := range l.frames {
			if id := l.frames[k].TraceID; id.Valid {
				traces = append(traces, trace{Segment: i, Frame: k, ID: id.UUID})
			}
		}
	}
	var traceText *string
	if traces != nil {
		text, err := json.Marshal(traces)
		if err != nil {
			return nil, fmt.Errorf("pgtx: push: encode trace ids: %w", err)
		}
		traceText = new(string(text))
	}
	var answer []byte
	if err := tx.QueryRow(ctx, pushStatement, c.tenant.String(), queues, partitions, counts, hashes, blobs, plain, traceText, c.ring != nil, c.hints).Scan(&answer); err != nil {
		return nil, failed("push", err)
	}
	var verdicts []verdict
	if err := json.Unmarshal(answer, &verdicts); err != nil || len(verdicts) != n {
		return nil, fmt.Errorf("pgtx: push: the database answered %d verdicts for %d partitions: %w", len(verdicts), n, err)
	}
	for i, l := range lanes {
		if l.settle(&verdicts[i], c, results) {
			again = append(again, l)
		}
	}
	return again, nil
}

// A trace is one element of p_traces.
type trace struct {
	Segment int       `json:"s"`
	Frame   int       `json:"i"`
	ID      uuid.UUID `json:"t"`
}

// settle writes down what a verdict says, and tells whether the rest of the lane has to be sent again.
func (l *lane) settle(v *verdict, c *Client, results []queen.PushResult) (again bool) {
	for _, i := range l.items {
		r := &results[i]
		r.PartitionID = v.PartitionID
		if v.Limit != nil {
			r.Bounded, r.QueueDepth, r.RemainingCapacity = true, v.Depth, v.Remaining
		}
	}
	switch v.Status {
	case "queued":
		return false
	case "config": // the queue demands encryption
		for k := range l.frames {
			l.frames[k].Payload, l.frames[k].Encrypted = c.ring.Seal(l.frames[k].Payload), true
		}
		l.sealed = true
		return true
	case "duplicate":
		l.drop(v, results)
		return len(l.frames) > 0
	}
	return true // held back by another segment of its queue
}

// drop takes the duplicates out.
func (l *lane) drop(v *verdict, results []queen.PushResult) {
	duplicate := make([]bool, len(l.frames))
	for _, d := range v.Duplicates {
		if d.Frame >= 0 && d.Frame < len(duplicate) {
			duplicate[d.Frame] = true
		}
	}
	frames, items := l.frames[:0], l.items[:0]
	for k := range duplicate {
		if duplicate[k] {
			results[l.items[k]].Status, results[l.items[k]].MessageID = queen.Duplicate, ""
			continue
		}
		frames, items = append(frames, l.frames[k]), append(items, l.items[k])
	}
	l.frames, l.items = frames, items
}
