package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// A SystemFlag is a switch that all brokers of a database share.
type SystemFlag string

// The switches.
const (
	// PushMaintenance keeps pushes out of the database.
	PushMaintenance SystemFlag = "maintenance_mode"
	// PopMaintenance makes every pop answer that there is nothing.
	PopMaintenance SystemFlag = "pop_maintenance_mode"
)

// SystemFlags returns the two maintenance flags that all brokers of a database share.
func (db *DB) SystemFlags(ctx context.Context) (pushMaintenance, popMaintenance bool, err error) {
	err = db.run(ctx, "read system flags", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT COALESCE(bool_or(key = 'maintenance_mode'), false), COALESCE(bool_or(key = 'pop_maintenance_mode'), false)
FROM queen.system_state WHERE key IN ('maintenance_mode', 'pop_maintenance_mode') AND value @> '{"enabled": true}'`).Scan(&pushMaintenance, &popMaintenance)
	})
	return pushMaintenance, popMaintenance, err
}

// SetSystemFlag turns a switch for all brokers. They see it when they look next, see SystemFlags.
func (db *DB) SetSystemFlag(ctx context.Context, flag SystemFlag, enabled bool) error {
	return db.run(ctx, "set a system flag", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO queen.system_state AS s (key, value, updated_at)
VALUES ($1::text, jsonb_build_object('enabled', $2::boolean), clock_timestamp())
ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, updated_at = EXCLUDED.updated_at`, string(flag), enabled)
		return err
	})
}
