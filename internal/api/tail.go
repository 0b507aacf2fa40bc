package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/browse"
	"queenmq/internal/engine/tail"
)

// A Tailer lets people watch queues; *tail.Hub is one.
type Tailer interface {
	Watch(tenant uuid.UUID, queue string) (*tail.Watcher, error)
}

const (
	// tailHeartbeat is how often a silent stream says that it lives, so that proxies keep it and a client that left is noticed.
	tailHeartbeat = 15 * time.Second
	// tailLifetime ends a stream, so that forgotten pages do not watch for ever; a page that is looked at asks again.
	tailLifetime = 15 * time.Minute
	// maxTailPayload is the largest payload that is sent along, in bytes.
	maxTailPayload = 64 << 10
)

// tailedMessage is one message of a stream. The payload is text that holds JSON: an event is lines of text, and white space in a payload
// must not be taken for their ends.
type tailedMessage struct {
	listedMessage
	Payload      *string `json:"payloadText"`
	PayloadBytes int     `json:"payloadBytes"`
}

// tailMessages sends the messages of a queue as they come, as server-sent events: "message", "missed" with a number, and "end".
func (s *Server) tailMessages(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	queue, partition := q.text("queue"), q.text("partition")
	if queue == "" {
		return newError(codeQueueRequired, errorRows[codeQueueRequired].text)
	}
	if s.deps.Tail == nil {
		return newError(codeTooManyWatchers, errorRows[codeTooManyWatchers].text)
	}
	watcher, err := s.deps.Tail.Watch(tenantOf(r), queue)
	if err != nil {
		return err
	}
	defer watcher.Close()
	out := &eventStream{w: w, line: http.NewResponseController(w), stall: s.cfg.StallTimeout}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	if out.send(": watching\n\n") != nil {
		return nil //nolint:nilerr // the client is gone; nothing is left to tell it
	}
	end := time.Now().Add(tailLifetime)
	for time.Now().Before(end) {
		wait, cancel := context.WithTimeout(r.Context(), tailHeartbeat)
		messages, missed, err := watcher.Next(wait)
		cancel()
		switch {
		case r.Context().Err() != nil:
			return nil
		case errors.Is(err, tail.ErrStopped):
			_ = out.event("end", []byte(`{"reason":"stopping"}`))
			return nil
		case errors.Is(err, tail.ErrCrowdedOut):
			_ = out.event("end", []byte(`{"reason":"crowded"}`))
			return nil
		case err != nil:
			err = out.send(": alive\n\n")
		default:
			err = out.messages(messages, missed, partition)
		}
		if err != nil {
			return nil //nolint:nilerr // the client is gone; nothing is left to tell it
		}
	}
	_ = out.event("end", []byte(`{"reason":"lifetime"}`))
	return nil
}

// An eventStream writes events, each within the stall timeout.
type eventStream struct {
	w     http.ResponseWriter
	line  *http.ResponseController
	stall time.Duration
}

func (e *eventStream) send(text string) error {
	_ = e.line.SetWriteDeadline(time.Now().Add(e.stall)) // a writer without a connection has none
	defer func() { _ = e.line.SetWriteDeadline(time.Time{}) }()
	if _, err := e.w.Write([]byte(text)); err != nil {
		return err
	}
	return e.line.Flush()
}

// event writes one event; data is one line.
func (e *eventStream) event(name string, data []byte) error {
	return e.send("event: " + name + "\ndata: " + string(data) + "\n\n")
}

// messages writes those of a partition, or all when it is "", after what was left out before them.
func (e *eventStream) messages(messages []browse.Message, missed int, partition string) error {
	if missed > 0 {
		data, err := json.Marshal(map[string]int{"atLeast": missed})
		if err != nil {
			return err
		}
		if err := e.event("missed", data); err != nil {
			return err
		}
	}
	for i := range messages {
		m := &messages[i]
		if partition != "" && m.Partition != partition {
			continue
		}
		one := tailedMessage{listedMessage: listed(m), PayloadBytes: len(m.Payload)}
		if m.Available && len(m.Payload) <= maxTailPayload {
			one.Payload = new(string(m.Payload))
		}
		data, err := json.Marshal(one)
		if err != nil {
			return err
		}
		if err := e.event("message", data); err != nil {
			return err
		}
	}
	return nil
}
