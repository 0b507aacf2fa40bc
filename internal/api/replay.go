package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/google/uuid"

	"queenmq/internal/engine/replay"
)

// A Replayer brings dead letters back; *replay.Server is one.
type Replayer interface {
	ByID(ctx context.Context, tenant, id uuid.UUID, to replay.Destination) (replay.Outcome, error)
	ByAddress(ctx context.Context, tenant, partition uuid.UUID, transactionID, group string) (replay.Outcome, error)
}

// noReplay is the message that goes with "Message not found" when there is nothing to replay.
const noReplay = "No dead-letter row for this address. Only dead-lettered messages can be replayed"

// retryMessage replays the newest dead letter of a message to its own queue and partition.
func (s *Server) retryMessage(w http.ResponseWriter, r *http.Request) error {
	if err := s.refuseWhilePaused(); err != nil {
		return err
	}
	partition, ok := parseUUID(r.PathValue("partitionId"))
	if !ok {
		return writeNoDeadLetter(w, r, noReplay)
	}
	outcome, err := s.deps.Replayer.ByAddress(r.Context(), tenantOf(r), partition, r.PathValue("transactionId"), lenient(r).text("consumerGroup"))
	if err == nil && !outcome.Found {
		return writeNoDeadLetter(w, r, noReplay)
	}
	return s.writeReplay(w, outcome, err)
}

// replayDeadLetter replays one dead letter by its id, to its own place or to another one.
func (s *Server) replayDeadLetter(w http.ResponseWriter, r *http.Request) error {
	if err := s.refuseWhilePaused(); err != nil {
		return err
	}
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return err
	}
	to, err := decodeDestination(body)
	if err != nil {
		return err
	}
	var outcome replay.Outcome
	if id, ok := parseUUID(r.PathValue("id")); ok {
		outcome, err = s.deps.Replayer.ByID(r.Context(), tenantOf(r), id, to)
	}
	if err == nil && !outcome.Found {
		refused := newError(codeNotFound, "Dead letter not found")
		if outcome.Move.Reason != "" {
			refused.text += ": " + outcome.Move.Reason
		}
		return refused
	}
	return s.writeReplay(w, outcome, err)
}

// decodeDestination reads {"queue": text, "partition": text}; all of it is optional.
func decodeDestination(body []byte) (replay.Destination, error) {
	var to replay.Destination
	members, err := optionalObject(body)
	if err != nil {
		return to, err
	}
	queue, err := stringMember(members, "queue")
	if err != nil {
		return to, err
	}
	partition, err := stringMember(members, "partition")
	if err != nil {
		return to, err
	}
	if fault := nameFault(queue); fault != "" {
		return to, newError(codeInvalidName, "queue "+fault)
	}
	if fault := partitionFault(partition); fault != "" {
		return to, newError(codeInvalidName, "partition "+fault)
	}
	if queue != "" {
		to.Queue = &queue
	}
	if _, given := present(members, "partition"); given {
		to.Partition = &partition
	}
	return to, nil
}

// refuseWhilePaused refuses what pushes while pushes are switched off.
func (s *Server) refuseWhilePaused() error {
	if s.deps.Flags.PushesPaused() {
		return newError(codePushMaintenance, errorRows[codePushMaintenance].text)
	}
	return nil
}

// pushedItem is a replayed message in the form of a push answer.
type pushedItem struct {
	Index         int       `json:"index"`
	MessageID     uuid.UUID `json:"message_id"`
	TransactionID string    `json:"transaction_id"`
	QueueName     string    `json:"queueName"`
	Status        string    `json:"status"`
	Error         string    `json:"error,omitempty"`
	Code          code      `json:"code,omitempty"`
}

type replayAnswer struct {
	Success               bool       `json:"success"`
	Queue                 string     `json:"queue"`
	Partition             string     `json:"partition"`
	ReplayedAs            pushedItem `json:"replayedAs"`
	RowRemoved            bool       `json:"dlqRowRemoved"`
	Result                string     `json:"result"`
	Group                 string     `json:"consumerGroup"`
	RowID                 uuid.UUID  `json:"dlqId"`
	OriginalTransactionID string     `json:"originalTransactionId"`
}

// writeReplay answers for a dead letter that was found. A duplicate is one that was replayed before: its row stays for the
// operator to decide.
func (s *Server) writeReplay(w http.ResponseWriter, outcome replay.Outcome, err error) error {
	if err != nil && !errors.Is(err, replay.ErrNoPayload) {
		return err
	}
	queue, partition := outcome.Move.Queue, outcome.Move.Partition
	if queue == "" {
		queue, partition = outcome.Row.Queue, outcome.Row.Partition
	}
	item := pushedItem{MessageID: outcome.MessageID, TransactionID: outcome.TransactionID, QueueName: queue, Status: "failed"}
	switch {
	case err != nil:
		item.Error, item.Code = replay.ErrNoPayload.Error(), codeConflict
	case outcome.Move.Status == replay.Moved:
		item.Status = "queued"
	case outcome.Move.Status == replay.Duplicate:
		item.Status = "duplicate"
	case outcome.Move.Status == replay.Full:
		item.Error, item.Code = "Queue '"+queue+"' is full. Max capacity reached.", codeQueueFull
	default:
		item.Error, item.Code = errorRows[codeEncryptionRequired].text, codeEncryptionRequired
	}
	if item.Status == "failed" {
		return writeValue(w, http.StatusInternalServerError, struct {
			Success bool         `json:"success"`
			Error   string       `json:"error"`
			Code    code         `json:"code"`
			Result  []pushedItem `json:"pushResult"`
		}{false, "Replay push was rejected — the message is still in the dead-letter queue", item.Code, []pushedItem{item}})
	}
	return writeValue(w, http.StatusOK, replayAnswer{
		Success: true, Queue: queue, Partition: partition, ReplayedAs: item, RowRemoved: item.Status == "queued", Result: outcome.Move.Status,
		Group: outcome.Row.Group, RowID: outcome.Row.ID, OriginalTransactionID: outcome.Row.TransactionID,
	})
}
