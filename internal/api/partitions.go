package api

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/google/uuid"

	"queenmq/internal/engine/browse"
	"queenmq/internal/engine/segment"
)

// storedMessage is one message of a partition, without its payload.
type storedMessage struct {
	contentHead
	Offset    int64   `json:"offset"`
	CreatedAt *string `json:"createdAt"`
}

// partitionMessages lists the stored messages of one partition by offset, the oldest first. It changes nothing: readers that must
// not disturb consumers, and copies of whole queues, come here.
func (s *Server) partitionMessages(w http.ResponseWriter, r *http.Request) error {
	notFound := newError(codeNotFound, "Partition not found")
	id, ok := parseUUID(r.PathValue("partitionId"))
	if !ok {
		return notFound
	}
	q := lenient(r)
	from := int64(0)
	if text := q.text("offset"); text != "" {
		var err error
		if from, err = strconv.ParseInt(text, 10, 64); err != nil {
			return newError(codeInvalidParameter, "offset must be an integer; below zero it counts back from the end")
		}
	}
	limit, _ := q.page(100)
	part, found, err := s.deps.Browser.Partition(r.Context(), tenantOf(r), id, from, limit)
	if err != nil {
		return err
	}
	if !found {
		return notFound
	}
	head, err := json.Marshal(struct {
		PartitionID uuid.UUID `json:"partitionId"`
		Queue       string    `json:"queue"`
		Partition   string    `json:"partition"`
		LogStart    int64     `json:"logStart"`
		End         int64     `json:"endOffset"`
		Next        int64     `json:"nextOffset"`
	}{id, part.Queue, part.Partition, part.LogStart, part.End, part.Next})
	if err != nil {
		return err
	}
	out := getBuffer()
	defer putBuffer(out)
	dst := append((*out)[:0], head[:len(head)-1]...)
	dst = append(dst, `,"messages":[`...)
	for i := range part.Messages {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendStored(dst, &part.Messages[i]); err != nil {
			return err
		}
	}
	dst = append(dst, "]}"...)
	*out = dst
	_ = writeJSON(w, http.StatusOK, dst) // the client is gone; nothing is left to tell it
	return nil
}

// appendStored appends a stored message as JSON. Its payload is copied as it is.
func appendStored(dst []byte, m *browse.Stored) ([]byte, error) {
	head, err := json.Marshal(storedMessage{headOf(&m.Content), m.Offset, millis(m.CreatedAt)})
	if err != nil {
		return dst, err
	}
	dst = append(dst, head[:len(head)-1]...)
	if m.Context != (segment.TraceContext{}) {
		dst = append(dst, `,"traceparent":"`...)
		dst = append(m.Context.AppendTraceparent(dst), '"')
	}
	dst = append(dst, `,"data":`...)
	if len(m.Payload) == 0 {
		dst = append(dst, "null"...)
	}
	dst = append(dst, m.Payload...)
	return append(dst, '}'), nil
}
