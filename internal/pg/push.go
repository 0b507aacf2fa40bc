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
	arrays, err := pushArguments(segments)
	if err != nil {
		return nil, fmt.Errorf("push segments: %w", err)
	}
	if !o.SkipCapacity && arrays.traces == nil {
		if ids := db.partitions.of(segments); ids != nil {
			verdicts, err := db.pushRemembered(ctx, segments, ids, o.Handovers)
			if err != nil || verdicts != nil {
				return verdicts, err
			}
			db.partitions.forget(segments)
		}
	}
	args := append(arrays.columns(), o.SkipCapacity, arrays.traces, arrays.known, arrays.since)
	var verdicts []PushVerdict
	err = db.run(ctx, "push segments", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		var answer pushAnswer
		if err := answer.read(conn.QueryRow(ctx, pushCore, args...)); err != nil {
			return err
		}
		verdicts, err = answer.verdicts(segments)
		return err
	})
	if err != nil {
		return nil, err
	}
	db.partitions.learn(segments, verdicts)
	return verdicts, nil
}

// pushArrays are the parallel arrays of log_push_core_v1.
type pushArrays struct {
	queues, partitions []string
	counts             []int32
	verified           []int64
	hashes, blobs      [][]byte
	tenants            []pgtype.UUID
	plain              []bool
	// known and since are nil, which PostgreSQL sees as NULL, unless a segment is vouched for; traces are nil without trace ids.
	known  []pgtype.UUID
	since  []pgtype.Timestamptz
	traces []byte
}

// columns are the arguments with which both log_push_core_v1 and log_push_known_v1 begin.
func (a *pushArrays) columns() []any {
	return []any{a.queues, a.partitions, a.counts, a.hashes, a.verified, a.blobs, a.tenants, a.plain}
}

// pushArguments turns rows into parallel arrays.
func pushArguments(segments []Segment) (*pushArrays, error) {
	n := len(segments)
	a := &pushArrays{
		queues: make([]string, n), partitions: make([]string, n), counts: make([]int32, n), verified: make([]int64, n),
		hashes: make([][]byte, n), blobs: make([][]byte, n), tenants: make([]pgtype.UUID, n), plain: make([]bool, n),
	}
	var traces []segmentTrace
	for i := range segments {
		s := &segments[i]
		if s.Count < 1 || s.Count > math.MaxInt32 || len(s.Hashes) != 16*s.Count || len(s.Blob) == 0 {
			return nil, fmt.Errorf("%w: segment %d of %q: %d messages, %d bytes of hashes, %d bytes of frames", ErrBadData, i, s.Queue, s.Count, len(s.Hashes), len(s.Blob))
		}
		a.queues[i], a.partitions[i] = s.Queue, s.Partition
		a.counts[i], a.verified[i] = int32(s.Count), s.Verified
		a.hashes[i], a.blobs[i] = s.Hashes, s.Blob
		a.tenants[i], a.plain[i] = uuidArgument(s.Tenant), s.Plain
		if s.Verified >= 0 {
			if a.known == nil {
				a.known, a.since = make([]pgtype.UUID, n), make([]pgtype.Timestamptz, n)
			}
			a.known[i] = uuidArgument(s.VerifiedPartition)
			a.since[i] = pgtype.Timestamptz{Time: s.VerifiedSince, Valid: !s.VerifiedSince.IsZero()}
		}
		for _, trace := range s.Traces {
			traces = append(traces, segmentTrace{Segment: i, Frame: trace.Frame, ID: trace.ID})
		}
	}
	var err error
	a.traces, err = encodeTraces(traces)
	return a, err
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

// read takes the row in, and what a procedure returns behind it.
func (a *pushAnswer) read(row pgx.Row, more ...any) error {
	return row.Scan(append([]any{&a.order, &a.partitions, &a.bases, &a.created, &a.windows, &a.statuses, &a.details}, more...)...)
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
