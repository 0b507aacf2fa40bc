package pg

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

func (d DeadLetterFilter) filter() filter {
	f := filter{}
	for name, value := range map[string]string{
		"queue": d.Queue, "partition": d.Partition, "consumerGroup": d.Group, "transactionId": d.TransactionID,
		"from": d.From, "to": d.To, "error": d.Error, "shape": d.Shape,
	} {
		if value != "" {
			f[name] = value
		}
	}
	if d.PartitionID.Valid {
		f["partitionId"] = d.PartitionID.UUID
	}
	return f
}

func (d DeadLetterFilter) tenantText(tenant uuid.UUID) (string, error) {
	f := d.filter()
	f["_tenant"] = tenant
	return f.text()
}

type deadLetterJSON struct {
	ID            uuid.UUID       `json:"id"`
	PartitionID   uuid.UUID       `json:"partitionId"`
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	Group         string          `json:"consumerGroup"`
	Offset        int64           `json:"offset"`
	MessageID     uuid.NullUUID   `json:"messageId"`
	TransactionID *string         `json:"transactionId"`
	Data          json.RawMessage `json:"data"`
	Raw           []byte          `json:"payloadRaw"`
	Error         *string         `json:"errorMessage"`
	RetryCount    int             `json:"retryCount"`
	FailedAt      time.Time       `json:"failedAt"`
	TraceID       uuid.NullUUID   `json:"traceId"`
	Encrypted     *bool           `json:"encrypted"`
	SealedError   []byte          `json:"errorSealed"`
	Context       *string         `json:"traceContext"`
}

func (d *deadLetterJSON) row() DeadLetterRow {
	row := DeadLetterRow{
		ID: d.ID, PartitionID: d.PartitionID, Queue: d.Queue, Partition: d.Partition, Group: d.Group, Offset: d.Offset,
		MessageID: d.MessageID.UUID, TransactionID: orEmpty(d.TransactionID), Payload: d.Raw, Error: orEmpty(d.Error),
		RetryCount: d.RetryCount, FailedAt: d.FailedAt, TraceID: d.TraceID, SealedError: d.SealedError,
		Encrypted: d.Encrypted != nil && *d.Encrypted, EncryptionUnknown: d.Encrypted == nil,
	}
	if d.Raw == nil && string(d.Data) != "null" {
		row.Payload = d.Data
	}
	if context, err := hex.DecodeString(orEmpty(d.Context)); err == nil && len(context) > 0 {
		row.Context = context
	}
	return row
}

func deadLetterRows(in []deadLetterJSON) []DeadLetterRow {
	rows := make([]DeadLetterRow, len(in))
	for i := range in {
		rows[i] = in[i].row()
	}
	return rows
}

// ListDeadLetters returns a page of dead letters. Errors: ErrInvalidCursor; ErrBadData for an unreadable time.
func (db *DB) ListDeadLetters(ctx context.Context, tenant uuid.UUID, d DeadLetterFilter) (DeadLetterPage, error) {
	after, err := decodePosition(d.After, deadLetterPosition)
	if err != nil {
		return DeadLetterPage{}, err
	}
	f := d.filter().limited(d.Limit, d.Offset)
	f["_tenant"], f["after"] = tenant, after
	text, err := f.text()
	if err != nil {
		return DeadLetterPage{}, err
	}
	var page struct {
		Messages []deadLetterJSON `json:"messages"`
		Next     position         `json:"next"`
	}
	if _, err := db.decoded(ctx, &page, "list dead letters", `SELECT queen.get_dlq_messages_v1($1::jsonb)`, text); err != nil {
		return DeadLetterPage{}, err
	}
	return DeadLetterPage{Rows: deadLetterRows(page.Messages), Next: page.Next.encode()}, nil
}

// CountDeadLetters counts what a filter selects; its limits and cursor do not count.
func (db *DB) CountDeadLetters(ctx context.Context, tenant uuid.UUID, d DeadLetterFilter) (int64, error) {
	text, err := d.tenantText(tenant)
	if err != nil {
		return 0, err
	}
	var n int64
	err = db.run(ctx, "count dead letters", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT queen.dlq_count_v1($1::jsonb)`, text).Scan(&n)
	})
	return n, err
}

// DeadLetterShapes returns {"groups":[{"shape","sample","count","queues","firstFailedAt","lastFailedAt"}],"total","shapes","nextCursor"}: all
// selected dead letters grouped by the shape of their error, most frequent first, page by page. Errors: ErrInvalidCursor.
func (db *DB) DeadLetterShapes(ctx context.Context, tenant uuid.UUID, d DeadLetterFilter) (json.RawMessage, error) {
	after, err := decodePosition(d.After, partitionPosition)
	if err != nil {
		return nil, err
	}
	f := d.filter()
	f["_tenant"], f["after"] = tenant, after
	text, err := f.text()
	if err != nil {
		return nil, err
	}
	answer, err := db.manage(ctx, "group dead letters", `SELECT queen.dlq_shapes_v1($1::jsonb, $2::int)`, text, clampInt32(d.Limit))
	if err != nil {
		return nil, err
	}
	return withCursor(answer)
}

// DeleteDeadLetterAt deletes the dead letters at an address and returns {"success","partitionId","transactionId","message"}. A
// partition of another tenant has none.
func (db *DB) DeleteDeadLetterAt(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (json.RawMessage, error) {
	return db.manage(ctx, "delete a dead letter", `SELECT COALESCE(
    (SELECT queen.delete_message_v1(p.id, $2::text) FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
      WHERE p.id = $1::uuid AND q.tenant_id = $3::uuid),
    jsonb_build_object('success', false, 'partitionId', $1::uuid, 'transactionId', $2::text, 'message', 'Message not found'))`,
		uuidArgument(partition), transactionID, uuidArgument(tenant))
}

// DeleteDeadLetters deletes up to limit of the selected dead letters and returns how many; repeat until it is less than limit.
func (db *DB) DeleteDeadLetters(ctx context.Context, tenant uuid.UUID, d DeadLetterFilter, limit int) (deleted int64, err error) {
	text, err := d.tenantText(tenant)
	if err != nil {
		return 0, err
	}
	err = db.run(ctx, "delete dead letters", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT queen.dlq_delete_v1($1::jsonb, $2::int)`, text, clampInt32(limit)).Scan(&deleted)
	})
	return deleted, err
}

// DeadLetterByID reads one dead letter; false when the tenant has none with that id.
func (db *DB) DeadLetterByID(ctx context.Context, tenant, id uuid.UUID) (DeadLetterRow, bool, error) {
	var answer struct {
		Row *deadLetterJSON `json:"row"`
	}
	_, err := db.decoded(ctx, &answer, "read a dead letter", `SELECT queen.log_dlq_move_v1($1::uuid, NULL, NULL, NULL, NULL, NULL, $2::uuid, true)`,
		uuidArgument(id), uuidArgument(tenant))
	if err != nil || answer.Row == nil {
		return DeadLetterRow{}, false, err
	}
	return answer.Row.row(), true, nil
}

// A moveJSON is the answer of log_dlq_move_v1.
type moveJSON struct {
	Status                string        `json:"status"`
	Reason                string        `json:"reason"`
	Queue                 string        `json:"queue"`
	Partition             string        `json:"partition"`
	PartitionID           uuid.NullUUID `json:"partitionId"`
	BaseOffset            int64         `json:"baseOffset"`
	CreatedAt             time.Time     `json:"createdAt"`
	Group                 string        `json:"consumerGroup"`
	OriginalTransactionID *string       `json:"originalTransactionId"`
	Offset                int64         `json:"off"`
	Depth                 int64         `json:"depth"`
	Limit                 int64         `json:"limit"`
}

// MoveDeadLetter pushes a dead letter and deletes its row, in one transaction. The trace id of the row is indexed for the new
// message.
func (db *DB) MoveDeadLetter(ctx context.Context, tenant uuid.UUID, m DeadLetterMove) (DeadLetterMoveResult, error) {
	var answer moveJSON
	_, err := db.decoded(ctx, &answer, "replay a dead letter",
		`SELECT queen.log_dlq_move_v1($1::uuid, 1, $2::bytea, $3::bytea, $4::text, $5::text, $6::uuid, false, $7::boolean)`,
		uuidArgument(m.ID), m.Hash, m.Blob, m.Queue, m.Partition, uuidArgument(tenant), m.Plain)
	if err != nil {
		return DeadLetterMoveResult{}, err
	}
	switch answer.Status {
	case MoveMoved, MoveGone, MoveDuplicate, MoveFull, MoveConfig:
		return DeadLetterMoveResult{
			Status: answer.Status, Reason: answer.Reason, Queue: answer.Queue, Partition: answer.Partition, PartitionID: answer.PartitionID.UUID,
			BaseOffset: answer.BaseOffset, CreatedAt: answer.CreatedAt, Group: answer.Group,
			OriginalTransactionID: orEmpty(answer.OriginalTransactionID), Offset: answer.Offset, Depth: answer.Depth, Limit: answer.Limit,
		}, nil
	}
	return DeadLetterMoveResult{}, fmt.Errorf("replay a dead letter: %w: status %q", ErrMalformedAnswer, answer.Status)
}
