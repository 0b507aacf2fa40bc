package api

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"

	"queenmq/internal/engine/ack"
	"queenmq/internal/pg"
)

// ack acknowledges one message; the answer is an array all the same.
func (s *Server) ack(w http.ResponseWriter, r *http.Request) error {
	return s.acknowledge(w, r, (*ackScan).scanSingle)
}

// ackBatch acknowledges several messages of one group.
func (s *Server) ackBatch(w http.ResponseWriter, r *http.Request) error {
	return s.acknowledge(w, r, (*ackScan).scanBatch)
}

// An ackBuffer is the memory of one ack request.
type ackBuffer struct {
	body []byte
	ackScan
}

var ackBuffers = sync.Pool{New: func() any { return new(ackBuffer) }}

// recycle keeps the memory for another request: nothing of a decoded ack points into its body, and the engine is done with the items
// when it has answered.
func (b *ackBuffer) recycle() {
	const maxPooledItems = 10_000
	if cap(b.body) > maxPooledBytes || cap(b.items) > maxPooledItems {
		return
	}
	clear(b.items) // or their texts would live as long as the buffer
	b.items, b.data = b.items[:0], nil
	ackBuffers.Put(b)
}

func (s *Server) acknowledge(w http.ResponseWriter, r *http.Request, scan func(*ackScan, []byte) error) error {
	s.metrics.ackRequests.Add(1)
	buffer := ackBuffers.Get().(*ackBuffer) //nolint:forcetypeassert // the pool holds nothing else
	var err error
	if buffer.body, err = s.readBody(w, r, buffer.body); err != nil {
		return err
	}
	if err := scan(&buffer.ackScan, buffer.body); err != nil {
		return badBody(buffer.body, err)
	}
	if buffer.group == "" {
		buffer.group = pg.QueueModeGroup
	}
	if fault := nameFault(buffer.group); fault != "" {
		return newError(codeInvalidName, "consumerGroup "+fault)
	}
	s.metrics.ackMessages.Add(int64(len(buffer.items)))
	var results []ack.Result
	if len(buffer.items) > 0 {
		results = s.deps.Acker.Ack(r.Context(), tenantOf(r), buffer.group, buffer.items)
		s.wordFailures(r, results)
	}
	out := getBuffer()
	defer putBuffer(out)
	*out = appendAckResults((*out)[:0], results)
	buffer.recycle()
	releaseBody(w)                        // a client that does not read its answer keeps nobody out
	_ = writeJSON(w, http.StatusOK, *out) // done whether the client reads it or not
	return nil
}

// wordFailures gives items whose call to the database failed the words of the error table, and logs the causes: items of one batch
// share theirs.
func (s *Server) wordFailures(r *http.Request, results []ack.Result) {
	last := code("")
	for i := range results {
		if results[i].Cause == nil {
			continue
		}
		known := classify(results[i].Cause, "")
		results[i].Error = known.text
		if known.code != last && known.row().status >= http.StatusInternalServerError {
			s.faults.log(r.Context(), s.log, known, r.Pattern)
		}
		last = known.code
	}
}

func appendAckResults(dst []byte, results []ack.Result) []byte {
	dst = append(dst, '[')
	for i := range results {
		result := &results[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, `,"transactionId":`...)
		dst = appendString(dst, result.TransactionID)
		dst = append(dst, `,"success":`...)
		dst = strconv.AppendBool(dst, result.Success)
		dst = append(dst, `,"error":`...)
		dst = appendStringOrNull(dst, result.Error)
		dst = append(dst, `,"leaseReleased":`...)
		dst = strconv.AppendBool(dst, result.LeaseReleased)
		dst = append(dst, `,"dlq":`...)
		dst = strconv.AppendBool(dst, result.DeadLetter)
		dst = append(dst, `,"noop":`...)
		dst = strconv.AppendBool(dst, result.Noop)
		dst = append(dst, `,"queueName":`...)
		dst = appendStringOrNull(dst, result.Queue)
		dst = append(dst, `,"partitionName":`...)
		if result.Queue == "" { // the empty partition name is a real one, the empty queue name is not
			dst = append(dst, "null"...)
		} else {
			dst = appendString(dst, result.Partition)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// maxAckItems is the most acknowledgments one request may carry, for the same reason as maxPushItems.
const maxAckItems = 100_000

// An ackScan is the decoded form of an ack body. Its texts are copies.
type ackScan struct {
	memberScanner
	group string
	items []ack.Item
}

// scanSingle reads {transactionId, partitionId, status?, consumerGroup?, leaseId?, error?, delayMs?}.
func (a *ackScan) scanSingle(body []byte) error {
	a.items = append(a.items[:0], ack.Item{Status: ack.Completed})
	return a.scan(body, "an acknowledgment object", func(name string) (err error) {
		if name == "consumerGroup" {
			return a.scanGroup()
		}
		return a.takeMember(name)
	})
}

// scanBatch reads {consumerGroup?, acknowledgments: [{transactionId, partitionId, status?, leaseId?, error?, delayMs?}, …]}.
func (a *ackScan) scanBatch(body []byte) error {
	a.items = a.items[:0]
	return a.scan(body, "an object with acknowledgments", func(name string) (err error) {
		switch name {
		case "consumerGroup":
			return a.scanGroup()
		case "acknowledgments":
			clear(a.items)
			a.items = a.items[:0]
			_, err = a.array(name, a.scanElement)
			a.noun = ""
			return err
		default:
			return a.skip()
		}
	})
}

func (a *ackScan) scan(body []byte, want string, member func(name string) error) error {
	a.group, a.noun, a.index = "", "", 0
	if err := a.reset(body); err != nil {
		return err
	}
	if err := a.object(want, member); err != nil {
		return err
	}
	return a.end()
}

func (a *ackScan) scanGroup() error {
	text, _, err := a.text("consumerGroup")
	a.group = string(text)
	return err
}

func (a *ackScan) scanElement(index int) error {
	if index == maxAckItems {
		return newError(codeBatchTooLarge, fmt.Sprintf("more than %d acknowledgments in one request; send several", maxAckItems))
	}
	a.noun, a.index = "acknowledgment", index
	a.items = append(a.items, ack.Item{Status: ack.Completed})
	return a.element(a.takeMember)
}

// takeMember takes one member of the acknowledgment being read.
func (a *ackScan) takeMember(name string) error {
	var earlier ack.Item
	if a.index > 0 {
		earlier = a.items[a.index-1]
	}
	return a.scanMember(name, &a.items[a.index], earlier)
}

// scanMember takes one member of an acknowledgment. Neighbours share most of their texts with the earlier one.
func (m *memberScanner) scanMember(name string, item *ack.Item, earlier ack.Item) (err error) {
	var text []byte
	switch name {
	case "transactionId":
		text, _, err = m.text(name)
		item.TransactionID = string(text)
	case "partitionId":
		text, _, err = m.text(name)
		item.PartitionID = reused(text, earlier.PartitionID)
	case "leaseId":
		text, _, err = m.text(name)
		item.LeaseID = reused(text, earlier.LeaseID)
	case "error":
		item.Error, err = m.scanErrorText()
	case "status":
		item.Status, err = m.scanStatus()
	case "delayMs":
		item.DelayMs, err = m.scanDelay()
	default:
		err = m.skip()
	}
	return err
}

// scanStatus reads a status; an absent one is a completion. The match of the words is exact: what nobody knows is a failure,
// so that a message is redelivered rather than taken for done.
func (m *memberScanner) scanStatus() (string, error) {
	text, present, err := m.text("status")
	if !present {
		return ack.Completed, err
	}
	return ack.Status(string(text)), err
}

// scanDelay reads a delay in milliseconds; null is absent. The engine checks the bounds, for each acknowledgment by itself: what is no
// integer, or a far too large one, is -1 for it, which is out of bounds.
func (m *memberScanner) scanDelay() (*int, error) {
	c := m.peek()
	if c == 'n' {
		return nil, m.literal('n')
	}
	if c != '-' && (c < '0' || c > '9') {
		return nil, m.unexpected("an integer for `delayMs`" + m.place())
	}
	raw, err := m.value()
	if err != nil {
		return nil, err
	}
	delay := -1
	if number, err := strconv.ParseFloat(string(raw), 64); err == nil && number == math.Trunc(number) && math.Abs(number) <= math.MaxInt32 {
		delay = int(number)
	}
	return &delay, nil
}

// scanErrorText reads the reason of a failure, which people read and PostgreSQL stores: what it cannot store is replaced. Clients that
// send what they caught as it is, an object or a number, have its JSON as the reason: the acknowledgment must not fail on its words.
func (m *memberScanner) scanErrorText() (string, error) {
	if c := m.peek(); c != '"' && c != 'n' {
		raw, err := m.value()
		if isEmpty(raw) || string(raw) == "{}" { // an exception without members of its own says nothing
			return "", err
		}
		return string(raw), err
	}
	text, _, _, err := m.freeText("error")
	if err != nil || len(text) == 0 {
		return "", err
	}
	reason := make([]byte, 0, len(text))
	for _, c := range text {
		if c == 0 {
			reason = append(reason, "\uFFFD"...)
			continue
		}
		reason = append(reason, c)
	}
	return string(reason), nil
}
