package pg

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const pushKnown = `SELECT o_ord, o_pids, o_base, o_created, o_windows, o_status, o_detail
	FROM queen.log_push_known_v1($1::text[], $2::text[], $3::int[], $4::bytea[], $5::int8[], $6::bytea[], $7::uuid[], $8::boolean[], $9::uuid[], $10::timestamptz[])`

const pushHandover = `SELECT o_ord, o_pids, o_base, o_created, o_windows, o_status, o_detail, o_leased
	FROM queen.log_push_handover_v1($1::text[], $2::text[], $3::int[], $4::bytea[], $5::int8[], $6::bytea[], $7::uuid[], $8::boolean[], $9::uuid[], $10::timestamptz[],
		$11::int[], $12::int[], $13::text[], $14::text[], $15::int[])`

// rememberedPartitions is half of the most partitions whose ids a pool remembers. An entry takes some 130 bytes.
const rememberedPartitions = 16_384

// partitionIDs remembers which ids partitions had when something was stored there. The database checks each: an id that is wrong by now
// costs a second call. It is safe for concurrent use.
type partitionIDs struct {
	mu sync.Mutex
	// recent is full when it has rememberedPartitions entries; then it becomes before, and what was not used since is forgotten.
	recent, before map[partitionName]uuid.UUID
}

type partitionName struct {
	tenant           uuid.UUID
	queue, partition string
}

func nameOf(s *Segment) partitionName { return partitionName{s.Tenant, s.Queue, s.Partition} }

// of returns the ids of the partitions of all segments, or nil when one is not remembered.
func (p *partitionIDs) of(segments []Segment) []uuid.UUID {
	ids := make([]uuid.UUID, len(segments))
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range segments {
		name := nameOf(&segments[i])
		id, known := p.recent[name]
		if !known {
			if id, known = p.before[name]; !known {
				return nil
			}
			p.putLocked(name, id)
		}
		ids[i] = id
	}
	return ids
}

// learn remembers the partitions in which something was stored. Those of bounded queues are left out: they are locked in another order.
func (p *partitionIDs) learn(segments []Segment, verdicts []PushVerdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range segments {
		if v := &verdicts[i]; v.Status == PushQueued && v.Limit == 0 {
			name := nameOf(&segments[i])
			// The names may be slices of a larger text, of a request for example.
			name.queue, name.partition = strings.Clone(name.queue), strings.Clone(name.partition)
			p.putLocked(name, v.PartitionID)
		}
	}
}

func (p *partitionIDs) putLocked(name partitionName, id uuid.UUID) {
	if p.recent == nil || len(p.recent) >= rememberedPartitions {
		p.recent, p.before = make(map[partitionName]uuid.UUID), p.recent
	}
	p.recent[name] = id
}

func (p *partitionIDs) forget(segments []Segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range segments {
		name := nameOf(&segments[i])
		delete(p.recent, name)
		delete(p.before, name)
	}
}

// pushRemembered stores segments whose partitions are ids, in one transaction, as PushMulti does. Without verdicts and error it wrote
// nothing: something is not as it was when the ids were heard of, and the names are to decide.
func (db *DB) pushRemembered(ctx context.Context, segments []Segment, ids []uuid.UUID, handovers []Handover) ([]PushVerdict, error) {
	order := make([]int, len(ids))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(ids[a][:], ids[b][:]) })
	sorted, known := make([]Segment, len(ids)), make([]pgtype.UUID, len(ids))
	for k, i := range order {
		sorted[k], known[k] = segments[i], uuidArgument(ids[i])
		if sorted[k].VerifiedPartition != ids[i] {
			sorted[k].Verified = -1
		}
	}
	arrays, err := pushArguments(sorted)
	if err != nil {
		return nil, err
	}
	query, args := pushKnown, append(arrays.columns(), known, arrays.since)
	if len(handovers) > 0 {
		query, args = pushHandover, append(args, handoverColumns(handovers, order)...)
	}
	var verdicts []PushVerdict
	err = db.run(ctx, "push segments", repeatLocks, func(ctx context.Context, conn *pgx.Conn) error {
		verdicts = nil
		var answer pushAnswer
		var leased []int32
		var err error
		if row := conn.QueryRow(ctx, query, args...); len(handovers) > 0 {
			err = answer.read(row, &leased)
		} else {
			err = answer.read(row)
		}
		if err != nil || answer.bases == nil {
			return err
		}
		if err := setLeased(handovers, leased); err != nil {
			return err
		}
		if answer.order == nil {
			answer.inInputOrder(known)
		}
		verdicts, err = answer.verdicts(sorted)
		return err
	})
	if err != nil || verdicts == nil {
		return nil, err
	}
	inOrder := make([]PushVerdict, len(verdicts))
	for k, i := range order {
		inOrder[i] = verdicts[k]
	}
	return inOrder, nil
}

// handoverColumns are the arguments of log_push_handover_v1 behind those of log_push_known_v1; order says which segment stands where.
func handoverColumns(handovers []Handover, order []int) []any {
	place := make([]int32, len(order))
	for k, i := range order {
		place[i] = int32(k + 1) //nolint:gosec // the length of an argument
	}
	n := len(handovers)
	segments, takes, leases := make([]int32, n), make([]int32, n), make([]int32, n)
	groups, workers := make([]string, n), make([]string, n)
	for i := range handovers {
		h := &handovers[i]
		segments[i], takes[i], leases[i] = place[h.Segment], clampInt32(h.Take), clampInt32(h.LeaseSeconds)
		groups[i], workers[i] = h.Group, h.Worker
	}
	return []any{segments, takes, groups, workers, leases}
}

// setLeased notes which leases were made.
func setLeased(handovers []Handover, leased []int32) error {
	for i := range handovers {
		handovers[i].Leased = false // of a try that was rolled back
	}
	for _, position := range leased {
		if position < 1 || int(position) > len(handovers) {
			return fmt.Errorf("%w: lease %d of %d", ErrMalformedAnswer, position, len(handovers))
		}
		handovers[position-1].Leased = true
	}
	return nil
}

// inInputOrder completes the short answer of log_push_known_v1.
func (a *pushAnswer) inInputOrder(partitions []pgtype.UUID) {
	a.partitions = partitions
	a.order = make([]int32, len(partitions))
	for i := range a.order {
		a.order[i] = int32(i + 1) //nolint:gosec // the length of an argument
	}
}
