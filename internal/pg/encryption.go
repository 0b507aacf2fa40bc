package pg

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// UseEncryptionKey notes that brokers of the database encrypt with the key active ("" notes nothing) and returns the ids of keys in
// use that are not in ring, ascending.
func (db *DB) UseEncryptionKey(ctx context.Context, active string, ring []string) (missing []string, err error) {
	err = db.run(ctx, "note the encryption key", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		missing = nil
		return conn.QueryRow(ctx, `SELECT queen.encryption_key_used_v1($1::text, $2::text[])`, active, ring).Scan(&missing)
	})
	return missing, err
}

// RetireEncryptionKey forgets a key under which nothing is stored. False says that a broker encrypted with it within five minutes.
func (db *DB) RetireEncryptionKey(ctx context.Context, id string) (retired bool, err error) {
	err = db.run(ctx, "retire an encryption key", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT queen.encryption_key_retire_v1($1::text)`, id).Scan(&retired)
	})
	return retired, err
}

// EncryptionKeys returns the ids of the keys in use, ascending.
func (db *DB) EncryptionKeys(ctx context.Context) ([]string, error) {
	return db.UseEncryptionKey(ctx, "", []string{})
}

// A RotationStage is what a rotation works on.
type RotationStage string

// The stages of a rotation, in order.
const (
	RotateSegments RotationStage = "segments"
	RotateLetters  RotationStage = "letters"
	RotateTraces   RotationStage = "traces"
	RotateStates   RotationStage = "states"
	RotationDone   RotationStage = "done"
)

// A Rotation is how far re-encryption under a key has come.
type Rotation struct {
	Key   string
	Stage RotationStage
	// AfterID and AfterOffset are the last row done in the stage; the offset counts in the stage of segments only.
	AfterID     uuid.UUID
	AfterOffset int64
	// Seen counts rows read, Changed rows written again, Payloads what was re-encrypted in them, Unreadable payloads that no key opened.
	Seen, Changed, Payloads, Unreadable int64
}

// RotationOf returns the progress under a key, from the start when there is none or it is done.
func (db *DB) RotationOf(ctx context.Context, key string) (Rotation, error) {
	r := Rotation{Key: key}
	err := db.run(ctx, "read the progress of the re-encryption", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		var after pgtype.UUID
		err := conn.QueryRow(ctx, `INSERT INTO queen.key_rotations AS r (key_id) VALUES ($1::text)
ON CONFLICT (key_id) DO UPDATE SET
    stage = CASE WHEN r.stage = 'done' THEN 'segments' ELSE r.stage END,
    after_id = CASE WHEN r.stage = 'done' THEN '00000000-0000-0000-0000-000000000000' ELSE r.after_id END,
    after_offset = CASE WHEN r.stage = 'done' THEN -1 ELSE r.after_offset END,
    seen = CASE WHEN r.stage = 'done' THEN 0 ELSE r.seen END,
    changed = CASE WHEN r.stage = 'done' THEN 0 ELSE r.changed END,
    payloads = CASE WHEN r.stage = 'done' THEN 0 ELSE r.payloads END,
    unreadable = CASE WHEN r.stage = 'done' THEN 0 ELSE r.unreadable END,
    started_at = CASE WHEN r.stage = 'done' THEN clock_timestamp() ELSE r.started_at END
RETURNING stage, after_id, after_offset, seen, changed, payloads, unreadable`, key).
			Scan(&r.Stage, &after, &r.AfterOffset, &r.Seen, &r.Changed, &r.Payloads, &r.Unreadable)
		r.AfterID = after.Bytes
		return err
	})
	return r, err
}

// A SealedRow is a row that may hold encrypted payloads.
type SealedRow struct {
	// ID is the partition of a segment, the row of a dead letter or of a trace, the name of a row of streaming state; Offset is the base offset
	// of a segment.
	ID     uuid.UUID
	Offset int64
	// Blob is the segment; Payload and Error the envelopes of a dead letter, nil where there is none; Payload that of a trace or of state.
	Blob, Payload, Error []byte
	// Marked says that Payload is an envelope. A dead letter filed by an older build does not say.
	Marked bool
	// Query and Partition are where a row of streaming state belongs; zero for everything else.
	Query, Partition uuid.UUID
}

// The rows of the stages. They are read without locks, and compared when they are put back.
const (
	rekeySegments = `SELECT id, off, blob, NULL::bytea, NULL::bytea, true, NULL::uuid, NULL::uuid FROM queen.rekey_segments_v1($1::uuid, $2::bigint, $3::int)`
	rekeyLetters  = `SELECT d.id, 0::bigint, NULL::bytea, d.payload_raw, d.error_sealed, COALESCE(d.encrypted, false), NULL::uuid, NULL::uuid FROM queen.log_dlq d
WHERE d.id > $1::uuid AND $2::bigint IS NOT NULL AND (d.encrypted IS NOT FALSE AND d.payload_raw IS NOT NULL OR d.error_sealed IS NOT NULL)
ORDER BY d.id LIMIT $3::int`
	rekeyTraces = `SELECT t.id, 0::bigint, NULL::bytea, convert_to(t.data::text, 'UTF8'), NULL::bytea, true, NULL::uuid, NULL::uuid FROM queen.message_traces t
WHERE t.id > $1::uuid AND $2::bigint IS NOT NULL AND t.encrypted ORDER BY t.id LIMIT $3::int`
	rekeyStates = `SELECT x.key::uuid, 0::bigint, NULL::bytea, convert_to(x.sealed, 'UTF8'), NULL::bytea, true, x.query_id, x.partition_id
FROM (SELECT s.key, s.sealed, s.query_id, s.partition_id FROM queen_streams.state s
    WHERE s.key COLLATE "C" > $1::uuid::text AND $2::bigint IS NOT NULL AND s.sealed IS NOT NULL ORDER BY s.key COLLATE "C" LIMIT $3::int) x
ORDER BY x.key COLLATE "C"`
)

// SealedRows returns the next rows of a stage behind a position, in the order of their keys, at most limit; none is the end.
func (db *DB) SealedRows(ctx context.Context, stage RotationStage, afterID uuid.UUID, afterOffset int64, limit int) ([]SealedRow, error) {
	query := map[RotationStage]string{RotateSegments: rekeySegments, RotateLetters: rekeyLetters, RotateTraces: rekeyTraces, RotateStates: rekeyStates}[stage]
	var found []SealedRow
	err := db.run(ctx, "read what is stored encrypted", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		found = nil
		rows, err := conn.Query(ctx, query, uuidArgument(afterID), afterOffset, clampInt32(limit))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var row SealedRow
			var id, query, partition pgtype.UUID
			if err := rows.Scan(&id, &row.Offset, &row.Blob, &row.Payload, &row.Error, &row.Marked, &query, &partition); err != nil {
				return err
			}
			row.ID, row.Query, row.Partition = id.Bytes, query.Bytes, partition.Bytes
			found = append(found, row)
		}
		return rows.Err()
	})
	return found, err
}

// A Resealed row is what a SealedRow becomes.
type Resealed struct {
	Was, Now SealedRow
}

// StoreRotation puts rows of the stage of before back and moves the progress from before to after, in one transaction: what is counted is
// stored. Rows that were deleted or changed meanwhile are left alone. False says that another process works on the same rotation and was
// faster: nothing was stored.
func (db *DB) StoreRotation(ctx context.Context, before, after Rotation, rows []Resealed) (bool, error) {
	moved := false
	err := db.run(ctx, "store what was re-encrypted", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		return db.inTransaction(ctx, conn, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, `UPDATE queen.key_rotations SET stage = $2::text, after_id = $3::uuid, after_offset = $4::bigint, seen = $5::bigint,
    changed = $6::bigint, payloads = $7::bigint, unreadable = $8::bigint, updated_at = clock_timestamp()
WHERE key_id = $1::text AND stage = $9::text AND after_id = $10::uuid AND after_offset = $11::bigint`,
				after.Key, string(after.Stage), uuidArgument(after.AfterID), after.AfterOffset, after.Seen, after.Changed, after.Payloads, after.Unreadable,
				string(before.Stage), uuidArgument(before.AfterID), before.AfterOffset)
			if err != nil {
				return err
			}
			if moved = tag.RowsAffected() == 1; !moved || len(rows) == 0 {
				return nil
			}
			return storeResealed(ctx, tx, before.Stage, rows)
		})
	})
	return moved, err
}

func storeResealed(ctx context.Context, tx pgx.Tx, stage RotationStage, rows []Resealed) error {
	n := len(rows)
	ids, offsets := make([]pgtype.UUID, n), make([]int64, n)
	was, now, wasError, nowError := make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	for i, r := range rows {
		ids[i], offsets[i] = uuidArgument(r.Was.ID), r.Was.Offset
		was[i], now[i], wasError[i], nowError[i] = r.Was.Payload, r.Now.Payload, r.Was.Error, r.Now.Error
		if stage == RotateSegments {
			was[i], now[i] = r.Was.Blob, r.Now.Blob
		}
	}
	var err error
	switch stage {
	case RotateSegments:
		_, err = tx.Exec(ctx, `SELECT queen.rekey_store_segments_v1($1::uuid[], $2::bigint[], $3::bytea[], $4::bytea[])`, ids, offsets, was, now)
	case RotateLetters:
		_, err = tx.Exec(ctx, `WITH held AS (SELECT d.id FROM queen.log_dlq d WHERE d.id = ANY ($1::uuid[]) ORDER BY d.partition_id, d."offset", d.id FOR UPDATE)
UPDATE queen.log_dlq d SET payload_raw = u.now, error_sealed = u.now_error, encrypted = CASE WHEN u.now IS DISTINCT FROM u.was THEN true ELSE d.encrypted END,
    payload = CASE WHEN u.now IS DISTINCT FROM u.was THEN convert_from(u.now, 'UTF8')::jsonb ELSE d.payload END
FROM unnest($1::uuid[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bytea[]) AS u (id, was, now, was_error, now_error), held h
WHERE d.id = u.id AND h.id = u.id AND d.payload_raw IS NOT DISTINCT FROM u.was AND d.error_sealed IS NOT DISTINCT FROM u.was_error`, ids, was, now, wasError, nowError)
	case RotateTraces:
		_, err = tx.Exec(ctx, `UPDATE queen.message_traces t SET data = convert_from(u.now, 'UTF8')::jsonb
FROM unnest($1::uuid[], $2::bytea[]) AS u (id, now) WHERE t.id = u.id`, ids, now)
	case RotateStates:
		names, queries, partitions := make([]pgtype.UUID, n), make([]pgtype.UUID, n), make([]pgtype.UUID, n)
		for i, r := range rows {
			names[i], queries[i], partitions[i] = uuidArgument(r.Now.ID), uuidArgument(r.Was.Query), uuidArgument(r.Was.Partition)
		}
		// A cycle that wrote the row meanwhile, under either name, has written what is newer.
		_, err = tx.Exec(ctx, `UPDATE queen_streams.state s SET key = u.name::text, sealed = convert_from(u.now, 'UTF8')
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::bytea[], $6::bytea[]) AS u (id, query, partition, name, was, now)
WHERE s.query_id = u.query AND s.partition_id = u.partition AND s.key = u.id::text AND s.sealed = convert_from(u.was, 'UTF8')
  AND (u.name = u.id OR NOT EXISTS (SELECT 1 FROM queen_streams.state o WHERE o.query_id = u.query AND o.partition_id = u.partition AND o.key = u.name::text))`,
			ids, queries, partitions, names, was, now)
	case RotationDone:
	}
	return err
}

// StoredRows counts what a rotation goes through.
func (db *DB) StoredRows(ctx context.Context) (n int64, err error) {
	err = db.run(ctx, "count what is stored", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM queen.log_segments)
    + (SELECT count(*) FROM queen.log_dlq d WHERE d.encrypted IS NOT FALSE AND d.payload_raw IS NOT NULL OR d.error_sealed IS NOT NULL)
    + (SELECT count(*) FROM queen.message_traces t WHERE t.encrypted)
    + (SELECT count(*) FROM queen_streams.state s WHERE s.sealed IS NOT NULL)`).Scan(&n)
	})
	return n, err
}
