package pg_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
	queensql "queenmq/sql"
)

func TestApplyBuildsAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	db := open(t, database.ConnString())
	require.NoError(t, db.ApplySchema(t.Context()))
	files, err := queensql.Files()
	require.NoError(t, err)
	pool := database.Pool(t)
	var version, recorded int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT (SELECT version FROM queen.schema_version), (SELECT count(*) FROM queen.schema_files)").Scan(&version, &recorded))
	require.Equal(t, pg.SchemaVersion, version)
	require.Equal(t, len(files), recorded)
}

// catalogue describes everything that the schema consists of, except the bookkeeping's times.
func catalogue(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
SELECT 'relation ' || c.oid::regclass || ' ' || c.relkind::text || ' ' || COALESCE(c.reloptions::text, '') FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname ~ '^queen'
UNION ALL SELECT 'column ' || a.attrelid::regclass || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull::text
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname ~ '^queen' AND a.attnum > 0
UNION ALL SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(k.oid) FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace WHERE n.nspname ~ '^queen'
UNION ALL SELECT 'function ' || p.oid::regprocedure || ' ' || md5(p.prosrc) || ' ' || p.provolatile::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname ~ '^queen'
UNION ALL SELECT 'trigger ' || tgname || ' ' || tgrelid::regclass FROM pg_trigger WHERE NOT tgisinternal
ORDER BY 1`)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.NotEmpty(t, lines)
	return lines
}

func TestApplyTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	pool := database.Pool(t)
	before := catalogue(t, pool)
	// Forget what was applied, so that every statement runs again.
	_, err := pool.Exec(t.Context(), "DELETE FROM queen.schema_files")
	require.NoError(t, err)
	require.NoError(t, db.ApplySchema(t.Context()))
	require.Empty(t, cmp.Diff(before, catalogue(t, pool)))
}

func TestApplyOfAnAppliedSchemaOnlyReads(t *testing.T) {
	t.Parallel()
	_, database := setup(t)
	db := open(t, readOnly(t, database))
	require.NoError(t, db.ApplySchema(t.Context()), "a session that may not write cannot apply what is applied already")
}

// readOnly returns a connection string whose sessions cannot write.
func readOnly(t testing.TB, database *testdb.Database) string {
	t.Helper()
	parsed, err := url.Parse(database.ConnString())
	require.NoError(t, err)
	query := parsed.Query()
	query.Set("default_transaction_read_only", "on")
	parsed.RawQuery = query.Encode()
	return parsed.String()
}

func TestSixBrokersApplyAtOnce(t *testing.T) {
	t.Parallel()
	for round := range 3 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			database := testdb.NewEmpty(t)
			results := make([]error, 6)
			var group sync.WaitGroup
			for i := range results {
				db := open(t, database.ConnString())
				group.Go(func() { results[i] = db.ApplySchema(t.Context()) })
			}
			group.Wait()
			for _, err := range results {
				require.NoError(t, err)
			}
			// The session that ends releases it, which takes the server process a moment after it was told to.
			pool := database.Pool(t)
			require.Eventually(t, func() bool {
				var locks int
				require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&locks))
				return locks == 0
			}, 30*time.Second, 10*time.Millisecond, "the apply lock is still held")
		})
	}
}

// file makes a SQL file for tests of the apply.
func file(name, text string) queensql.File { return queensql.File{Name: name, Text: text} }

func TestApplyRunsFromTheFirstChangedFileOn(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	db := open(t, database.ConnString())
	pool := database.Pool(t)
	_, err := pool.Exec(t.Context(), "CREATE TABLE public.runs (id serial, what text)")
	require.NoError(t, err)
	mark := func(what string) string { return fmt.Sprintf("INSERT INTO public.runs (what) VALUES ('%s');", what) }
	files := []queensql.File{file("a", mark("a")), file("b", mark("b")), file("c", mark("c"))}
	runs := func() string {
		var text string
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT COALESCE(string_agg(what, ' ' ORDER BY id), '') FROM public.runs").Scan(&text))
		return text
	}
	require.NoError(t, db.ApplyFiles(t.Context(), files, 1))
	require.NoError(t, db.ApplyFiles(t.Context(), files, 1))
	require.Equal(t, "a b c", runs())
	files[1].Text = mark("B")
	require.NoError(t, db.ApplyFiles(t.Context(), files, 1))
	require.Equal(t, "a b c B c", runs())
}

func TestApplyContinuesAfterAFailure(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	db := open(t, database.ConnString())
	broken := []queensql.File{file("a", "CREATE TABLE queen.a (n int);"), file("b", "CREATE TABLE queen.b (n int);\n\nCREATE TABLE queen.b (n int);")}
	err := db.ApplyFiles(t.Context(), broken, 1)
	require.ErrorContains(t, err, "b: line 3: ")
	require.ErrorContains(t, err, "already exists")
	broken[1].Text = "CREATE TABLE IF NOT EXISTS queen.b (n int);"
	require.NoError(t, db.ApplyFiles(t.Context(), broken, 1))
}

func TestANewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	db := open(t, database.ConnString())
	newer := []queensql.File{file("a", "CREATE TABLE queen.a (n int);"), file("b", "nonsense;")}
	require.Error(t, db.ApplyFiles(t.Context(), newer, 8), "the newer apply was meant to fail half-way")

	before := catalogue(t, database.Pool(t))
	err := db.ApplyFiles(t.Context(), []queensql.File{file("a", "CREATE TABLE queen.older (n int);")}, 7)
	require.ErrorIs(t, err, pg.ErrNewerSchema)
	require.ErrorContains(t, err, "schema version 8, this build knows up to 7")
	require.Empty(t, cmp.Diff(before, catalogue(t, database.Pool(t))))

	require.NoError(t, db.ApplyFiles(t.Context(), []queensql.File{file("a", "SELECT 1")}, 9))
	require.ErrorIs(t, db.ApplyFiles(t.Context(), newer, 8), pg.ErrNewerSchema)
}

// The original of the wire contract keeps its tables under the same names: nothing of them is touched.
func TestSchemaOfAnotherProgramIsLeftAlone(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	pool := database.Pool(t)
	_, err := pool.Exec(t.Context(), `CREATE SCHEMA queen; CREATE TABLE queen.queues (id UUID PRIMARY KEY, name TEXT); CREATE TABLE queen.log_partitions (id UUID PRIMARY KEY)`)
	require.NoError(t, err)
	before := catalogue(t, pool)
	require.ErrorContains(t, open(t, database.ConnString()).ApplySchema(t.Context()), "made by another program (it has 2 tables, the first is log_partitions)")
	require.Equal(t, before, catalogue(t, pool))
	_, err = pool.Exec(t.Context(), `DROP TABLE queen.queues, queen.log_partitions`) // a schema made beforehand, with nothing in it, is ours
	require.NoError(t, err)
	require.NoError(t, open(t, database.ConnString()).ApplySchema(t.Context()))
}

func TestAVersionThatCannotBeReadIsNotFresh(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"EmptyTable": "DELETE FROM queen.schema_version", "TableGone": "DROP TABLE queen.schema_version", "FilesGone": "DROP TABLE queen.schema_files",
		"OtherShape": "ALTER TABLE queen.schema_version RENAME COLUMN version TO number",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, database := setup(t)
			pool := database.Pool(t)
			_, err := pool.Exec(t.Context(), damage)
			require.NoError(t, err)
			before := catalogue(t, pool)
			require.Error(t, db.ApplySchema(t.Context()))
			require.Empty(t, cmp.Diff(before, catalogue(t, pool)))
		})
	}
	t.Run("NoPrivilege", func(t *testing.T) {
		t.Parallel()
		_, database := setup(t)
		err := open(t, asRole(t, database, newRole(t, database))).ApplySchema(t.Context())
		require.ErrorContains(t, err, "permission denied")
	})
}

// A transaction that holds its locks may hold up the apply, and nobody else.
func TestARunningTransactionDelaysOnlyTheApply(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	db := open(t, database.ConnString())
	pool := database.Pool(t)
	require.NoError(t, db.ApplyFiles(t.Context(), []queensql.File{file("a", "CREATE TABLE queen.hot (n int);")}, 1))
	holder, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = holder.Exec(t.Context(), "INSERT INTO queen.hot VALUES (1)")
	require.NoError(t, err)

	applied := make(chan error, 1)
	go func() {
		applied <- db.ApplyFiles(t.Context(), []queensql.File{file("a", "ALTER TABLE queen.hot ADD COLUMN IF NOT EXISTS m int;")}, 1)
	}()
	eventually(t, "the apply does not wait for the lock", func() bool {
		var waiting bool
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'queen.hot'::regclass AND NOT granted)`).Scan(&waiting))
		return waiting
	})
	for range 3 {
		started := time.Now()
		_, err := pool.Exec(t.Context(), "INSERT INTO queen.hot VALUES (2)")
		require.NoError(t, err)
		require.Less(t, time.Since(started), 4*time.Second, "other traffic waits for the apply")
	}
	select {
	case err := <-applied:
		t.Fatalf("the apply ended although the lock is held: %v", err)
	default:
	}
	require.NoError(t, holder.Commit(t.Context()))
	require.NoError(t, <-applied)
}

// Applying the schema again meets only things that are there; none of its statements may want a lock that traffic holds.
func TestApplyingAgainDoesNotDisturbRunningTraffic(t *testing.T) {
	t.Parallel()
	db, database := setup(t, func(o *pg.Options) { o.ApplyPatience = time.Nanosecond })
	pool := database.Pool(t)
	push(t, db, segment("q", "held", "1"))
	holder, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = holder.Rollback(context.WithoutCancel(t.Context())) }()
	// What an unfinished push, pop and configure hold, on every table.
	_, err = holder.Exec(t.Context(), `DO $$ DECLARE r RECORD; BEGIN
    FOR r IN SELECT oid::regclass AS name FROM pg_class WHERE relnamespace::regnamespace::text ~ '^queen' AND relkind = 'r' AND relname !~ '^schema_' LOOP
        EXECUTE 'LOCK TABLE ' || r.name || ' IN ROW EXCLUSIVE MODE';
    END LOOP;
END $$; UPDATE queen.log_partitions SET last_offset = last_offset`)
	require.NoError(t, err)

	_, err = pool.Exec(t.Context(), "DELETE FROM queen.schema_files")
	require.NoError(t, err)
	require.NoError(t, db.ApplySchema(t.Context()))
	push(t, db, segment("q", "free", "1"))
}

func TestAnExhaustedApplyNamesTheBlockingSession(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	db := open(t, database.ConnString(), func(o *pg.Options) { o.ApplyPatience = time.Second })
	require.NoError(t, db.ApplyFiles(t.Context(), []queensql.File{file("a", "CREATE TABLE queen.hot (n int);")}, 1))
	holder, err := database.Pool(t).Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = holder.Rollback(context.WithoutCancel(t.Context())) }()
	var pid int
	require.NoError(t, holder.QueryRow(t.Context(), "SELECT pg_backend_pid() FROM queen.hot RIGHT JOIN (VALUES (1)) v ON true").Scan(&pid))

	err = db.ApplyFiles(t.Context(), []queensql.File{file("a", "\nALTER TABLE queen.hot ADD COLUMN m int;")}, 1)
	require.ErrorIs(t, err, pg.ErrLockTimeout)
	require.ErrorContains(t, err, "a: line 2: ")
	require.ErrorContains(t, err, fmt.Sprintf("pid %d (user postgres", pid))
}

func TestAnApplyThatIsCalledOffStops(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	db := open(t, database.ConnString())
	ctx, leave := context.WithCancel(t.Context())
	applied := make(chan error, 1)
	go func() { applied <- db.ApplyFiles(ctx, []queensql.File{file("a", "SELECT pg_sleep(60);")}, 1) }()
	pool := database.Pool(t)
	sleeping := func() bool {
		var yes bool
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep')`).Scan(&yes))
		return yes
	}
	eventually(t, "the statement never started", sleeping)
	leave()
	require.ErrorIs(t, <-applied, context.Canceled)
	eventually(t, "the statement goes on running", func() bool { return !sleeping() })
	require.NoError(t, db.ApplyFiles(t.Context(), []queensql.File{file("a", "SELECT 1;")}, 1), "the apply lock is still held")
}

// newRole creates a role that may log in and nothing else.
func newRole(t testing.TB, database *testdb.Database) string {
	t.Helper()
	role := "role_" + database.Name
	pool := database.Pool(t)
	_, err := pool.Exec(t.Context(), fmt.Sprintf("CREATE ROLE %s LOGIN", role))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), fmt.Sprintf("DROP OWNED BY %s; DROP ROLE %s", role, role))
		require.NoError(t, err)
	})
	return role
}

func asRole(t testing.TB, database *testdb.Database, role string) string {
	t.Helper()
	parsed, err := url.Parse(database.ConnString())
	require.NoError(t, err)
	parsed.User = url.User(role)
	return parsed.String()
}

// grants returns the statements of docs/grants.md for a role: what the document says is what is tested.
func grants(t testing.TB, role string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/grants.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, blocks, "the first is the broker's")
	return strings.ReplaceAll(blocks[0][1], "queen_broker", role)
}
