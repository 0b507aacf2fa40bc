package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Names of the files that are not chunks.
const (
	QueuesFile = "queues.yaml"
	GroupsFile = "groups.ndjson"
	indexFile  = "index.ndjson"
)

// A Message is one line of a chunk.
type Message struct {
	Queue         string  `json:"queue"`
	Partition     string  `json:"partition"`
	Offset        int64   `json:"offset"`
	ID            string  `json:"id"`
	TransactionID string  `json:"transactionId"`
	TraceID       *string `json:"traceId,omitempty"`
	Traceparent   *string `json:"traceparent,omitempty"`
	ProducerSub   *string `json:"producerSub,omitempty"`
	CreatedAt     string  `json:"createdAt"`
	// Data is the payload, byte for byte.
	Data []byte `json:"-"`
}

// Line is the message as a line without its end.
func (m *Message) Line() ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(m); err != nil {
		return nil, err
	}
	b.Truncate(b.Len() - 2) // the brace and the line's end
	if !bytes.ContainsAny(m.Data, "\r\n") {
		b.WriteString(`,"data":`)
		b.Write(m.Data)
	} else {
		b.WriteString(`,"raw":`)
		if err := encoder.Encode(string(m.Data)); err != nil {
			return nil, err
		}
		b.Truncate(b.Len() - 1)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// ParseMessage reads a line.
func ParseMessage(line []byte) (Message, error) {
	var m struct {
		Message
		Data json.RawMessage `json:"data"`
		Raw  *string         `json:"raw"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return Message{}, err
	}
	switch {
	case m.Raw != nil:
		m.Message.Data = []byte(*m.Raw)
	case m.Data != nil:
		m.Message.Data = m.Data
	default:
		return Message{}, errors.New("a message has neither data nor raw")
	}
	return m.Message, nil
}

// A Position is how much of a partition a group has consumed.
type Position struct {
	Group     string `json:"group"`
	Queue     string `json:"queue"`
	Partition string `json:"partition"`
	Consumed  int64  `json:"consumed"`
	Total     int64  `json:"total"`
}

// A Range says which offsets of a partition a chunk holds: [From, Next). The backup of the partition ends at Until.
type Range struct {
	Queue       string `json:"queue"`
	Partition   string `json:"partition"`
	PartitionID string `json:"partitionId"`
	From        int64  `json:"from"`
	Next        int64  `json:"next"`
	Until       int64  `json:"until"`
	Messages    int64  `json:"messages"`
}

// An Entry is one line of the index.
type Entry struct {
	File     string  `json:"file,omitempty"`
	SHA256   string  `json:"sha256"`
	Messages int64   `json:"messages"`
	Ranges   []Range `json:"ranges,omitempty"`
	// Complete marks the last line; its SHA256 is that of the lines before it.
	Complete bool `json:"complete,omitempty"`
}

// ErrDamaged is the error of an archive whose bytes are not those that were written.
var ErrDamaged = errors.New("the backup is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, args...)...)
}
