package pg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	queensql "queenmq/sql"
)

const (
	// statementLockTimeout bounds one wait for a lock; everything that wants the same table queues up behind the waiter.
	statementLockTimeout = 2 * time.Second
	// blockersAfter is how long a statement runs before somebody asks what it waits for; the answer is gone when it ends.
	blockersAfter = statementLockTimeout / 2
)

// The apply's own tables, made before the first file.
var bookkeeping = []string{
	`CREATE SCHEMA IF NOT EXISTS queen`,
	`CREATE TABLE IF NOT EXISTS queen.schema_version (
    id         INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    version    INTEGER NOT NULL,
    build      TEXT NOT NULL,
    changed_at TIMESTAMPTZ NOT NULL DEFAULT now()
)`,
	`CREATE TABLE IF NOT EXISTS queen.schema_files (
    name       TEXT PRIMARY KEY,
    checksum   TEXT NOT NULL,
    build      TEXT NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
)`,
}

// An applier applies files over one connection that holds the apply lock.
type applier struct {
	db       *DB
	conn     *pgx.Conn
	deadline time.Time
	version  int
	build    string
}

// announce writes the version before the first statement of it, so that a half-applied newer schema is never taken for an
// older one. The tables and their row appear in one transaction: there is no database with a table and no version.
func (a *applier) announce(ctx context.Context) error {
	return a.persist(ctx, "record the schema version", func() error {
		return pgx.BeginFunc(ctx, a.conn, func(tx pgx.Tx) error {
			for _, text := range bookkeeping {
				if _, err := tx.Exec(ctx, text); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, `INSERT INTO queen.schema_version AS v (version, build) VALUES ($1, $2)
ON CONFLICT (id) DO UPDATE SET version = excluded.version, build = excluded.build, changed_at = now() WHERE v.version < excluded.version`,
				a.version, a.build)
			return err
		})
	})
}

// applyFile runs the statements of a file and then records its checksum.
func (a *applier) applyFile(ctx context.Context, file queensql.File) error {
	statements, err := splitStatements(file.Text)
	if err != nil {
		return err
	}
	for _, s := range statements {
		err := a.persist(ctx, fmt.Sprintf("line %d", s.Line), func() error {
			// The extended protocol refuses a text with more than one statement, should the splitter have missed an end.
			return a.conn.PgConn().ExecParams(ctx, s.Text, nil, nil, nil, nil).Read().Err
		})
		if err != nil {
			return err
		}
	}
	return a.persist(ctx, "record the checksum", func() error {
		_, err := a.conn.Exec(ctx, `INSERT INTO queen.schema_files (name, checksum, build) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, build = excluded.build, applied_at = now()`, file.Name, checksum(file), a.build)
		return err
	})
}

// persist runs one transaction until it gets its locks or the patience of the whole apply ends.
func (a *applier) persist(ctx context.Context, act string, transaction func() error) error {
	for n := 1; ; n++ {
		blockers, err := a.attempt(ctx, transaction)
		switch {
		case err == nil:
			return nil
		case !isContention(err):
			return fmt.Errorf("%s: %w", act, withHint(classify(ctx, ctx, err)))
		case time.Now().After(a.deadline):
			return fmt.Errorf("%s: %w: running sessions kept their locks for %s: %s; end them, or apply the schema in a quieter hour",
				act, ErrLockTimeout, a.db.options.ApplyPatience, orDefault(blockers, "none was seen waiting"))
		}
		a.db.options.Logger.WarnContext(ctx, "schema apply waits for locks of running sessions", slog.String("at", act), slog.String("sessions", blockers))
		if !wait(ctx, backoff(n)) {
			return fmt.Errorf("%s: %w", act, context.Cause(ctx))
		}
	}
}

// attempt runs the transaction once and says who was in its way.
func (a *applier) attempt(ctx context.Context, transaction func() error) (blockers string, err error) {
	watch, stop := context.WithCancel(ctx)
	seen := make(chan string, 1)
	go func() {
		text := ""
		if wait(watch, blockersAfter) {
			text = a.db.blockers(watch, a.conn.PgConn().PID())
		}
		seen <- text
	}()
	err = transaction()
	stop()
	return <-seen, err
}

// blockers describes the sessions that hold what the given server process waits for.
func (db *DB) blockers(ctx context.Context, pid uint32) string {
	var found []string
	err := db.run(ctx, "look for blocking sessions", neverRepeat, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT format('pid %s (user %s, application %s, %s for %s s)', pid, usename,
       COALESCE(NULLIF(application_name, ''), 'unnamed'), COALESCE(state, 'running'),
       COALESCE(floor(extract(epoch FROM clock_timestamp() - xact_start))::text, '?'))
FROM pg_catalog.pg_stat_activity WHERE pid = ANY (pg_catalog.pg_blocking_pids($1)) ORDER BY xact_start LIMIT 5`, int32(pid)) //nolint:gosec // a process id
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return ""
	}
	return strings.Join(found, ", ")
}

// isContention says whether other sessions are to blame and trying again may help.
func isContention(err error) bool {
	serverErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	switch serverErr.Code {
	case "55P03", "40P01", "40001":
		return true
	case "XX000": // two sessions changed the same catalogue row, for example by GRANT
		return strings.Contains(serverErr.Message, "tuple concurrently")
	}
	return false
}

// withHint says what to do about the faults here that an operator meets: a missing privilege, and a server that takes no writes.
func withHint(err error) error {
	serverErr, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && serverErr.Code == "42501":
		return fmt.Errorf("%w: apply the schema once as the owner of the database, then this role needs only the grants of docs/grants.md", err)
	case ok && serverErr.Code == "25006":
		return fmt.Errorf("%w: this is a standby, or default_transaction_read_only is on: name the primary, or promote this one", err)
	}
	return err
}
