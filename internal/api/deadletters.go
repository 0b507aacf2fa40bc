package api

import (
	"encoding/json"
	"net/http"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// deadLetterFilter reads the filters that all dead-letter routes share.
func deadLetterFilter(q lenientQuery) (pg.DeadLetterFilter, error) {
	filter := pg.DeadLetterFilter{
		Queue: q.text("queue"), Partition: q.text("partition"), Group: q.text("consumerGroup"), From: q.time("from"), To: q.time("to"),
		Shape: q.text("shape"), Error: q.text("error"), TransactionID: q.text("transactionId"), After: q.text("cursor"),
	}
	filter.Limit, filter.Offset = q.page(100)
	var err error
	filter.PartitionID, err = q.uuidParameter("partitionId")
	return filter, err
}

// deadLetterHead is one dead letter, without its payload. The time of the failure has both names that clients look for.
type deadLetterHead struct {
	ID            uuid.UUID  `json:"id"`
	TransactionID *string    `json:"transactionId"`
	PartitionID   uuid.UUID  `json:"partitionId"`
	Queue         *string    `json:"queue"`
	Partition     *string    `json:"partition"`
	Group         string     `json:"consumerGroup"`
	ErrorMessage  *string    `json:"errorMessage"`
	RetryCount    int        `json:"retryCount"`
	ProducerSub   *string    `json:"producerSub"`
	MessageID     uuid.UUID  `json:"messageId"`
	Offset        int64      `json:"offset"`
	TraceID       *uuid.UUID `json:"traceId"`
	Traceparent   string     `json:"traceparent,omitempty"`
	CreatedAt     *string    `json:"createdAt"`
	FailedAt      *string    `json:"failedAt"`
	Encrypted     bool       `json:"isEncrypted,omitempty"`
}

// listDeadLetters lists dead letters, the newest failure first.
func (s *Server) listDeadLetters(w http.ResponseWriter, r *http.Request) error {
	filter, err := deadLetterFilter(lenient(r))
	if err != nil {
		return err
	}
	page, err := s.deps.Browser.DeadLetters(r.Context(), tenantOf(r), filter)
	if err != nil {
		return badRange(err, filter.From, filter.To)
	}
	out := getBuffer()
	defer putBuffer(out)
	dst := append((*out)[:0], `{"messages":[`...)
	for i := range page.Rows {
		row := &page.Rows[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		head := deadLetterHead{
			ID: row.ID, TransactionID: textOrNull(row.TransactionID), PartitionID: row.PartitionID, Queue: textOrNull(row.Queue),
			Partition: textOrNull(row.Partition), Group: row.Group, ErrorMessage: textOrNull(row.Error), RetryCount: row.RetryCount,
			MessageID: row.MessageID, Offset: row.Offset, TraceID: uuidOrNull(row.TraceID), CreatedAt: millis(row.FailedAt), FailedAt: millis(row.FailedAt),
			Encrypted: row.Encrypted, Traceparent: traceparentOf(row.Context),
		}
		if head.Queue != nil {
			head.Partition = &row.Partition // the empty name is a real one
		}
		if dst, err = appendMessage(dst, head, row.Payload); err != nil {
			return err
		}
	}
	rest, err := json.Marshal(struct {
		Pagination pagination `json:"pagination"`
		Total      int        `json:"total"`
		Next       *string    `json:"nextCursor"`
	}{pagination{filter.Limit, filter.Offset}, len(page.Rows), textOrNull(page.Next)})
	if err != nil {
		return err
	}
	dst = append(dst, `],`...)
	dst = append(dst, rest[1:]...)
	*out = dst
	_ = writeJSON(w, http.StatusOK, dst) // the client is gone; nothing is left to tell it
	return nil
}

// traceparentOf is the text of the span that a dead letter keeps, "" for none.
func traceparentOf(context []byte) string {
	var c segment.TraceContext
	if len(context) != len(c) {
		return ""
	}
	copy(c[:], context)
	return string(c.AppendTraceparent(nil))
}

type pagination struct {
	Limit  int `json:"limit"`
	Offset int `json:"offset"`
}

// countDeadLetters counts all dead letters that the filters choose.
func (s *Server) countDeadLetters(w http.ResponseWriter, r *http.Request) error {
	filter, err := deadLetterFilter(lenient(r))
	if err != nil {
		return err
	}
	n, err := s.deps.Store.CountDeadLetters(r.Context(), tenantOf(r), filter)
	if err != nil {
		return badRange(err, filter.From, filter.To)
	}
	return writeValue(w, http.StatusOK, struct {
		Count int64 `json:"count"`
	}{n})
}

// deadLetterShapes groups all dead letters that the filters choose by the shape of their error texts.
func (s *Server) deadLetterShapes(w http.ResponseWriter, r *http.Request) error {
	filter, err := deadLetterFilter(lenient(r))
	if err != nil {
		return err
	}
	answer, err := s.deps.Store.DeadLetterShapes(r.Context(), tenantOf(r), filter)
	if err != nil {
		return badRange(err, filter.From, filter.To)
	}
	return writeProcedure(w, http.StatusOK, answer)
}

// deleteStep is how many dead letters one statement of a bulk deletion takes.
const deleteStep = 1000

// deleteDeadLetters deletes the dead letters that the filters choose, in steps that commit one by one. It wants a queue: a
// forgotten filter must not empty everything.
func (s *Server) deleteDeadLetters(w http.ResponseWriter, r *http.Request) error {
	filter, err := deadLetterFilter(lenient(r))
	if err != nil {
		return err
	}
	if filter.Queue == "" {
		return newError(codeQueueRequired, errorRows[codeQueueRequired].text)
	}
	var deleted int64
	for {
		n, err := s.deps.Store.DeleteDeadLetters(r.Context(), tenantOf(r), filter, deleteStep)
		if err != nil {
			return badRange(err, filter.From, filter.To)
		}
		deleted += n
		if n < deleteStep {
			break
		}
	}
	return writeValue(w, http.StatusOK, struct {
		Success bool    `json:"success"`
		Deleted int64   `json:"deleted"`
		Queue   string  `json:"queue"`
		Group   *string `json:"consumerGroup"`
	}{true, deleted, filter.Queue, textOrNull(filter.Group)})
}

// noDeadLetter is the answer for an address without a dead letter.
type noDeadLetter struct {
	Success       bool   `json:"success"`
	PartitionID   string `json:"partitionId"`
	TransactionID string `json:"transactionId"`
	Error         string `json:"error"`
	Message       string `json:"message"`
	Code          code   `json:"code"`
}

func writeNoDeadLetter(w http.ResponseWriter, r *http.Request, message string) error {
	return writeValue(w, http.StatusNotFound, noDeadLetter{
		PartitionID: r.PathValue("partitionId"), TransactionID: r.PathValue("transactionId"),
		Error: "Message not found", Message: message, Code: codeNotFound,
	})
}

// deleteMessage deletes the dead letters of one message. Live messages cannot be deleted.
func (s *Server) deleteMessage(w http.ResponseWriter, r *http.Request) error {
	const none = "No dead-letter row for this address. Live messages live in immutable segments and cannot be deleted"
	partition, ok := parseUUID(r.PathValue("partitionId"))
	if !ok {
		return writeNoDeadLetter(w, r, none)
	}
	answer, err := s.deps.Store.DeleteDeadLetterAt(r.Context(), tenantOf(r), partition, r.PathValue("transactionId"))
	if err != nil {
		return err
	}
	var done struct {
		Success bool `json:"success"`
	}
	if err := json.Unmarshal(answer, &done); err != nil {
		return err
	}
	if !done.Success {
		return writeNoDeadLetter(w, r, none)
	}
	return writeProcedure(w, http.StatusOK, answer)
}
