package pg

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A RetentionPhase is a list of partitions that retention has work in.
type RetentionPhase string

// The phases, in the order in which a cycle runs them.
const (
	PhaseRules   RetentionPhase = "rules"   // segments past retentionSeconds or completedRetentionSeconds
	PhaseSidecar RetentionPhase = "txns"    // hash rows past the window of duplicates and acknowledgments
	PhaseMaxWait RetentionPhase = "maxwait" // segments past maxWaitTimeSeconds
)

// A DuePartition is one row of a work list. A zero cutoff is a rule that is off.
type DuePartition struct {
	ID uuid.UUID
	// Oldest is the watermark that made it due; it may be earlier than the oldest row.
	Oldest time.Time
	// Cutoff is that of rule 1, of the sidecar or of maxWaitTimeSeconds; Completed that of rule 2, in PhaseRules only.
	Cutoff, Completed time.Time
}

// A RetentionStep is what one step did to one partition.
type RetentionStep struct {
	// Deleted counts rows: segments, or hash rows.
	Deleted int64 `json:"deleted"`
	// Messages were in the deleted segments, Unread of them above the slowest cursor (all of them when there was no cursor).
	Messages int64 `json:"messages"`
	Unread   int64 `json:"unread"`
	// Done tells that nothing more can be deleted now.
	Done bool `json:"done"`
}

// DatabaseTime reads the database's clock.
func (db *DB) DatabaseTime(ctx context.Context) (time.Time, error) {
	var now time.Time
	err := db.run(ctx, "read the clock", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
	})
	return now, err
}

// RetentionDue lists up to limit partitions that are due at now, oldest first, behind after when that is not nil.
func (db *DB) RetentionDue(ctx context.Context, phase RetentionPhase, now time.Time, after *DuePartition, limit int) ([]DuePartition, error) {
	var due []DuePartition
	err := db.run(ctx, "list what is due for retention", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		var afterAt pgtype.Timestamptz
		var afterID pgtype.UUID
		if after != nil {
			afterAt, afterID = timeArgument(after.Oldest), uuidArgument(after.ID)
		}
		rows, err := conn.Query(ctx, `SELECT r_partition, r_oldest, r_cutoff, r_completed
FROM queen.log_retention_due_v1($1::text, $2::timestamptz, $3::integer, $4::timestamptz, $5::uuid)`, string(phase), now, limit, afterAt, afterID)
		if err != nil {
			return err
		}
		due, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (DuePartition, error) {
			var id pgtype.UUID
			var oldest, cutoff, completed pgtype.Timestamptz
			err := row.Scan(&id, &oldest, &cutoff, &completed)
			return DuePartition{ID: id.Bytes, Oldest: oldest.Time, Cutoff: cutoff.Time, Completed: completed.Time}, err
		})
		return err
	})
	return due, err
}

// RetentionStep deletes up to maxRows segments that both cutoffs of due allow.
func (db *DB) RetentionStep(ctx context.Context, due DuePartition, maxRows int) (RetentionStep, error) {
	return db.retentionStep(ctx, "apply retention", `SELECT queen.log_retention_step_v1($1::uuid, $2::timestamptz, $3::timestamptz, $4::integer)`,
		uuidArgument(due.ID), timeArgument(due.Cutoff), timeArgument(due.Completed), maxRows)
}

// PurgeSidecar deletes up to maxRows hash rows older than due.Cutoff that no group needs any more.
func (db *DB) PurgeSidecar(ctx context.Context, due DuePartition, maxRows int) (RetentionStep, error) {
	return db.retentionStep(ctx, "purge hashes", `SELECT queen.log_txns_purge_step_v1($1::uuid, $2::timestamptz, $3::integer)`,
		uuidArgument(due.ID), timeArgument(due.Cutoff), maxRows)
}

// EvictMaxWait deletes up to maxRows segments older than due.Cutoff, read or not.
func (db *DB) EvictMaxWait(ctx context.Context, due DuePartition, maxRows int) (RetentionStep, error) {
	return db.retentionStep(ctx, "evict by age", `SELECT queen.log_evict_max_wait_step_v1($1::uuid, $2::timestamptz, $3::integer)`,
		uuidArgument(due.ID), timeArgument(due.Cutoff), maxRows)
}

// CleanupPartitions removes up to maxRows partitions that are empty and were not used since before; Deleted counts them.
func (db *DB) CleanupPartitions(ctx context.Context, before time.Time, maxRows int) (RetentionStep, error) {
	return db.retentionStep(ctx, "remove dead partitions", `SELECT queen.log_partition_cleanup_step_v1($1::timestamptz, $2::integer)`, timeArgument(before), maxRows)
}

// PurgeDeadLetters deletes up to maxRows dead letters that are older than their queue keeps them.
func (db *DB) PurgeDeadLetters(ctx context.Context, maxRows int) (RetentionStep, error) {
	return db.retentionStep(ctx, "purge dead letters", `SELECT queen.log_dlq_purge_step_v1($1::integer)`, maxRows)
}

// retentionStep calls a step. A deadlock or a lock timeout is not repeated: the next cycle comes soon.
func (db *DB) retentionStep(ctx context.Context, act, statement string, arguments ...any) (RetentionStep, error) {
	var step RetentionStep
	err := db.answer(ctx, act, neverRepeat, &step, statement, arguments...)
	return step, err
}

// A RepairStep is one part of the walk that compares the watermarks of partitions with what they hold.
type RepairStep struct {
	// Last is where the next step continues; Done tells that there is no next one.
	Last     uuid.UUID `json:"last"`
	Seen     int       `json:"seen"`
	Repaired int       `json:"repaired"`
	Done     bool      `json:"done"`
}

// RepairWatermarks compares up to maxRows partitions behind after (the zero id: from the first), and corrects what drifted.
func (db *DB) RepairWatermarks(ctx context.Context, after uuid.UUID, maxRows int) (RepairStep, error) {
	var step RepairStep
	err := db.answer(ctx, "compare watermarks", repeatConflicts, &step, `SELECT queen.log_retention_repair_step_v1($1::uuid, $2::integer)`, uuidArgument(after), maxRows)
	return step, err
}

// PurgeMetrics deletes up to maxRows rows older than days of each of the metrics, retention history and trace tables. It
// returns how many it deleted, and false when more may be left.
func (db *DB) PurgeMetrics(ctx context.Context, days, maxRows int) (deleted int64, done bool, err error) {
	var counts map[string]int64
	err = db.answer(ctx, "purge metrics", neverRepeat, &counts, `SELECT queen.cleanup_worker_metrics_v1($1::integer, $2::integer)`, days, maxRows)
	done = true
	for _, n := range counts {
		deleted += n
		done = done && n < int64(maxRows)
	}
	return deleted, done, err
}

// answer runs a statement that returns one JSON value and decodes it.
func (db *DB) answer(ctx context.Context, act string, policy repeat, into any, statement string, arguments ...any) error {
	raw, err := db.rawAnswer(ctx, act, policy, statement, arguments...)
	if err != nil {
		return err
	}
	return decodeJSON(raw, into)
}

// rawAnswer runs a statement that returns one JSON value.
func (db *DB) rawAnswer(ctx context.Context, act string, policy repeat, statement string, arguments ...any) ([]byte, error) {
	var raw []byte
	err := db.run(ctx, act, policy, func(ctx context.Context, conn *pgx.Conn) error {
		raw = nil
		return conn.QueryRow(ctx, statement, arguments...).Scan(&raw)
	})
	return raw, err
}

// timeArgument is a timestamp parameter; the zero time is NULL.
func timeArgument(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}
