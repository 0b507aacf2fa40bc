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

const pushMulti = `SELECT queen.log_push_multi_v1($1::text[], $2::text[], $3::int[], $4::bytea[], $5::int8[], $6::bytea[], $7::uuid[], $8::boolean[], $9::boolean, $10::jsonb)`

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
		var answer []byte
		if err := conn.QueryRow(ctx, pushMulti, args...).Scan(&answer); err != nil {
			return err
		}
		verdicts, err = decodePushVerdicts(answer, segments)
		return err
	})
	if err != nil {
		return nil, err
	}
	return verdicts, nil
}

// pushArguments turns rows into the parallel arrays of log_push_multi_v1.
func pushArguments(segments []Segment, o PushOptions) ([]any, error) {
	n := len(segments)
	queues, partitions := make([]string, n), make([]string, n)
	counts, verified := make([]int32, n), make([]int64, n)
	hashes, blobs := make([][]byte, n), make([][]byte, n)
	tenants, plain := make([]pgtype.UUID, n), make([]bool, n)
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
		for _, trace := range s.Traces {
			traces = append(traces, segmentTrace{Segment: i, Frame: trace.Frame, ID: trace.ID})
		}
	}
	traceJSON, err := encodeTraces(traces)
	if err != nil {
		return nil, err
	}
	return []any{queues, partitions, counts, hashes, verified, blobs, tenants, plain, o.SkipCapacity, traceJSON}, nil
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

// A pushVerdictJSON is one element of the answer of log_push_multi_v1.
type pushVerdictJSON struct {
	Status      PushStatus      `json:"status"`
	PartitionID uuid.NullUUID   `json:"partitionId"`
	BaseOffset  *int64          `json:"baseOffset"`
	CreatedAt   *time.Time      `json:"createdAt"`
	Dups        []duplicateJSON `json:"dups"`
	Depth       int64           `json:"depth"`
	Limit       int64           `json:"limit"`
	Remaining   int64           `json:"remaining"`
}

type duplicateJSON struct {
	Frame  *int   `json:"i"`
	Offset *int64 `json:"off"`
}

// decodePushVerdicts accepts an answer only when it says something about every segment.
func decodePushVerdicts(answer []byte, segments []Segment) ([]PushVerdict, error) {
	var raw []pushVerdictJSON
	if err := decodeJSON(answer, &raw); err != nil {
		return nil, err
	}
	if len(raw) != len(segments) {
		return nil, fmt.Errorf("%w: %d verdicts for %d segments", ErrMalformedAnswer, len(raw), len(segments))
	}
	verdicts := make([]PushVerdict, len(raw))
	for i := range raw {
		verdict, err := raw[i].verdict(segments[i].Count)
		if err != nil {
			return nil, fmt.Errorf("verdict %d: %w", i, err)
		}
		verdicts[i] = verdict
	}
	return verdicts, nil
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
