package pg

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// RefreshStats computes queen.stats anew and returns the procedure's summary. It returns nil without an error when another
// broker is at it. timeout bounds the statement on the server.
func (db *DB) RefreshStats(ctx context.Context, timeout time.Duration) (json.RawMessage, error) {
	return db.exclusively(ctx, "refresh the statistics", StatsLock, timeout, `SELECT queen.log_refresh_all_stats_v1()`)
}

// RefreshRetainedBytes computes the stored bytes of every queue; result and timeout as in RefreshStats. One row per segment is
// read.
func (db *DB) RefreshRetainedBytes(ctx context.Context, timeout time.Duration) (json.RawMessage, error) {
	return db.exclusively(ctx, "refresh the stored bytes", RetainedBytesLock, timeout, `SELECT queen.log_refresh_retained_bytes_v1()`)
}

// exclusively runs a statement in a transaction that holds an advisory lock, or returns nil when another session holds it.
// timeout may exceed the pool's: these statements are the only ones that read a whole table.
func (db *DB) exclusively(ctx context.Context, act string, lock int64, timeout time.Duration, statement string) (json.RawMessage, error) {
	conn, err := db.acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", act, err)
	}
	defer conn.Release()
	limited, cancel := context.WithTimeout(ctx, timeout+time.Second)
	defer cancel()
	var answer []byte
	err = db.inTransaction(limited, conn.Conn(), func(tx pgx.Tx) error {
		if _, err := tx.Exec(limited, `SELECT pg_catalog.set_config('statement_timeout', $1::text, true)`, milliseconds(timeout)); err != nil {
			return err
		}
		var held bool
		if err := tx.QueryRow(limited, `SELECT pg_catalog.pg_try_advisory_xact_lock($1::bigint)`, lock).Scan(&held); err != nil || !held {
			return err
		}
		return tx.QueryRow(limited, statement).Scan(&answer)
	})
	if err != nil {
		if !isCanceled(ctx) {
			db.failures.Add(1)
		}
		return nil, fmt.Errorf("%s: %w", act, classify(ctx, limited, err))
	}
	return answer, nil
}
