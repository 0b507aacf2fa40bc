package pg

import (
	"context"

	queensql "queenmq/sql"
)

// ApplyFiles is ApplySchema with other files and another version, for tests of the apply itself.
func (db *DB) ApplyFiles(ctx context.Context, files []queensql.File, version int) error {
	return db.applyFiles(ctx, files, version)
}
