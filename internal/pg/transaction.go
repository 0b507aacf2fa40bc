package pg

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Transact commits pushes and acks together. When a rule forbids it (a duplicate, a full queue, a lost lease, an unknown
// message) everything is rolled back and the error is a *TransactionError with the text for the client.
func (db *DB) Transact(ctx context.Context, t Transaction) (TransactionResult, error) {
	request, err := encodeTransaction(t)
	if err != nil {
		return TransactionResult{}, fmt.Errorf("transaction: %w", err)
	}
	var result TransactionResult
	err = db.run(ctx, "transaction", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		var answer []byte
		if err := conn.QueryRow(ctx, `SELECT queen.log_transaction_wire_v1($1::jsonb)`, request).Scan(&answer); err != nil {
			return ruleError(err)
		}
		result, err = decodeTransaction(answer, t)
		return err
	})
	if err != nil {
		return TransactionResult{}, err
	}
	return result, nil
}

// ruleError recognises the texts with which the procedure rolls back on purpose.
func ruleError(err error) error {
	serverErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	for _, word := range []string{"QTXN ", "QDUP ", "QUEUE_FULL "} {
		if strings.HasPrefix(serverErr.Message, word) {
			return &TransactionError{
				Reason: serverErr.Message, QueueFull: word == "QUEUE_FULL ",
				Config: strings.HasPrefix(serverErr.Message, "QTXN push to queue ") && strings.HasSuffix(serverErr.Message, "refused (config); transaction rolled back"),
			}
		}
	}
	return err
}

// The request of log_transaction_wire_v1.
type (
	transactionJSON struct {
		Tenant uuid.UUID             `json:"_tenant"`
		Pushes []transactionPushJSON `json:"pushes"`
		Acks   []transactionAckJSON  `json:"acks"`
	}
	transactionPushJSON struct {
		Queue     string         `json:"queue"`
		Partition string         `json:"partition"`
		Count     int            `json:"count"`
		HashesHex string         `json:"hashesHex"`
		BlobB64   string         `json:"blobB64"`
		Verified  int64          `json:"verified"`
		Plain     bool           `json:"plain"`
		Traces    []segmentTrace `json:"traces,omitempty"`
	}
	transactionAckJSON struct {
		PartitionID uuid.UUID       `json:"partitionId"`
		Group       string          `json:"group"`
		Worker      string          `json:"worker"`
		Acks        []statusAckJSON `json:"acks"`
	}
	statusAckJSON struct {
		Hash   string `json:"h"`
		Status string `json:"status"`
		Delay  *int32 `json:"delayMs,omitempty"`
	}
)

func encodeTransaction(t Transaction) ([]byte, error) {
	request := transactionJSON{Tenant: t.Tenant, Pushes: make([]transactionPushJSON, len(t.Pushes)), Acks: make([]transactionAckJSON, len(t.Acks))}
	for i, s := range t.Pushes {
		push := transactionPushJSON{
			Queue: s.Queue, Partition: s.Partition, Count: s.Count, Verified: s.Verified, Plain: s.Plain,
			HashesHex: hex.EncodeToString(s.Hashes), BlobB64: base64.StdEncoding.EncodeToString(s.Blob),
		}
		for _, trace := range s.Traces {
			push.Traces = append(push.Traces, segmentTrace{Frame: trace.Frame, ID: trace.ID})
		}
		request.Pushes[i] = push
	}
	for i, a := range t.Acks {
		if len(a.Statuses) != len(a.Hashes) {
			return nil, fmt.Errorf("%w: %d hashes with %d statuses", ErrBadData, len(a.Hashes), len(a.Statuses))
		}
		if a.DelaysMs != nil && len(a.DelaysMs) != len(a.Hashes) {
			return nil, fmt.Errorf("%w: %d hashes with %d delays", ErrBadData, len(a.Hashes), len(a.DelaysMs))
		}
		ack := transactionAckJSON{PartitionID: a.PartitionID, Group: a.Group, Worker: a.Worker, Acks: make([]statusAckJSON, len(a.Hashes))}
		for j, hash := range a.Hashes {
			ack.Acks[j] = statusAckJSON{Hash: hex.EncodeToString(hash), Status: a.Statuses[j]}
			if a.DelaysMs != nil {
				ack.Acks[j].Delay = &a.DelaysMs[j]
			}
		}
		request.Acks[i] = ack
	}
	text, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	return text, nil
}

// decodeTransaction brings the ack results, which come in execution order, back into the order of the request.
func decodeTransaction(answer []byte, t Transaction) (TransactionResult, error) {
	var raw struct {
		OK     bool              `json:"ok"`
		Pushes []pushVerdictJSON `json:"pushes"`
		Acks   []hashAckJSON     `json:"acks"`
	}
	if err := decodeJSON(answer, &raw); err != nil {
		return TransactionResult{}, err
	}
	if !raw.OK || len(raw.Pushes) != len(t.Pushes) || len(raw.Acks) != len(t.Acks) {
		return TransactionResult{}, fmt.Errorf("%w: a transaction of %d pushes and %d acks answered with %d and %d",
			ErrMalformedAnswer, len(t.Pushes), len(t.Acks), len(raw.Pushes), len(raw.Acks))
	}
	result := TransactionResult{Pushes: make([]PushVerdict, len(t.Pushes)), Acks: make([]HashAckResult, len(t.Acks))}
	for i := range raw.Pushes {
		verdict, err := raw.Pushes[i].verdict(t.Pushes[i].Count)
		if err != nil {
			return TransactionResult{}, err
		}
		if verdict.Status != PushQueued {
			return TransactionResult{}, fmt.Errorf("%w: a committed transaction with a push %q", ErrMalformedAnswer, verdict.Status)
		}
		result.Pushes[i] = verdict
	}
	type address struct {
		partition uuid.UUID
		group     string
	}
	places := make(map[address]int, len(t.Acks))
	for i, a := range t.Acks {
		places[address{a.PartitionID, orDefault(a.Group, QueueModeGroup)}] = i
	}
	for i := range raw.Acks {
		at := address{raw.Acks[i].PartitionID.UUID, raw.Acks[i].Group}
		place, known := places[at]
		if !known {
			return TransactionResult{}, fmt.Errorf("%w: an ack result for nobody's ack", ErrMalformedAnswer)
		}
		delete(places, at)
		ack, err := raw.Acks[i].result()
		if err != nil {
			return TransactionResult{}, err
		}
		result.Acks[place] = ack
	}
	return result, nil
}
