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

// statsStep is how many partitions one statement of a refresh reads: some 50 to 100 ms.
const statsStep = 10_000

// RefreshStats computes queen.stats anew and returns the procedure's summary. It returns nil without an error when another
// broker is at it. timeout bounds each of its statements on the server. Every statement reads a bounded number of partitions, and the server rests
// between two of them for as long as the first took.
func (db *DB) RefreshStats(ctx context.Context, timeout time.Duration) (json.RawMessage, error) {
	return db.exclusively(ctx, "refresh the statistics", StatsLock, timeout, func(ctx context.Context, tx pgx.Tx) (answer []byte, err error) {
		var all queueFigures
		for after := (uuid.UUID{}); ; {
			began := time.Now()
			next, err := all.read(ctx, tx, after, timeout)
			if err != nil {
				return nil, err
			}
			if !next.Valid {
				break
			}
			after = next.Bytes
			if !wait(ctx, time.Since(began)) {
				return nil, context.Cause(ctx)
			}
		}
		ctx, cancel := context.WithTimeout(ctx, timeout+time.Second)
		defer cancel()
		err = tx.QueryRow(ctx, `SELECT queen.log_stats_store_v1($1::uuid[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::timestamptz[], $8::int8[], $9::int8[])`,
			all.queues, all.partitions, all.totals, all.pending, all.processing, all.dead, all.oldest, all.lagging, all.most).Scan(&answer)
		return answer, err
	})
}

// queueFigures are what the steps of a refresh found, one element per queue, as log_stats_step_v1 has them.
type queueFigures struct {
	at                                                           map[pgtype.UUID]int
	queues                                                       []pgtype.UUID
	partitions, totals, pending, processing, dead, lagging, most []int64
	oldest                                                       []pgtype.Timestamptz
}

// read adds the figures of the partitions behind one of them, and returns where the next step begins.
func (f *queueFigures) read(ctx context.Context, tx pgx.Tx, after uuid.UUID, timeout time.Duration) (next pgtype.UUID, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Second)
	defer cancel()
	// The simple protocol ends its portal with the statement; the extended one would keep its snapshot until the next statement, and
	// hold back every vacuum while the server rests.
	rows, err := tx.Query(ctx, `SELECT r_queue, r_partitions, r_total, r_pending, r_processing, r_dead, r_oldest, r_lagging, r_most, r_next
FROM queen.log_stats_step_v1($1::uuid, $2::int)`, pgx.QueryExecModeSimpleProtocol, uuidArgument(after), statsStep)
	if err != nil {
		return next, err
	}
	var queue pgtype.UUID
	var partitions, total, pending, processing, dead, lagging, most int64
	var oldest pgtype.Timestamptz
	_, err = pgx.ForEachRow(rows, []any{&queue, &partitions, &total, &pending, &processing, &dead, &oldest, &lagging, &most, &next}, func() error {
		i, known := f.at[queue]
		if !known {
			i = f.add(queue)
		}
		f.partitions[i] += partitions
		f.totals[i] += total
		f.pending[i] += pending
		f.processing[i] += processing
		f.dead[i] += dead
		f.lagging[i] += lagging
		f.most[i] = max(f.most[i], most)
		if oldest.Valid && (!f.oldest[i].Valid || oldest.Time.Before(f.oldest[i].Time)) {
			f.oldest[i] = oldest
		}
		return nil
	})
	return next, err
}

func (f *queueFigures) add(queue pgtype.UUID) int {
	if f.at == nil {
		f.at = make(map[pgtype.UUID]int)
	}
	i := len(f.queues)
	f.at[queue] = i
	f.queues = append(f.queues, queue)
	f.oldest = append(f.oldest, pgtype.Timestamptz{})
	for _, column := range []*[]int64{&f.partitions, &f.totals, &f.pending, &f.processing, &f.dead, &f.lagging, &f.most} {
		*column = append(*column, 0)
	}
	return i
}

// RefreshRetainedBytes computes the stored bytes of every queue. It returns nil without an error when another broker is at it. One row per
// segment is read, in one statement that timeout bounds.
func (db *DB) RefreshRetainedBytes(ctx context.Context, timeout time.Duration) (json.RawMessage, error) {
	return db.exclusively(ctx, "refresh the stored bytes", RetainedBytesLock, timeout, func(ctx context.Context, tx pgx.Tx) (answer []byte, err error) {
		ctx, cancel := context.WithTimeout(ctx, timeout+time.Second)
		defer cancel()
		err = tx.QueryRow(ctx, `SELECT queen.log_refresh_retained_bytes_v1()`).Scan(&answer)
		return answer, err
	})
}

// exclusively runs f in a transaction that holds an advisory lock, or returns nil when another session holds it. timeout bounds each statement
// and may exceed the pool's: such statements are the only ones that read much.
func (db *DB) exclusively(ctx context.Context, act string, lock int64, timeout time.Duration, f func(context.Context, pgx.Tx) ([]byte, error)) (json.RawMessage, error) {
	conn, err := db.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", act, err)
	}
	defer conn.Release()
	var answer []byte
	err = db.inTransaction(ctx, conn.Conn(), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('statement_timeout', $1::text, true)`, milliseconds(timeout)); err != nil {
			return err
		}
		var held bool
		if err := tx.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_xact_lock($1::bigint)`, lock).Scan(&held); err != nil || !held {
			return err
		}
		answer, err = f(ctx, tx)
		return err
	})
	if err != nil {
		if !isCanceled(ctx) {
			db.failures.Add(1)
		}
		return nil, fmt.Errorf("%s: %w", act, classify(ctx, ctx, err))
	}
	return answer, nil
}
