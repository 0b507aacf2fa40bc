package queen

import (
	"context"
	"encoding/json"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"uuid"
)

// An Item is one message to push.
type Item struct {
	// Queue is created by its first message. It must not be empty.
	Queue string
	// Partition keeps its messages in order; "" is the partition "Default".
	Partition string
	// TransactionID makes a repeat harmless: a partition stores an id once inside the queue's de-duplication window. When it is empty,
	// every call of Push makes up a new one.
	TransactionID string
	// TraceID, a UUID, ties messages together across queues; "" is none.
	TraceID string
	// Traceparent is that of the W3C (version 00): the span that pushes. The consumer gets it with the message; "" is none.
	Traceparent string
	// Payload is any JSON value. Its bytes come out as they went in.
	Payload json.RawMessage
}

// NewItem returns an item with value as its payload, encoded as encoding/json does. Set the other fields afterwards.
func NewItem[T any](queue, partition string, value T) (Item, error) {
	payload, err := json.Marshal(value)
	if err != nil {
		return Item{}, fmt.Errorf("queen: encode a payload: %w", err)
	}
	return Item{Queue: queue, Partition: partition, Payload: payload}, nil
}

// A PushStatus is what became of one pushed item.
type PushStatus string

// What becomes of an item.
const (
	// Queued: committed in PostgreSQL.
	Queued PushStatus = "queued"
	// Duplicate: the transaction id is stored already, by an earlier push; nothing was written.
	Duplicate PushStatus = "duplicate"
	// Buffered: on the broker's disk while PostgreSQL is away or pushes are in maintenance, to be stored later.
	Buffered PushStatus = "buffered"
	// Failed: stored nowhere.
	Failed PushStatus = "failed"
)

// A PushResult is the answer to one item.
type PushResult struct {
	Status PushStatus
	// MessageID is that of the stored message, for a duplicate that of the first one.
	MessageID     string
	TransactionID string
	// PartitionID is "" when it is not known.
	PartitionID string
	// Bounded says that the queue has a maxSize. Then QueueDepth and RemainingCapacity count messages.
	Bounded                       bool
	QueueDepth, RemainingCapacity int64
	// Err is why a failed item was not stored, nil for every other status.
	Err *Error
}

const pushPath = "/api/v1/push"

// Push stores items and returns one result for each, in order. Items of one partition are stored together, in order, or not at
// all; those of different partitions succeed or fail on their own. What fails for a reason that may pass - a full queue, a broker
// that is away - is sent again until the retry budget ends.
//
// When items stay unstored, the error is that of the first of them, and the results say which. Without results nothing is
// known to be stored; with [ErrUnavailable] a message may have been, so repeat it with the same transaction id.
func (c *Client) Push(ctx context.Context, items ...Item) ([]PushResult, error) {
	return c.push(ctx, items, false)
}

// push is Push; a patient one waits for room until ctx ends.
func (c *Client) push(ctx context.Context, items []Item, patient bool) ([]PushResult, error) {
	if len(items) == 0 {
		return nil, nil
	}
	if c.observer == nil {
		return c.pushUnobserved(ctx, items, patient)
	}
	items = slices.Clone(items)
	ctx, done := c.observer.Pushing(ctx, items)
	results, err := c.pushUnobserved(ctx, items, patient)
	done(results, err)
	return results, err
}

func (c *Client) pushUnobserved(ctx context.Context, items []Item, patient bool) ([]PushResult, error) {
	encoded := make([][]byte, len(items))
	results := make([]PushResult, len(items))
	pending := make([]int, len(items))
	for i := range items {
		id := items[i].TransactionID
		if id == "" {
			id = uuid.NewV7().String()
		}
		var err error
		if encoded[i], err = appendItem(nil, &items[i], id); err != nil {
			return nil, invalidItem(i, err)
		}
		results[i].TransactionID = id
		pending[i] = i
	}
	started := time.Now()
	for attempt := 0; ; attempt++ {
		failure := c.pushPending(ctx, items, encoded, results, pending)
		if failure != nil {
			return nil, failure
		}
		first := -1
		left := pending[:0]
		for _, i := range pending {
			if results[i].Status != Failed {
				continue
			}
			if first < 0 {
				first = i
			}
			if results[i].Err.Retryable() {
				left = append(left, i)
			}
		}
		if first < 0 {
			first = firstFailed(results)
		}
		if pending = left; len(pending) == 0 {
			return results, failedItems(results, first)
		}
		delay := max(jittered(backoff(attempt+1)), results[pending[0]].Err.RetryAfter)
		if !patient && time.Since(started)+delay > c.budget {
			return results, failedItems(results, firstFailed(results))
		}
		if err := c.pause(ctx, delay); err != nil {
			return results, failedItems(results, firstFailed(results))
		}
	}
}

// pushPending sends the items whose positions are in pending and writes their results.
func (c *Client) pushPending(ctx context.Context, items []Item, encoded [][]byte, results []PushResult, pending []int) error {
	size := len(`{"items":[]}`)
	for _, i := range pending {
		size += len(encoded[i]) + 1
	}
	body := append(make([]byte, 0, size), `{"items":[`...)
	for n, i := range pending {
		if n > 0 {
			body = append(body, ',')
		}
		body = append(body, encoded[i]...)
	}
	body = append(body, "]}"...)
	response, err := c.do(ctx, request{method: http.MethodPost, path: pushPath, body: body, repeatable: true, key: items[pending[0]].Queue})
	if err != nil {
		return err
	}
	verdicts, err := Decode[[]pushVerdict](response.Body)
	if err != nil {
		return err
	}
	if len(verdicts) != len(pending) {
		return fmt.Errorf("queen: the broker answered %d results for %d messages", len(verdicts), len(pending))
	}
	for n, i := range pending {
		results[i] = verdicts[n].result(response)
	}
	return nil
}

// A pushVerdict is one element of the answer.
type pushVerdict struct {
	MessageID         string     `json:"message_id"`
	TransactionID     string     `json:"transaction_id"`
	PartitionID       string     `json:"partition_id"`
	Status            PushStatus `json:"status"`
	Error             string     `json:"error"`
	Code              string     `json:"code"`
	QueueDepth        *int64     `json:"queueDepth"`
	RemainingCapacity *int64     `json:"remainingCapacity"`
}

func (v *pushVerdict) result(response *Response) PushResult {
	r := PushResult{Status: v.Status, MessageID: v.MessageID, TransactionID: v.TransactionID, PartitionID: v.PartitionID}
	if v.QueueDepth != nil {
		r.Bounded, r.QueueDepth = true, *v.QueueDepth
	}
	if v.RemainingCapacity != nil {
		r.RemainingCapacity = *v.RemainingCapacity
	}
	switch v.Status {
	case Queued, Duplicate, Buffered:
	default:
		r.Status = Failed
		r.Err = &Error{
			Status: itemStatus(v.Code), Code: v.Code, Message: v.Error, Method: http.MethodPost, Path: pushPath, Server: response.server.base,
			RetryAfter: retryAfter(response.Header.Get("Retry-After"), time.Now()),
		}
		if r.Err.Message == "" {
			r.Err.Message = "the message was not stored"
		}
	}
	return r
}

// itemStatus is the HTTP status that an item's code would have had as an answer of its own: an unknown code is a fault of the
// broker, which may pass.
func itemStatus(code string) int {
	switch code {
	case codeQueueFull:
		return http.StatusCreated
	case "message_too_large":
		return http.StatusRequestEntityTooLarge
	case "bad_data", "invalid_name":
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

func firstFailed(results []PushResult) int {
	for i := range results {
		if results[i].Status == Failed {
			return i
		}
	}
	return -1
}

// failedItems is the error of a push whose item first failed; nil when there is none.
func failedItems(results []PushResult, first int) error {
	if first < 0 {
		return nil
	}
	failed := 0
	for i := range results {
		if results[i].Status == Failed {
			failed++
		}
	}
	summary := *results[first].Err
	summary.Message = fmt.Sprintf("%d of %d messages were not stored; message %d: %s", failed, len(results), first, summary.Message)
	return &summary
}

func invalidItem(i int, err error) *Error {
	return &Error{Status: http.StatusBadRequest, Code: "bad_body", Message: fmt.Sprintf("message %d: %v", i, err), Method: http.MethodPost, Path: pushPath, Cause: err}
}

// appendItem appends an item as JSON, its payload byte for byte. A payload that is no JSON is refused here: put into the
// body it could become members and items that nobody meant.
func appendItem(dst []byte, item *Item, transactionID string) ([]byte, error) {
	switch {
	case item.Queue == "":
		return nil, errors.New("the queue has no name")
	case len(item.Payload) == 0:
		return nil, errors.New("there is no payload; JSON's null is the empty one")
	case !json.Valid(item.Payload):
		return nil, errors.New("the payload is not JSON")
	}
	if dst == nil {
		dst = make([]byte, 0, len(`{"queue":"","partition":"","transactionId":"","traceId":"","traceparent":"","payload":}`)+
			len(item.Queue)+len(item.Partition)+len(transactionID)+len(item.TraceID)+len(item.Traceparent)+len(item.Payload)+8)
	}
	var err error
	if dst, err = appendMember(append(dst, '{'), "queue", item.Queue); err != nil {
		return nil, err
	}
	for _, member := range [...]struct{ name, text string }{{"partition", item.Partition}, {"transactionId", transactionID}, {"traceId", item.TraceID}, {"traceparent", item.Traceparent}} {
		if member.text == "" {
			continue
		}
		if dst, err = appendMember(append(dst, ','), member.name, member.text); err != nil {
			return nil, err
		}
	}
	dst = append(append(dst, `,"payload":`...), item.Payload...)
	return append(dst, '}'), nil
}

// appendMember appends a member whose value is a string.
func appendMember(dst []byte, name, text string) ([]byte, error) {
	dst = append(append(append(dst, '"'), name...), `":`...)
	dst, err := jsontext.AppendQuote(dst, text)
	if err != nil {
		return nil, fmt.Errorf("%s is not UTF-8: %q", name, strings.ToValidUTF8(text, "?"))
	}
	return dst, nil
}
