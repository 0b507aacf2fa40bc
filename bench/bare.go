package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// bareTimes are the medians of what a message cannot do without, measured by direct calls on an otherwise idle server.
type bareTimes struct {
	// commit is one row into a plain table; push stores one message, claim leases it, as the broker calls the procedures.
	commit, push, claim time.Duration
}

// bareCalls measures them on a queue of their own.
func (b *bench) bareCalls(ctx context.Context) (bareTimes, error) {
	const rounds = 300
	var t bareTimes
	var err error
	if t.commit, err = b.commitTime(ctx); err != nil {
		return t, err
	}
	queue := b.queue + ".bare"
	blobs, err := b.readyMade(1, 1)
	if err != nil {
		return t, err
	}
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return t, err
	}
	defer conn.Release()
	pushes, claims := make([]time.Duration, 0, rounds), make([]time.Duration, 0, rounds)
	hashes := make([]byte, 16)
	for i := range rounds {
		_, _ = rand.Read(hashes)
		name := lane(int64(i), b.options.partitions)
		begin := time.Now()
		if _, err := conn.Exec(ctx, `SELECT o_base FROM queen.log_push_core_v1($1, $2, $3, $4, $5, $6, $7, NULL, FALSE, NULL, NULL, NULL, NULL, NULL)`,
			[]string{queue}, []string{name}, []int32{1}, [][]byte{hashes}, []int64{-1}, blobs[:1], []uuid.UUID{{15: 1}}); err != nil {
			return t, err
		}
		stored := time.Now()
		worker := uuid.NewString()
		rows, err := conn.Query(ctx, `SELECT r_partition, r_base, r_blob FROM queen.log_pop_ready_v1($1, $2, $3, 100, 60, $4, FALSE, 1)
			WHERE r_verdict = 'took'`, queue, "bench", []string{name}, worker)
		if err != nil {
			return t, err
		}
		taken := 0
		var partition uuid.UUID
		var base int64
		for rows.Next() {
			var blob []byte
			if err := rows.Scan(&partition, &base, &blob); err != nil {
				return t, err
			}
			taken++
		}
		if err := rows.Err(); err != nil {
			return t, err
		}
		if taken != 1 {
			return t, fmt.Errorf("a bare claim took %d segments", taken)
		}
		claimed := time.Now()
		// The acknowledgment is not part of the way to the consumer.
		if _, err := conn.Exec(ctx, `UPDATE queen.log_consumers SET committed = $2, worker_id = NULL, lease_expires_at = NULL, batch_end = NULL
			WHERE partition_id = $1 AND consumer_group = 'bench'`, partition, base); err != nil {
			return t, err
		}
		if i >= rounds/3 { // plans and caches are warm
			pushes, claims = append(pushes, stored.Sub(begin)), append(claims, claimed.Sub(stored))
		}
	}
	t.push, _ = percentiles(pushes)
	t.claim, _ = percentiles(claims)
	return t, nil
}
