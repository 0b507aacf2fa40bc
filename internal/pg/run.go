package pg

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// repeat says which failures make a call try again. Every call is one whole transaction, so nothing of a failed attempt stays.
type repeat int

const (
	neverRepeat repeat = iota
	// repeatConflicts tries again after a serialization failure or a deadlock.
	repeatConflicts
	// repeatLocks also tries again after a lock timeout: the data paths, for which waiting is better than failing.
	repeatLocks
	// repeatVanished also tries again after something was deleted meanwhile: pops, which then look at what is left.
	repeatVanished
)

// maxAttempts is the number of attempts of one call, the first included.
const maxAttempts = 3

func (r repeat) allows(err error) bool {
	switch r {
	case repeatVanished:
		return errors.Is(err, ErrVanished) || repeatLocks.allows(err)
	case repeatLocks:
		return errors.Is(err, ErrSerialization) || errors.Is(err, ErrLockTimeout)
	case repeatConflicts:
		return errors.Is(err, ErrSerialization)
	case neverRepeat:
	}
	return false
}

// run calls f with a connection, under the statement timeout, until it succeeds or may not be repeated. act names the call in
// errors. f must set everything it returns anew on each attempt, and leave no transaction open.
func (db *DB) run(ctx context.Context, act string, policy repeat, f func(context.Context, *pgx.Conn) error) error {
	for attempt := 1; ; attempt++ {
		err := db.attempt(ctx, f)
		if err == nil {
			return nil
		}
		if attempt == maxAttempts || !policy.allows(err) || !wait(ctx, backoff(attempt)) {
			if !isCanceled(ctx) {
				db.failures.Add(1)
			}
			return fmt.Errorf("%s: %w", act, err)
		}
	}
}

func (db *DB) attempt(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	conn, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	// Release closes a connection that is broken or inside a transaction, also when f panics.
	defer conn.Release()
	limited, cancel := context.WithTimeout(ctx, db.options.StatementTimeout)
	defer cancel()
	statement, giveUp := context.WithCancelCause(limited)
	defer giveUp(nil)
	defer db.lookout.watch(conn.Conn().PgConn().PID(), giveUp)()
	if db.aborted.Err() != nil { // too late for Abort to see it
		return fmt.Errorf("%w: %w", ErrUnavailable, errAborted)
	}
	return classify(ctx, statement, f(statement, conn.Conn()))
}

// acquire takes a connection from the pool, or opens one.
func (db *DB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	limited, cancel := context.WithTimeout(ctx, db.options.AcquireTimeout)
	defer cancel()
	defer context.AfterFunc(db.aborted, cancel)()
	db.waiting.Add(1)
	conn, err := db.pool.Acquire(limited)
	db.waiting.Add(-1)
	switch {
	case db.aborted.Err() != nil:
		if err == nil {
			conn.Release()
		}
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, errAborted)
	case err == nil:
		return conn, nil
	case ctx.Err() == nil && limited.Err() != nil:
		// Our own limit ended the wait: either everything is in use, or the server does not answer new connections.
		if stat := db.pool.Stat(); stat.AcquiredConns() < stat.MaxConns() {
			return nil, fmt.Errorf("%w: connecting took longer than %s", ErrUnavailable, db.options.AcquireTimeout)
		}
		return nil, fmt.Errorf("%w (%d connections, %s)", ErrPoolTimeout, db.options.MaxConns, db.options.AcquireTimeout)
	}
	return nil, classify(ctx, limited, err)
}

// backoff returns the wait after the n-th attempt: 100 ms, doubled each time, at most 1 s, 25 % more or less so that the
// parties of a deadlock do not meet again.
func backoff(n int) time.Duration {
	base := min(100*time.Millisecond<<(n-1), time.Second)
	return time.Duration(float64(base) * (0.75 + 0.5*rand.Float64())) //nolint:gosec // spreading, not secrecy
}

// wait returns true after d, or false when ctx ends earlier.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// inTransaction calls f between BEGIN and COMMIT. When f fails or ctx ends before the commit, everything is rolled back; once
// the commit is under way it is seen through, so that its outcome is known.
func (db *DB) inTransaction(ctx context.Context, conn *pgx.Conn, f func(pgx.Tx) error) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	err = f(tx)
	if err == nil {
		err = ctx.Err()
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.options.StatementTimeout)
	defer cancel()
	if err != nil {
		// A connection on which this fails is not given back to the pool; the server rolls back when it closes.
		_ = tx.Rollback(last)
		return err
	}
	return tx.Commit(last)
}
