package queen

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// A StoredMessage is a message as operators see it. Looking at it moves no cursor.
type StoredMessage struct {
	ID            string          `json:"id"`
	TransactionID string          `json:"transactionId"`
	TraceID       string          `json:"traceId"`
	Payload       json.RawMessage `json:"data"` // byte for byte as it was pushed; null when it is gone or cannot be decrypted
	ProducerSub   string          `json:"producerSub"`
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	PartitionID   string          `json:"partitionId"`
	Offset        int64           `json:"offset"`
	CreatedAt     time.Time       `json:"createdAt"`
	Status        string          `json:"status"` // "pending", "processing", "completed" or "dead_letter"; "" where it was not asked for
	Encrypted     bool            `json:"isEncrypted"`
}

// MessageFilter chooses stored messages. Empty fields choose all.
type MessageFilter struct {
	Queue, Partition, Namespace, Task string
	TransactionID, TraceID            string
	// Status as this Group sees it; without a group as the queue as a whole is.
	Status, Group string
	From, To      time.Time
}

// Messages lists stored messages, the newest first. It ends with the first error.
func (a Admin) Messages(ctx context.Context, f MessageFilter) iter.Seq2[StoredMessage, error] {
	type page struct {
		Messages   []StoredMessage `json:"messages"`
		NextCursor string          `json:"nextCursor"`
	}
	query := newValues().text("queue", f.Queue).text("partition", f.Partition).text("namespace", f.Namespace).text("task", f.Task).
		text("transactionId", f.TransactionID).text("traceId", f.TraceID).text("status", f.Status).text("group", f.Group).time("from", f.From).time("to", f.To)
	return pages(ctx, a.client, "/api/v1/messages", query.Values, func(p *page) ([]StoredMessage, string) { return p.Messages, p.NextCursor })
}

// PartitionMessages lists the messages of a partition from an offset on, the oldest first, up to limit (at most 1,000, 0 is the
// broker's default). next is the offset to go on with.
func (a Admin) PartitionMessages(ctx context.Context, partitionID string, offset int64, limit int) (messages []StoredMessage, next int64, err error) {
	query := newValues().number("offset", int(offset)).number("limit", limit)
	answer, err := get[struct {
		Queue      string          `json:"queue"`
		Partition  string          `json:"partition"`
		NextOffset int64           `json:"nextOffset"`
		Messages   []StoredMessage `json:"messages"`
	}](ctx, a.client, Path("api", "v1", "partitions", partitionID, "messages"), query.Values)
	for i := range answer.Messages {
		m := &answer.Messages[i]
		m.Queue, m.Partition, m.PartitionID = answer.Queue, answer.Partition, partitionID
	}
	return answer.Messages, answer.NextOffset, err
}

// Message shows one message.
func (a Admin) Message(ctx context.Context, partitionID, transactionID string) (StoredMessage, error) {
	return get[StoredMessage](ctx, a.client, Path("api", "v1", "messages", partitionID, transactionID), nil)
}

// Pipeline lists the messages of a trace across queues, in the order of time; limit is at most 1,000, 0 is the broker's default.
func (a Admin) Pipeline(ctx context.Context, traceID string, limit int) ([]StoredMessage, error) {
	answer, err := get[struct {
		Messages []StoredMessage `json:"messages"`
	}](ctx, a.client, Path("api", "v1", "pipelines", traceID), newValues().number("limit", limit).Values)
	return answer.Messages, err
}

// A TraceEvent is something that happened to a message, recorded by whoever handled it.
type TraceEvent struct {
	TransactionID string          `json:"transactionId"`
	PartitionID   string          `json:"partitionId"`
	Group         string          `json:"consumerGroup,omitempty"`
	Type          string          `json:"eventType,omitempty"` // "" is "info"
	Names         []string        `json:"traceNames,omitempty"`
	Data          json.RawMessage `json:"data"` // any JSON value
}

// RecordTrace records an event about a message. It needs no more rights than an acknowledgment.
func (a Admin) RecordTrace(ctx context.Context, event TraceEvent) error {
	// Repeated, it would be recorded twice.
	text, err := json.Marshal(event)
	if err != nil {
		return &Error{Status: http.StatusBadRequest, Code: "bad_body", Message: "the event's data is not JSON", Cause: err}
	}
	_, err = a.client.do(ctx, request{method: http.MethodPost, path: "/api/v1/traces", body: text})
	return err
}

// A RecordedTrace is an event as it was recorded.
type RecordedTrace struct {
	ID            string          `json:"id"`
	TransactionID string          `json:"transaction_id"` // and the names are "" in Traces, which is about one message
	PartitionID   string          `json:"partition_id"`
	Queue         string          `json:"queue_name"`
	Partition     string          `json:"partition_name"`
	Group         string          `json:"consumer_group"`
	Type          string          `json:"event_type"`
	Names         []string        `json:"trace_names"`
	Data          json.RawMessage `json:"data"`
	CreatedAt     time.Time       `json:"created_at"`
}

// Traces lists the events of a message, the oldest first.
func (a Admin) Traces(ctx context.Context, partitionID, transactionID string) ([]RecordedTrace, error) {
	return traces(ctx, a.client, Path("api", "v1", "traces", partitionID, transactionID), newValues())
}

// TracesByName lists the events that were recorded under a name, the oldest first.
func (a Admin) TracesByName(ctx context.Context, name string, limit, offset int) ([]RecordedTrace, error) {
	return traces(ctx, a.client, Path("api", "v1", "traces", "by-name", name), newValues().number("limit", limit).number("offset", offset))
}

func traces(ctx context.Context, c *Client, path string, query values) ([]RecordedTrace, error) {
	answer, err := get[struct {
		Traces []RecordedTrace `json:"traces"`
	}](ctx, c, path, query.Values)
	return answer.Traces, err
}

// A TraceName is a name under which events were recorded.
type TraceName struct {
	Name     string    `json:"trace_name"`
	Events   int64     `json:"trace_count"`
	Messages int64     `json:"message_count"`
	LastSeen time.Time `json:"last_seen"`
}

// TraceNames lists the names under which events were recorded, the most recent first.
func (a Admin) TraceNames(ctx context.Context, limit, offset int) ([]TraceName, error) {
	answer, err := get[struct {
		Names []TraceName `json:"trace_names"`
	}](ctx, a.client, "/api/v1/traces/names", newValues().number("limit", limit).number("offset", offset).Values)
	return answer.Names, err
}

// A Maintenance is the state of the two switches, which hold for all brokers of a database.
type Maintenance struct {
	// Pushes: brokers keep pushes on disk instead of storing them. Pops: nothing is delivered.
	Pushes bool `json:"maintenanceMode"`
	Pops   bool `json:"popMaintenanceMode"`
}

// Maintenance shows the switches.
func (a Admin) Maintenance(ctx context.Context) (Maintenance, error) {
	return get[Maintenance](ctx, a.client, "/api/v1/system/maintenance", nil)
}

// SetPushMaintenance turns the switch of pushes; every broker follows within about a second.
func (a Admin) SetPushMaintenance(ctx context.Context, on bool) error {
	return a.turn(ctx, "/api/v1/system/maintenance", on)
}

// SetPopMaintenance turns the switch of pops; every broker follows within about a second.
func (a Admin) SetPopMaintenance(ctx context.Context, on bool) error {
	return a.turn(ctx, "/api/v1/system/maintenance/pop", on)
}

func (a Admin) turn(ctx context.Context, path string, on bool) error {
	_, err := change[struct{}](ctx, a.client, http.MethodPost, path, nil, bodyOf(struct {
		Enabled bool `json:"enabled"`
	}{on}))
	return err
}
