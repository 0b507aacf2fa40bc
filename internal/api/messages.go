package api

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/browse"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// A Browser reads stored messages; *browse.Reader is one.
type Browser interface {
	List(ctx context.Context, tenant uuid.UUID, filter pg.MessageFilter) (browse.Page, error)
	Search(ctx context.Context, tenant uuid.UUID, filter pg.MessageFilter, c browse.Condition) (browse.Page, browse.Searched, error)
	Find(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (browse.Detail, bool, error)
	Trace(ctx context.Context, tenant, trace uuid.UUID, limit int) ([]browse.Traced, error)
	DeadLetters(ctx context.Context, tenant uuid.UUID, filter pg.DeadLetterFilter) (pg.DeadLetterPage, error)
	Partition(ctx context.Context, tenant, partition uuid.UUID, from int64, limit int) (browse.Part, bool, error)
}

// timeMillis is how management answers write times: UTC with milliseconds.
const timeMillis = "2006-01-02T15:04:05.000Z"

// millis writes a time, nil for the zero time.
func millis(at time.Time) *string {
	if at.IsZero() {
		return nil
	}
	return new(at.UTC().Format(timeMillis))
}

// textOrNull is nil for the empty text.
func textOrNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// uuidOrNull is nil for no id.
func uuidOrNull(id uuid.NullUUID) *uuid.UUID {
	if !id.Valid {
		return nil
	}
	return &id.UUID
}

// appendMessage appends head, which must marshal to an object, with the payload as its members data and payload. The payload's
// bytes are not touched; no payload is null.
func appendMessage(dst []byte, head any, payload []byte) ([]byte, error) {
	text, err := json.Marshal(head)
	if err != nil {
		return dst, err
	}
	if len(payload) == 0 {
		payload = []byte("null")
	}
	dst = append(dst, text[:len(text)-1]...)
	dst = append(dst, `,"data":`...)
	dst = append(dst, payload...)
	dst = append(dst, `,"payload":`...)
	dst = append(dst, payload...)
	return append(dst, '}'), nil
}

// contentHead is the part of a message that lies in its segment. Its members are null when the segment is gone or damaged; Unreadable
// then says which of the two: null for gone, else the damage.
type contentHead struct {
	ID            *uuid.UUID `json:"id"`
	TransactionID *string    `json:"transactionId"`
	TraceID       *uuid.UUID `json:"traceId"`
	ProducerSub   *string    `json:"producerSub"`
	Encrypted     bool       `json:"isEncrypted"`
	Unreadable    *string    `json:"unreadable"`
}

func headOf(c *browse.Content) contentHead {
	if !c.Available {
		return contentHead{Unreadable: textOrNull(c.Unreadable)}
	}
	return contentHead{&c.ID, &c.TransactionID, uuidOrNull(c.TraceID), textOrNull(c.ProducerSub), c.Encrypted, nil}
}

// listedMessage is one entry of the list of messages, without its payload.
type listedMessage struct {
	contentHead
	Hash           string    `json:"txnHash"`
	PartitionID    uuid.UUID `json:"partitionId"`
	QueuePath      string    `json:"queuePath"`
	Queue          string    `json:"queue"`
	Partition      string    `json:"partition"`
	Namespace      string    `json:"namespace"`
	Task           string    `json:"task"`
	Status         string    `json:"status"`
	QueueStatus    string    `json:"queueStatus"`
	BusStatus      busStatus `json:"busStatus"`
	QueuePriority  int       `json:"queuePriority"`
	Available      bool      `json:"payloadAvailable"`
	Segment        frameAt   `json:"segment"`
	Offset         int64     `json:"offset"`
	RetryCount     int       `json:"retryCount"`
	CreatedAt      *string   `json:"createdAt"`
	LeaseExpiresAt *string   `json:"leaseExpiresAt"`
}

type busStatus struct {
	ConsumedBy  int `json:"consumedBy"`
	TotalGroups int `json:"totalGroups"`
}

type frameAt struct {
	Base  int64 `json:"seq"`
	Frame int   `json:"frameIdx"`
}

// mode says who consumes: named groups ("bus"), the queue mode, both or none.
type mode struct {
	HasQueueMode bool   `json:"hasQueueMode"`
	BusGroups    int    `json:"busGroupsCount"`
	Type         string `json:"type"`
}

// searched is what one step of a search for payloads has looked at.
type searched struct {
	Messages   int     `json:"messages"`
	Unreadable int     `json:"unreadable"`
	Until      *string `json:"until"`
}

// messagePage reads a page, or with a condition on the payloads a step of a search; searched is nil without one.
func (s *Server) messagePage(r *http.Request, q lenientQuery, filter pg.MessageFilter) (browse.Page, *searched, error) {
	text := q.text("payload")
	if text == "" {
		page, err := s.deps.Browser.List(r.Context(), tenantOf(r), filter)
		return page, nil, err
	}
	condition, err := browse.ParseCondition(text)
	if err != nil {
		return browse.Page{}, nil, newError(codeInvalidParameter, err.Error())
	}
	page, looked, err := s.deps.Browser.Search(r.Context(), tenantOf(r), filter, condition)
	return page, &searched{looked.Messages, looked.Unreadable, millis(looked.Until)}, err
}

// listMessages lists stored messages, the newest first.
func (s *Server) listMessages(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	filter, err := messageFilter(q)
	if err != nil {
		return err
	}
	page, looked, err := s.messagePage(r, q, filter)
	if err != nil {
		return badRange(err, filter.From, filter.To)
	}
	out := getBuffer()
	defer putBuffer(out)
	dst := append((*out)[:0], `{"messages":[`...)
	for i := range page.Messages {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendMessage(dst, listed(&page.Messages[i]), page.Messages[i].Payload); err != nil {
			return err
		}
	}
	rest, err := json.Marshal(struct {
		Mode     mode      `json:"mode"`
		Total    int       `json:"total"`
		Next     *string   `json:"nextCursor"`
		Searched *searched `json:"searched,omitempty"`
	}{mode{page.HasQueueMode, page.BusGroups, page.ModeType}, len(page.Messages), textOrNull(page.Next), looked})
	if err != nil {
		return err
	}
	dst = append(dst, `],`...)
	dst = append(dst, rest[1:]...)
	*out = dst
	_ = writeJSON(w, http.StatusOK, dst) // the client is gone; nothing is left to tell it
	return nil
}

// messageFilter reads the query of the message list. Clients also send consumerGroup, which has never had a meaning here; the
// status as one group sees it is asked for with group.
func messageFilter(q lenientQuery) (pg.MessageFilter, error) {
	filter := pg.MessageFilter{
		Queue: q.text("queue"), Partition: q.text("partition"), Namespace: q.text("namespace"), Task: q.text("task"),
		Status: q.text("status"), Group: q.text("group"), From: q.time("from"), To: q.time("to"), After: q.text("cursor"),
	}
	if filter.Namespace == "" {
		filter.Namespace = q.text("ns")
	}
	if id := q.text("transactionId"); id != "" {
		hash := segment.Hash(id)
		filter.TransactionHash = hash[:]
	}
	filter.Limit, filter.Offset = q.page(200)
	var err error
	filter.TraceID, err = q.uuidParameter("traceId")
	return filter, err
}

func listed(m *browse.Message) listedMessage {
	return listedMessage{
		contentHead: headOf(&m.Content), Hash: hex.EncodeToString(m.Hash), PartitionID: m.PartitionID,
		QueuePath: m.Queue + "/" + m.Partition, Queue: m.Queue, Partition: m.Partition, Namespace: m.Namespace, Task: m.Task,
		Status: m.Status, QueueStatus: m.QueueStatus, BusStatus: busStatus{m.ConsumedBy, m.TotalGroups}, QueuePriority: m.QueuePriority,
		Available: m.Available, Segment: frameAt{m.Segment.Base, m.Frame}, Offset: m.Offset, RetryCount: m.RetryCount,
		CreatedAt: millis(m.CreatedAt), LeaseExpiresAt: millis(m.LeaseExpiresAt),
	}
}

// describedMessage is one message in full, without its payload.
type describedMessage struct {
	contentHead
	CreatedAt      *string      `json:"createdAt"`
	PartitionID    uuid.UUID    `json:"partitionId"`
	Partition      string       `json:"partition"`
	Queue          string       `json:"queue"`
	QueuePath      string       `json:"queuePath"`
	Namespace      string       `json:"namespace"`
	Task           string       `json:"task"`
	Offset         int64        `json:"offset"`
	Status         string       `json:"status"`
	ErrorMessage   *string      `json:"errorMessage"`
	RetryCount     int          `json:"retryCount"`
	LeaseExpiresAt *string      `json:"leaseExpiresAt"`
	QueueConfig    queueConfig  `json:"queueConfig"`
	Mode           mode         `json:"mode"`
	Groups         []groupState `json:"consumerGroups"`
	Deliveries     []delivery   `json:"deliveries"`
}

// delivery is what the cursor of a group knows of one message; null is not known.
type delivery struct {
	Group         string  `json:"group"`
	State         string  `json:"state"`
	Attempts      *int    `json:"attempts"`
	AttemptsExact bool    `json:"attemptsExact"`
	Failures      *int    `json:"failures"`
	LeaseID       *string `json:"leaseId"`
	AcquiredAt    *string `json:"acquiredAt"`
	ExpiresAt     *string `json:"expiresAt"`
	RedeliveryAt  *string `json:"redeliveryAt"`
}

func deliveriesOf(in []pg.Delivery) []delivery {
	out := make([]delivery, len(in))
	for i, d := range in {
		out[i] = delivery{d.Group, d.State, d.Attempts, d.AttemptsExact, d.Failures, textOrNull(d.LeaseID), millis(d.AcquiredAt), millis(d.ExpiresAt), millis(d.RedeliveryAt)}
	}
	return out
}

type queueConfig struct {
	LeaseTime  int `json:"leaseTime"`
	RetryLimit int `json:"retryLimit"`
	RetryDelay int `json:"retryDelay"`
	TTL        int `json:"ttl"`
	Priority   int `json:"priority"`
}

type groupState struct {
	Name           string  `json:"name"`
	Group          string  `json:"group"`
	Consumed       bool    `json:"consumed"`
	LeaseExpiresAt *string `json:"leaseExpiresAt"`
}

func groupStates(groups []pg.GroupState) []groupState {
	states := make([]groupState, len(groups))
	for i, g := range groups {
		states[i] = groupState{g.Name, g.Name, g.Consumed, millis(g.LeaseExpiresAt)}
	}
	return states
}

// errMessageNotFound answers for an unknown message, an evicted one, and one of another tenant.
var errMessageNotFound = newError(codeNotFound, "Message not found")

// getMessage describes one message.
func (s *Server) getMessage(w http.ResponseWriter, r *http.Request) error {
	partition, ok := parseUUID(r.PathValue("partitionId"))
	if !ok {
		return errMessageNotFound
	}
	m, found, err := s.deps.Browser.Find(r.Context(), tenantOf(r), partition, r.PathValue("transactionId"))
	if err != nil {
		return err
	}
	if !found {
		return errMessageNotFound
	}
	head := describedMessage{
		contentHead: headOf(&m.Content), CreatedAt: millis(m.CreatedAt), PartitionID: m.PartitionID, Partition: m.Partition, Queue: m.Queue,
		QueuePath: m.Queue + "/" + m.Partition, Namespace: m.Namespace, Task: m.Task, Offset: m.Offset, Status: m.Status,
		RetryCount: m.RetryCount, LeaseExpiresAt: millis(m.LeaseExpiresAt),
		QueueConfig: queueConfig{m.LeaseTime, m.RetryLimit, m.RetryDelay, m.TTL, m.Priority},
		Mode:        mode{m.HasQueueMode, len(m.Groups), "queue"}, Groups: groupStates(m.Groups), Deliveries: deliveriesOf(m.Deliveries),
	}
	if m.DeadLetter {
		head.ErrorMessage = &m.DeadLetterError
	}
	if len(m.Groups) > 0 {
		head.Mode.Type = "bus"
	}
	body, err := appendMessage(nil, head, m.Payload)
	if err != nil {
		return err
	}
	_ = writeJSON(w, http.StatusOK, body) // the client is gone; nothing is left to tell it
	return nil
}

// tracedMessage is one station of a pipeline, without its payload.
type tracedMessage struct {
	contentHead
	PartitionID uuid.UUID    `json:"partitionId"`
	Queue       string       `json:"queue"`
	Partition   string       `json:"partition"`
	Offset      int64        `json:"offset"`
	CreatedAt   *string      `json:"createdAt"`
	Available   bool         `json:"payloadAvailable"`
	Status      string       `json:"status"`
	Groups      []groupState `json:"consumerGroups"`
}

// pipeline lists all messages that carry a trace id, across queues and in the order of time.
func (s *Server) pipeline(w http.ResponseWriter, r *http.Request) error {
	trace, ok := parseUUID(r.PathValue("traceId"))
	if !ok {
		return newError(codeInvalidParameter, "traceId must be a UUID")
	}
	limit, _ := lenient(r).page(maxPageLimit)
	messages, err := s.deps.Browser.Trace(r.Context(), tenantOf(r), trace, limit)
	if err != nil {
		return err
	}
	dst := append([]byte(`{"traceId":`), appendUUID(nil, trace)...)
	dst = append(dst, `,"messages":[`...)
	for i := range messages {
		m := &messages[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		head := tracedMessage{
			contentHead: headOf(&m.Content), PartitionID: m.PartitionID, Queue: m.Queue, Partition: m.Partition, Offset: m.Offset,
			CreatedAt: millis(m.CreatedAt), Available: m.Available, Status: m.Status, Groups: groupStates(m.Groups),
		}
		if !m.Available {
			head.TraceID = &trace
		}
		if dst, err = appendMessage(dst, head, m.Payload); err != nil {
			return err
		}
	}
	rest, err := json.Marshal(struct {
		Total int `json:"total"`
	}{len(messages)})
	if err != nil {
		return err
	}
	dst = append(dst, `],`...)
	dst = append(dst, rest[1:]...)
	_ = writeJSON(w, http.StatusOK, dst) // the client is gone; nothing is left to tell it
	return nil
}
