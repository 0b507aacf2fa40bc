package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"queenmq/internal/localpg"
	"queenmq/internal/pg"
	queensql "queenmq/sql"
)

// ApplySchema brings the configured database to the embedded schema and returns: for roles that may create objects, while the
// broker's own role may not. It waits for the database until ctx ends. The private PostgreSQL is started for it when no broker
// runs on it.
func ApplySchema(ctx context.Context, cfg *Config, logger *slog.Logger) error {
	return withDatabase(ctx, cfg, logger, func(db *pg.DB) error {
		if err := db.WaitReady(ctx); err != nil {
			return fmt.Errorf("database %s: %w", New(cfg).target(), err)
		}
		return db.ApplySchema(ctx)
	})
}

// WriteSchema writes the embedded schema and procedures in apply order.
func WriteSchema(w io.Writer) error {
	files, err := queensql.Files()
	if err != nil {
		return err
	}
	for _, file := range files {
		if _, err := fmt.Fprintf(w, "-- file: %s\n%s\n", file.Name, strings.TrimSpace(file.Text)); err != nil {
			return err
		}
	}
	return nil
}

// A Finding is one thing that Diagnose looked at.
type Finding struct {
	Subject string
	// OK tells that nothing needs to be done. Text is what was found and, when it is not OK, what to do.
	OK   bool
	Text string
}

const (
	// A database further away than this makes every commit, and so every push, slow.
	slowRoundTrip = 20 * time.Millisecond
	// Clocks of machines that are kept in step differ by milliseconds.
	largeClockOffset = time.Second
	// diagnoseTimeout bounds the look at a database that does not answer.
	diagnoseTimeout = 15 * time.Second
)

// Diagnose looks at the configured database and changes nothing but, when no broker runs on it, starting and stopping the
// private PostgreSQL.
func Diagnose(ctx context.Context, cfg *Config, logger *slog.Logger) []Finding {
	b := New(cfg)
	kind := "external"
	if !cfg.Database.Configured {
		kind = "private"
	}
	findings := []Finding{{"broker", true, Version()}, {"database", true, kind + ", " + b.target()}}
	err := withDatabase(ctx, cfg, logger, func(db *pg.DB) error {
		ctx, cancel := context.WithTimeout(ctx, diagnoseTimeout)
		defer cancel()
		found, err := db.Inspect(ctx)
		if err != nil && !errors.Is(err, pg.ErrNewerSchema) {
			return err
		}
		findings = append(findings, judge(found, err, cfg.Database.PoolSize)...)
		return nil
	})
	if err != nil {
		findings = append(findings, Finding{"connection", false, oneLine(err)})
	}
	return findings
}

// judge turns what was seen into findings.
func judge(found pg.Inspection, schemaErr error, pool int) []Finding {
	findings := []Finding{{"server version", true, found.ServerVersion}}
	add := func(subject string, ok bool, text string) { findings = append(findings, Finding{subject, ok, text}) }

	add("round trip", found.RoundTrip <= slowRoundTrip, fmt.Sprintf("%.2f ms", found.RoundTrip.Seconds()*1000))
	add("clock", found.ClockOffset.Abs()-found.RoundTrip <= largeClockOffset,
		fmt.Sprintf("the database's is %+.3f s from ours; leases and delays follow the database's", found.ClockOffset.Seconds()))
	if found.ReadOnly {
		add("writes", false, "refused: this is a standby, or default_transaction_read_only is on; pushes go to the file buffer, everything else fails")
	} else {
		add("writes", true, "taken")
	}
	if len(found.Risky) == 0 {
		add("durability", true, "fsync, full_page_writes and synchronous_commit are on")
	} else {
		add("durability", false, strings.Join(found.Risky, ", ")+": an answered push may be lost in a crash")
	}
	if pool <= found.MaxConnections {
		add("connections", true, fmt.Sprintf("pool of %d, the server admits %d", pool, found.MaxConnections))
	} else {
		add("connections", false, fmt.Sprintf("pool of %d, but the server admits only %d: lower DB_POOL_SIZE or raise max_connections", pool, found.MaxConnections))
	}
	switch {
	case schemaErr != nil:
		add("schema", false, oneLine(schemaErr))
	case found.SchemaVersion == 0:
		add("schema", false, "not applied yet: start a broker, or run queen schema apply")
	case len(found.Missing) > 0:
		add("schema", false, fmt.Sprintf("version %d, differs from this build from %s on: restart a broker, or run queen schema apply", found.SchemaVersion, found.Missing[0]))
	default:
		add("schema", true, fmt.Sprintf("version %d, as in this build", found.SchemaVersion))
	}
	return findings
}

// withDatabase runs use with a small pool on the configured database. A private server is started and stopped around it, or
// used where a broker already runs it.
func withDatabase(ctx context.Context, cfg *Config, logger *slog.Logger, use func(*pg.DB) error) (err error) {
	b := New(cfg, WithLogger(logger))
	private, connString, err := b.startDatabase(ctx)
	var inUse *localpg.InUseError
	switch {
	case errors.As(err, &inUse):
		connString = localpg.ConnString(inUse.DataDir)
	case err != nil:
		return err
	case private != nil:
		defer func() {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), privateStopTimeout)
			defer cancel()
			err = errors.Join(err, private.Stop(stop))
		}()
	}
	db, err := pg.Open(ctx, pg.Options{
		ConnString: connString, DirectConnString: cfg.Mesh.ListenURL.Reveal(), MaxConns: 4, StatementTimeout: cfg.Database.StatementTimeout, ApplicationName: "queen command", Logger: logger,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", b.databaseVariable(), err)
	}
	defer db.Close()
	return use(db)
}

// oneLine is the text of an error for a place that has one line.
func oneLine(err error) string { return lineBreaks.Replace(err.Error()) }

// lineBreaks joins the lines of an error; the driver puts every address it tried on one of its own.
var lineBreaks = strings.NewReplacer(":\n\t", ": ", "\n\t", "; ", "\n", "; ")
