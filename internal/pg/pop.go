package pg

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	popWildcard = `SELECT meta, blobs FROM queen.log_pop_wildcard_bin_v1($1::text, $2::text, $3::int, $4::int, $5::text, $6::boolean, $7::int, $8::text, $9::text, $10::uuid)`
	popSpecific = `SELECT meta, blobs FROM queen.log_pop_specific_bin_v1($1::text, $2::text, $3::text, $4::int, $5::int, $6::text, $7::boolean, $8::text, $9::text, $10::uuid)`
	popDiscover = `SELECT meta, blobs FROM queen.log_pop_discover_bin_v1($1::text, $2::text, $3::text, $4::int, $5::int, $6::text, $7::boolean, $8::int, $9::text, $10::text, $11::uuid)`
	popList     = `SELECT meta, blobs, states FROM queen.log_pop_list_v1($1::text, $2::text, $3::text[], $4::int, $5::int, $6::text, $7::boolean, $8::int, $9::text, $10::text, $11::boolean, $12::uuid)`
)

// PopWildcard claims messages of any partitions of one queue. A queue that does not exist is created; a group that comes for
// the first time is registered and seeded.
//
// As with every pop: no work is an empty claim and a nil error, nothing is waited for, and a claim is leased to r.Worker until
// the database clock passes r.LeaseSeconds. When ctx is cancelled while the call runs, the claim may exist without anybody
// knowing; it ends with its lease.
func (db *DB) PopWildcard(ctx context.Context, r PopRequest) (Claim, error) {
	return db.pop(ctx, "pop a queue", r, popWildcard, r.Queue, r.Group, clampInt32(r.Budget), clampInt32(r.LeaseSeconds), r.Worker, r.AutoAck,
		clampInt32(r.MaxPartitions), r.SubMode, r.SubFrom, uuidArgument(r.Tenant))
}

// PopSpecific claims messages of the partition r.Partition. Unknown names are no work.
func (db *DB) PopSpecific(ctx context.Context, r PopRequest) (Claim, error) {
	return db.pop(ctx, "pop a partition", r, popSpecific, r.Queue, r.Partition, r.Group, clampInt32(r.Budget), clampInt32(r.LeaseSeconds), r.Worker, r.AutoAck,
		r.SubMode, r.SubFrom, uuidArgument(r.Tenant))
}

// PopDiscover claims messages of any queue with r.Namespace and r.Task. It creates no queue.
func (db *DB) PopDiscover(ctx context.Context, r PopRequest) (Claim, error) {
	return db.pop(ctx, "pop by discovery", r, popDiscover, r.Namespace, r.Task, r.Group, clampInt32(r.Budget), clampInt32(r.LeaseSeconds), r.Worker, r.AutoAck,
		clampInt32(r.MaxPartitions), r.SubMode, r.SubFrom, uuidArgument(r.Tenant))
}

// PopList claims messages of the partitions r.Candidates, in that order, and says about each it reached what it found.
func (db *DB) PopList(ctx context.Context, r PopRequest) (Claim, error) {
	candidates := r.Candidates
	if candidates == nil {
		candidates = []string{}
	}
	return db.pop(ctx, "pop candidates", r, popList, r.Queue, r.Group, candidates, clampInt32(r.Budget), clampInt32(r.LeaseSeconds), r.Worker, r.AutoAck,
		clampInt32(r.MaxPartitions), r.SubMode, r.SubFrom, r.SkipWindow, uuidArgument(r.Tenant))
}

// HasPending says whether a group may have work in a queue. Messages that others hold count, and so may messages that retention
// has removed; an unknown queue has none.
func (db *DB) HasPending(ctx context.Context, tenant uuid.UUID, queue, group string) (bool, error) {
	var pending bool
	err := db.run(ctx, "look for pending messages", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT queen.log_has_pending_v1($1::text, $2::text, $3::uuid)`, queue, group, uuidArgument(tenant)).Scan(&pending)
	})
	return pending, err
}

// RaiseScanFloor lets later looks for pending messages of the group pass over partitions that are known to have none. A call looks at a bounded
// number of them, those that were not written to for the longest time first. before is what the call just before returned, else the zero time.
// floor is how far it came, on the database's clock, the zero time after the first call for a group, which only prepares; more says that
// another call may come further.
func (db *DB) RaiseScanFloor(ctx context.Context, tenant uuid.UUID, queue, group string, before time.Time) (floor time.Time, more bool, err error) {
	err = db.run(ctx, "note drained partitions", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		var raised pgtype.Timestamptz
		err := conn.QueryRow(ctx, `SELECT r_floor, r_more FROM queen.log_pop_raise_floor_v1($1::text, $2::text, $3::uuid, $4::timestamptz)`, queue, group, uuidArgument(tenant), pgtype.Timestamptz{Time: before, Valid: !before.IsZero()}).Scan(&raised, &more)
		floor = raised.Time
		return err
	})
	return floor, more, err
}

// pop runs one pop statement that answers in columns.
func (db *DB) pop(ctx context.Context, act string, r PopRequest, query string, args ...any) (Claim, error) {
	return db.claim(ctx, act, r, func(ctx context.Context, from querier) (Claim, error) {
		return readClaim(from.QueryRow(ctx, query, args...), r, query == popList)
	})
}

// A querier runs statements; a connection and a transaction are one.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// claim runs the statement of one pop, which read does. A pop that acknowledges at once and wants to be asked first is committed only after
// r.Accept has seen the claim; on a repeated attempt Accept is asked again.
func (db *DB) claim(ctx context.Context, act string, r PopRequest, read func(ctx context.Context, from querier) (Claim, error)) (Claim, error) {
	var claim Claim
	err := db.run(ctx, act, repeatVanished, func(ctx context.Context, conn *pgx.Conn) (err error) {
		if !r.AutoAck || r.Accept == nil {
			claim, err = read(ctx, conn)
			return err
		}
		return db.inTransaction(ctx, conn, func(tx pgx.Tx) error {
			claim, err = read(ctx, tx)
			if err != nil || len(claim.Partitions) == 0 {
				return err
			}
			return r.Accept(claim)
		})
	})
	if err != nil {
		return Claim{}, err
	}
	return claim, nil
}

// A claimJSON is the meta column of the binary pops.
type claimJSON struct {
	Partitions []struct {
		Queue       string        `json:"queue"`
		Partition   *string       `json:"partition"`
		PartitionID uuid.NullUUID `json:"partitionId"`
		Poison      bool          `json:"poison"`
		Segments    []struct {
			Base       *int64     `json:"seq"`
			StartIndex *int       `json:"startOff"`
			Take       *int       `json:"take"`
			CreatedAt  *time.Time `json:"createdAt"`
		} `json:"segments"`
	} `json:"partitions"`
}

func readClaim(row pgx.Row, r PopRequest, withStates bool) (Claim, error) {
	var meta, states []byte
	var blobs [][]byte
	into := []any{&meta, &blobs}
	if withStates {
		into = append(into, &states)
	}
	if err := row.Scan(into...); err != nil {
		return Claim{}, err
	}
	claim, err := decodeClaim(meta, blobs, r.Queue)
	if err == nil && withStates {
		claim.States, err = decodeStates(states)
	}
	return claim, err
}

// decodeClaim joins the description of a claim with its blobs, which come flattened in the same order. Frames without a
// partition could never be acknowledged: such an answer is refused, not rendered.
func decodeClaim(meta []byte, blobs [][]byte, queue string) (Claim, error) {
	var raw claimJSON
	if err := decodeJSON(meta, &raw); err != nil {
		return Claim{}, err
	}
	claim := Claim{Partitions: make([]ClaimedPartition, 0, len(raw.Partitions))}
	next := 0
	for _, p := range raw.Partitions {
		name := orDefault(p.Queue, queue)
		if p.Partition == nil || !p.PartitionID.Valid || p.PartitionID.UUID == uuid.Nil || len(p.Segments) == 0 || name == "" {
			return Claim{}, fmt.Errorf("%w: a claimed partition without name, id or segments", ErrMalformedAnswer)
		}
		partition := ClaimedPartition{Queue: name, Partition: *p.Partition, PartitionID: p.PartitionID.UUID, Poison: p.Poison, Segments: make([]ClaimedSegment, len(p.Segments))}
		for i, s := range p.Segments {
			if s.Base == nil || s.StartIndex == nil || s.Take == nil || s.CreatedAt == nil || *s.Base < 0 || *s.StartIndex < 0 || *s.Take < 1 {
				return Claim{}, fmt.Errorf("%w: a claimed segment without a position", ErrMalformedAnswer)
			}
			if next == len(blobs) || len(blobs[next]) == 0 {
				return Claim{}, fmt.Errorf("%w: a claimed segment without frames", ErrMalformedAnswer)
			}
			partition.Segments[i] = ClaimedSegment{Base: *s.Base, StartIndex: *s.StartIndex, Take: *s.Take, CreatedAt: s.CreatedAt.UTC(), Blob: blobs[next]}
			next++
		}
		claim.Partitions = append(claim.Partitions, partition)
	}
	if next != len(blobs) {
		return Claim{}, fmt.Errorf("%w: %d blobs for %d segments", ErrMalformedAnswer, len(blobs), next)
	}
	return claim, nil
}

func decodeStates(text []byte) ([]CandidateState, error) {
	var raw []struct {
		Partition  *string          `json:"p"`
		Verdict    CandidateVerdict `json:"s"`
		LastOffset json.RawMessage  `json:"lastOff"`
		Until      *time.Time       `json:"until"`
	}
	if err := decodeJSON(text, &raw); err != nil {
		return nil, err
	}
	states := make([]CandidateState, len(raw))
	for i, s := range raw {
		if s.Partition == nil {
			return nil, fmt.Errorf("%w: a verdict on no candidate", ErrMalformedAnswer)
		}
		states[i] = CandidateState{Partition: *s.Partition, Verdict: s.Verdict}
		switch s.Verdict {
		case CandidateTook:
			if err := decodeJSON(s.LastOffset, &states[i].LastOffset); err != nil {
				return nil, err
			}
		case CandidateLeased:
			if s.Until == nil {
				return nil, fmt.Errorf("%w: leased without an end", ErrMalformedAnswer)
			}
			states[i].Until = s.Until.UTC()
		case CandidateEmpty:
		default:
			return nil, fmt.Errorf("%w: unknown verdict %q", ErrMalformedAnswer, s.Verdict)
		}
	}
	return states, nil
}

// clampInt32 keeps a number inside PostgreSQL's INTEGER; beyond it all numbers mean "very many".
func clampInt32(n int) int32 {
	const most = 1<<31 - 1
	return int32(min(max(n, -most), most)) //nolint:gosec // bounded in this line
}
