package pg

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Identity returns what tells this database from every other: an id that the first broker stores and nothing changes. A dump restored elsewhere
// carries it along, an emptied database gets a new one.
func (db *DB) Identity(ctx context.Context) (uuid.UUID, error) {
	var id pgtype.UUID
	err := db.run(ctx, "read the identity of the database", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		const read = `SELECT (value ->> 'id')::uuid FROM queen.system_state WHERE key = 'database_identity'`
		err := conn.QueryRow(ctx, read).Scan(&id)
		if absentIsNil(err) != nil || err == nil {
			return err
		}
		// Of brokers that start together one stores its id. A read-only server is left alone when the id is there.
		if _, err := conn.Exec(ctx, `INSERT INTO queen.system_state (key, value, updated_at)
VALUES ('database_identity', jsonb_build_object('id', gen_random_uuid()), clock_timestamp()) ON CONFLICT (key) DO NOTHING`); err != nil {
			return err
		}
		return conn.QueryRow(ctx, read).Scan(&id)
	})
	return id.Bytes, err
}
