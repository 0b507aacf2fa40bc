package sql_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	queensql "queenmq/sql"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// catalogues are the queries that describe everything that the schema promises, one line of text per object.
var catalogues = map[string]string{
	"tables": `
		SELECT c.oid::regclass || ' ' || string_agg(format('%s %s%s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
		           CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END, ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid),
		           CASE WHEN a.attstorage <> t.typstorage THEN ' STORAGE ' || a.attstorage::text ELSE '' END), ', ' ORDER BY a.attnum)
		       || COALESCE(' WITH ' || c.reloptions::text, '')
		       || COALESCE(' TOAST ' || (SELECT x.reloptions::text FROM pg_class x WHERE x.oid = c.reltoastrelid), '')
		  FROM pg_class c
		  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		  JOIN pg_type t ON t.oid = a.atttypid
		  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
		 WHERE c.relkind = 'r' AND c.relnamespace::regnamespace::text IN ('queen', 'queen_streams')
		 GROUP BY c.oid, c.reloptions, c.reltoastrelid`,
	"indexes": `
		SELECT indexdef FROM pg_indexes WHERE schemaname IN ('queen', 'queen_streams')`,
	"constraints": `
		SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
		  FROM pg_constraint WHERE connamespace::regnamespace::text IN ('queen', 'queen_streams') AND conrelid <> 0`,
	"triggers": `
		SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal`,
	"functions": `
		SELECT p.oid::regprocedure::text || ' ' || pg_get_function_arguments(p.oid) || ' RETURNS ' || pg_get_function_result(p.oid)
		       || ' ' || l.lanname || CASE p.provolatile WHEN 'v' THEN ' VOLATILE' WHEN 's' THEN ' STABLE' ELSE ' IMMUTABLE' END
		       || CASE WHEN p.proisstrict THEN ' STRICT' ELSE '' END || CASE WHEN p.prosecdef THEN ' SECURITY DEFINER' ELSE '' END
		       || COALESCE(' SET ' || p.proconfig::text, '')
		  FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
		 WHERE p.pronamespace::regnamespace::text IN ('queen', 'queen_streams')`,
	"grants": `
		SELECT s.object || ' ' || string_agg(g.privilege_type, ',' ORDER BY g.privilege_type)
		  FROM (SELECT oid::regprocedure::text, COALESCE(proacl, acldefault('f', proowner)), pronamespace FROM pg_proc
		        UNION ALL SELECT oid::regclass::text, relacl, relnamespace FROM pg_class WHERE relkind = 'r'
		        UNION ALL SELECT 'schema ' || nspname, nspacl, oid FROM pg_namespace) AS s(object, acl, namespace)
		 CROSS JOIN LATERAL aclexplode(s.acl) AS g
		 WHERE g.grantee = 0 AND s.namespace::regnamespace::text IN ('queen', 'queen_streams')
		 GROUP BY s.object`,
}

// describe returns one sorted line per object of the catalogue.
func describe(t *testing.T, pool *pgxpool.Pool, catalogue string) []string {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SET search_path = pg_catalog`)
	require.NoError(t, err)
	rows, err := conn.Query(t.Context(), `SELECT x.line FROM (`+catalogues[catalogue]+`) AS x(line) ORDER BY x.line COLLATE "C"`)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return lines
}

// TestCatalogue compares names, types, defaults, indexes, storage parameters, signatures, volatility and grants with the golden
// files. A difference is a change of contract; -update writes it down for review.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t).Pool(t)
	for catalogue := range catalogues {
		got := strings.Join(describe(t, pool, catalogue), "\n") + "\n"
		golden := filepath.Join("testdata", "catalogue_"+catalogue+".txt")
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
			continue
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")),
			"%s: run go test ./sql -run TestCatalogue -update when the change is meant", golden)
	}
}

// TestSchemaAppliesAgainUnderTraffic: a second apply changes nothing, and it takes no lock that a push, a pop or an ack in flight
// would have to give up first.
func TestSchemaAppliesAgainUnderTraffic(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	before := map[string][]string{}
	for catalogue := range catalogues {
		before[catalogue] = describe(t, log.Pool, catalogue)
	}
	const relations = `SELECT string_agg(oid || ' ' || relfilenode || ' ' || relname, ',' ORDER BY oid) FROM pg_class
		WHERE relnamespace::regnamespace::text IN ('queen', 'queen_streams')`
	files := scan[string](t, log, relations)

	traffic := log.begin(t)
	tables, err := log.Query(t.Context(), `SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text IN ('queen', 'queen_streams')`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(tables, pgx.RowTo[string])
	require.NoError(t, err)
	require.Greater(t, len(names), 15)
	for _, table := range names {
		_, err := traffic.Exec(t.Context(), `LOCK TABLE `+table+` IN ROW EXCLUSIVE MODE`)
		require.NoError(t, err)
	}
	_, err = push(traffic, parcel{queue: "q", partition: "a", ids: ids("1")})
	require.NoError(t, err)

	applying, err := pgx.ConnectConfig(t.Context(), log.Config().ConnConfig.Copy())
	require.NoError(t, err)
	defer applying.Close(context.WithoutCancel(t.Context()))
	_, err = applying.Exec(t.Context(), `SET lock_timeout = '1s'; SET client_min_messages = warning`)
	require.NoError(t, err)
	sources, err := queensql.Files()
	require.NoError(t, err)
	for _, file := range sources {
		_, err := applying.PgConn().Exec(t.Context(), file.Text).ReadAll()
		require.NoError(t, err, file.Name)
	}
	require.NoError(t, traffic.Commit(t.Context()))
	for catalogue := range catalogues {
		require.Empty(t, cmp.Diff(before[catalogue], describe(t, log.Pool, catalogue)), catalogue)
	}
	require.Equal(t, files, scan[string](t, log, relations))
}

// TestProceduresPassTheChecker runs plpgsql_check over every function: names, types and statements that no test happens to reach.
func TestProceduresPassTheChecker(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	_, err := log.Exec(t.Context(), `CREATE EXTENSION plpgsql_check`)
	require.NoError(t, err, "the checker is missing: make test installs it (on Debian: postgresql-NN-plpgsql-check)")
	rows, err := log.Query(t.Context(), `
		SELECT p.oid::regprocedure::text, c
		  FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'plpgsql'
		 CROSS JOIN LATERAL plpgsql_check_function(p.oid, format => 'text', fatal_errors => FALSE, extra_warnings => TRUE,
		       performance_warnings => FALSE) AS c
		 WHERE p.pronamespace::regnamespace::text IN ('queen', 'queen_streams') AND p.prorettype <> 'trigger'::regtype`)
	require.NoError(t, err)
	var findings []string
	var function, finding string
	_, err = pgx.ForEachRow(rows, []any{&function, &finding}, func() error {
		findings = append(findings, function+": "+finding)
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, findings)
	require.Greater(t, scan[int64](t, log, `SELECT count(*) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang AND l.lanname = 'plpgsql'
		WHERE p.pronamespace::regnamespace::text = 'queen'`), int64(8))
}
