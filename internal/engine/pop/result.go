package pop

import (
	"context"
	"encoding/hex"
	"encoding/json/jsontext"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// abandonTimeout bounds giving back the leases of one answer that could not be sent. What is not reached in time redelivers when
// its lease expires.
const abandonTimeout = 5 * time.Second

// timeLayout is the wire form of message times: UTC with microseconds.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// A Result is what one pop claimed, at least one message. Its messages lie in pooled buffers: call Release when the answer has
// been rendered, and Done when it has been sent, whatever became of it.
type Result struct {
	// Queue is the queue asked for; empty for a discovery pop.
	Queue string
	// LeaseID holds the messages; empty when they were acknowledged by the pop itself.
	LeaseID string
	Group   string
	// Partitions are the batches in claim order.
	Partitions []Batch

	server *Server
	tenant uuid.UUID
	// room is the memory that the answer is counted with.
	room hold
	// rendered is how long the rendered answer is; 0 before.
	rendered int64
	// lease is how long the messages are held; 0 for a discovery pop, which leaves it to each queue.
	lease time.Duration
}

func (s *Server) newResult(l *look, batches []Batch) *Result {
	result := &Result{Group: l.Group, Partitions: batches, server: s, tenant: l.Tenant, room: l.room, lease: time.Duration(l.LeaseSeconds) * time.Second}
	l.room = hold{}
	if l.kind != Discovery {
		result.Queue = l.Queue
	}
	if !l.AutoAck {
		result.LeaseID = l.Worker
	}
	return result
}

// Messages is the number of messages in all partitions.
func (r *Result) Messages() int {
	n := 0
	for i := range r.Partitions {
		n += r.Partitions[i].Messages
	}
	return n
}

// AppendJSON appends the answer's whole body to dst. Payloads are copied byte for byte, an empty one is null,
// an encrypted one is decrypted.
func (r *Result) AppendJSON(dst []byte) []byte {
	dst = slices.Grow(dst, r.sizeHint())
	first := &r.Partitions[0]
	dst = append(dst, `{"success":true,"queue":`...)
	dst = appendString(dst, r.Queue)
	dst = append(dst, `,"partition":`...)
	dst = appendString(dst, first.Partition)
	dst = append(dst, `,"partitionId":"`...)
	dst = appendUUID(dst, first.PartitionID)
	dst = append(dst, `","leaseId":`...)
	dst = appendString(dst, r.LeaseID)
	dst = append(dst, `,"consumerGroup":`...)
	dst = appendString(dst, r.Group)
	dst = append(dst, `,"messages":[`...)
	var tail []byte
	for i := range r.Partitions {
		batch := &r.Partitions[i]
		tail = r.appendTail(tail[:0], batch)
		for j := range batch.slices {
			if i > 0 || j > 0 {
				dst = append(dst, ',')
			}
			dst = r.appendSlice(dst, &batch.slices[j], tail)
		}
	}
	dst = append(dst, `],"partitionsClaimed":`...)
	dst = strconv.AppendInt(dst, int64(len(r.Partitions)), 10)
	dst = append(dst, '}')
	r.rendered = int64(len(dst))
	return dst
}

// appendTail appends what all messages of a batch end with.
func (r *Result) appendTail(dst []byte, batch *Batch) []byte {
	dst = append(dst, `","partitionId":"`...)
	dst = appendUUID(dst, batch.PartitionID)
	dst = append(dst, `","partition":`...)
	dst = appendString(dst, batch.Partition)
	dst = append(dst, `,"leaseId":`...)
	dst = appendString(dst, r.LeaseID)
	dst = append(dst, `,"consumerGroup":`...)
	dst = appendString(dst, r.Group)
	dst = append(dst, `,"queue":`...)
	dst = appendString(dst, batch.Queue)
	return append(dst, '}')
}

// appendSlice appends the messages of one segment, separated by commas.
func (r *Result) appendSlice(dst []byte, s *slice, tail []byte) []byte {
	var stamp [len(timeLayout)]byte
	createdAt := s.createdAt.UTC().AppendFormat(stamp[:0], timeLayout)
	for i := s.start; i < s.start+s.take; i++ {
		if i > s.start {
			dst = append(dst, ',')
		}
		frame := s.frames.View(i)
		dst = append(dst, `{"id":"`...)
		dst = appendUUID(dst, frame.ID)
		dst = append(dst, `","transactionId":`...)
		dst = appendString(dst, frame.TransactionID)
		dst = append(dst, `,"traceId":`...)
		if frame.TraceID.Valid {
			dst = append(dst, '"')
			dst = appendUUID(dst, frame.TraceID.UUID)
			dst = append(dst, '"')
		} else {
			dst = append(dst, "null"...)
		}
		if frame.Context != (segment.TraceContext{}) {
			dst = append(dst, `,"traceparent":"`...)
			dst = append(frame.Context.AppendTraceparent(dst), '"')
		}
		payload := frame.Payload
		if frame.Encrypted {
			payload = s.plain[i-s.start]
		} else if r.server.cfg.Sniff {
			payload = r.server.sniff(payload)
		}
		dst = append(dst, `,"data":`...)
		if len(payload) > 0 {
			dst = append(dst, payload...)
		} else {
			dst = append(dst, "null"...)
		}
		dst = append(dst, `,"producerSub":`...)
		if len(frame.ProducerSub) > 0 {
			dst = appendString(dst, frame.ProducerSub)
		} else {
			dst = append(dst, "null"...)
		}
		dst = append(dst, `,"createdAt":"`...)
		dst = append(dst, createdAt...)
		dst = append(dst, tail...)
	}
	return dst
}

// sizeHint is about the length of the body, so that it is built in one allocation.
func (r *Result) sizeHint() int {
	const envelope, message = 256, 256
	size := envelope + len(r.Queue) + len(r.Group)
	for i := range r.Partitions {
		batch := &r.Partitions[i]
		names := len(batch.Queue) + len(batch.Partition) + len(r.LeaseID) + len(r.Group)
		for _, s := range batch.slices {
			for j := s.start; j < s.start+s.take; j++ {
				frame := s.frames.View(j)
				size += message + names + len(frame.TransactionID) + len(frame.ProducerSub) + len(frame.Payload)
			}
		}
	}
	return size
}

// Done gives back the room that the answer takes among all answers. Doing so twice is fine.
func (r *Result) Done() { r.room.release() }

// Release gives the buffers of the messages back. The answer cannot be rendered afterwards; releasing twice is fine.
func (r *Result) Release() {
	for i := range r.Partitions {
		releaseAll(r.Partitions[i : i+1])
		r.Partitions[i].slices = nil
	}
	r.room.resize(min(r.room.bytes, r.rendered))
}

// Abandon gives the leases back because nobody is left to receive the answer, so that the messages go to somebody else at once
// instead of after the lease. It outlives ctx and is bounded by itself. What was acknowledged by the pop stays acknowledged.
func (r *Result) Abandon(ctx context.Context) {
	r.Release()
	r.Done()
	if r.LeaseID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	for i := range r.Partitions {
		batch := &r.Partitions[i]
		if r.release(ctx, pg.ClaimedPartition{Queue: batch.Queue, Partition: batch.Partition, PartitionID: batch.PartitionID}) {
			r.server.gates.Released(r.tenant, batch.Queue, batch.Partition, r.Group, "")
		}
	}
}

// release ends the lease on one partition without moving the cursor.
func (r *Result) release(ctx context.Context, partition pg.ClaimedPartition) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	slot, err := r.server.slots.Acquire(ctx, admission.Ack)
	if err == nil {
		defer slot.Release()
		err = r.server.db.ReleaseLease(ctx, partition.PartitionID, r.Group, r.LeaseID)
	}
	if err != nil {
		r.server.logKept(ctx, partition, r.Group, r.LeaseID, err)
	}
	return err == nil
}

// logKept says that a lease could not be ended.
func (s *Server) logKept(ctx context.Context, partition pg.ClaimedPartition, group, worker string, err error) {
	s.log.WarnContext(ctx, "lease not given back; its messages redeliver when it expires",
		slog.String("queue", partition.Queue),
		slog.String("partition_id", partition.PartitionID.String()),
		slog.String("group", group),
		slog.String("worker", worker),
		slog.Any("error", err))
}

// appendString appends s as a JSON string. Bytes that are not UTF-8, which only a damaged segment can hold, become U+FFFD.
func appendString[Bytes ~[]byte | ~string](dst []byte, s Bytes) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // its only error says that bytes were replaced
	return dst
}

// appendUUID appends the 36 characters of id.
func appendUUID(dst []byte, id uuid.UUID) []byte {
	dst = hex.AppendEncode(dst, id[:4])
	for _, part := range [][]byte{id[4:6], id[6:8], id[8:10], id[10:]} {
		dst = append(dst, '-')
		dst = hex.AppendEncode(dst, part)
	}
	return dst
}
