package sql_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

// A cycle that changes and deletes thousands of state rows goes through them once. Joined to the list of operations, each of them used to
// walk the whole list: 4,000 took seconds.
func TestStateOperationsAreReadOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	l := popLog{db.Pool(t)}
	l.exec(t, `INSERT INTO queen_streams.queries (id, name, source_queue, config_hash) VALUES ('00000000-0000-0000-0000-0000000000aa', 's', 'q', 'h')`)
	reader := newPlanReader(t, db)
	const apply = `SELECT queen.log_streams_state_v1('00000000-0000-0000-0000-0000000000aa', '00000000-0000-0000-0000-0000000000bb',
		(SELECT jsonb_agg(jsonb_build_object('type', CASE WHEN i > 300 THEN 'upsert' ELSE 'delete' END, 'key', 'k' || i % 600, 'value', 1)) FROM generate_series(1, 900) i))`
	deleted := 0
	for _, p := range reader.call(t, apply) {
		p.Root.walk(func(n planNode) {
			// Foreign key checks are statements of their own; no part of one statement may run once for each operation.
			require.LessOrEqual(t, n.Loops, 1.0, "%s in %s", n.Type, p.Query)
			if n.Relation == "state" {
				deleted++
			}
		})
	}
	require.Positive(t, deleted)
}
