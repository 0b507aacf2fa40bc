package queen

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// An AckStatus is what became of a message at its consumer.
type AckStatus string

// What an acknowledgment says.
const (
	// Completed: done, and with it everything before it in its partition.
	Completed AckStatus = "completed"
	// Rejected: not done; delivered again until the queue's retryLimit, then a dead letter.
	Rejected AckStatus = "failed"
	// Retry: not done; delivered again, and no retry is spent.
	Retry AckStatus = "retry"
	// DeadLetter: not done, and not to be tried again.
	DeadLetter AckStatus = "dlq"
)

// An Ack says what became of one message. The methods of [Message] and [Batch] make them.
type Ack struct {
	TransactionID string
	PartitionID   string
	// LeaseID proves that the message is still ours. Without one a completion moves the cursor whoever holds the messages.
	LeaseID string
	Group   string
	Status  AckStatus
	// Reason is kept with a dead letter.
	Reason string
	// Delay keeps a message that was not done away for a while, at most a day; in its partition everything behind it waits too.
	// nil leaves that to the queue's redeliveryDelayMs.
	Delay *time.Duration

	server *server
}

// Completed acknowledges m, and with it everything before it in its partition.
func (m *Message) Completed() Ack { return m.ack(Completed, "") }

// Rejected gives m back as failed: it is delivered again until the queue's retryLimit, then it becomes a dead letter. reason, which
// may be nil, is kept with that.
func (m *Message) Rejected(reason error) Ack { return m.ack(Rejected, textOf(reason)) }

// Retried gives m back without spending a retry; it is delivered again after delay.
func (m *Message) Retried(delay time.Duration) Ack {
	a := m.ack(Retry, "")
	a.Delay = &delay
	return a
}

// DeadLettered makes m a dead letter at once.
func (m *Message) DeadLettered(reason error) Ack { return m.ack(DeadLetter, textOf(reason)) }

func (m *Message) ack(status AckStatus, reason string) Ack {
	return Ack{
		TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Group: m.Group,
		Status: status, Reason: reason, server: m.server,
	}
}

// Completed acknowledges every message of the batch.
func (b *Batch) Completed() []Ack {
	acks := make([]Ack, len(b.Messages))
	for i := range b.Messages {
		acks[i] = b.Messages[i].Completed()
	}
	return acks
}

// Released gives back every message of the batch as it came, without spending a retry: others get them at once.
func (b *Batch) Released() []Ack {
	var acks []Ack
	b.firsts(func(m *Message) { acks = append(acks, m.Retried(0)) })
	return acks
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// An AckResult is the answer to one Ack.
type AckResult struct {
	TransactionID string
	// LeaseReleased: this acknowledgment ended the lease of its partition.
	LeaseReleased bool
	// DeadLettered: the message is a dead letter now.
	DeadLettered bool
	// Repeated: the message had been completed before.
	Repeated bool
	// Err is why the acknowledgment was not carried out, nil when it was.
	Err *Error
}

const (
	ackPath         = "/api/v1/ack/batch"
	transactionPath = "/api/v1/transaction"
)

// Ack carries out acknowledgments and returns one result for each, in order. Those of one partition and lease stand or fall
// together. It is safe to repeat. When some were refused, the error is that of the first of them; [ErrLeaseLost] means that its
// message goes to another worker.
func (c *Client) Ack(ctx context.Context, acks ...Ack) ([]AckResult, error) {
	results := make([]AckResult, len(acks))
	for _, positions := range byGroup(acks) {
		if err := c.ackGroup(ctx, acks, positions, results); err != nil {
			return nil, err
		}
	}
	return results, refusedAcks(results)
}

// byGroup splits acknowledgments into those of one consumer group each, because a request carries one.
func byGroup(acks []Ack) [][]int {
	var groups [][]int
	index := map[string]int{}
	for i := range acks {
		g, known := index[acks[i].Group]
		if !known {
			g = len(groups)
			index[acks[i].Group] = g
			groups = append(groups, make([]int, 0, len(acks)))
		}
		groups[g] = append(groups[g], i)
	}
	return groups
}

// ackGroup sends the acknowledgments at positions, and again those that could not be committed.
func (c *Client) ackGroup(ctx context.Context, acks []Ack, positions []int, results []AckResult) error {
	started := time.Now()
	for attempt := 0; ; attempt++ {
		if err := c.ackOnce(ctx, acks, positions, results); err != nil {
			return err
		}
		left := positions[:0:0]
		for _, i := range positions {
			if results[i].Err != nil && results[i].Err.Retryable() {
				left = append(left, i)
			}
		}
		delay := jittered(backoff(attempt))
		if len(left) == 0 || time.Since(started)+delay > c.budget || c.pause(ctx, delay) != nil {
			return nil
		}
		positions = left
	}
}

func (c *Client) ackOnce(ctx context.Context, acks []Ack, positions []int, results []AckResult) error {
	first := &acks[positions[0]]
	body := append(make([]byte, 0, 64+160*len(positions)), '{')
	var err error
	if first.Group != "" {
		if body, err = appendMember(body, "consumerGroup", first.Group); err != nil {
			return invalidAck(positions[0], err)
		}
		body = append(body, ',')
	}
	body = append(body, `"acknowledgments":[`...)
	for n, i := range positions {
		if n > 0 {
			body = append(body, ',')
		}
		if body, err = acks[i].append(append(body, '{')); err != nil {
			return invalidAck(i, err)
		}
		body = append(body, '}')
	}
	body = append(body, "]}"...)
	response, err := c.do(ctx, request{method: http.MethodPost, path: ackPath, body: body, repeatable: true, server: first.server})
	if err != nil {
		return err
	}
	answers, err := Decode[[]ackAnswer](response.Body)
	if err != nil {
		return err
	}
	if len(answers) != len(positions) {
		return fmt.Errorf("queen: the broker answered %d results for %d acknowledgments", len(answers), len(positions))
	}
	for n, i := range positions {
		results[i] = answers[n].result(response, ackPath)
	}
	return nil
}

// append appends the members of an acknowledgment, without the group.
func (a *Ack) append(dst []byte) ([]byte, error) {
	dst, err := appendMember(dst, "transactionId", a.TransactionID)
	if err != nil {
		return nil, err
	}
	status := a.Status
	if status == "" {
		status = Completed
	}
	for _, member := range [...]struct{ name, text string }{
		{"partitionId", a.PartitionID}, {"leaseId", a.LeaseID}, {"status", string(status)}, {"error", strings.ToValidUTF8(a.Reason, "\uFFFD")},
	} {
		if member.text == "" {
			continue
		}
		if dst, err = appendMember(append(dst, ','), member.name, member.text); err != nil {
			return nil, err
		}
	}
	if a.Delay != nil {
		dst = fmt.Appendf(dst, `,"delayMs":%d`, max(a.Delay.Milliseconds(), 0))
	}
	return dst, nil
}

// An ackAnswer is one element of the answer.
type ackAnswer struct {
	TransactionID string          `json:"transactionId"`
	Success       bool            `json:"success"`
	Error         json.RawMessage `json:"error"`
	LeaseReleased bool            `json:"leaseReleased"`
	DeadLettered  bool            `json:"dlq"`
	Noop          bool            `json:"noop"`
}

func (a *ackAnswer) result(response *Response, path string) AckResult {
	r := AckResult{TransactionID: a.TransactionID, LeaseReleased: a.LeaseReleased, DeadLettered: a.DeadLettered, Repeated: a.Noop}
	if !a.Success {
		var text string
		_ = json.Unmarshal(a.Error, &text) // null leaves it empty
		r.Err = ackError(text)
		r.Err.Method, r.Err.Path, r.Err.Server = http.MethodPost, path, response.server.base
	}
	return r
}

// ackError tells refusals apart by the contract's texts: the wire has no codes here.
func ackError(text string) *Error {
	e := &Error{Status: http.StatusOK, Code: codeAckRejected, Message: text}
	switch {
	case text == "":
		e.Message = "the acknowledgment was refused without a reason"
	case strings.Contains(text, "invalid or expired lease"), strings.Contains(text, "no leased batch"), strings.Contains(text, "position beyond leased batch"):
		e.Code = codeLeaseLost
	case text == "pool", strings.Contains(text, "flush failed"), strings.Contains(text, "was not committed; repeat it"):
		e.Status, e.Code = http.StatusServiceUnavailable, "ack_not_committed"
	}
	return e
}

// refusedAcks is the error of results; nil when all were carried out.
func refusedAcks(results []AckResult) error {
	var first *Error
	refused := 0
	for i := range results {
		if results[i].Err == nil {
			continue
		}
		refused++
		if first == nil {
			first = results[i].Err
		}
	}
	if first == nil {
		return nil
	}
	summary := *first
	summary.Message = fmt.Sprintf("%d of %d acknowledgments were refused: %s", refused, len(results), first.Message)
	return &summary
}

func invalidAck(i int, err error) *Error {
	return &Error{Status: http.StatusBadRequest, Code: "bad_body", Message: fmt.Sprintf("acknowledgment %d: %v", i, err), Method: http.MethodPost, Path: ackPath, Cause: err}
}

// Extend lengthens the lease of everything that one pop delivered, to at least d from now (rounded up to seconds, at most a
// day), and returns when it ends, by the database's clock. A lease never becomes shorter. [ErrLeaseLost] when nothing is left of it.
func (c *Client) Extend(ctx context.Context, leaseID string, d time.Duration) (time.Time, error) {
	return c.extend(ctx, leaseID, d, nil)
}

func (c *Client) extend(ctx context.Context, leaseID string, d time.Duration, target *server) (time.Time, error) {
	path := Path("api", "v1", "lease", leaseID, "extend")
	body := fmt.Appendf(nil, `{"seconds":%d}`, max(wholeSeconds(d), 1))
	response, err := c.do(ctx, request{method: http.MethodPost, path: path, body: body, repeatable: true, server: target})
	if err != nil {
		return time.Time{}, err
	}
	answer, err := Decode[struct {
		Success      bool       `json:"success"`
		NewExpiresAt *time.Time `json:"newExpiresAt"`
	}](response.Body)
	if err != nil {
		return time.Time{}, err
	}
	if !answer.Success || answer.NewExpiresAt == nil {
		return time.Time{}, &Error{
			Status: response.Status, Code: codeLeaseLost, Message: "the lease has ended", Method: http.MethodPost, Path: path, Server: response.server.base,
		}
	}
	return *answer.NewExpiresAt, nil
}
