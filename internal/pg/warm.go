package pg

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// warmLimit bounds the warming of one session.
const warmLimit = 2 * time.Second

// warm lets a new session meet what pushes, pops and acknowledgments run, in a transaction that is rolled back: a session compiles every
// procedure and plans every statement when it first executes it, which takes ten times as long as a push and would be paid by the first
// message of each kind. It is of no importance: a session that could not be warmed, on a database without schema for example, is a cold one.
func warm(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(ctx, warmLimit)
	defer cancel()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	id := uuid.New()
	// A name of its own: two sessions that warm up never wait for each other's rows.
	queue := "__warm_" + id.String()
	var partition uuid.UUID
	for n := range int64(4) { // the first creates queue and partition, the second finds them, the others know them
		id[0] = byte(n) //nolint:gosec // 0 to 3
		arrays, err := pushArguments([]Segment{{Queue: queue, Tenant: warmTenant, Partition: "p", Count: 1, Hashes: id[:], Verified: n - 1, Blob: id[:1:1]}})
		if err != nil {
			return
		}
		query, args := pushCore, append(arrays.columns(), false, nil, nil, nil)
		if n >= 2 {
			query, args = pushKnown, append(arrays.columns(), []pgtype.UUID{uuidArgument(partition)}, arrays.since)
		}
		var more []any
		if n == 3 {
			query, args = pushHandover, append(args, handoverColumns([]Handover{{Take: 1, LeaseSeconds: 1}}, []int{0})...)
			more = []any{new([]int32)}
		}
		var answer pushAnswer
		if answer.read(tx.QueryRow(ctx, query, args...), more...) != nil || n < 2 && len(answer.partitions) != 1 {
			return
		}
		if n < 2 {
			partition = answer.partitions[0].Bytes
		}
	}
	const group, worker = "__warm", "__warm"
	request := PopRequest{Tenant: warmTenant, Queue: queue, Group: group, Worker: worker, Budget: 1, LeaseSeconds: 1, MaxPartitions: 1, SubMode: "all", Candidates: []string{"p"}}
	for range 2 { // the second finds the lease
		if _, err := readReady(ctx, tx, request, readyArguments(&request)); err != nil {
			return
		}
	}
	_, _ = tx.Exec(ctx, ackMulti, []pgtype.UUID{uuidArgument(partition)}, []string{group}, []int64{0}, []string{worker}, []int32{1}) // the last one
}

// warmTenant owns what a session warms up with. Nobody else sees any of it.
var warmTenant = uuid.UUID{15: 1}
