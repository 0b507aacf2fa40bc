package spool

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"encoding/json/jsontext"
	"errors"
	"hash/crc32"
	"unicode/utf8"

	"github.com/google/uuid"

	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

const (
	// header begins every file; its last character is the version of the format.
	header = "QSP1"
	// frameBytes is what a record takes beside its JSON.
	frameBytes = 8
	// maxName is how many characters the names of queues and partitions have at most.
	maxName = 255
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errTorn    = errors.New("the record is cut off")
	errCorrupt = errors.New("the checksum of the record is wrong")
)

// payloadMember stands before the payload, which is the last member. It cannot occur earlier: quotes inside texts are escaped.
var payloadMember = []byte(`,"payload":`)

// appendRecord appends the record of a message. The payload is not looked into.
func appendRecord(dst []byte, m *push.Accepted) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, `{"queue":`...)
	dst = appendText(dst, m.Queue)
	dst = append(dst, `,"partition":`...)
	dst = appendText(dst, m.Partition)
	dst = append(dst, `,"tenant":"`...)
	dst = append(dst, m.Tenant.String()...)
	dst = append(dst, `","transactionId":`...)
	dst = appendText(dst, m.TransactionID)
	dst = append(dst, `,"messageId":"`...)
	dst = append(dst, m.ID.String()...)
	dst = append(dst, '"')
	if m.ProducerSub != "" {
		dst = append(dst, `,"producerSub":`...)
		dst = appendText(dst, m.ProducerSub)
	}
	if m.TraceID.Valid {
		dst = append(dst, `,"traceId":"`...)
		dst = append(dst, m.TraceID.UUID.String()...)
		dst = append(dst, '"')
	}
	if m.Context != (segment.TraceContext{}) {
		dst = append(dst, `,"traceparent":"`...)
		dst = append(m.Context.AppendTraceparent(dst), '"')
	}
	dst = append(dst, `,"encrypted":`...)
	if m.Sealed {
		dst = append(dst, "true"...)
	} else {
		dst = append(dst, "false"...)
	}
	dst = append(dst, payloadMember...)
	dst = append(dst, m.Payload...)
	dst = append(dst, '}')
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start-4)) //nolint:gosec // a body is far shorter
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

func appendText(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // its only error says that bytes were replaced; names are checked before
	return dst
}

// nextRecord cuts the first record off data: errTorn when data ends before it does, errCorrupt when its checksum is wrong. size is what it
// takes as a whole, 0 when it is torn.
func nextRecord(data []byte) (body []byte, size int, err error) {
	if len(data) < frameBytes {
		return nil, 0, errTorn
	}
	length := uint64(binary.LittleEndian.Uint32(data))
	if uint64(len(data)) < length+frameBytes {
		return nil, 0, errTorn
	}
	end := 4 + int(length) //nolint:gosec // not longer than data
	if crc32.Checksum(data[:end], castagnoli) != binary.LittleEndian.Uint32(data[end:]) {
		return nil, end + 4, errCorrupt
	}
	return data[4:end], end + 4, nil
}

// recordHead is the JSON of a record without its payload. Records of other writers may lack the tenant and the message id.
type recordHead struct {
	Queue         string        `json:"queue"`
	Partition     string        `json:"partition"`
	Tenant        *uuid.UUID    `json:"tenant"`
	TransactionID string        `json:"transactionId"`
	MessageID     *uuid.UUID    `json:"messageId"`
	ProducerSub   string        `json:"producerSub"`
	TraceID       uuid.NullUUID `json:"traceId"`
	Traceparent   string        `json:"traceparent"`
	Encrypted     bool          `json:"encrypted"`
}

var errNoRecord = errors.New("the text is not that of a message")

// decodeRecord reads the JSON of a record. The payload stays a slice of body.
func decodeRecord(body []byte) (push.Accepted, error) {
	at := bytes.Index(body, payloadMember)
	if at < 0 || body[len(body)-1] != '}' || at+len(payloadMember) > len(body)-1 {
		return push.Accepted{}, errNoRecord
	}
	var head recordHead
	text := append(bytes.Clone(body[:at]), '}')
	if err := json.Unmarshal(text, &head); err != nil {
		return push.Accepted{}, errNoRecord
	}
	m := push.Accepted{
		Tenant: pg.DefaultTenant, ProducerSub: head.ProducerSub, Sealed: head.Encrypted,
		Item: push.Item{
			Queue: head.Queue, Partition: head.Partition, TransactionID: head.TransactionID, TraceID: head.TraceID,
			Context: segment.ParseTraceparent([]byte(head.Traceparent)),
			Payload: body[at+len(payloadMember) : len(body)-1],
		},
	}
	if head.Tenant != nil {
		m.Tenant = *head.Tenant
	}
	switch {
	case head.MessageID != nil:
		m.ID = *head.MessageID
	case head.TransactionID == "":
		return push.Accepted{}, errNoRecord // every replay would be a new message
	}
	if m.TransactionID == "" {
		m.TransactionID = m.ID.String()
	}
	if m.Queue == "" {
		return push.Accepted{}, errNoRecord
	}
	return m, nil
}

// checkNames refuses what the database would refuse later, when nobody waits for the answer any more.
func checkNames(it *push.Item) error {
	switch {
	case it.Queue == "":
		return errors.New("the queue has no name")
	case !fits(it.Queue) || !fits(it.Partition):
		return errors.New("the name of a queue or partition has more than 255 characters or is no UTF-8")
	case !utf8.ValidString(it.TransactionID):
		return errors.New("the transaction id is no UTF-8")
	}
	return nil
}

func fits(name string) bool {
	return utf8.ValidString(name) && (len(name) <= maxName || utf8.RuneCountInString(name) <= maxName)
}
