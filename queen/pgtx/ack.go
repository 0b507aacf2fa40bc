package pgtx

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"queenmq/internal/engine/segment"
	"queenmq/queen"
)

// AckTx completes messages in tx: their group moves on when tx is committed, and they are delivered again when it is rolled back and
// the lease ends. Completing a message completes everything before it in its partition. The messages may come from a broker or
// from [Client.Pop]. Until tx ends nobody takes them over, even when the lease does.
//
// Only completions have a place here: what failed was not done, so roll back, and tell a broker with [queen.Client.Ack].
//
// Errors, after which tx must be rolled back: [queen.ErrLeaseLost] when a lease has ended, belongs to somebody else, or a message was
// completed before, so that nothing is ever processed twice; [queen.ErrNotFound] when a partition is not this tenant's;
// [queen.ErrInvalid] for acknowledgments without a lease or with another status.
func (c *Client) AckTx(ctx context.Context, tx pgx.Tx, acks ...queen.Ack) error {
	if len(acks) == 0 {
		return nil
	}
	type key struct{ partition, group, lease string }
	places := map[key]int{}
	var partitions, groups, leases []string
	var hashes [][]byte
	for i := range acks {
		a := &acks[i]
		switch {
		case a.Status != queen.Completed && a.Status != "":
			return invalid("acknowledge", "message %d: only completions are part of a transaction, not %q", i, a.Status)
		case a.LeaseID == "":
			return invalid("acknowledge", "message %d has no lease: pop without AutoAck", i)
		}
		if _, err := uuid.Parse(a.PartitionID); err != nil {
			return invalid("acknowledge", "message %d: the partition id %q is not a UUID", i, a.PartitionID)
		}
		k := key{a.PartitionID, a.Group, a.LeaseID}
		place, known := places[k]
		if !known {
			place = len(partitions)
			places[k] = place
			partitions, groups, leases, hashes = append(partitions, a.PartitionID), append(groups, a.Group), append(leases, a.LeaseID), append(hashes, nil)
		}
		hash := segment.Hash(a.TransactionID)
		hashes[place] = append(hashes[place], hash[:]...)
	}
	const statement = `SELECT queen.log_caller_ack_v1($1::text::uuid, $2::text[]::uuid[], $3::text[], $4::text[], $5::bytea[], $6::boolean)`
	var released int
	if err := tx.QueryRow(ctx, statement, c.tenant.String(), partitions, groups, leases, hashes, c.hints).Scan(&released); err != nil {
		return failed("acknowledge", err)
	}
	return nil
}

// Extend lengthens the lease of everything that one [Client.Pop], or a pop through a broker, delivered, to at least d from now
// (rounded up to seconds), and returns when it ends, by the database's clock. [queen.ErrLeaseLost] when nothing is left of it. It
// waits for a transaction that has acknowledged messages of the lease.
func (c *Client) Extend(ctx context.Context, db Database, leaseID string, d time.Duration) (time.Time, error) {
	seconds := int32(min(max((d+time.Second-1)/time.Second, 1), 86_400)) //nolint:gosec // bounded in this line
	var ends *time.Time
	err := inTransaction(ctx, db, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT queen.log_caller_extend_v1($1::text::uuid, $2::text, $3::int)`, c.tenant.String(), leaseID, seconds).Scan(&ends)
	})
	switch {
	case err != nil:
		return time.Time{}, failed("extend a lease", err)
	case ends == nil:
		return time.Time{}, &queen.Error{Status: 200, Code: "lease_lost", Message: "pgtx: extend a lease: it has ended"}
	}
	return ends.UTC(), nil
}
