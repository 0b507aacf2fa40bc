package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

const ackMulti = `SELECT r_ord, r_error FROM queen.log_ack_batches_v1($1::uuid[], $2::text[], $3::int8[], $4::text[], $5::int[])`

// AckByHash acknowledges messages of one partition by transaction-id hash. A refusal (no consumer, lease lost) is a result with
// OK false, not an error.
func (db *DB) AckByHash(ctx context.Context, a HashAck) (HashAckResult, error) {
	var result HashAckResult
	err := db.run(ctx, "acknowledge by hash", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		var answer []byte
		err := conn.QueryRow(ctx, `SELECT queen.log_ack_by_hash_v1($1::uuid, $2::text, $3::text, $4::bytea[], $5::text[], $6::int[])`,
			uuidArgument(a.PartitionID), a.Group, a.Worker, a.Hashes, a.Statuses, a.DelaysMs).Scan(&answer)
		if err != nil {
			return err
		}
		var raw hashAckJSON
		if err := decodeJSON(answer, &raw); err != nil {
			return err
		}
		result, err = raw.result()
		return err
	})
	if err != nil {
		return HashAckResult{}, err
	}
	return result, nil
}

// CompletedBefore returns those of the hashes whose messages the group has completed already. It answers an ack that comes again
// after its lease has ended; a message that lies more than some 2,000 segments back is not recognised.
func (db *DB) CompletedBefore(ctx context.Context, partition uuid.UUID, group string, hashes [][]byte) ([][]byte, error) {
	var completed [][]byte
	err := db.run(ctx, "look for completed messages", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		completed = nil
		return conn.QueryRow(ctx, `SELECT queen.log_ack_completed_v1($1::uuid, $2::text, $3::bytea[])`, uuidArgument(partition), group, hashes).Scan(&completed)
	})
	return completed, err
}

// A hashAckJSON is the answer of log_ack_by_hash_v1 and an element of that of log_transaction_wire_v1.
type hashAckJSON struct {
	OK            *bool         `json:"ok"`
	Error         string        `json:"error"`
	DLQ           bool          `json:"dlq"`
	Dropped       bool          `json:"dropped"`
	Worker        string        `json:"worker"`
	Off           *int64        `json:"off"`
	Acked         int64         `json:"acked"`
	LeaseReleased bool          `json:"leaseReleased"`
	SignalIgnored bool          `json:"signalIgnored"`
	DelayMs       int64         `json:"delayMs"`
	Noop          []string      `json:"noopHashes"`
	Stale         []string      `json:"staleHashes"`
	Unresolved    []string      `json:"unresolvedHashes"`
	PartitionID   uuid.NullUUID `json:"partitionId"`
	Group         string        `json:"group"`
}

func (a *hashAckJSON) result() (HashAckResult, error) {
	switch {
	case a.OK == nil:
		return HashAckResult{}, fmt.Errorf("%w: an ack without a verdict", ErrMalformedAnswer)
	case !*a.OK && a.Error == "":
		return HashAckResult{}, fmt.Errorf("%w: a refused ack without a reason", ErrMalformedAnswer)
	case (a.DLQ || a.Dropped) && a.Off == nil:
		return HashAckResult{}, fmt.Errorf("%w: a poison message without an offset", ErrMalformedAnswer)
	}
	result := HashAckResult{
		OK: *a.OK, Error: a.Error, DeadLetter: a.DLQ, Dropped: a.Dropped, Worker: a.Worker, Acked: a.Acked,
		LeaseReleased: a.LeaseReleased, SignalIgnored: a.SignalIgnored, Noop: a.Noop, Stale: a.Stale, Unresolved: a.Unresolved,
		RedeliverIn: time.Duration(a.DelayMs) * time.Millisecond,
	}
	if a.Off != nil {
		result.Offset = *a.Off
	}
	return result, nil
}

// AckMulti moves many cursors in one transaction and returns one result each, in input order. One refused ack does not disturb
// the others.
func (db *DB) AckMulti(ctx context.Context, acks []PositionalAck) ([]PositionalAckResult, error) {
	if len(acks) == 0 {
		return nil, nil
	}
	n := len(acks)
	partitions, groups, workers := make([]pgtype.UUID, n), make([]string, n), make([]string, n)
	ends, counts := make([]int64, n), make([]int32, n)
	for i, a := range acks {
		partitions[i], groups[i], workers[i] = uuidArgument(a.PartitionID), a.Group, a.Worker
		ends[i], counts[i] = a.End, clampInt32(a.Count)
	}
	var results []PositionalAckResult
	err := db.run(ctx, "acknowledge batches", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, ackMulti, partitions, groups, ends, workers, counts)
		if err != nil {
			return err
		}
		results = make([]PositionalAckResult, n)
		for i := range results {
			results[i] = PositionalAckResult{OK: true, Acked: int64(counts[i])}
		}
		var position int64
		var refusal string
		_, err = pgx.ForEachRow(rows, []any{&position, &refusal}, func() error {
			if position < 1 || position > int64(n) || refusal == "" {
				return fmt.Errorf("%w: the refusal %q of ack %d of %d", ErrMalformedAnswer, refusal, position, n)
			}
			results[position-1] = PositionalAckResult{Error: refusal}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

// ReleaseLease gives the batch of (partition, group) back before anybody got it: it is delivered again at once, and this claim does not
// count as a delivery. A lease that worker does not hold any more is left alone, which is not an error.
func (db *DB) ReleaseLease(ctx context.Context, partition uuid.UUID, group, worker string) error {
	_, err := db.ShortenLeases(ctx, group, worker, []LeaseCut{{PartitionID: partition, End: -1}})
	return err
}

// FileDeadLetter stores the message and moves the cursor past it, ending the lease. A payload that JSONB cannot hold (a NUL
// escape, a number beyond its range) is kept as bytes only. Refusals are results with OK false.
func (db *DB) FileDeadLetter(ctx context.Context, d DeadLetter) (DeadLetterResult, error) {
	payload := d.Payload
	if payload != nil && len(payload) == 0 {
		payload = []byte("null")
	}
	result, err := db.fileDeadLetter(ctx, d, payload)
	if err != nil && payload != nil && rejectsJSONB(err) {
		return db.fileDeadLetter(ctx, d, nil)
	}
	return result, err
}

// rejectsJSONB says whether the parsed form of a payload may be what the server refused: a data exception, or nesting and size
// beyond its limits.
func rejectsJSONB(err error) bool {
	serverErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(serverErr.Code, "22") || strings.HasPrefix(serverErr.Code, "54"))
}

func (db *DB) fileDeadLetter(ctx context.Context, d DeadLetter, parsed []byte) (DeadLetterResult, error) {
	var result DeadLetterResult
	err := db.run(ctx, "file a dead letter", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		var answer []byte
		err := conn.QueryRow(ctx, `SELECT queen.log_dlq_head_v1($1::uuid, $2::text, $3::text, $4::int8, $5::uuid, $6::text, $7::jsonb, $8::text, $9::bytea, $10::uuid, $11::boolean, $12::bytea, $13::bytea)`,
			uuidArgument(d.PartitionID), d.Group, d.Worker, d.Offset, nullUUIDArgument(d.MessageID), storable(d.TransactionID), parsed, pgtype.Text{String: storable(d.Error), Valid: d.Error != ""},
			d.Payload, nullUUIDArgument(d.TraceID), d.Encrypted, d.SealedError, d.Context).Scan(&answer)
		if err != nil {
			return err
		}
		var raw struct {
			OK    *bool         `json:"ok"`
			Error string        `json:"error"`
			ID    uuid.NullUUID `json:"id"`
		}
		if err := decodeJSON(answer, &raw); err != nil {
			return err
		}
		if raw.OK == nil || *raw.OK != raw.ID.Valid || !*raw.OK && raw.Error == "" {
			return fmt.Errorf("%w: a dead letter without a verdict", ErrMalformedAnswer)
		}
		result = DeadLetterResult{OK: *raw.OK, Error: raw.Error, ID: raw.ID.UUID}
		return nil
	})
	if err != nil {
		return DeadLetterResult{}, err
	}
	return result, nil
}

// storable replaces what a TEXT column cannot hold. A message must not escape the dead-letter queue because its consumer's
// error text has a NUL in it.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

// RenewLease lengthens every live lease that worker holds on partitions of the tenant, never shortening one and never reviving
// one that has ended. Another tenant's worker is like an unknown one: nothing is renewed.
func (db *DB) RenewLease(ctx context.Context, tenant uuid.UUID, worker string, seconds int) (Renewal, error) {
	if worker == "" {
		return Renewal{}, nil // no lease is held by nobody
	}
	var renewal Renewal
	err := db.run(ctx, "renew a lease", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		renewal = Renewal{}
		var answer []byte
		// A worker is one pop, so all its partitions belong to one tenant.
		err := conn.QueryRow(ctx, `SELECT queen.log_renew_lease_v1($2::text, $3::int) WHERE EXISTS (
    SELECT FROM queen.log_consumers AS c JOIN queen.log_partitions AS p ON p.id = c.partition_id JOIN queen.queues AS q ON q.id = p.queue_id
    WHERE c.worker_id = $2::text AND c.lease_expires_at > clock_timestamp() AND q.tenant_id = $1::uuid)`,
			uuidArgument(tenant), worker, clampInt32(seconds)).Scan(&answer)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		renewal, err = decodeRenewal(answer)
		return err
	})
	if err != nil {
		return Renewal{}, err
	}
	return renewal, nil
}

func decodeRenewal(answer []byte) (Renewal, error) {
	var raw struct {
		Renewed   *int       `json:"renewed"`
		ExpiresAt *time.Time `json:"expiresAt"`
	}
	if err := decodeJSON(answer, &raw); err != nil {
		return Renewal{}, err
	}
	if raw.Renewed == nil || *raw.Renewed > 0 && raw.ExpiresAt == nil {
		return Renewal{}, fmt.Errorf("%w: a renewal without count or end", ErrMalformedAnswer)
	}
	if *raw.Renewed == 0 {
		return Renewal{}, nil
	}
	return Renewal{Renewed: *raw.Renewed, ExpiresAt: raw.ExpiresAt.UTC()}, nil
}
