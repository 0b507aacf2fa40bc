package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	queensql "queenmq/sql"
)

// An Inspection is what a person wants to know of a database before trusting it with messages.
type Inspection struct {
	// ServerVersion is the server's own text, like "15.18 (Debian 15.18-0+deb12u1)".
	ServerVersion string
	// RoundTrip is how long a statement takes, seen from here: the best of a few.
	RoundTrip time.Duration
	// ClockOffset is the database's clock less ours, give or take RoundTrip.
	ClockOffset time.Duration
	// MaxConnections is the server's limit for all its clients.
	MaxConnections int
	// ReadOnly says that the server takes no writes of ours: a standby, or default_transaction_read_only.
	ReadOnly bool
	// Risky names the durability settings that are off, as "name=value": with one of them, an answered commit may be lost.
	Risky []string
	// SchemaVersion is that of the database, 0 when there is no schema.
	SchemaVersion int
	// Missing are the embedded files that the database does not hold as they are here, from the first that differs on.
	Missing []string
}

// Inspect looks and changes nothing. It returns ErrNewerSchema, with the rest filled in, for a schema of a newer build.
func (db *DB) Inspect(ctx context.Context) (Inspection, error) {
	files, err := queensql.Files()
	if err != nil {
		return Inspection{}, fmt.Errorf("inspect the database: %w", err)
	}
	var found Inspection
	var schema appliedSchema
	err = db.run(ctx, "inspect the database", neverRepeat, func(ctx context.Context, conn *pgx.Conn) error {
		if err := found.measure(ctx, conn); err != nil {
			return err
		}
		err := conn.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('max_connections')::int,
    current_setting('transaction_read_only') = 'on',
    COALESCE((SELECT array_agg(name || '=' || setting ORDER BY name) FROM pg_catalog.pg_settings
     WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'), '{}')`).
			Scan(&found.ServerVersion, &found.MaxConnections, &found.ReadOnly, &found.Risky)
		if err != nil {
			return err
		}
		schema, err = readApplied(ctx, conn)
		return err
	})
	if err != nil {
		return Inspection{}, withHint(err)
	}
	found.SchemaVersion = schema.version
	missing, err := schema.missing(files, SchemaVersion)
	for _, file := range missing {
		found.Missing = append(found.Missing, file.Name)
	}
	if err != nil {
		return found, fmt.Errorf("inspect the database: %w", err)
	}
	return found, nil
}

// measure takes the best of a few round trips, because any single one may have met a busy moment.
func (i *Inspection) measure(ctx context.Context, conn *pgx.Conn) error {
	const trips = 5
	for n := range trips {
		var clock time.Time
		began := time.Now()
		if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&clock); err != nil {
			return err
		}
		if took := time.Since(began); n == 0 || took < i.RoundTrip {
			i.RoundTrip, i.ClockOffset = took, clock.Sub(began.Add(took/2))
		}
	}
	return nil
}
