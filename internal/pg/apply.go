package pg

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	queensql "queenmq/sql"
)

// SchemaVersion is the version of the embedded SQL files. It goes up by one with every released change of them that a build
// knowing only the older text could undo or misread; such a build then refuses the database (ErrNewerSchema).
const SchemaVersion = 4

// applyLock is the session advisory lock under which one process at a time changes the schema.
const applyLock = 778120010

// applyLockPatience is how long one process waits for another to finish its apply, which itself gives up earlier.
const applyLockPatience = 10 * time.Minute

// ApplySchema brings the database to the embedded schema. It only creates and replaces, never drops data, and may run on any
// number of brokers at once: one works, the others wait and then find everything in place. A database that holds exactly
// these files costs one read and needs no privilege but reading.
//
// Every statement is a transaction of its own with a lock timeout of two seconds, so running traffic is never held up for
// longer than that; the apply tries again, with pauses, for Options.ApplyPatience in total and then returns an error that
// names the sessions in its way. A call that failed half-way is continued by the next.
//
// Errors: ErrNewerSchema, ErrUnavailable, or what the server said.
func (db *DB) ApplySchema(ctx context.Context) error {
	files, err := queensql.Files()
	if err != nil {
		return fmt.Errorf("apply the schema: %w", err)
	}
	if err := db.applyFiles(ctx, files, SchemaVersion); err != nil {
		return fmt.Errorf("apply the schema: %w", err)
	}
	if db.options.Warm {
		db.pool.Reset() // sessions from before are cold
	}
	return nil
}

func (db *DB) applyFiles(ctx context.Context, files []queensql.File, version int) error {
	var now appliedSchema
	err := db.run(ctx, "read the schema version", neverRepeat, func(ctx context.Context, conn *pgx.Conn) (err error) {
		now, err = readApplied(ctx, conn)
		return err
	})
	if err != nil {
		return withHint(err)
	}
	if rest, err := now.missing(files, version); err != nil || len(rest) == 0 && now.version == version {
		return err
	}
	return db.applyLocked(ctx, files, version)
}

// applyLocked does the work on a connection of its own, whose end releases the lock whatever happens.
func (db *DB) applyLocked(ctx context.Context, files []queensql.File, version int) error {
	config := directConfig(db.options)
	config.RuntimeParams["statement_timeout"] = "0" // an index on a large table takes as long as it takes
	config.RuntimeParams["lock_timeout"] = milliseconds(statementLockTimeout)
	config.RuntimeParams["client_min_messages"] = "warning"
	config.RuntimeParams["application_name"] = db.options.ApplicationName + " schema apply"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return classify(ctx, ctx, err)
	}
	defer closeConn(ctx, conn)
	if err := refuseServer(conn); err != nil {
		return err
	}
	if err := db.takeApplyLock(ctx, conn); err != nil {
		return err
	}
	// Whoever held the lock before us may have done it all.
	now, err := readApplied(ctx, conn)
	if err != nil {
		return withHint(classify(ctx, ctx, err))
	}
	rest, err := now.missing(files, version)
	if err == nil && now.version == 0 {
		err = refuseForeignSchema(ctx, conn)
	}
	if err != nil {
		return err
	}
	a := &applier{db: db, conn: conn, deadline: time.Now().Add(db.options.ApplyPatience), version: version, build: buildName()}
	if err := a.announce(ctx); err != nil {
		return err
	}
	started := time.Now()
	for _, file := range rest {
		if err := a.applyFile(ctx, file); err != nil {
			return fmt.Errorf("%s: %w", file.Name, err)
		}
	}
	db.options.Logger.InfoContext(ctx, "schema applied", slog.Int("files", len(rest)), slog.Int("version", version),
		slog.Int64("duration_ms", time.Since(started).Milliseconds()))
	return nil
}

// refuseForeignSchema keeps the apply from changing what another program made: the original keeps its tables under the same names in the same
// schema. Every database of ours has the bookkeeping from the first statement on.
func refuseForeignSchema(ctx context.Context, conn *pgx.Conn) error {
	var tables []string
	err := conn.QueryRow(ctx, `SELECT COALESCE(array_agg(c.relname::text ORDER BY c.relname), '{}')
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname IN ('queen', 'queen_streams') AND c.relkind IN ('r', 'p')`, pgx.QueryExecModeExec).Scan(&tables)
	switch {
	case err != nil:
		return classify(ctx, ctx, err)
	case len(tables) > 0:
		return fmt.Errorf("the schema queen of this database was made by another program (it has %d tables, the first is %s): give Queen a database of its own",
			len(tables), tables[0])
	}
	return nil
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
	defer cancel()
	_ = conn.Close(ctx)
}

// An appliedSchema is what the database says about its schema; the zero value is a database without one.
type appliedSchema struct {
	version   int
	checksums map[string]string
}

// missing returns the files to apply: the first that is not in place and all that follow it, because a later file may replace
// what an earlier one creates.
func (s appliedSchema) missing(files []queensql.File, version int) ([]queensql.File, error) {
	if s.version > version {
		return nil, fmt.Errorf("%w: the database has schema version %d, this build knows up to %d; run a newer Queen, or give this one a database of its own",
			ErrNewerSchema, s.version, version)
	}
	for i, file := range files {
		if s.checksums[file.Name] != checksum(file) {
			return files[i:], nil
		}
	}
	return nil, nil
}

func checksum(file queensql.File) string {
	sum := sha256.Sum256([]byte(file.Text))
	return hex.EncodeToString(sum[:])
}

// readApplied returns the zero value only when the server proves that the tables do not exist; everything else that prevents
// reading them is an error, lest a database in use be taken for a fresh one.
func readApplied(ctx context.Context, conn *pgx.Conn) (appliedSchema, error) {
	found, err := queryApplied(ctx, conn)
	if !isUndefinedTable(err) {
		return found, err
	}
	exists, errExists := bookkeepingExists(ctx, conn)
	if errExists != nil {
		return appliedSchema{}, errExists
	}
	if !exists {
		return appliedSchema{}, nil
	}
	// Either another broker has made them just now, or one of the two is missing.
	if found, err = queryApplied(ctx, conn); isUndefinedTable(err) {
		return appliedSchema{}, fmt.Errorf("the schema's version cannot be read: %w", err)
	}
	return found, err
}

func queryApplied(ctx context.Context, conn *pgx.Conn) (appliedSchema, error) {
	rows, err := conn.Query(ctx, `SELECT v.version, f.name, f.checksum
FROM queen.schema_version AS v LEFT JOIN queen.schema_files AS f ON true`, pgx.QueryExecModeExec)
	if err != nil {
		return appliedSchema{}, err
	}
	defer rows.Close()
	found := appliedSchema{checksums: map[string]string{}}
	n := 0
	for ; rows.Next(); n++ {
		var name, sum *string
		if err := rows.Scan(&found.version, &name, &sum); err != nil {
			return appliedSchema{}, err
		}
		if name != nil && sum != nil {
			found.checksums[*name] = *sum
		}
	}
	if err := rows.Err(); err != nil {
		return appliedSchema{}, err
	}
	if n == 0 {
		return appliedSchema{}, errors.New("the table queen.schema_version is empty: the schema's version is unknown, restore the row before this build touches the database")
	}
	return found, nil
}

func isUndefinedTable(err error) bool {
	serverErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (serverErr.Code == "42P01" || serverErr.Code == "3F000")
}

// bookkeepingExists asks the catalogue, which no missing privilege hides.
func bookkeepingExists(ctx context.Context, conn *pgx.Conn) (exists bool, err error) {
	err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'queen' AND c.relname IN ('schema_version', 'schema_files'))`, pgx.QueryExecModeExec).Scan(&exists)
	return exists, err
}

// takeApplyLock polls, because a session that waits inside pg_advisory_lock holds a snapshot and thereby the clean-up of the
// whole database.
func (db *DB) takeApplyLock(ctx context.Context, conn *pgx.Conn) error {
	deadline := time.Now().Add(applyLockPatience)
	for {
		var got bool
		if err := conn.QueryRow(ctx, "SELECT pg_catalog.pg_try_advisory_lock($1)", applyLock).Scan(&got); err != nil {
			return classify(ctx, ctx, err)
		}
		switch {
		case got:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("another session has been applying the schema for %s: look for advisory lock %d in pg_locks", applyLockPatience, applyLock)
		case !wait(ctx, backoff(1)):
			return context.Cause(ctx)
		}
	}
}

// buildName says which build applied a file, for people who read the table.
func buildName() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	name := info.Main.Version
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			name += " " + setting.Value
		}
	}
	return name
}
