// Package wire is the smallest client of the HTTP contract that the tests of this directory share. It speaks the wire
// and nothing else: no retries, no defaults, no knowledge of the server, so that a test sees what a foreign client sees.
package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"
)

// A Client talks to one broker. It is safe for concurrent use.
type Client struct {
	base string
	http *http.Client
}

// NewClient returns a client for the broker at base, for example "http://127.0.0.1:6632". Connections are kept alive,
// at most connections of them (0 is 64), and end with Close.
func NewClient(base string, connections int) *Client {
	if connections <= 0 {
		connections = 64
	}
	transport := &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}
	return &Client{base: base, http: &http.Client{Transport: transport, Timeout: 90 * time.Second}}
}

// NewFailoverClient returns a client for several brokers of one database: each request goes to the next broker, and to another one when it
// fails there without an answer or with a 503, as often as there are brokers and then again after a pause. Requests of this contract may be
// repeated.
func NewFailoverClient(bases []string, connections int) *Client {
	c := NewClient(bases[0], connections)
	c.http.Transport = &failover{bases: bases, next: c.http.Transport}
	return c
}

// failoverRounds is how often all brokers are tried, failoverPause how long in between.
const (
	failoverRounds = 5
	failoverPause  = 100 * time.Millisecond
)

type failover struct {
	bases []string
	next  http.RoundTripper
	turn  atomic.Uint64
}

func (f *failover) RoundTrip(request *http.Request) (response *http.Response, err error) {
	turn := f.turn.Add(1)
	for attempt := range failoverRounds * len(f.bases) {
		if attempt > 0 && attempt%len(f.bases) == 0 {
			time.Sleep(failoverPause)
		}
		base, parseErr := url.Parse(f.bases[(turn+uint64(attempt))%uint64(len(f.bases))])
		if parseErr != nil {
			return nil, parseErr
		}
		again := request.Clone(request.Context())
		again.URL.Host, again.Host = base.Host, ""
		if request.GetBody != nil {
			if again.Body, err = request.GetBody(); err != nil {
				return nil, err
			}
		}
		response, err = f.next.RoundTrip(again)
		if request.Context().Err() != nil || err == nil && response.StatusCode != http.StatusServiceUnavailable {
			return response, err
		}
		if err == nil && attempt < failoverRounds*len(f.bases)-1 {
			_ = response.Body.Close()
		}
	}
	return response, err
}

// CloseIdleConnections ends those of the brokers.
func (f *failover) CloseIdleConnections() { f.next.(*http.Transport).CloseIdleConnections() }

// Close ends the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// A StatusError is an answer outside the success statuses of a call.
type StatusError struct {
	Status int
	Body   string
}

// Error shows the status and the body.
func (e *StatusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.Status, e.Body) }

// A PushItem is one message to push. Payload is sent byte for byte.
type PushItem struct {
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition,omitempty"`
	TransactionID string          `json:"transactionId,omitempty"`
	TraceID       string          `json:"traceId,omitempty"`
	Payload       json.RawMessage `json:"payload"`
}

// A PushVerdict is the answer to one item.
type PushVerdict struct {
	Index         int    `json:"index"`
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	QueueName     string `json:"queueName"`
	Status        string `json:"status"`
	Error         string `json:"error"`
	Code          string `json:"code"`
}

// A Message is one delivered message. Data holds the payload bytes exactly as they came.
type Message struct {
	ID            string          `json:"id"`
	TransactionID string          `json:"transactionId"`
	TraceID       *string         `json:"traceId"`
	Data          json.RawMessage `json:"data"`
	ProducerSub   *string         `json:"producerSub"`
	CreatedAt     string          `json:"createdAt"`
	PartitionID   string          `json:"partitionId"`
	Partition     string          `json:"partition"`
	LeaseID       string          `json:"leaseId"`
	ConsumerGroup string          `json:"consumerGroup"`
	Queue         string          `json:"queue"`
}

// A Batch is the answer to a pop.
type Batch struct {
	Success           bool      `json:"success"`
	Queue             string    `json:"queue"`
	Partition         string    `json:"partition"`
	PartitionID       string    `json:"partitionId"`
	LeaseID           string    `json:"leaseId"`
	ConsumerGroup     string    `json:"consumerGroup"`
	Messages          []Message `json:"messages"`
	PartitionsClaimed int       `json:"partitionsClaimed"`
}

// A PopRequest names what to pop; zero fields are left out of the query.
type PopRequest struct {
	Queue, Partition  string
	AnyPartition      bool
	Namespace, Task   string
	Group             string
	Batch, Partitions int
	AutoAck, Wait     bool
	Timeout           time.Duration
	LeaseSeconds      int
	Mode, From        string
}

// An AckItem is one acknowledgment.
type AckItem struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	Status        string `json:"status,omitempty"`
	LeaseID       string `json:"leaseId,omitempty"`
	Error         string `json:"error,omitempty"`
}

// An AckResult is the answer to one AckItem.
type AckResult struct {
	Index         int     `json:"index"`
	TransactionID string  `json:"transactionId"`
	Success       bool    `json:"success"`
	Error         *string `json:"error"`
	LeaseReleased bool    `json:"leaseReleased"`
	DLQ           bool    `json:"dlq"`
	Noop          bool    `json:"noop"`
}

// An Operation is one element of a transaction: a push of items or one ack.
type Operation struct {
	Type          string     `json:"type"`
	Items         []PushItem `json:"items,omitempty"`
	TransactionID string     `json:"transactionId,omitempty"`
	PartitionID   string     `json:"partitionId,omitempty"`
	Status        string     `json:"status,omitempty"`
	ConsumerGroup string     `json:"consumerGroup,omitempty"`
	LeaseID       string     `json:"leaseId,omitempty"`
}

// A TransactionAnswer says whether a transaction committed.
type TransactionAnswer struct {
	TransactionID string          `json:"transactionId"`
	Success       bool            `json:"success"`
	Error         string          `json:"error"`
	Results       json.RawMessage `json:"results"`
}

// A Renewal is the answer to a lease extension.
type Renewal struct {
	LeaseID      string  `json:"leaseId"`
	Success      bool    `json:"success"`
	Renewed      int     `json:"renewed"`
	NewExpiresAt *string `json:"newExpiresAt"`
}

// Push sends items in one request.
func (c *Client) Push(ctx context.Context, items []PushItem) ([]PushVerdict, error) {
	body, err := appendItems([]byte(`{"items":`), items)
	if err != nil {
		return nil, err
	}
	var verdicts []PushVerdict
	_, err = c.Do(ctx, http.MethodPost, "/api/v1/push", append(body, '}'), &verdicts)
	return verdicts, err
}

// appendItems appends a JSON array of items. It is made by hand because json.Marshal compacts a raw payload, and payloads
// must arrive byte for byte.
func appendItems(dst []byte, items []PushItem) ([]byte, error) {
	dst = append(dst, '[')
	for i, item := range items {
		if i > 0 {
			dst = append(dst, ',')
		}
		payload := item.Payload
		item.Payload = json.RawMessage("0")
		head, err := json.Marshal(item)
		if err != nil {
			return nil, err
		}
		dst = append(dst, bytes.TrimSuffix(head, []byte("0}"))...)
		dst = append(append(dst, payload...), '}')
	}
	return append(dst, ']'), nil
}

// Pop asks for messages; nil means that there were none.
func (c *Client) Pop(ctx context.Context, r PopRequest) (*Batch, error) {
	path := "/api/v1/pop"
	if r.Queue != "" {
		path += "/queue/" + url.PathEscape(r.Queue)
		if !r.AnyPartition {
			path += "/partition/" + url.PathEscape(r.Partition)
		}
	}
	query := url.Values{}
	set := func(name, value string) {
		if value != "" && value != "0" && value != "false" {
			query.Set(name, value)
		}
	}
	set("namespace", r.Namespace)
	set("task", r.Task)
	set("consumerGroup", r.Group)
	set("batch", strconv.Itoa(r.Batch))
	set("partitions", strconv.Itoa(r.Partitions))
	set("autoAck", strconv.FormatBool(r.AutoAck))
	set("wait", strconv.FormatBool(r.Wait))
	set("timeout", strconv.FormatInt(r.Timeout.Milliseconds(), 10))
	set("leaseSeconds", strconv.Itoa(r.LeaseSeconds))
	set("subscriptionMode", r.Mode)
	set("subscriptionFrom", r.From)
	var batch Batch
	status, err := c.Do(ctx, http.MethodGet, path+"?"+query.Encode(), nil, &batch)
	if err != nil || status == http.StatusNoContent {
		return nil, err
	}
	return &batch, nil
}

// Ack sends items in one batch for group ("" is queue mode).
func (c *Client) Ack(ctx context.Context, group string, items []AckItem) ([]AckResult, error) {
	body, err := json.Marshal(map[string]any{"consumerGroup": nilIfEmpty(group), "acknowledgments": items})
	if err != nil {
		return nil, err
	}
	var results []AckResult
	_, err = c.Do(ctx, http.MethodPost, "/api/v1/ack/batch", body, &results)
	return results, err
}

// Transaction runs operations atomically.
func (c *Client) Transaction(ctx context.Context, operations []Operation) (TransactionAnswer, error) {
	body := []byte(`{"operations":[`)
	for i, operation := range operations {
		if i > 0 {
			body = append(body, ',')
		}
		var err error
		if body, err = operation.append(body); err != nil {
			return TransactionAnswer{}, err
		}
	}
	var answer TransactionAnswer
	_, err := c.Do(ctx, http.MethodPost, "/api/v1/transaction", append(body, "]}"...), &answer)
	return answer, err
}

func (o Operation) append(dst []byte) ([]byte, error) {
	if o.Type == "push" {
		dst, err := appendItems(append(dst, `{"type":"push","items":`...), o.Items)
		return append(dst, '}'), err
	}
	text, err := json.Marshal(o)
	return append(dst, text...), err
}

// Extend lengthens every live lease under leaseID.
func (c *Client) Extend(ctx context.Context, leaseID string, seconds int) (Renewal, error) {
	var renewal Renewal
	body := fmt.Appendf(nil, `{"seconds":%d}`, seconds)
	_, err := c.Do(ctx, http.MethodPost, "/api/v1/lease/"+url.PathEscape(leaseID)+"/extend", body, &renewal)
	return renewal, err
}

// Configure sets options of queue.
func (c *Client) Configure(ctx context.Context, queue string, options map[string]any) error {
	body, err := json.Marshal(map[string]any{"queue": queue, "options": options})
	if err != nil {
		return err
	}
	_, err = c.Do(ctx, http.MethodPost, "/api/v1/configure", body, nil)
	return err
}

// Do sends one request and decodes a 200 or 201 answer into out (when not nil). Any status of 300 or more is a
// *StatusError; anything else is a transport error, after which the call may or may not have taken effect.
func (c *Client) Do(ctx context.Context, method, path string, body []byte, out any) (int, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return response.StatusCode, &StatusError{Status: response.StatusCode, Body: string(answer)}
	}
	if out == nil || response.StatusCode == http.StatusNoContent {
		return response.StatusCode, nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return response.StatusCode, fmt.Errorf("decode answer of %s %s: %w: %s", method, path, err, answer)
	}
	return response.StatusCode, nil
}

func nilIfEmpty(s string) any {
	if s == "" {
		return nil
	}
	return s
}
