package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	popReady = `SELECT r_ord, r_verdict, r_partition, r_last_offset, r_wait_ms, r_base, r_start, r_take, r_created_at, r_blob
FROM queen.log_pop_ready_v1($1::text, $2::text, $3::text[], $4::int, $5::int, $6::text, $7::boolean, $8::int, $9::text, $10::text, $11::boolean, $12::uuid, $13::text[], $14::int[], $15::int[], $16::bigint)`
	groupRegistered = `SELECT EXISTS (SELECT 1 FROM queen.consumer_groups_metadata AS m JOIN queen.queues AS q ON q.id = m.queue_id
WHERE q.tenant_id = $1::uuid AND q.name = $2::text AND m.tenant_id = q.tenant_id AND m.consumer_group = $3::text
  AND m.partition_name = '' AND m.namespace = '' AND m.task = '')`
	// candidatePoison is "took" for a message that is to be filed.
	candidatePoison = "poison"
	pendingPage     = `SELECT r_at, r_id, r_name, r_messages FROM queen.log_hotlist_page_v1($1::text, $2::text, $3::uuid, $4::float8, $5::timestamptz, $6::uuid, $7::int)`
)

// PopReady claims messages of the partitions r.Candidates, which the caller believes to have some, in that order. It says about each that
// it reached what it found; those without a word are to be tried again. It is the cheapest pop when the belief is right.
func (db *DB) PopReady(ctx context.Context, r PopRequest) (Claim, error) {
	args := readyArguments(&r)
	return db.claim(ctx, "pop ready partitions", r, func(ctx context.Context, from querier) (Claim, error) {
		return readReady(ctx, from, r, args)
	})
}

func readyArguments(r *PopRequest) []any {
	most := pgtype.Int8{Int64: r.MaxBytes, Valid: r.MaxBytes > 0}
	return []any{
		r.Queue, r.Group, r.Candidates, clampInt32(r.Budget), clampInt32(r.LeaseSeconds), r.Worker, r.AutoAck,
		clampInt32(r.MaxPartitions), r.SubMode, r.SubFrom, r.SkipWindow, uuidArgument(r.Tenant), r.Workers, r.Budgets, r.Leases, most,
	}
}

// readReady turns the rows of log_pop_ready_v1 into a claim.
func readReady(ctx context.Context, from querier, r PopRequest, args []any) (Claim, error) {
	rows, err := from.Query(ctx, popReady, args...)
	if err != nil {
		return Claim{}, err
	}
	defer rows.Close()
	claim := Claim{States: make([]CandidateState, 0, len(r.Candidates))}
	for rows.Next() {
		var (
			ord              int
			verdict          CandidateVerdict
			partition        pgtype.UUID
			last, wait, base pgtype.Int8
			start, take      pgtype.Int4
			createdAt        pgtype.Timestamptz
			blob             []byte
		)
		if err := rows.Scan(&ord, &verdict, &partition, &last, &wait, &base, &start, &take, &createdAt, &blob); err != nil {
			return Claim{}, err
		}
		poison := verdict == candidatePoison
		if poison {
			verdict = CandidateTook
		}
		if ord < 1 || ord > len(r.Candidates) {
			return Claim{}, fmt.Errorf("%w: a verdict on no candidate", ErrMalformedAnswer)
		}
		n := len(claim.States)
		if n == 0 || claim.States[n-1].Index != ord-1 {
			claim.States = append(claim.States, CandidateState{Partition: r.Candidates[ord-1], Verdict: verdict, LastOffset: last.Int64, Index: ord - 1, Wait: time.Duration(wait.Int64) * time.Millisecond})
			if verdict == CandidateTook {
				claim.Partitions = append(claim.Partitions, ClaimedPartition{Queue: r.Queue, Partition: r.Candidates[ord-1], PartitionID: partition.Bytes, Poison: poison})
			}
		}
		switch verdict {
		case CandidateTook:
			if !partition.Valid || !last.Valid || !base.Valid || base.Int64 < 0 || !start.Valid || start.Int32 < 0 || !take.Valid || take.Int32 < 1 || !createdAt.Valid || len(blob) == 0 {
				return Claim{}, fmt.Errorf("%w: a claimed segment without a position or frames", ErrMalformedAnswer)
			}
			taken := &claim.Partitions[len(claim.Partitions)-1]
			taken.Segments = append(taken.Segments, ClaimedSegment{Base: base.Int64, StartIndex: int(start.Int32), Take: int(take.Int32), CreatedAt: createdAt.Time.UTC(), Blob: blob})
		case CandidateLeased, CandidateRaced, CandidateDeferred, CandidateEmpty:
		default:
			return Claim{}, fmt.Errorf("%w: unknown verdict %q", ErrMalformedAnswer, verdict)
		}
	}
	return claim, rows.Err()
}

// GroupRegistered says whether a group has its subscription record on a queue, so that its cursors are seeded.
func (db *DB) GroupRegistered(ctx context.Context, tenant uuid.UUID, queue, group string) (bool, error) {
	registered := false
	err := db.run(ctx, "look for a subscription record", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, groupRegistered, uuidArgument(tenant), queue, group).Scan(&registered)
	})
	return registered, err
}

// A PendingPage asks for partitions that have messages for a group.
type PendingPage struct {
	Tenant       uuid.UUID
	Queue, Group string
	// After is where the page before ended, the zero value at the beginning.
	After PendingCursor
	// Limit is how many partitions are looked at.
	Limit int
	// Window leaves out partitions that were last written to longer ago; 0 looks at all. It counts for the first page; the others go on from
	// there.
	Window time.Duration
}

// A PendingCursor is a place in a walk over the partitions of a queue, which goes by the time of their last write.
type PendingCursor struct {
	// At is a time of the database with all its digits.
	At time.Time
	ID uuid.UUID
}

// Pending looks at one page of partitions and returns the names of those that probably have messages for the group, leased ones included, and how
// many, at least 1. next is where the next page begins, the zero value when this was the last one.
func (db *DB) Pending(ctx context.Context, page PendingPage) (names []string, messages []int64, next PendingCursor, err error) {
	window := pgtype.Float8{Float64: page.Window.Seconds(), Valid: page.Window > 0}
	after := pgtype.Timestamptz{Time: page.After.At, Valid: !page.After.At.IsZero()}
	args := []any{page.Queue, page.Group, uuidArgument(page.Tenant), window, after, uuidArgument(page.After.ID), clampInt32(page.Limit)}
	err = db.run(ctx, "list pending partitions", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		names, messages, next = nil, nil, PendingCursor{}
		rows, err := conn.Query(ctx, pendingPage, args...)
		if err != nil {
			return err
		}
		var at pgtype.Timestamptz
		var id pgtype.UUID
		var name pgtype.Text
		var count pgtype.Int8
		_, err = pgx.ForEachRow(rows, []any{&at, &id, &name, &count}, func() error {
			if name.Valid {
				names, messages = append(names, name.String), append(messages, max(count.Int64, 1))
			} else {
				next = PendingCursor{At: at.Time, ID: id.Bytes}
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, nil, PendingCursor{}, err
	}
	return names, messages, next, nil
}

// SeedGroup creates the cursors of a registered group on the next limit partitions of a queue where it has none. next is where the next step
// begins, the zero value when there are no more.
func (db *DB) SeedGroup(ctx context.Context, tenant uuid.UUID, queue, group string, after PendingCursor, limit int) (next PendingCursor, err error) {
	err = db.run(ctx, "seed a group", repeatVanished, func(ctx context.Context, conn *pgx.Conn) error {
		var at pgtype.Timestamptz
		var id pgtype.UUID
		err := conn.QueryRow(ctx, `SELECT r_at, r_id FROM queen.log_pop_seed_v1($1::text, $2::text, $3::uuid, $4::timestamptz, $5::uuid, $6::int)`,
			queue, group, uuidArgument(tenant), pgtype.Timestamptz{Time: after.At, Valid: !after.At.IsZero()}, uuidArgument(after.ID), clampInt32(limit)).Scan(&at, &id)
		next = PendingCursor{At: at.Time, ID: id.Bytes}
		return err
	})
	if err != nil {
		return PendingCursor{}, err
	}
	return next, nil
}

// A HotListRepair says that a seek or a delete gave groups work that no push announces.
type HotListRepair struct {
	ID     int64
	Tenant uuid.UUID
	// Queue is "" for all queues of the tenant, Group "" for all groups. A queue that is gone again is left out of the list.
	Queue, Group string
}

// The time is that of the statement: the index is of no use for one that may change while it runs.
const hotListRepairs = `SELECT r.id, r.tenant_id, COALESCE(q.name, ''), COALESCE(r.consumer_group, '')
FROM queen.hotlist_repairs AS r LEFT JOIN queen.queues AS q ON q.id = r.queue_id
WHERE r.created_at > statement_timestamp() - interval '10 minutes' AND (r.queue_id IS NULL OR q.id IS NOT NULL)
ORDER BY r.id`

// HotListRepairs returns the repairs of the last ten minutes.
func (db *DB) HotListRepairs(ctx context.Context) ([]HotListRepair, error) {
	var repairs []HotListRepair
	err := db.run(ctx, "read hot list repairs", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		repairs = nil
		rows, err := conn.Query(ctx, hotListRepairs)
		if err != nil {
			return err
		}
		var one HotListRepair
		var tenant pgtype.UUID
		_, err = pgx.ForEachRow(rows, []any{&one.ID, &tenant, &one.Queue, &one.Group}, func() error {
			one.Tenant = tenant.Bytes
			repairs = append(repairs, one)
			return nil
		})
		return err
	})
	return repairs, err
}
