package workload

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// AtEnd says whether every group of the run stands behind the last message of every partition.
func AtEnd(ctx context.Context, db *pgxpool.Pool, cfg Config) (bool, error) {
	var done bool
	err := db.QueryRow(ctx, `
		SELECT count(*) = $1::int * $2::int AND COALESCE(bool_and(c.committed = p.last_offset AND p.last_offset + 1 >= $3::bigint), false)
		FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
		JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = ANY($4)
		WHERE q.name = $5`, cfg.Partitions, len(cfg.Groups), cfg.Messages, cfg.Groups, cfg.Queue).Scan(&done)
	return done, err
}

// AwaitStored returns once the database holds that many messages, or when ctx ends.
func AwaitStored(ctx context.Context, db *pgxpool.Pool, want int64) {
	for ctx.Err() == nil {
		var stored int64
		err := db.QueryRow(ctx, `SELECT COALESCE(sum(last_offset + 1), 0)::bigint FROM queen.log_partitions`).Scan(&stored)
		if err == nil && stored >= want {
			return
		}
		pause(ctx, 5*time.Millisecond) // poll of a condition, bounded by ctx
	}
}

// DeadLetters lists the sequence numbers of dead letters by group and partition, as Violations wants them. Offsets are
// sequence numbers here: each partition has one producer that pushes in order.
func DeadLetters(ctx context.Context, db *pgxpool.Pool) (map[string][]int, error) {
	rows, err := db.Query(ctx, `SELECT d.consumer_group, p.name, d."offset" FROM queen.log_dlq d JOIN queen.log_partitions p ON p.id = d.partition_id`)
	if err != nil {
		return nil, err
	}
	out := map[string][]int{}
	var group, partition string
	var offset int
	_, err = pgx.ForEachRow(rows, []any{&group, &partition, &offset}, func() error {
		key := group + "\x00" + partition
		out[key] = append(out[key], offset)
		return nil
	})
	return out, err
}
