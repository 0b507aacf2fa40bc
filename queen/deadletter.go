package queen

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// A FailedMessage is a dead letter: a message that a group gave up.
type FailedMessage struct {
	ID            string          `json:"id"` // of the dead letter
	MessageID     string          `json:"messageId"`
	TransactionID string          `json:"transactionId"`
	TraceID       string          `json:"traceId"`
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	PartitionID   string          `json:"partitionId"`
	Offset        int64           `json:"offset"`
	Group         string          `json:"consumerGroup"`
	Reason        string          `json:"errorMessage"`
	Retries       int             `json:"retryCount"`
	Payload       json.RawMessage `json:"data"` // byte for byte as it was pushed
	FailedAt      time.Time       `json:"failedAt"`
}

// DeadLetterFilter chooses dead letters. Empty fields choose all.
type DeadLetterFilter struct {
	Queue     string `json:"queue,omitempty"`
	Partition string `json:"partition,omitempty"`
	Group     string `json:"consumerGroup,omitempty"`
	// Reason is a part of the error text, Shape that of an ErrorShape.
	Reason        string    `json:"error,omitempty"`
	Shape         string    `json:"shape,omitempty"`
	TransactionID string    `json:"transactionId,omitempty"`
	PartitionID   string    `json:"partitionId,omitempty"`
	From          time.Time `json:"from,omitzero"`
	To            time.Time `json:"to,omitzero"`
}

func (f *DeadLetterFilter) query() values {
	return newValues().text("queue", f.Queue).text("partition", f.Partition).text("consumerGroup", f.Group).text("error", f.Reason).
		text("shape", f.Shape).text("transactionId", f.TransactionID).text("partitionId", f.PartitionID).time("from", f.From).time("to", f.To)
}

const deadLetterPath = "/api/v1/dlq"

// DeadLetters lists dead letters, the newest failure first. It ends with the first error.
func (a Admin) DeadLetters(ctx context.Context, f DeadLetterFilter) iter.Seq2[FailedMessage, error] {
	type page struct {
		Messages   []FailedMessage `json:"messages"`
		NextCursor string          `json:"nextCursor"`
	}
	return pages(ctx, a.client, deadLetterPath, f.query().Values, func(p *page) ([]FailedMessage, string) { return p.Messages, p.NextCursor })
}

// CountDeadLetters counts them.
func (a Admin) CountDeadLetters(ctx context.Context, f DeadLetterFilter) (int64, error) {
	answer, err := get[struct {
		Count int64 `json:"count"`
	}](ctx, a.client, deadLetterPath+"/count", f.query().Values)
	return answer.Count, err
}

// An ErrorShape is what the error texts of many dead letters have in common.
type ErrorShape struct {
	Shape  string   `json:"shape"`
	Sample string   `json:"sample"`
	Count  int64    `json:"count"`
	Queues []string `json:"queues"`
}

// ErrorShapes groups dead letters by the shape of their error texts.
func (a Admin) ErrorShapes(ctx context.Context, f DeadLetterFilter) ([]ErrorShape, error) {
	answer, err := get[struct {
		Groups []ErrorShape `json:"groups"`
	}](ctx, a.client, deadLetterPath+"/shapes", f.query().Values)
	return answer.Groups, err
}

// A Destination is where dead letters go back to; empty fields are where they came from.
type Destination struct {
	Queue     string `json:"queue,omitempty"`
	Partition string `json:"partition,omitempty"`
}

// Replayed is what became of a dead letter: "moved" or "duplicate".
type Replayed struct {
	Result    string `json:"result"`
	Queue     string `json:"queue"`
	Partition string `json:"partition"`
	As        struct {
		MessageID     string `json:"message_id"`
		TransactionID string `json:"transaction_id"`
	} `json:"replayedAs"`
}

// Replay moves one dead letter back into its queue, or elsewhere, in one transaction. It is a new message there, for all groups.
func (a Admin) Replay(ctx context.Context, id string, to Destination) (Replayed, error) {
	return change[Replayed](ctx, a.client, http.MethodPost, Path("api", "v1", "dlq", id, "replay"), nil, bodyOf(to))
}

// ReplayMessage moves the newest dead letter of a message back into its queue; group may be "" for any.
func (a Admin) ReplayMessage(ctx context.Context, partitionID, transactionID, group string) (Replayed, error) {
	return change[Replayed](ctx, a.client, http.MethodPost, Path("api", "v1", "messages", partitionID, transactionID, "retry"), newValues().text("consumerGroup", group).Values, nil)
}

// DeleteDeadLetters deletes what the filter chooses, which must name a queue, and returns how many.
func (a Admin) DeleteDeadLetters(ctx context.Context, f DeadLetterFilter) (int64, error) {
	answer, err := change[struct {
		Deleted int64 `json:"deleted"`
	}](ctx, a.client, http.MethodDelete, deadLetterPath, f.query().Values, nil)
	return answer.Deleted, err
}

// DeleteDeadLettersOf deletes the dead letters of one message.
func (a Admin) DeleteDeadLettersOf(ctx context.Context, partitionID, transactionID string) error {
	_, err := change[struct{}](ctx, a.client, http.MethodDelete, Path("api", "v1", "messages", partitionID, transactionID), nil, nil)
	return err
}

// A Task moves or deletes many dead letters in the background, on whatever broker lives.
type Task struct {
	ID        string `json:"id"`
	Kind      string `json:"kind"`  // "redrive" or "purge"
	State     string `json:"state"` // "pending", "running", "done" or "cancelled"
	Total     int64  `json:"total"`
	Moved     int64  `json:"moved"`
	Deleted   int64  `json:"deleted"`
	Duplicate int64  `json:"duplicate"`
	Skipped   int64  `json:"skipped"`
	Remaining int64  `json:"remaining"`
	LastError string `json:"lastError"`
}

// TaskOptions changes how a task works.
type TaskOptions struct {
	// To is where redriven dead letters go.
	To Destination
	// Rate is the most messages a second; 0 is no bound.
	Rate int
	// DryRun only counts: the answer's Total.
	DryRun bool
}

// Redrive starts to move everything that the filter chooses back into its queue, or elsewhere. The empty filter chooses everything.
func (a Admin) Redrive(ctx context.Context, f DeadLetterFilter, o TaskOptions) (Task, error) {
	return a.startTask(ctx, "redrive", f, o)
}

// PurgeDeadLetters starts to delete everything that the filter chooses. The empty filter chooses everything.
func (a Admin) PurgeDeadLetters(ctx context.Context, f DeadLetterFilter, o TaskOptions) (Task, error) {
	return a.startTask(ctx, "purge", f, o)
}

func (a Admin) startTask(ctx context.Context, kind string, f DeadLetterFilter, o TaskOptions) (Task, error) {
	var to *Destination
	if o.To != (Destination{}) {
		to = &o.To
	}
	// A second task finds nothing that the first has not left, so that repeating is safe.
	return change[Task](ctx, a.client, http.MethodPost, deadLetterPath+"/tasks", nil, bodyOf(struct {
		Kind   string           `json:"kind"`
		Filter DeadLetterFilter `json:"filter"`
		To     *Destination     `json:"destination,omitempty"`
		Rate   int              `json:"rate,omitempty"`
		DryRun bool             `json:"dryRun"`
	}{kind, f, to, o.Rate, o.DryRun}))
}

// Task shows the progress of a task.
func (a Admin) Task(ctx context.Context, id string) (Task, error) {
	return get[Task](ctx, a.client, Path("api", "v1", "dlq", "tasks", id), nil)
}

// Tasks lists tasks, the newest first. It ends with the first error.
func (a Admin) Tasks(ctx context.Context) iter.Seq2[Task, error] {
	type page struct {
		Tasks      []Task `json:"tasks"`
		NextCursor string `json:"nextCursor"`
	}
	return pages(ctx, a.client, deadLetterPath+"/tasks", newValues().Values, func(p *page) ([]Task, string) { return p.Tasks, p.NextCursor })
}

// CancelTask stops a task. What it has done stays done.
func (a Admin) CancelTask(ctx context.Context, id string) (Task, error) {
	return change[Task](ctx, a.client, http.MethodPost, Path("api", "v1", "dlq", "tasks", id, "cancel"), nil, nil)
}
