package pg

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// StoreSessionSettings gives the settings of the pool's sessions to the role of the pool, in its database, where the pool goes through a
// pooler: such a pooler takes no settings from its clients. Sessions that the pooler opens from now on have them. Without a pooler it does
// nothing, and so it does when the role has them already. A role may always change its own settings.
func (db *DB) StoreSessionSettings(ctx context.Context) error {
	if !db.options.pooled {
		return nil
	}
	wanted := sessionSettings(db.options)
	return db.run(ctx, "store the settings of pooled sessions", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		var role, database string
		var stored []string
		err := conn.QueryRow(ctx, `SELECT current_user, current_database(), COALESCE((SELECT s.setconfig FROM pg_catalog.pg_db_role_setting AS s
WHERE s.setdatabase = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND s.setrole = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)), '{}')`).Scan(&role, &database, &stored)
		if err != nil {
			return err
		}
		head := "ALTER ROLE " + pgx.Identifier{role}.Sanitize() + " IN DATABASE " + pgx.Identifier{database}.Sanitize() + " SET "
		for _, name := range slices.Sorted(maps.Keys(wanted)) {
			if slices.Contains(stored, name+"="+wanted[name]) {
				continue
			}
			if _, err := conn.Exec(ctx, head+name+" = '"+wanted[name]+"'", pgx.QueryExecModeExec); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}
