package queen

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A Message is one delivered message.
type Message struct {
	// ID is a UUIDv7; ids grow along a partition.
	ID            string `json:"id"`
	TransactionID string `json:"transactionId"`
	// TraceID is "" when the message carries none.
	TraceID string `json:"traceId"`
	// Traceparent is that of the span that pushed the message; "" when there was none.
	Traceparent string `json:"traceparent"`
	// Payload is the JSON value that was pushed, byte for byte.
	Payload json.RawMessage `json:"data"`
	// ProducerSub is the subject of the token that pushed it; "" without authentication.
	ProducerSub string `json:"producerSub"`
	// CreatedAt is when it was stored, by the database's clock. Messages that were stored together share it.
	CreatedAt   time.Time `json:"createdAt"`
	Queue       string    `json:"queue"`
	Partition   string    `json:"partition"`
	PartitionID string    `json:"partitionId"`
	// LeaseID is "" when the pop acknowledged by itself.
	LeaseID string `json:"leaseId"`
	Group   string `json:"consumerGroup"`

	server *server // that delivered it
}

// A Batch is what one pop delivered: messages of one or more partitions under one lease, each partition's in order.
type Batch struct {
	// Messages is empty when there was nothing to deliver.
	Messages []Message
	// LeaseID is the one lease of all of them; "" with AutoAck.
	LeaseID string
	// Group is the consumer group that they were delivered to.
	Group string
	// Lease is how long the pop asked to have them, 0 when it left that to the queue.
	Lease time.Duration
	// ReceivedAt is this machine's clock before the pop was sent: the lease began at or after it.
	ReceivedAt time.Time

	server *server
}

// PopOptions says what to pop and how. The zero value takes what is there, up to 200 messages of one partition, for workers
// without a group.
type PopOptions struct {
	// Partition pops this partition only.
	Partition string
	// Namespace and Task choose among queues when the pop names none; at least one of them.
	Namespace, Task string
	// Group is the consumer group; "" is the group of those without one.
	Group string
	// Batch is the most messages to deliver; 0 is the broker's 200, at most 10,000.
	Batch int
	// Partitions is the most partitions to take them from; 0 is 1, a negative number is no bound.
	Partitions int
	// Wait keeps an empty pop open until something arrives, at most one hour.
	Wait time.Duration
	// Lease is how long the messages stay ours; it is rounded up to seconds. 0 is the queue's leaseTime.
	Lease time.Duration
	// AutoAck acknowledges inside the pop: each message is delivered at most once, and is lost if the answer is.
	AutoAck bool
	// Start says where a group that has never read the queue begins. Later pops ignore it.
	Start Start
}

// A Start is where a new group begins. The zero value leaves it to the broker, whose default is the oldest message.
type Start struct {
	mode, from string
}

// The beginnings of a new group.
var (
	// StartOldest begins with the oldest message that is stored.
	StartOldest = Start{mode: "all"}
	// StartNew skips what was stored before the group's first pop.
	StartNew = Start{mode: "new"}
)

// StartAt begins with what was stored at or after a time.
func StartAt(at time.Time) Start { return Start{from: at.UTC().Format(time.RFC3339Nano)} }

// Wire returns the words of the wire for s: the parameters subscriptionMode and subscriptionFrom.
func (s Start) Wire() (mode, from string) { return s.mode, s.from }

// Pop asks for messages and leases them to the caller, who has to acknowledge them with [Client.Ack] before the lease ends. queue
// may be "" when o has a Namespace or Task. Nothing to deliver is an empty batch, not an error.
//
// A pop is repeated on failures, except with AutoAck when the broker may have delivered: messages of a lost answer come again when
// their lease ends.
func (c *Client) Pop(ctx context.Context, queue string, o PopOptions) (*Batch, error) {
	return c.pop(ctx, queue, &o, false)
}

func (c *Client) pop(ctx context.Context, queue string, o *PopOptions, patient bool) (*Batch, error) {
	path := "/api/v1/pop"
	key := o.Namespace + "." + o.Task
	if queue != "" {
		key = queue
		path = Path("api", "v1", "pop", "queue", queue)
		if o.Partition != "" {
			path += Path("partition", o.Partition)
		}
	}
	sent := time.Now()
	response, err := c.do(ctx, request{
		method: http.MethodGet, path: path, query: o.query(), repeatable: !o.AutoAck, key: key, wait: o.Wait, patient: patient,
	})
	if err != nil {
		return nil, err
	}
	batch := &Batch{Group: o.Group, Lease: o.Lease, ReceivedAt: sent, server: response.server}
	if response.Status == http.StatusNoContent {
		return batch, nil
	}
	answer, err := Decode[struct {
		LeaseID  string    `json:"leaseId"`
		Messages []Message `json:"messages"`
	}](response.Body)
	if err != nil {
		return nil, fmt.Errorf("%w; what it delivered comes again when its lease ends", err)
	}
	batch.LeaseID, batch.Messages = answer.LeaseID, answer.Messages
	for i := range batch.Messages {
		m := &batch.Messages[i]
		m.server = response.server
		if m.Queue == "" {
			m.Queue = queue // older brokers leave it out
		}
	}
	return batch, nil
}

// query encodes the options as the pop routes want them.
func (o *PopOptions) query() string {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	number := func(name string, value int64) {
		if value != 0 {
			q.Set(name, strconv.FormatInt(value, 10))
		}
	}
	set("namespace", o.Namespace)
	set("task", o.Task)
	set("consumerGroup", o.Group)
	set("subscriptionMode", o.Start.mode)
	set("subscriptionFrom", o.Start.from)
	number("batch", int64(o.Batch))
	if o.Partitions < 0 {
		q.Set("partitions", "0") // the wire's word for no bound
	} else {
		number("partitions", int64(o.Partitions))
	}
	number("leaseSeconds", wholeSeconds(o.Lease))
	if o.AutoAck {
		q.Set("autoAck", "true")
	}
	if o.Wait > 0 {
		q.Set("wait", "true")
		number("timeout", max(o.Wait.Milliseconds(), 1))
	}
	return q.Encode()
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
