package pg

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const pushCore = `SELECT o_ord, o_pids, o_base, o_created, o_windows, o_status, o_detail
	FROM queen.log_push_core_v1($1::text[], $2::text[], $3::int[], $4::bytea[], $5::int8[], $6::bytea[], $7::uuid[], $8::boolean[], $9::boolean, $10::jsonb,
		NULL, NULL, $11::uuid[], $12::timestamptz[])`

// PushMulti stores segments in one transaction, at most one per partition, and returns one verdict each, in input order. A
// verdict other than PushQueued wrote nothing for its segment and does not disturb the others; an error means that nothing of
// the call was written (or, with ErrUnavailable and ErrTimeout, that this is not known).
//
// Errors: ErrBadData and ErrVanished concern the whole call because it cannot say which segment is to blame.
func (db *DB) PushMulti(ctx context.Context, segments []Segment, o PushOptions) ([]PushVerdict, error) {
	if len(segments) == 0 {
		return nil, nil
	}
	args, err := pushArguments(segments, o)
	if err != nil {
		return nil, fmt.Errorf("push segments: %w", err)
	}
	var verdicts []PushVerdict
	err = db.run(ctx, "push segments", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		var answer pushAnswer
		if err := conn.QueryRow(ctx, pushCore, args...).Scan(&answer.order, &answer.partitions, &answer.bases, &answer.created, &answer.windows,
			&answer.statuses, &answer.details); err != nil {
			return err
		}
		verdicts, err = answer.verdicts(segments)
		return err
	})
	if err != nil {
		return nil, err
	}
	return verdicts, nil
}

// pushArguments turns rows into the parallel arrays of log_push_core_v1.
func pushArguments(segments []Segment, o PushOptions) ([]any, error) {
	n := len(segments)
	queues, partitions := make([]string, n), make([]string, n)
	counts, verified := make([]int32, n), make([]int64, n)
	hashes, blobs := make([][]byte, n), make([][]byte, n)
	tenants, plain := make([]pgtype.UUID, n), make([]bool, n)
	var known []pgtype.UUID // NULL unless a segment is vouched for
	var since []pgtype.Timestamptz
	var traces []segmentTrace
	for i := range segments {
		s := &segments[i]
		if s.Count < 1 || s.Count > math.MaxInt32 || len(s.Hashes) != 16*s.Count || len(s.Blob) == 0 {
			return nil, fmt.Errorf("%w: segment %d of %q: %d messages, %d bytes of hashes, %d bytes of frames", ErrBadData, i, s.Queue, s.Count, len(s.Hashes), len(s.Blob))
		}
		queues[i], partitions[i] = s.Queue, s.Partition
		counts[i], verified[i] = int32(s.Count), s.Verified
		hashes[i], blobs[i] = s.Hashes, s.Blob
		tenants[i], plain[i] = uuidArgument(s.Tenant), s.Plain
		if s.Verified >= 0 {
			if known == nil {
				known, since = make([]pgtype.UUID, n), make([]pgtype.Timestamptz, n)
			}
			known[i] = uuidArgument(s.VerifiedPartition)
			since[i] = pgtype.Timestamptz{Time: s.VerifiedSince, Valid: !s.VerifiedSince.IsZero()}
		}
		for _, trace := range s.Traces {
			traces = append(traces, segmentTrace{Segment: i, Frame: trace.Frame, ID: trace.ID})
		}
	}
	traceJSON, err := encodeTraces(traces)
	if err != nil {
		return nil, err
	}
	return []any{queues, partitions, counts, hashes, verified, blobs, tenants, plain, o.SkipCapacity, traceJSON, known, since}, nil
}

// A segmentTrace is one element of p_traces.
type segmentTrace struct {
	Segment int       `json:"s"`
	Frame   int       `json:"i"`
	ID      uuid.UUID `json:"t"`
}

// encodeTraces returns nil, which PostgreSQL sees as NULL, when there are none.
func encodeTraces(traces []segmentTrace) ([]byte, error) {
	if len(traces) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(traces)
	if err != nil {
		return nil, fmt.Errorf("encode trace ids: %w", err)
	}
	return text, nil
}

func uuidArgument(id uuid.UUID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

func nullUUIDArgument(id uuid.NullUUID) pgtype.UUID {
	return pgtype.UUID{Bytes: id.UUID, Valid: id.Valid}
}

// A pushAnswer is the row of log_push_core_v1: parallel arrays in the order of partition ids.
type pushAnswer struct {
	order      []int32 // position in the input, from 1
	partitions []pgtype.UUID
	bases      []*int64
	created    []time.Time
	windows    []int32
	// statuses and details are nil when every segment was queued and no queue is bounded.
	statuses []PushStatus
	details  [][]byte
}

// A pushDetailJSON is what a verdict says besides.
type pushDetailJSON struct {
	Dups      []duplicateJSON `json:"dups"`
	Depth     int64           `json:"depth"`
	Limit     int64           `json:"limit"`
	Remaining int64           `json:"remaining"`
}

type duplicateJSON struct {
	Frame  *int   `json:"i"`
	Offset *int64 `json:"off"`
}

// verdicts accepts an answer only when it says exactly one thing about every segment.
func (a *pushAnswer) verdicts(segments []Segment) ([]PushVerdict, error) {
	n := len(segments)
	if len(a.order) != n || len(a.partitions) != n || len(a.bases) != n || len(a.created) != n || len(a.windows) != n ||
		a.statuses != nil && (len(a.statuses) != n || len(a.details) != n) {
		return nil, fmt.Errorf("%w: %d verdicts for %d segments", ErrMalformedAnswer, len(a.order), n)
	}
	verdicts := make([]PushVerdict, n)
	for k, position := range a.order {
		i := int(position) - 1
		if i < 0 || i >= n || verdicts[i].Status != "" {
			return nil, fmt.Errorf("%w: a verdict for segment %d of %d", ErrMalformedAnswer, i, n)
		}
		verdict, err := a.verdict(k, segments[i].Count)
		if err != nil {
			return nil, fmt.Errorf("verdict %d: %w", i, err)
		}
		verdicts[i] = verdict
	}
	return verdicts, nil
}

// verdict reads element k, which is about a segment of count messages.
func (a *pushAnswer) verdict(k, count int) (PushVerdict, error) {
	v := pushVerdictJSON{Status: PushQueued, BaseOffset: a.bases[k], CreatedAt: &a.created[k]}
	v.PartitionID = uuid.NullUUID{UUID: a.partitions[k].Bytes, Valid: a.partitions[k].Valid}
	if a.statuses != nil {
		v.Status = a.statuses[k]
		if err := decodeJSON(a.details[k], &v.pushDetailJSON); err != nil {
			return PushVerdict{}, err
		}
	}
	out, err := v.verdict(count)
	out.Window = time.Duration(a.windows[k]) * time.Second
	return out, err
}

// A pushVerdictJSON is a verdict as log_push_multi_v1 gives it, to transactions.
type pushVerdictJSON struct {
	Status      PushStatus    `json:"status"`
	PartitionID uuid.NullUUID `json:"partitionId"`
	BaseOffset  *int64        `json:"baseOffset"`
	CreatedAt   *time.Time    `json:"createdAt"`
	pushDetailJSON
}

func (v *pushVerdictJSON) verdict(count int) (PushVerdict, error) {
	out := PushVerdict{Status: v.Status, PartitionID: v.PartitionID.UUID, Depth: v.Depth, Limit: v.Limit, Remaining: v.Remaining}
	switch v.Status {
	case PushQueued:
		if v.BaseOffset == nil || *v.BaseOffset < 0 || v.CreatedAt == nil || !v.PartitionID.Valid {
			return PushVerdict{}, fmt.Errorf("%w: queued without base offset, time or partition", ErrMalformedAnswer)
		}
		out.BaseOffset, out.CreatedAt = *v.BaseOffset, v.CreatedAt.UTC()
	case PushDuplicate:
		if len(v.Dups) == 0 {
			return PushVerdict{}, fmt.Errorf("%w: duplicate without frames", ErrMalformedAnswer)
		}
		out.Duplicates = make([]Duplicate, len(v.Dups))
		for i, dup := range v.Dups {
			if dup.Frame == nil || dup.Offset == nil || *dup.Frame < 0 || *dup.Frame >= count {
				return PushVerdict{}, fmt.Errorf("%w: a duplicate outside of its segment", ErrMalformedAnswer)
			}
			out.Duplicates[i] = Duplicate{Frame: *dup.Frame, Offset: *dup.Offset}
		}
	case PushFull, PushHeld, PushConfig:
	default:
		return PushVerdict{}, fmt.Errorf("%w: unknown status %q", ErrMalformedAnswer, v.Status)
	}
	return out, nil
}

// WindowHashes calls each for the stored segments of a partition behind offset after (-1: all) that lie inside a
// deduplication window ending now, oldest first. It ends with each's error, and calls nothing twice: it is not repeated.
func (db *DB) WindowHashes(ctx context.Context, partition uuid.UUID, after int64, window time.Duration, each func(*WindowHashes) error) error {
	return db.run(ctx, "read the hashes of a partition", neverRepeat, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT r_base, r_end, r_created, r_since, r_hashes FROM queen.log_txns_window_v1($1::uuid, $2::int8, $3::int)`,
			uuidArgument(partition), after, int32(min(window/time.Second, math.MaxInt32))) //nolint:gosec // bounded in this line
		if err != nil {
			return err
		}
		defer rows.Close()
		var row WindowHashes
		for rows.Next() {
			if err := rows.Scan(&row.Base, &row.End, &row.CreatedAt, &row.Since, (*pgtype.DriverBytes)(&row.Hashes)); err != nil {
				return err
			}
			if err := each(&row); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// SegmentAt returns the segment that holds an offset; false when there is none (never written, or removed by retention).
func (db *DB) SegmentAt(ctx context.Context, partition uuid.UUID, offset int64) (StoredSegment, bool, error) {
	var segment StoredSegment
	found := false
	err := db.run(ctx, "read a segment", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		segment, found = StoredSegment{}, false
		err := conn.QueryRow(ctx, `SELECT r_base, r_end, r_created, r_blob FROM queen.log_segment_at_v1($1::uuid, $2::int8)`, uuidArgument(partition), offset).
			Scan(&segment.Base, &segment.End, &segment.CreatedAt, &segment.Blob)
		found = err == nil
		return absentIsNil(err)
	})
	if err != nil {
		return StoredSegment{}, false, err
	}
	segment.CreatedAt = segment.CreatedAt.UTC()
	return segment, found, nil
}
