package api

import (
	"fmt"
	"unicode/utf8"

	"github.com/google/uuid"

	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
)

// maxPushItems is the most messages one request may carry. It bounds what one small body can make the broker allocate: a
// body of the largest size could otherwise name millions of empty messages.
const maxPushItems = 100_000

// A pushScan is the decoded form of one push body. It is reused between requests: items and their payloads are valid until
// the next scan, and payloads are slices of the body.
type pushScan struct {
	memberScanner
	items []push.Item
	// ids collects the transaction ids of the request, so that they cost one allocation together; spans says which part of
	// it belongs to which item.
	ids   []byte
	spans []span
}

type span struct{ start, end int }

// scan reads a push body: {"items":[{queue, partition?, payload, transactionId?, traceId?}, …]}. The whole body must be
// valid JSON in valid UTF-8. Unknown members are skipped; of a repeated member the last one counts; null stands for an absent
// optional member. Every fault is a *requestError that names the place and, inside items, the item.
func (p *pushScan) scan(body []byte) error {
	if err := p.scanBody(body); err != nil {
		return badBody(body, err)
	}
	text := string(p.ids)
	for i, at := range p.spans {
		p.items[i].TransactionID = text[at.start:at.end]
	}
	return nil
}

func (p *pushScan) scanBody(body []byte) error {
	p.forgetItems()
	if err := p.reset(body); err != nil {
		return err
	}
	found := false
	err := p.object("an object with items", func(name string) (err error) {
		if name != "items" {
			return p.skip()
		}
		found, err = p.scanItems()
		return err
	})
	if err == nil {
		err = p.end()
	}
	if err == nil && !found {
		err = p.missing("items")
	}
	return err
}

func (p *pushScan) forgetItems() {
	p.items, p.ids, p.spans = p.items[:0], p.ids[:0], p.spans[:0]
}

// scanItems reads the value of items and reports whether it was an array.
func (p *pushScan) scanItems() (found bool, err error) {
	p.forgetItems()
	found, err = p.array("items", func(index int) error {
		if index == maxPushItems {
			return newError(codeBatchTooLarge, fmt.Sprintf("more than %d items in one request; send several", maxPushItems))
		}
		p.noun, p.index = "item", index
		return p.scanItem()
	})
	p.noun = ""
	return found, err
}

func (p *pushScan) scanItem() error {
	if p.peek() != '{' {
		return p.unexpected(fmt.Sprintf("an object for %s %d", p.noun, p.index))
	}
	p.items = append(p.items, push.Item{Partition: defaultPartition})
	p.spans = append(p.spans, span{len(p.ids), len(p.ids)})
	item := &p.items[p.index]
	hasQueue := false
	more, err := p.open()
	for ; more && err == nil; more, err = p.next() {
		name, err := p.member()
		if err != nil {
			return err
		}
		switch name {
		case "queue":
			hasQueue, err = p.scanQueue(item)
		case "partition":
			err = p.scanPartition(item)
		case "payload":
			item.Payload, err = p.value()
		case "transactionId":
			err = p.scanTransactionID()
		case "traceId":
			item.TraceID, err = p.scanTraceID()
		case "traceparent":
			item.Context, err = p.scanTraceparent()
		default:
			err = p.skip()
		}
		if err != nil {
			return err
		}
	}
	switch {
	case err != nil:
		return err
	case !hasQueue:
		return p.missing("queue")
	case item.Payload == nil:
		return p.missing("payload")
	}
	return nil
}

// scanQueue reads the queue name. Most requests push to one queue, whose name is then checked and copied once.
func (p *pushScan) scanQueue(item *push.Item) (present bool, err error) {
	text, present, err := p.name("queue")
	if err != nil || !present {
		return false, err
	}
	if p.index > 0 && string(text) == p.items[p.index-1].Queue {
		item.Queue = p.items[p.index-1].Queue
		return true, nil
	}
	switch {
	case len(text) == 0:
		return false, p.faulty("queue", namesMustNotBeEmpty)
	case len(text) > maxNameCharacters && utf8.RuneCount(text) > maxNameCharacters:
		return false, p.faulty("queue", fmt.Sprintf(nameTooLongFormat, maxNameCharacters))
	}
	item.Queue = string(text)
	return true, nil
}

func (p *pushScan) scanPartition(item *push.Item) error {
	text, present, err := p.name("partition")
	switch {
	case err != nil:
		return err
	case !present || string(text) == defaultPartition:
		item.Partition = defaultPartition
	case len(text) > maxPartitionBytes:
		return p.faulty("partition", fmt.Sprintf(partitionTooLongFormat, maxPartitionBytes))
	case p.index > 0:
		item.Partition = reused(text, p.items[p.index-1].Partition)
	default:
		item.Partition = string(text)
	}
	return nil
}

// scanTransactionID reads a transaction id. The empty one counts as absent: the pusher then uses the message id.
func (p *pushScan) scanTransactionID() error {
	text, _, err := p.name("transactionId")
	if err != nil {
		return err
	}
	if len(text) > maxTransactionIDBytes {
		return newError(codeBadBody, fmt.Sprintf("bad body: transactionId of item %d exceeds the %d-byte limit", p.index, maxTransactionIDBytes))
	}
	at := &p.spans[p.index]
	p.ids = append(p.ids[:at.start], text...)
	at.end = len(p.ids)
	return nil
}

// missing reports a required member that was not found, or was null.
func (m *memberScanner) missing(name string) error {
	text := "missing field `" + name + "`"
	if m.noun != "" {
		text += fmt.Sprintf(" in %s %d", m.noun, m.index)
	}
	return &syntaxError{m.pos, text}
}

// faulty reports a fault of the text read last.
func (m *memberScanner) faulty(name, fault string) error {
	return &syntaxError{m.textAt, name + m.place() + " " + fault}
}

// scanTraceID reads a trace id in the text form of 36 characters. Whatever else stands there counts as none, by contract.
func (m *memberScanner) scanTraceID() (uuid.NullUUID, error) {
	value, err := m.value()
	if err != nil {
		return uuid.NullUUID{}, err
	}
	return traceID(value), nil
}

// scanTraceparent reads a W3C traceparent. Whatever else stands there counts as none, as with trace ids.
func (m *memberScanner) scanTraceparent() (segment.TraceContext, error) {
	value, err := m.value()
	if err != nil || len(value) < 2 {
		return segment.TraceContext{}, err
	}
	return segment.ParseTraceparent(value[1 : len(value)-1]), nil
}

func traceID(value []byte) uuid.NullUUID {
	const quotedUUID = 38
	if len(value) != quotedUUID || value[0] != '"' {
		return uuid.NullUUID{}
	}
	id, err := uuid.ParseBytes(value[1 : quotedUUID-1])
	if err != nil {
		return uuid.NullUUID{}
	}
	return uuid.NullUUID{UUID: id, Valid: true}
}
