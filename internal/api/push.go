package api

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"queenmq/internal/engine/push"
)

// A pushBuffer is the memory of one push request: its body and what the scanner made of it.
type pushBuffer struct {
	body []byte
	pushScan
}

var pushBuffers = sync.Pool{New: func() any { return new(pushBuffer) }}

// recycle keeps the memory for another request. It must not be called while the pusher may still hold payloads.
func (b *pushBuffer) recycle() {
	const maxPooledItems = 10_000
	if cap(b.body) > maxPooledBytes || cap(b.items) > maxPooledItems || cap(b.ids) > maxPooledBytes {
		return
	}
	clear(b.items) // names must not outlive their request
	pushBuffers.Put(b)
}

// push appends messages. The answer has one element per item, in the order of the request.
func (s *Server) push(w http.ResponseWriter, r *http.Request) error {
	s.metrics.pushRequests.Add(1)
	if s.deps.Buffer == nil {
		if err := s.refuseWhilePaused(); err != nil {
			return err
		}
	}
	buffer := pushBuffers.Get().(*pushBuffer) //nolint:forcetypeassert // the pool holds nothing else
	var err error
	if buffer.body, err = s.readBody(w, r, buffer.body); err != nil {
		return err
	}
	if err := buffer.scan(buffer.body); err != nil {
		buffer.recycle()
		return err
	}
	if len(buffer.items) == 0 {
		buffer.recycle()
		return writeJSON(w, http.StatusCreated, []byte("[]"))
	}
	s.metrics.pushMessages.Add(int64(len(buffer.items)))
	verdicts, err := s.deps.Pusher.Push(r.Context(), push.Request{
		Tenant: tenantOf(r), ProducerSub: subjectOf(r), Items: buffer.items,
	})
	if err != nil {
		return err // the pusher may still hold payloads: the buffer is left to the garbage collector
	}
	err = s.writeVerdicts(w, r, buffer.items, verdicts)
	buffer.recycle()
	return err
}

// writeVerdicts renders the answer of a push. When the database was away, or the key was missing, for every single item, the whole request is
// answered 503: clients repeat it with the same transaction ids, which stores each message once.
func (s *Server) writeVerdicts(w http.ResponseWriter, r *http.Request, items []push.Item, verdicts []push.Verdict) error {
	paused := s.deps.Flags.PushesPaused()
	if err := failedAltogether(verdicts); err != nil && !paused {
		return err
	}
	out := getBuffer()
	defer putBuffer(out)
	dst := append((*out)[:0], '[')
	for i := range verdicts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = s.appendVerdict(dst, r, i, &items[i], &verdicts[i])
	}
	dst = append(dst, ']')
	*out = dst
	status := http.StatusCreated
	if paused && slices.ContainsFunc(verdicts, func(v push.Verdict) bool { return v.Status == push.StatusFailed }) {
		status = http.StatusInternalServerError // what the contract has for maintenance
	}
	_ = writeJSON(w, status, dst) // committed whether the client reads it or not
	return nil
}

// surroundings are the reasons for a failure that lie in this broker and what it needs, not in the items.
var surroundings = []code{codeDatabaseUnavailable, codeEncryptionRequired, codeBufferFull, codeBufferUnwritable}

// failedAltogether returns the error of the first item when all items failed for the same reason, which lies in this broker and its
// surroundings and not in the items.
func failedAltogether(verdicts []push.Verdict) error {
	reason := code("")
	for i := range verdicts {
		v := &verdicts[i]
		if v.Status != push.StatusFailed || v.Err == nil {
			return nil
		}
		c := classify(v.Err, "").code
		if !slices.Contains(surroundings, c) || i > 0 && c != reason {
			return nil
		}
		reason = c
	}
	return verdicts[0].Err
}

func (s *Server) appendVerdict(dst []byte, r *http.Request, index int, item *push.Item, v *push.Verdict) []byte {
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(dst, `,"message_id":`...)
	dst = appendUUID(dst, v.MessageID)
	dst = append(dst, `,"transaction_id":`...)
	dst = appendString(dst, v.TransactionID)
	dst = append(dst, `,"queueName":`...)
	dst = appendString(dst, item.Queue)
	dst = append(dst, `,"status":"`...)
	dst = append(dst, v.Status...)
	dst = append(dst, '"')
	if v.PartitionID != ([16]byte{}) {
		dst = append(dst, `,"partition_id":`...)
		dst = appendUUID(dst, v.PartitionID)
	}
	if item.TraceID.Valid {
		dst = append(dst, `,"trace_id":`...)
		dst = appendUUID(dst, item.TraceID.UUID)
	}
	depth, limit, remaining := v.Depth, v.Limit, v.Remaining
	if v.Status == push.StatusFailed {
		dst = s.appendItemFault(dst, r, v)
		if full, ok := errors.AsType[*push.QueueFullError](v.Err); ok {
			depth, limit, remaining = full.Depth, full.Limit, full.Remaining
		}
	}
	if limit > 0 {
		dst = append(dst, `,"queueDepth":`...)
		dst = strconv.AppendInt(dst, depth, 10)
		dst = append(dst, `,"remainingCapacity":`...)
		dst = strconv.AppendInt(dst, max(remaining, 0), 10)
	}
	return append(dst, '}')
}

func (s *Server) appendItemFault(dst []byte, r *http.Request, v *push.Verdict) []byte {
	known := classify(v.Err, "")
	if known.row().status >= http.StatusInternalServerError {
		s.faults.log(r.Context(), s.log, known, r.Pattern)
	}
	dst = append(dst, `,"error":`...)
	dst = appendString(dst, known.text)
	dst = append(dst, `,"code":`...)
	return appendString(dst, string(known.code))
}
