package pg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// PartitionOwner says whose partition an id is, and its names.
func (db *DB) PartitionOwner(ctx context.Context, partition uuid.UUID) (tenant uuid.UUID, queue, name string, found bool, err error) {
	var owner pgtype.UUID
	err = db.run(ctx, "read the owner of a partition", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		err := conn.QueryRow(ctx, `SELECT q.tenant_id, q.name, p.name FROM queen.log_partitions AS p JOIN queen.queues AS q ON q.id = p.queue_id
WHERE p.id = $1::uuid`, uuidArgument(partition)).Scan(&owner, &queue, &name)
		found = err == nil
		return absentIsNil(err)
	})
	if err != nil || !found {
		return uuid.Nil, "", "", false, err
	}
	return owner.Bytes, queue, name, true, nil
}

// PartitionLeaseHolder returns the worker that holds, or was the last to hold, the batch of (partition, group), and whether
// its lease is live. An empty worker means that nobody holds it, as while a redelivery waits for its time.
func (db *DB) PartitionLeaseHolder(ctx context.Context, partition uuid.UUID, group string) (worker string, live bool, err error) {
	err = db.run(ctx, "read a lease", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		worker, live = "", false
		return absentIsNil(conn.QueryRow(ctx, `SELECT worker_id, COALESCE(lease_expires_at > clock_timestamp(), false)
FROM queen.log_consumers WHERE partition_id = $1::uuid AND consumer_group = $2::text AND worker_id NOT IN ('', '__retry__')`, uuidArgument(partition), group).Scan(&worker, &live))
	})
	if err != nil {
		return "", false, err
	}
	return worker, live, nil
}

// QueueSettings returns the options of a queue that the data plane reads; false when there is no such queue.
func (db *DB) QueueSettings(ctx context.Context, tenant uuid.UUID, queue string) (QueueSettings, bool, error) {
	var settings QueueSettings
	found := false
	err := db.run(ctx, "read queue settings", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		var id pgtype.UUID
		err := conn.QueryRow(ctx, `SELECT id, COALESCE(lease_time, 60), COALESCE(encryption_enabled, false), COALESCE(max_queue_size, 0),
       COALESCE(delayed_processing, 0), COALESCE(window_buffer, 0), COALESCE(min_pop_wait_time, 0), dedup_window_seconds
FROM queen.queues WHERE tenant_id = $1::uuid AND name = $2::text`, uuidArgument(tenant), queue).
			Scan(&id, &settings.LeaseSeconds, &settings.EncryptionEnabled, &settings.MaxSize, &settings.DelayedProcessing, &settings.WindowBuffer, &settings.MinPopWait, &settings.DedupWindow)
		settings.ID, found = id.Bytes, err == nil
		return absentIsNil(err)
	})
	if err != nil || !found {
		return QueueSettings{}, false, err
	}
	return settings, true, nil
}

// Configure creates or changes a queue and returns the procedure's answer as it is. Namespace and task are used when not empty.
// A refused option is an *OptionError; nothing was changed then.
func (db *DB) Configure(ctx context.Context, tenant uuid.UUID, queue, namespace, task string, options QueueOptions) (json.RawMessage, error) {
	merged, err := withNames(options, namespace, task)
	if err != nil {
		return nil, err
	}
	var answer []byte
	err = db.run(ctx, "configure a queue", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		answer = nil
		return conn.QueryRow(ctx, `SELECT queen.configure_queue_v1($1::text, $2::jsonb, $3::uuid)`, queue, merged, uuidArgument(tenant)).Scan(&answer)
	})
	if err != nil {
		return nil, err
	}
	var refusal struct {
		Error string `json:"error"`
	}
	if err := decodeJSON(answer, &refusal); err != nil {
		return nil, fmt.Errorf("configure a queue: %w", err)
	}
	if refusal.Error != "" {
		return nil, &OptionError{Text: refusal.Error}
	}
	return answer, nil
}

// withNames adds namespace and task to the options object, whose other members pass byte for byte.
func withNames(options QueueOptions, namespace, task string) ([]byte, error) {
	members := map[string]json.RawMessage{}
	if len(options) > 0 {
		if err := json.Unmarshal(options, &members); err != nil {
			return nil, &OptionError{Text: "options must be a JSON object"}
		}
	}
	if members == nil { // the options were null
		members = map[string]json.RawMessage{}
	}
	for name, value := range map[string]string{"namespace": namespace, "task": task} {
		if value == "" {
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("configure a queue: %w", err)
		}
		members[name] = text
	}
	merged, err := json.Marshal(members)
	if err != nil {
		return nil, fmt.Errorf("configure a queue: %w", err)
	}
	return merged, nil
}

// DeleteQueue removes a queue with everything in it and returns the procedure's answer; it says whether the queue existed.
func (db *DB) DeleteQueue(ctx context.Context, tenant uuid.UUID, queue string) (json.RawMessage, error) {
	var answer []byte
	err := db.run(ctx, "delete a queue", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		answer = nil
		return conn.QueryRow(ctx, `SELECT queen.delete_queue_v1($1::text, $2::uuid)`, queue, uuidArgument(tenant)).Scan(&answer)
	})
	if err != nil {
		return nil, err
	}
	if !json.Valid(answer) {
		return nil, fmt.Errorf("delete a queue: %w", errors.Join(ErrMalformedAnswer))
	}
	return answer, nil
}
