package pg

import (
	"context"

	"github.com/jackc/pgx/v5"

	queensql "queenmq/sql"
)

// ApplyFiles is ApplySchema with other files and another version, for tests of the apply itself.
func (db *DB) ApplyFiles(ctx context.Context, files []queensql.File, version int) error {
	return db.applyFiles(ctx, files, version)
}

// Prepared counts the statements of the data path that the session in use has prepared.
func (db *DB) Prepared(ctx context.Context, count *int) error {
	return db.run(ctx, "count prepared statements", neverRepeat, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT count(*) FROM pg_prepared_statements WHERE statement ~ 'queen.log_(push_core|push_known|push_handover|pop_ready|ack_batches)_v1'
			AND statement !~ 'pg_prepared_statements'`).Scan(count)
	})
}

// Remember lets the pool know the id of a partition as a stored segment does.
func (db *DB) Remember(s Segment, v PushVerdict) {
	db.partitions.learn([]Segment{s}, []PushVerdict{v})
}

// Remembered is how many partitions the pool knows the ids of.
func (db *DB) Remembered() int {
	db.partitions.mu.Lock()
	defer db.partitions.mu.Unlock()
	return len(db.partitions.recent) + len(db.partitions.before)
}

// HotListRepairsQuery is the statement of HotListRepairs.
const HotListRepairsQuery = hotListRepairs
