package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

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
	ctx, cancel := outliving(r.Context())
	defer cancel()
	verdicts, err := s.deps.Pusher.Push(ctx, push.Request{
		Tenant: tenantOf(r), ProducerSub: subjectOf(r), Items: buffer.items,
	})
	if err != nil {
		return err // the pusher may still hold payloads: the buffer is left to the garbage collector
	}
	out := getBuffer()
	defer putBuffer(out)
	status, err := s.renderVerdicts(out, r, buffer.items, verdicts)
	buffer.recycle()
	releaseBody(w) // a client that does not read its answer keeps nobody out
	if err != nil {
		return err
	}
	_ = writeJSON(w, status, *out) // committed whether the client reads it or not
	return nil
}

// leavingGrace is how long a push goes on after the end of its client's input. Clients that only end their side of the connection, as pipes
// of a shell do, are told what became of it; of those that left, none keeps its memory for much longer.
const leavingGrace = 5 * time.Second

// outliving is a request's context, ending leavingGrace later.
func outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		late := time.AfterFunc(leavingGrace, cancel)
		context.AfterFunc(longer, func() { late.Stop() })
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// renderVerdicts renders the answer of a push. When the database was away, or the key was missing, for every single item, the whole request is
// answered 503: clients repeat it with the same transaction ids, which stores each message once.
func (s *Server) renderVerdicts(out *[]byte, r *http.Request, items []push.Item, verdicts []push.Verdict) (status int, err error) {
	paused := s.deps.Flags.PushesPaused()
	if err := failedAltogether(verdicts); err != nil && !paused {
		return 0, err
	}
	dst := append((*out)[:0], '[')
	for i := range verdicts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = s.appendVerdict(dst, r, i, &items[i], &verdicts[i])
	}
	dst = append(dst, ']')
	*out = dst
	status = http.StatusCreated
	if paused && slices.ContainsFunc(verdicts, func(v push.Verdict) bool { return v.Status == push.StatusFailed }) {
		status = http.StatusInternalServerError // what the contract has for maintenance
	}
	return status, nil
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
