package api

import (
	"fmt"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/transaction"
)

// maxTransactionOperations is the most operations one transaction may carry, push items counted one by one. All of them hold
// their locks until the one commit.
const maxTransactionOperations = 10_000

// A transactionScan is the decoded form of one transaction body. Payloads are slices of the body.
type transactionScan struct {
	memberScanner
	operations []transaction.Operation
	leases     []string
	found      bool
	// seen says where the value of each known member of the current object begins, in the order they came.
	seen []memberAt
}

type memberAt struct {
	name string
	at   int
}

// The two refusals of a transaction's shape, in the words of the contract.
var (
	errNoOperations = newError(codeInvalidTransaction, errorRows[codeInvalidTransaction].text)
	errOperation    = newError(codeInvalidTransaction, "segments transaction supports only push and ack operations")
)

// scan reads {"operations": [push or ack, …], "requiredLeases": [text, …]}. An operation is known by its type, which may
// stand anywhere in it: the members are found first and read afterwards.
func (t *transactionScan) scan(body []byte) error {
	if err := t.reset(body); err != nil {
		return err
	}
	err := t.object("an object with operations", func(name string) (err error) {
		switch name {
		case "operations":
			t.operations, t.found = nil, false
			if c := t.peek(); c != '[' && c != 'n' {
				return t.skipThen(errNoOperations)
			}
			t.found, err = t.array(name, t.scanOperation)
			t.noun = ""
			return err
		case "requiredLeases":
			return t.scanLeases()
		default:
			return t.skip()
		}
	})
	if err == nil {
		err = t.end()
	}
	if err == nil && !t.found {
		err = errNoOperations
	}
	return err
}

// skipThen reports err unless what comes next is not even JSON.
func (t *transactionScan) skipThen(err error) error {
	if syntax := t.skip(); syntax != nil {
		return syntax
	}
	return err
}

func (t *transactionScan) scanLeases() error {
	t.leases = nil
	_, err := t.array("requiredLeases", func(int) error {
		text, present, err := t.text("requiredLeases")
		if err == nil && present && len(text) > 0 {
			t.leases = append(t.leases, string(text))
		}
		return err
	})
	return err
}

func (t *transactionScan) scanOperation(int) error {
	t.noun, t.index = "operation", len(t.operations)
	if t.peek() != '{' {
		return t.skipThen(errOperation)
	}
	if err := t.findMembers(); err != nil {
		return err
	}
	after := t.pos
	kind := ""
	if t.seek("type") && t.peek() == '"' {
		text, _, err := t.text("type")
		if err != nil {
			return err
		}
		kind = string(text)
	}
	var err error
	switch kind {
	case "push":
		if t.seek("items") && t.peek() != 'n' {
			_, err = t.array("items", t.scanNestedItem)
		} else {
			err = t.readPush()
		}
	case "ack":
		err = t.readAck()
	default:
		err = errOperation
	}
	t.pos = after
	return err
}

// findMembers moves over an object and notes where the values of its known members begin.
func (t *transactionScan) findMembers() error {
	t.seen = t.seen[:0]
	return t.element(func(name string) error {
		if name != "" {
			t.peek()
			t.seen = append(t.seen, memberAt{name, t.pos})
		}
		return t.skip()
	})
}

// seek goes to the value of a member, the last one of that name, and reports whether there is one.
func (t *transactionScan) seek(name string) bool {
	for i := len(t.seen) - 1; i >= 0; i-- {
		if t.seen[i].name == name {
			t.pos = t.seen[i].at
			return true
		}
	}
	return false
}

func (t *transactionScan) scanNestedItem(int) error {
	t.index = len(t.operations)
	if err := t.findMembers(); err != nil {
		return err
	}
	after := t.pos
	err := t.readPush()
	t.pos = after
	return err
}

// add appends an operation within the bound.
func (t *transactionScan) add(operation transaction.Operation) error {
	if len(t.operations) == maxTransactionOperations {
		return newError(codeBatchTooLarge, fmt.Sprintf("more than %d operations in one transaction; send several", maxTransactionOperations))
	}
	t.operations = append(t.operations, operation)
	return nil
}

// readPush makes a push operation of the members found last.
func (t *transactionScan) readPush() error {
	item := &push.Item{Partition: defaultPartition, Payload: []byte("{}")}
	if t.seek("queue") {
		text, _, err := t.name("queue")
		if err != nil {
			return err
		}
		item.Queue = string(text)
	}
	if fault := queueFault(item.Queue); fault != "" {
		return t.faulty("queue", fault)
	}
	if t.seek("partition") {
		text, present, err := t.name("partition")
		if err != nil {
			return err
		}
		if present {
			item.Partition = string(text)
		}
		if fault := partitionFault(item.Partition); fault != "" {
			return t.faulty("partition", fault)
		}
	}
	if t.seek("transactionId") {
		text, _, err := t.name("transactionId")
		if err != nil {
			return err
		}
		if len(text) > maxTransactionIDBytes {
			return t.faulty("transactionId", fmt.Sprintf("exceeds the %d-byte limit", maxTransactionIDBytes))
		}
		item.TransactionID = string(text)
	}
	if t.seek("traceId") {
		trace, err := t.scanTraceID()
		if err != nil {
			return err
		}
		item.TraceID = trace
	}
	if t.seek("traceparent") {
		context, err := t.scanTraceparent()
		if err != nil {
			return err
		}
		item.Context = context
	}
	if t.seek("payload") || t.seek("data") {
		payload, err := t.value()
		if err != nil {
			return err
		}
		item.Payload = payload
	}
	return t.add(transaction.Operation{Push: item})
}

// readAck makes an ack operation of the members found last.
func (t *transactionScan) readAck() error {
	item := ack.Item{Status: ack.Completed}
	group := ""
	for _, name := range [...]string{"transactionId", "partitionId", "leaseId", "error", "status", "delayMs"} {
		if !t.seek(name) {
			continue
		}
		if err := t.scanMember(name, &item, ack.Item{}); err != nil {
			return err
		}
	}
	if t.seek("consumerGroup") {
		text, _, err := t.text("consumerGroup")
		if err != nil {
			return err
		}
		group = string(text)
		if fault := nameFault(group); fault != "" {
			return t.faulty("consumerGroup", fault)
		}
	}
	return t.add(transaction.Operation{Ack: &transaction.AckOperation{Item: item, Group: group}})
}
