package pgtx

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"queenmq/internal/engine/segment"
	"queenmq/internal/secret"
	"queenmq/queen"
)

// Where a pop without a broker differs from one through it.
const (
	defaultBatch = 200
	queueMode    = "__QUEUE_MODE__"
	// shortestLook and longestLook are the pauses between two looks of a pop that waits.
	shortestLook = 50 * time.Millisecond
	longestLook  = time.Second
)

const popStatement = `SELECT meta, blobs FROM queen.log_caller_pop_v1($1::text::uuid, $2::text, $3::text, $4::text, $5::text, $6::text, $7::int, $8::int, $9::text, $10::int, $11::text, $12::text)`

// Pop asks the database for messages, without a broker, and leases them to the caller in a transaction of its own; see
// [queen.Client.Pop] for queue and o. Acknowledge with [Client.AckTx], lengthen with [Client.Extend]. Messages that are not
// acknowledged come again when their lease ends. Nothing to deliver is an empty batch.
//
// It is for programs that have no broker, or few pops: each call searches the queue in the database, and a pop with Wait looks again
// and again, at least once a second. A broker knows from memory what is ready and wakes who waits; prefer it where there is one.
//
// Errors: [queen.ErrInvalid] for AutoAck, which has no place here; [queen.ErrUnavailable] when a message is encrypted and no key
// opens it, and nothing stays leased then; those of the database.
func (c *Client) Pop(ctx context.Context, db Database, queue string, o queen.PopOptions) (*queen.Batch, error) {
	if o.AutoAck {
		return nil, invalid("pop", "AutoAck would acknowledge before the caller's transaction is committed")
	}
	if queue == "" && o.Namespace == "" && o.Task == "" {
		return nil, invalid("pop", "name a queue, or a Namespace or Task")
	}
	ends := time.Now().Add(o.Wait)
	for look := shortestLook; ; look = min(look*2, longestLook) {
		batch, err := c.popOnce(ctx, db, queue, &o)
		if err != nil || len(batch.Messages) > 0 || !time.Now().Before(ends) {
			return batch, err
		}
		timer := time.NewTimer(min(look, time.Until(ends)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("pgtx: pop: %w", context.Cause(ctx))
		case <-timer.C:
		}
	}
}

func (c *Client) popOnce(ctx context.Context, db Database, queue string, o *queen.PopOptions) (*queen.Batch, error) {
	batch := &queen.Batch{LeaseID: segment.NewID().String(), Group: o.Group, Lease: o.Lease, ReceivedAt: time.Now()}
	group := o.Group
	if group == "" {
		group = queueMode
	}
	budget, partitions := o.Batch, o.Partitions
	if budget == 0 {
		budget = defaultBatch
	}
	switch {
	case partitions == 0:
		partitions = 1
	case partitions < 0:
		partitions = 0 // the procedures' word for no bound
	}
	var lease *int32
	if o.Lease > 0 {
		lease = new(int32(min((o.Lease+time.Second-1)/time.Second, 30*86_400))) //nolint:gosec // bounded in this line
	}
	mode, from := o.Start.Wire()
	if mode == "" && from == "" {
		mode = "all"
	}
	err := inTransaction(ctx, db, func(tx pgx.Tx) error {
		var meta []byte
		var blobs [][]byte
		if err := tx.QueryRow(ctx, popStatement, c.tenant.String(), optional(queue), optional(o.Partition), o.Namespace, o.Task, group, budget, lease,
			batch.LeaseID, partitions, mode, from).Scan(&meta, &blobs); err != nil {
			return err
		}
		return c.read(batch, meta, blobs)
	})
	if err != nil {
		if _, ours := err.(*queen.Error); ours { //nolint:errorlint // made in this file
			return nil, err
		}
		return nil, failed("pop", err)
	}
	return batch, nil
}

func optional(name string) *string {
	if name == "" {
		return nil
	}
	return &name
}

// A claim is the description of what was claimed; see 030.
type claim struct {
	Partitions []struct {
		Queue       string `json:"queue"`
		Partition   string `json:"partition"`
		PartitionID string `json:"partitionId"`
		Segments    []struct {
			Start     int       `json:"startOff"`
			Take      int       `json:"take"`
			CreatedAt time.Time `json:"createdAt"`
		} `json:"segments"`
	} `json:"partitions"`
}

// read unpacks a claim. An error undoes it, because the transaction that made it is rolled back.
func (c *Client) read(batch *queen.Batch, meta []byte, blobs [][]byte) error {
	var claimed claim
	if err := json.Unmarshal(meta, &claimed); err != nil {
		return fmt.Errorf("read the claim: %w", err)
	}
	next := 0
	for _, p := range claimed.Partitions {
		for _, s := range p.Segments {
			if next >= len(blobs) {
				return fmt.Errorf("read the claim: %d segments are missing", next+1-len(blobs))
			}
			err := c.unpack(batch, blobs[next], s.Start, s.Take, queen.Message{
				Queue: p.Queue, Partition: p.Partition, PartitionID: p.PartitionID, CreatedAt: s.CreatedAt.UTC(), LeaseID: batch.LeaseID, Group: batch.Group,
			})
			if err != nil {
				return err
			}
			next++
		}
	}
	return nil
}

// unpack appends messages of one segment; like has what they share.
func (c *Client) unpack(batch *queen.Batch, blob []byte, start, take int, like queen.Message) error {
	frames, err := segment.Unpack(blob)
	if err != nil {
		return fmt.Errorf("read a segment of queue %q partition %q: %w", like.Queue, like.Partition, err)
	}
	defer frames.Release()
	if start < 0 || take < 0 || start+take > frames.Len() {
		return fmt.Errorf("read a segment of queue %q partition %q: messages %d to %d of %d", like.Queue, like.Partition, start, start+take, frames.Len())
	}
	for i := start; i < start+take; i++ {
		frame := frames.At(i)
		payload := frame.Payload
		if frame.Encrypted || c.ring != nil {
			if c.ring == nil {
				return undecryptable(like, "no key was given")
			}
			if payload, err = (secret.Reader{Ring: c.ring}).Open(payload, frame.Encrypted); err != nil {
				return undecryptable(like, "no key opens it")
			}
		}
		message := like
		message.ID, message.TransactionID, message.ProducerSub = frame.ID.String(), frame.TransactionID, frame.ProducerSub
		message.Payload = bytes.Clone(payload) // the segment's buffer is used again
		if len(payload) == 0 {
			message.Payload = json.RawMessage("null")
		}
		if frame.TraceID.Valid {
			message.TraceID = frame.TraceID.UUID.String()
		}
		if frame.Context != (segment.TraceContext{}) {
			message.Traceparent = string(frame.Context.AppendTraceparent(nil))
		}
		batch.Messages = append(batch.Messages, message)
	}
	return nil
}

func undecryptable(like queen.Message, why string) error {
	return &queen.Error{
		Status: 503, Code: "encryption_key_missing", Message: fmt.Sprintf("pgtx: pop: queue %q partition %q holds an encrypted message and %s", like.Queue, like.Partition, why),
	}
}
