package sql_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

// A planNode is a node of an executed plan.
type planNode struct {
	Type     string     `json:"Node Type"`
	Relation string     `json:"Relation Name"`
	Index    string     `json:"Index Name"`
	Rows     float64    `json:"Actual Rows"`
	Loops    float64    `json:"Actual Loops"`
	Hit      int        `json:"Shared Hit Blocks"`
	Read     int        `json:"Shared Read Blocks"`
	Plans    []planNode `json:"Plans"`
}

// A plan is one statement that a call ran, nested ones included.
type plan struct {
	Query string   `json:"Query Text"`
	Root  planNode `json:"Plan"`
}

func (n planNode) walk(f func(planNode)) {
	f(n)
	for _, c := range n.Plans {
		c.walk(f)
	}
}

// A planReader is a session whose statements report their executed plans, those inside functions too.
type planReader struct {
	conn  *pgx.Conn
	mu    sync.Mutex
	plans []plan
}

func newPlanReader(t *testing.T, db *testdb.Database) *planReader {
	t.Helper()
	r := &planReader{}
	config, err := pgx.ParseConfig(db.ConnString())
	require.NoError(t, err)
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		_, text, found := strings.Cut(n.Message, "plan:\n")
		var p plan
		if found && json.Unmarshal([]byte(text), &p) == nil {
			r.mu.Lock()
			r.plans = append(r.plans, p)
			r.mu.Unlock()
		}
	}
	r.conn, err = pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.conn.Close(context.Background()) })
	for _, sql := range []string{
		`LOAD 'auto_explain'`, `SET auto_explain.log_nested_statements = on`, `SET auto_explain.log_analyze = on`,
		`SET auto_explain.log_timing = off`, `SET auto_explain.log_buffers = on`, `SET auto_explain.log_format = json`,
		`SET client_min_messages = log`, `SET jit = off`,
	} {
		_, err := r.conn.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	return r
}

// call runs a statement in a transaction that is rolled back and returns the plans of its execution. It runs it several times
// first, because the plans that serve are those of a session in use.
func (r *planReader) call(t *testing.T, sql string, args ...any) []plan {
	t.Helper()
	for n := range 8 {
		tx, err := r.conn.Begin(t.Context())
		require.NoError(t, err)
		if n == 7 {
			r.plans = nil
			_, err = tx.Exec(t.Context(), `SET LOCAL auto_explain.log_min_duration = 0`)
			require.NoError(t, err)
		}
		_, err = tx.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
		require.NoError(t, tx.Rollback(t.Context()))
	}
	require.NotEmpty(t, r.plans, "auto_explain reported nothing")
	return r.plans
}

// requireIndexed asserts that no plan reads a log table but through an index, and returns the blocks touched by the outermost call.
func requireIndexed(t *testing.T, plans []plan) (blocks int, indexes map[string]bool) {
	t.Helper()
	indexes = map[string]bool{}
	for _, p := range plans {
		p.Root.walk(func(n planNode) {
			if strings.HasPrefix(n.Relation, "log_") && n.Loops > 0 && n.Type != "ModifyTable" {
				require.Contains(t, []string{"Index Scan", "Index Only Scan", "Bitmap Heap Scan"}, n.Type, "%s in %s", n.Relation, p.Query)
			}
			if n.Index != "" && n.Loops > 0 {
				indexes[n.Index] = true
			}
		})
		blocks = max(blocks, p.Root.Hit+p.Root.Read)
	}
	return blocks, indexes
}

// A database with 100,000 partitions in one queue, all drained but for 200 that were written to lately, and one partition with a
// backlog of 50,000 segments.
func TestPopPlans(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.TimeZone("Asia/Kolkata"))
	l := popLog{db.Pool(t)}
	id := l.queue(t, "q", popQueue{Namespace: "ns"})
	register(t, l, id)
	l.exec(t, `INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at)
		SELECT $1, 'p' || g, 9, clock_timestamp() - CASE WHEN g <= 200 THEN interval '10 s' ELSE interval '1 h' END FROM generate_series(1, 100000) g`, id)
	l.exec(t, `INSERT INTO queen.log_segments SELECT p.id, s * 2, s * 2 + 1, clock_timestamp() - interval '1 h', 'x' FROM queen.log_partitions p, generate_series(0, 4) s`)
	l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
		SELECT id, 'g', CASE WHEN substr(name, 2)::int <= 200 THEN 5 ELSE 9 END FROM queen.log_partitions`)
	l.exec(t, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, last_empty_scan_at, updated_at) VALUES ($1, 'g', clock_timestamp(), clock_timestamp())`, id)
	deep := l.partition(t, id, "deep")
	l.cursor(t, deep, "g", 49_999, "", 0)
	l.exec(t, `INSERT INTO queen.log_segments SELECT $1, s * 2, s * 2 + 1, clock_timestamp() - interval '1 h', 'x' FROM generate_series(0, 49999) s`, deep)
	l.exec(t, `UPDATE queen.log_partitions SET last_offset = 99999 WHERE id = $1`, deep)
	l.exec(t, `VACUUM (ANALYZE) queen.log_partitions, queen.log_segments, queen.log_consumers`)
	r := newPlanReader(t, db)
	names := make([]string, 64)
	for i := range names {
		names[i] = fmt.Sprintf("p%d", i+1)
	}

	// The bounds are about twice what was measured.
	for _, tc := range []struct {
		name   string
		blocks int
		index  []string
		sql    string
		args   []any
	}{
		{
			"WildcardScansOnlyWhatWasWrittenSinceTheFloor", 3000,
			[]string{"idx_log_partitions_queue_write", "log_consumers_pkey", "log_segments_pkey"},
			`SELECT meta FROM queen.log_pop_wildcard_bin_v1('q', 'g', 100, 60, 'w', false, 4)`, nil,
		},
		{
			"DiscoverScansOnlyWhatWasWrittenSinceTheFloor", 3000,
			[]string{"idx_log_partitions_queue_write", "log_consumers_pkey", "log_segments_pkey"},
			`SELECT meta FROM queen.log_pop_discover_bin_v1('ns', '', 'g', 100, 0, 'w', false, 4)`, nil,
		},
		{
			"ListOf64", 6000,
			[]string{"log_partitions_queue_id_name_key", "log_partitions_pkey", "log_consumers_pkey", "log_segments_pkey"},
			`SELECT meta FROM queen.log_pop_list_v1('q', 'g', $1, 10000, 60, 'w', false, 0)`,
			[]any{names},
		},
		{
			"ReadyOf64", 4000,
			[]string{"log_partitions_queue_id_name_key", "log_consumers_pkey", "log_segments_pkey"},
			`SELECT r_ord FROM queen.log_pop_ready_v1('q', 'g', $1, 1000, 60, 'w', false, 0)`,
			[]any{names},
		},
		{"ReadyReadsNoSegmentsBehindTheBudget", 1600, nil, `SELECT r_ord FROM queen.log_pop_ready_v1('q', 'g', $1, 4, 60, 'w', false, 0)`, []any{names}},
		{"ReadyInTheMiddleOfABacklog", 100, []string{"log_segments_pkey"}, `SELECT r_ord FROM queen.log_pop_ready_v1('q', 'g', '{deep}', 20, 60, 'w', false, 0)`, nil},
		{"ListReadsNoSegmentsBehindTheBudget", 1600, nil, `SELECT meta FROM queen.log_pop_list_v1('q', 'g', $1, 4, 60, 'w', false, 0)`, []any{names}},
		{"ListInTheMiddleOfABacklog", 200, []string{"log_segments_pkey"}, `SELECT meta FROM queen.log_pop_list_v1('q', 'g', '{deep}', 20, 60, 'w', false, 0)`, nil},
		{"SpecificInTheMiddleOfABacklog", 200, []string{"log_segments_pkey"}, `SELECT meta FROM queen.log_pop_specific_bin_v1('q', 'deep', 'g', 20, 60, 'w', false)`, nil},
		{"FirstContactWithABacklog", 200, []string{"log_segments_pkey"}, `SELECT meta FROM queen.log_pop_list_v1('q', 'h', '{deep}', 20, 60, 'w', false, 0)`, nil},
		{"PendingBehindTheFloor", 1600, []string{"idx_log_partitions_queue_write"}, `SELECT queen.log_has_pending_v1('q', 'g')`, nil},
		{
			"FullWalkBehindTheFloor", 4000,
			[]string{"idx_log_partitions_queue_write"},
			`SELECT r_id FROM queen.log_hotlist_reseed_v1('q', 'g', $1, 10000)`,
			[]any{uuid.Nil},
		},
		{"FloorRaisedAgain", 4000, []string{"idx_log_partitions_queue_write"}, raiseFloor, nil},
		{
			"ReseedOfTheWindow", 4000,
			[]string{"idx_log_partitions_queue_write"},
			`SELECT r_id FROM queen.log_hotlist_reseed_window_v1('q', 'g', $1, 1000, $2, $3)`,
			[]any{uuid.Nil, defaultTenant, time.Now().Add(-time.Minute)},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			blocks, indexes := requireIndexed(t, r.call(t, tc.sql, tc.args...))
			t.Logf("%d blocks, %v", blocks, indexes)
			require.LessOrEqual(t, blocks, tc.blocks)
			for _, index := range tc.index {
				require.Contains(t, indexes, index)
			}
		})
	}
}

// The same list claim in a queue with delayed messages must not read the invisible backlog.
func TestPopPlanOfDelayedBacklog(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	l := popLog{db.Pool(t)}
	id := l.queue(t, "q", popQueue{Delay: 3600})
	deep := l.partition(t, id, "deep")
	l.cursor(t, deep, "g", -1, "", 0)
	l.exec(t, `INSERT INTO queen.log_segments SELECT $1, s * 2, s * 2 + 1, clock_timestamp() - interval '1 min', 'x' FROM generate_series(0, 49999) s`, deep)
	l.exec(t, `UPDATE queen.log_partitions SET last_offset = 99999 WHERE id = $1`, deep)
	l.exec(t, `VACUUM (ANALYZE) queen.log_partitions, queen.log_segments, queen.log_consumers`)
	r := newPlanReader(t, db)
	for _, sql := range []string{
		`SELECT states FROM queen.log_pop_list_v1('q', 'g', '{deep}', 200, 60, 'w', false, 0)`,
		`SELECT meta FROM queen.log_pop_specific_bin_v1('q', 'deep', 'g', 200, 60, 'w', false)`,
	} {
		blocks := 0
		for _, p := range r.call(t, sql) {
			blocks = max(blocks, p.Root.Hit+p.Root.Read)
		}
		t.Logf("%d blocks", blocks)
		require.LessOrEqual(t, blocks, 300)
	}
}

// A session plans its statements when the tables are still empty and keeps the plans while they grow: until the first ANALYZE
// nothing tells it that reading a whole table has become a bad idea.
func TestPopPlansMadeOnEmptyTablesStayGood(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Setting("plan_cache_mode", "auto"))
	l := popLog{db.Pool(t)}
	for _, table := range []string{"log_partitions", "log_segments", "log_consumers", "queues"} {
		l.exec(t, `ALTER TABLE queen.`+table+` SET (autovacuum_enabled = off)`)
	}
	id := l.queue(t, "q", popQueue{})
	register(t, l, id)
	l.cursor(t, l.partition(t, id, "p1", twoRuns()...), "g", -1, "", 0)
	r := newPlanReader(t, db)
	calls := map[string][]any{
		`SELECT meta FROM queen.log_pop_list_v1('q', 'g', $1, 1000, 60, 'w', false, 0)`:        {[]string{"p1", "p2", "p3"}},
		`SELECT meta FROM queen.log_pop_specific_bin_v1('q', 'p1', 'g', 20, 60, 'w', false)`:   nil,
		`SELECT meta FROM queen.log_pop_wildcard_bin_v1('q', 'g', 1000, 60, 'w', false, 4)`:    nil,
		`SELECT meta FROM queen.log_pop_list_v1('q', 'new', $1, 1000, 60, 'w', false, 0)`:      {[]string{"p1", "p2", "p3"}},
		`SELECT r_ord FROM queen.log_pop_ready_v1('q', 'g', $1, 1000, 60, 'w', false, 0)`:      {[]string{"p1", "p2", "p3"}},
		`SELECT r_ord FROM queen.log_pop_ready_v1('q', 'newer', $1, 1000, 60, 'w', false, 0)`:  {[]string{"p1", "p2", "p3"}},
		`SELECT meta FROM queen.log_pop_specific_bin_v1('q', 'p1', 'new', 20, 60, 'w', false)`: nil,
	}
	for sql, args := range calls {
		r.call(t, sql, args...)
	}
	l.exec(t, `INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at)
		SELECT $1, 'p' || g, 9, clock_timestamp() - CASE WHEN g <= 20 THEN interval '10 s' ELSE interval '1 h' END FROM generate_series(2, 20000) g`, id)
	l.exec(t, `INSERT INTO queen.log_segments SELECT p.id, 0, 9, clock_timestamp() - interval '1 h', 'x' FROM queen.log_partitions p WHERE name <> 'p1'`)
	l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) SELECT id, 'g', 5 FROM queen.log_partitions WHERE name <> 'p1'`)
	l.exec(t, `INSERT INTO queen.queues (name) SELECT 'q' || g FROM generate_series(1, 5000) g`)
	l.exec(t, `INSERT INTO queen.consumer_watermarks (queue_id, consumer_group, last_empty_scan_at, updated_at) VALUES ($1, 'g', clock_timestamp(), clock_timestamp())`, id)
	for sql, args := range calls {
		blocks, _ := requireIndexed(t, r.call(t, sql, args...))
		t.Logf("%d blocks: %s", blocks, sql)
		require.LessOrEqual(t, blocks, 500, sql)
	}
}
