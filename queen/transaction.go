package queen

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"uuid"
)

// A Transaction collects pushes and acknowledgments that commit together or not at all. Make it with [Client.Transaction]; it
// belongs to one goroutine.
type Transaction struct {
	client *Client
	items  []Item
	acks   []Ack
	order  []bool // true is the next item, false the next acknowledgment
}

// Transaction starts one. Nothing is sent before Commit.
func (c *Client) Transaction() *Transaction { return &Transaction{client: c} }

// Push adds messages.
func (t *Transaction) Push(items ...Item) *Transaction {
	for _, item := range items {
		t.items = append(t.items, item)
		t.order = append(t.order, true)
	}
	return t
}

// Ack adds acknowledgments.
func (t *Transaction) Ack(acks ...Ack) *Transaction {
	for _, ack := range acks {
		t.acks = append(t.acks, ack)
		t.order = append(t.order, false)
	}
	return t
}

// TransactionResult is what a committed transaction did.
type TransactionResult struct {
	// Pushed has one result per message, in the order of Push.
	Pushed []PushResult
	// Acked has one result per acknowledgment, in the order of Ack.
	Acked []AckResult
}

// Commit runs the transaction, at most 10,000 messages and acknowledgments. Errors: [ErrRolledBack] when a rule of the broker refused
// a part of it, and nothing was stored; its reason is also [ErrDuplicate], [ErrQueueFull] or [ErrLeaseLost] where it is one of
// them. [ErrUnknownOutcome] when the answer was lost, and either nothing was pushed or a message had a transaction id of the
// caller's: repeat it then, and take a second refusal for the success of the first attempt where that is certain.
//
// Where every message leaves its transaction id to this call, a lost answer is made good: the transaction is sent again, and a
// message that is already there, under the id that was made up for it, shows that the first attempt was committed.
func (t *Transaction) Commit(ctx context.Context) (*TransactionResult, error) {
	items := slices.Clone(t.items)
	if t.client.observer == nil || len(items) == 0 {
		return t.commit(ctx, items)
	}
	ctx, done := t.client.observer.Pushing(ctx, items)
	result, err := t.commit(ctx, items)
	if err != nil {
		done(nil, err)
		return nil, err
	}
	done(result.Pushed, nil)
	return result, nil
}

// commit sends the transaction with items in place of those that were given.
func (t *Transaction) commit(ctx context.Context, items []Item) (*TransactionResult, error) {
	own := len(items) > 0 // every message has an id that nobody else can have used
	for i := range items {
		if items[i].TransactionID == "" {
			items[i].TransactionID = uuid.NewV7().String()
		} else {
			own = false
		}
	}
	body, err := t.encode(items)
	if err != nil {
		return nil, err
	}
	r := request{method: http.MethodPost, path: transactionPath, body: body}
	if len(items) > 0 {
		r.key = items[0].Queue
	}
	if len(t.acks) > 0 {
		r.server = t.acks[0].server
	}
	response, err := t.client.do(ctx, r)
	repeated := false
	if own && errors.Is(err, ErrUnknownOutcome) && ctx.Err() == nil {
		r.repeatable, repeated = true, true
		response, err = t.client.do(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	return t.result(items, response, repeated)
}

func (t *Transaction) encode(items []Item) ([]byte, error) {
	body := []byte(`{"operations":[`)
	nextItem, nextAck := 0, 0
	for i, isItem := range t.order {
		if i > 0 {
			body = append(body, ',')
		}
		if isItem {
			item, err := appendItem(nil, &items[nextItem], items[nextItem].TransactionID)
			if err != nil {
				return nil, invalidItem(nextItem, err)
			}
			body = append(append(body, `{"type":"push",`...), item[1:]...)
			nextItem++
			continue
		}
		ack := &t.acks[nextAck]
		body = append(body, `{"type":"ack",`...)
		var err error
		if ack.Group != "" {
			if body, err = appendMember(body, "consumerGroup", ack.Group); err == nil {
				body = append(body, ',')
			}
		}
		if err == nil {
			body, err = ack.append(body)
		}
		if err != nil {
			return nil, invalidAck(nextAck, err)
		}
		body = append(body, '}')
		nextAck++
	}
	return append(body, "]}"...), nil
}

func (t *Transaction) result(items []Item, response *Response, repeated bool) (*TransactionResult, error) {
	answer, err := Decode[struct {
		Success bool   `json:"success"`
		Error   string `json:"error"`
		Code    string `json:"code"`
		Results []struct {
			ackAnswer
			MessageID string `json:"messageId"`
			Duplicate bool   `json:"duplicate"`
		} `json:"results"`
	}](response.Body)
	if err != nil {
		return nil, err
	}
	if !answer.Success {
		refused := rolledBack(answer.Code, answer.Error)
		refused.Method, refused.Path, refused.Server, refused.Body = http.MethodPost, transactionPath, response.server.base, response.Body
		if repeated && refused.Code == codeDuplicate {
			return t.committedBefore(items), nil
		}
		return nil, refused
	}
	if len(answer.Results) != len(t.order) {
		return nil, fmt.Errorf("queen: the broker answered %d results for %d operations", len(answer.Results), len(t.order))
	}
	result := &TransactionResult{}
	for i, isItem := range t.order {
		r := &answer.Results[i]
		if isItem {
			status := Queued
			if r.Duplicate {
				status = Duplicate
			}
			result.Pushed = append(result.Pushed, PushResult{Status: status, MessageID: r.MessageID, TransactionID: r.TransactionID})
			continue
		}
		result.Acked = append(result.Acked, r.result(response, transactionPath))
	}
	return result, nil
}

// committedBefore is the result of a transaction whose answer was lost: what it did is known, the ids it gave are not.
func (t *Transaction) committedBefore(items []Item) *TransactionResult {
	result := &TransactionResult{}
	for i := range items {
		result.Pushed = append(result.Pushed, PushResult{Status: Queued, TransactionID: items[i].TransactionID})
	}
	for i := range t.acks {
		result.Acked = append(result.Acked, AckResult{TransactionID: t.acks[i].TransactionID})
	}
	return result
}

// rolledBack is the error of a transaction that a rule refused, told apart by the contract's texts.
func rolledBack(code, text string) *Error {
	e := &Error{Status: http.StatusOK, Code: code, Message: text}
	switch {
	case strings.HasPrefix(text, "QDUP"):
		e.Code = codeDuplicate
	case strings.HasPrefix(text, codeQueueFull):
		e.Code = codeQueueFull
	case strings.Contains(text, "invalid or expired lease"), strings.Contains(text, "no leased batch"), strings.Contains(text, "position beyond leased batch"):
		e.Code = codeLeaseLost
	case e.Code == "":
		e.Code = codeTransaction
	}
	return e
}
