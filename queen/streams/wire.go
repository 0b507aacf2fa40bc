package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"queenmq/queen"
)

// ErrQueryChanged: a query is registered under this name with other operators, and may have state that was made by them.
var ErrQueryChanged = errors.New("streams: the query has changed")

// Why a cycle was rolled back. It has had no effect then.
var (
	errStateChanged = errors.New("the state has changed")
	errLeaseLost    = errors.New("the lease is lost")
	errSinkFull     = errors.New("a sink is full")
)

// A refusedError is a cycle that the broker rolled back for a reason that lies in the cycle itself.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "streams: the broker refused the cycle: " + e.reason }

// wire speaks the three routes of the streams API.
type wire struct {
	client *queen.Client
	query  string // id
	group  string
}

// register registers a query and keeps its id.
func (w *wire) register(ctx context.Context, name, source, sink, hash string, reset bool) error {
	var answer struct {
		QueryID string `json:"query_id"`
	}
	err := w.post(ctx, "/streams/v1/queries", map[string]any{"name": name, "source_queue": source, "sink_queue": sink, "config_hash": hash, "reset": reset}, &answer)
	var refused *queen.Error
	if errors.As(err, &refused) && refused.Status == http.StatusConflict {
		return fmt.Errorf("%w: %q is registered with other operators or another Version; run it under a new name, or with Reset, which deletes its state", ErrQueryChanged, name)
	}
	if err != nil {
		return fmt.Errorf("streams: register the query %q: %w", name, err)
	}
	w.query = answer.QueryID
	return nil
}

// load reads all rows of a partition.
func (w *wire) load(ctx context.Context, partition string) (map[string]json.RawMessage, error) {
	var answer struct {
		Rows []struct {
			Key   string          `json:"key"`
			Value json.RawMessage `json:"value"`
		} `json:"rows"`
	}
	err := w.post(ctx, "/streams/v1/state/get", map[string]any{"query_id": w.query, "partition_id": partition, "keys": []string{}}, &answer)
	if err != nil {
		return nil, fmt.Errorf("streams: read the state of partition %s: %w", partition, err)
	}
	rows := make(map[string]json.RawMessage, len(answer.Rows))
	for _, row := range answer.Rows {
		rows[row.Key] = row.Value
	}
	return rows, nil
}

// A ripePartition has windows that ended and nothing left to read.
type ripePartition struct {
	ID   string  `json:"partition_id"`
	Name string  `json:"partition"`
	End  float64 `json:"windowEnd"` // the latest end that has passed, epoch ms
}

func (w *wire) ripe(ctx context.Context, graceMs, idleMs int64) ([]ripePartition, error) {
	var answer struct {
		Partitions []ripePartition `json:"partitions"`
	}
	err := w.post(ctx, "/streams/v1/state/ripe", map[string]any{
		"query_id": w.query, "consumer_group": w.group, "grace_ms": graceMs, "idle_ms": idleMs, "limit": 1000,
	}, &answer)
	return answer.Partitions, err
}

// A cycleRequest is the body of a cycle.
type cycleRequest struct {
	QueryID      string        `json:"query_id"`
	PartitionID  string        `json:"partition_id"`
	Group        string        `json:"consumer_group"`
	IfState      []expectation `json:"if_state"`
	StateOps     []stateOp     `json:"state_ops"`
	Ack          *cycleAck     `json:"ack"`
	ReleaseLease bool          `json:"release_lease"`
	PushItems    []sinkItem    `json:"-"` // appended by hand, see sinkItem
}

// encode returns the body.
func (r *cycleRequest) encode() ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	body = append(body[:len(body)-1], `,"push_items":[`...)
	for i := range r.PushItems {
		if i > 0 {
			body = append(body, ',')
		}
		body = r.PushItems[i].appendJSON(body)
	}
	return append(body, "]}"...), nil
}

type expectation struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"` // null: no such row
}

type cycleAck struct {
	TransactionID string `json:"transactionId"`
	LeaseID       string `json:"leaseId"`
	Status        string `json:"status"`
	Count         int    `json:"count"`
}

// cycle commits one. The errors above, and *refusedError, say that it had no effect; after any other error that is not known.
func (w *wire) cycle(ctx context.Context, request *cycleRequest) error {
	request.QueryID, request.Group = w.query, w.group
	// Broker and older ones than this alike want arrays, not null.
	if request.IfState == nil {
		request.IfState = []expectation{}
	}
	if request.StateOps == nil {
		request.StateOps = []stateOp{}
	}
	var answer struct {
		Success bool   `json:"success"`
		Error   string `json:"error"`
	}
	body, err := request.encode()
	if err != nil {
		return err
	}
	if err := w.send(ctx, "/streams/v1/cycle", body, &answer); err != nil {
		return err
	}
	switch {
	case answer.Success:
		return nil
	case strings.HasPrefix(answer.Error, "state changed"):
		return errStateChanged
	case answer.Error == "invalid or expired lease", answer.Error == "no leased batch":
		return errLeaseLost
	case strings.HasPrefix(answer.Error, "QUEUE_FULL"):
		return errSinkFull
	}
	return &refusedError{answer.Error}
}

func (w *wire) post(ctx context.Context, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return w.send(ctx, path, text, into)
}

func (w *wire) send(ctx context.Context, path string, body []byte, into any) error {
	response, err := w.client.Do(ctx, http.MethodPost, path, nil, body)
	if err != nil {
		return err
	}
	return json.Unmarshal(response.Body, into)
}
