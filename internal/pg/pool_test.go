package pg_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

func TestSessionsCarryTheirSettings(t *testing.T) {
	t.Parallel()
	// The database's own settings are the opposite of what the broker needs.
	database := testdb.New(t, testdb.TimeZone("Asia/Kolkata"), testdb.Setting("default_transaction_isolation", "serializable"), testdb.Setting("jit", "on"),
		testdb.Setting("idle_session_timeout", "600000"), testdb.Setting("standard_conforming_strings", "off"), testdb.Setting("DateStyle", "German, DMY"),
		testdb.Setting("client_encoding", "LATIN1"))
	db := open(t, database.ConnString(), func(o *pg.Options) {
		o.StatementTimeout, o.LockTimeout = 7*time.Second, 1500*time.Millisecond
	})
	overrideHasPending(t, database, `PERFORM set_config('queen.seen', '', false); INSERT INTO public.seen
SELECT name, setting FROM pg_settings WHERE name IN ('TimeZone', 'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'jit',
       'default_transaction_isolation', 'application_name', 'idle_session_timeout', 'standard_conforming_strings', 'DateStyle', 'client_encoding')`)
	pool := database.Pool(t)
	_, err := pool.Exec(t.Context(), "CREATE TABLE public.seen (name text, setting text)")
	require.NoError(t, err)
	_, err = db.HasPending(t.Context(), pg.DefaultTenant, "q", "g")
	require.NoError(t, err)

	rows, err := pool.Query(t.Context(), "SELECT name, setting FROM public.seen")
	require.NoError(t, err)
	seen := map[string]string{}
	for rows.Next() {
		var name, setting string
		require.NoError(t, rows.Scan(&name, &setting))
		seen[name] = setting
	}
	require.NoError(t, rows.Err())
	require.Equal(t, map[string]string{
		"TimeZone": "UTC", "statement_timeout": "8000", "lock_timeout": "1500", "idle_in_transaction_session_timeout": "60000", "jit": "off",
		"default_transaction_isolation": "read committed", "application_name": "queen test", "idle_session_timeout": "0",
		"standard_conforming_strings": "on", "DateStyle": "ISO, MDY", "client_encoding": "UTF8",
	}, seen)
}

// overrideHasPending replaces the body of a function that every pool test can call, so that it does what the test needs.
func overrideHasPending(t testing.TB, database *testdb.Database, body string) {
	t.Helper()
	_, err := database.Pool(t).Exec(t.Context(), fmt.Sprintf(`CREATE OR REPLACE FUNCTION queen.log_has_pending_v1(p_queue TEXT, p_group TEXT,
    p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001') RETURNS BOOLEAN LANGUAGE plpgsql VOLATILE AS $body$ BEGIN %s; RETURN true; END $body$`, body))
	require.NoError(t, err)
}

// activeSessions counts the broker's sessions in the database that run a statement.
func activeSessions(t testing.TB, database *testdb.Database) func() int {
	t.Helper()
	pool := database.Pool(t)
	return func() int {
		n := -1
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'queen test' AND state <> 'idle'`).Scan(&n))
		return n
	}
}

func TestStatementTimeoutCancelsOnTheServer(t *testing.T) {
	t.Parallel()
	db, database := setup(t, func(o *pg.Options) { o.StatementTimeout = 300 * time.Millisecond })
	overrideHasPending(t, database, "PERFORM pg_sleep(60)")
	active := activeSessions(t, database)

	started := time.Now()
	_, err := db.HasPending(t.Context(), pg.DefaultTenant, "q", "g")
	require.ErrorIs(t, err, pg.ErrTimeout)
	require.Less(t, time.Since(started), 5*time.Second)
	eventually(t, "the statement goes on running on the server", func() bool { return active() == 0 })
	eventually(t, "the connection is not given back", func() bool { return db.Stats().InUse == 0 })
	require.EqualValues(t, 1, db.Stats().Failures)
	require.NoError(t, db.Ping(t.Context()))
}

func TestACallerThatLeavesCancelsItsStatement(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	overrideHasPending(t, database, "PERFORM pg_sleep(60)")
	active := activeSessions(t, database)

	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := db.HasPending(ctx, pg.DefaultTenant, "q", "g")
		done <- err
	}()
	eventually(t, "the statement never started", func() bool { return active() == 1 })
	leave()
	require.ErrorIs(t, <-done, context.Canceled)
	eventually(t, "the statement goes on running on the server", func() bool { return active() == 0 })
	eventually(t, "the connection is not given back", func() bool { return db.Stats().InUse == 0 })
	require.Zero(t, db.Stats().Failures, "a caller that leaves is no failure of the database")
}

// A pop that acknowledges runs in a transaction of several statements; whoever leaves in the middle must leave no lock behind.
func TestACallerThatLeavesRollsItsTransactionBack(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	pool := database.Pool(t)
	push(t, db, segment("q", "p", "1"))
	_, err := pool.Exec(t.Context(), `CREATE OR REPLACE FUNCTION queen.log_pop_specific_bin_v1(
    p_queue TEXT, p_partition TEXT, p_group TEXT, p_budget INTEGER, p_lease_seconds INTEGER, p_worker TEXT, p_auto_ack BOOLEAN,
    p_sub_mode TEXT DEFAULT 'all', p_sub_from TEXT DEFAULT '', p_tenant UUID DEFAULT '00000000-0000-0000-0000-000000000001')
RETURNS TABLE (meta JSONB, blobs BYTEA[]) LANGUAGE plpgsql VOLATILE AS $$ BEGIN
    UPDATE queen.queues SET priority = 77;
    PERFORM pg_sleep(60);
END $$`)
	require.NoError(t, err)
	active := activeSessions(t, database)
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		r := popRequest("q", "w")
		r.Partition, r.AutoAck, r.Accept = "p", true, func(pg.Claim) error { return nil }
		_, err := db.PopSpecific(ctx, r)
		done <- err
	}()
	eventually(t, "the statement never started", func() bool { return active() == 1 })
	leave()
	require.ErrorIs(t, <-done, context.Canceled)
	eventually(t, "a session is still inside its transaction", func() bool { return active() == 0 })
	eventually(t, "the connection is not given back", func() bool { return db.Stats().InUse == 0 })
	var priority int
	require.NoError(t, pool.QueryRow(t.Context(), "UPDATE queen.queues SET name = name WHERE name = 'q' RETURNING priority").Scan(&priority), "a lock remains")
	require.Zero(t, priority)
}

// A function that swallows the cancel request must not keep its caller, and its connection must not be used again.
func TestAStatementThatIgnoresItsCancellationLosesItsConnection(t *testing.T) {
	t.Parallel()
	db, database := setup(t, func(o *pg.Options) { o.StatementTimeout, o.MaxConns = 200*time.Millisecond, 1 })
	overrideHasPending(t, database, `FOR i IN 1..8 LOOP BEGIN PERFORM pg_sleep(0.5); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP`)

	started := time.Now()
	_, err := db.HasPending(t.Context(), pg.DefaultTenant, "q", "g")
	require.ErrorIs(t, err, pg.ErrTimeout)
	require.Less(t, time.Since(started), 3*time.Second, "the caller waited for the statement")
	require.NoError(t, db.Ping(t.Context()), "the only connection of the pool is stuck")
}

func TestPoolTimeout(t *testing.T) {
	t.Parallel()
	db, database := setup(t, func(o *pg.Options) { o.MaxConns, o.AcquireTimeout = 2, 300*time.Millisecond })
	overrideHasPending(t, database, "PERFORM pg_sleep(60)")
	ctx, leave := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for ctx.Err() == nil { // on a busy machine a connection may take longer than a caller waits for one
				_, _ = db.HasPending(ctx, pg.DefaultTenant, "q", "g")
			}
		})
	}
	defer group.Wait()
	defer leave()
	eventually(t, "the pool does not fill", func() bool { return db.Stats().InUse == 2 })
	require.ErrorIs(t, db.Ping(t.Context()), pg.ErrPoolTimeout)
	require.Equal(t, 2, db.Stats().Max)

	gone, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() { waiting <- db.Ping(gone) }()
	cancel()
	require.ErrorIs(t, <-waiting, context.Canceled)
}

func TestConflictsAreRepeatedThreeTimes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		state    string
		attempts int
		want     error
	}{
		{"40001", 3, pg.ErrSerialization},
		{"40P01", 3, pg.ErrSerialization},
		{"55P03", 1, pg.ErrLockTimeout}, // a read is reported, only the data paths wait on
		{"22001", 1, pg.ErrBadData},
	} {
		t.Run(test.state, func(t *testing.T) {
			t.Parallel()
			db, database := setup(t)
			pool := database.Pool(t)
			_, err := pool.Exec(t.Context(), "CREATE SEQUENCE public.attempts")
			require.NoError(t, err)
			// Sequences do not roll back.
			overrideHasPending(t, database, fmt.Sprintf(`PERFORM nextval('public.attempts'); RAISE 'no' USING ERRCODE = '%s'`, test.state))
			_, err = db.HasPending(t.Context(), pg.DefaultTenant, "q", "g")
			require.ErrorIs(t, err, test.want)
			var n int
			require.NoError(t, pool.QueryRow(t.Context(), "SELECT last_value FROM public.attempts").Scan(&n))
			require.Equal(t, test.attempts, n)
		})
	}
	t.Run("SecondAttemptSucceeds", func(t *testing.T) {
		t.Parallel()
		db, database := setup(t)
		_, err := database.Pool(t).Exec(t.Context(), "CREATE SEQUENCE public.attempts")
		require.NoError(t, err)
		overrideHasPending(t, database, `IF nextval('public.attempts') = 1 THEN RAISE 'no' USING ERRCODE = '40P01'; END IF`)
		pending, err := db.HasPending(t.Context(), pg.DefaultTenant, "q", "g")
		require.NoError(t, err)
		require.True(t, pending)
		require.Zero(t, db.Stats().Failures)
	})
}

func TestALockTimeoutIsRepeatedOnTheDataPaths(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	pool := database.Pool(t)
	_, err := pool.Exec(t.Context(), `CREATE SEQUENCE public.attempts;
CREATE OR REPLACE FUNCTION queen.log_ack_at_v1(p_partition_id UUID, p_group TEXT, p_worker TEXT, p_upto BIGINT, p_ok BOOLEAN DEFAULT TRUE, p_acked_count INTEGER DEFAULT 0)
RETURNS JSONB LANGUAGE plpgsql VOLATILE AS $$ BEGIN
    IF nextval('public.attempts') < 3 THEN RAISE 'no' USING ERRCODE = '55P03'; END IF;
    RETURN '{"ok":true,"acked":0}';
END $$`)
	require.NoError(t, err)
	require.NoError(t, db.ReleaseLease(t.Context(), uuid.New(), "g", "w"))
}

func TestUnavailableWhileTheServerIsDownAndBackAfterwards(t *testing.T) {
	t.Parallel()
	server := testdb.StartServer(t, testdb.ServerOptions{})
	db := open(t, server.ConnString("postgres"))
	require.NoError(t, db.WaitReady(t.Context()))

	// Fill the pool with connections that will die.
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { _ = db.Ping(t.Context()) })
	}
	group.Wait()
	for _, mode := range []string{"fast", "immediate"} {
		server.Stop(t, mode)
		for range 10 {
			require.ErrorIs(t, db.Ping(t.Context()), pg.ErrUnavailable)
		}
		ready := make(chan error, 1)
		go func() { ready <- db.WaitReady(t.Context()) }()
		server.Start(t)
		require.NoError(t, <-ready)
		for range 10 {
			require.NoError(t, db.Ping(t.Context()))
		}
	}
	_, err := db.HasPending(t.Context(), pg.DefaultTenant, "q", "g")
	require.NotErrorIs(t, err, pg.ErrUnavailable, "a missing function is no outage")
	require.Error(t, err)
}

func TestAServerThatGoesAwayDuringAStatement(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	overrideHasPending(t, database, "PERFORM pg_sleep(60)")
	active := activeSessions(t, database)
	done := make(chan error, 1)
	go func() {
		_, err := db.HasPending(t.Context(), pg.DefaultTenant, "q", "g")
		done <- err
	}()
	eventually(t, "the statement never started", func() bool { return active() == 1 })
	_, err := database.Pool(t).Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'queen test'")
	require.NoError(t, err)
	require.ErrorIs(t, <-done, pg.ErrUnavailable)
	require.NoError(t, db.Ping(t.Context()))
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	db := open(t, "postgres://queen@"+address+"/queen?sslmode=disable")
	require.ErrorIs(t, db.Ping(t.Context()), pg.ErrUnavailable)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // long enough for one refusal on a busy machine
	defer cancel()
	err = db.WaitReady(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, pg.ErrUnavailable, "the reason is lost")
	require.ErrorIs(t, db.ApplySchema(t.Context()), pg.ErrUnavailable, "an unreachable database is not a fresh one")
}

// A server that accepts and then says nothing must not be mistaken for a pool in full use.
func TestASilentServerIsUnavailable(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	db := open(t, "postgres://queen@"+listener.Addr().String()+"/queen?sslmode=disable", func(o *pg.Options) { o.AcquireTimeout = 250 * time.Millisecond })
	started := time.Now()
	require.ErrorIs(t, db.Ping(t.Context()), pg.ErrUnavailable)
	require.Less(t, time.Since(started), 3*time.Second)
}

func TestWaitReadyDoesNotWaitForWhatWillNotComeTrue(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	db := open(t, strings.Replace(database.ConnString(), database.Name, database.Name+"_missing", 1))
	err := db.WaitReady(t.Context())
	require.ErrorContains(t, err, "does not exist")
}

// Servers that were made without a locale, as on a minimal machine, give their databases SQL_ASCII.
func TestDatabaseThatIsNotUTF8IsRefused(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	name := database.Name + "_ascii"
	admin := database.Pool(t)
	_, err := admin.Exec(t.Context(), "CREATE DATABASE "+name+" ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)")
		require.NoError(t, err)
	})
	db := open(t, strings.Replace(database.ConnString(), database.Name, name, 1))
	err = db.WaitReady(t.Context())
	require.ErrorIs(t, err, pg.ErrNotUTF8)
	require.ErrorContains(t, err, "CREATE DATABASE")
}

// What a database or a role says about client_encoding must not change what we read.
func TestSessionsSpeakUTF8(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	_, err := database.Pool(t).Exec(t.Context(), "ALTER DATABASE "+database.Name+" SET client_encoding = 'LATIN1'")
	require.NoError(t, err)
	require.NoError(t, open(t, database.ConnString()).ApplySchema(t.Context()), "scripts are refused in another encoding")
}

func TestReadOnlyDatabaseIsNamed(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	_, err := database.Pool(t).Exec(t.Context(), "ALTER DATABASE "+database.Name+" SET default_transaction_read_only = on")
	require.NoError(t, err)
	db := open(t, database.ConnString())
	err = db.ApplySchema(t.Context())
	require.ErrorIs(t, err, pg.ErrUnavailable, "it may be promoted")
	require.ErrorContains(t, err, "standby")
	found, err := db.Inspect(t.Context())
	require.NoError(t, err)
	require.True(t, found.ReadOnly)
}

func TestClosedPool(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	require.NoError(t, db.Ping(t.Context()))
	db.Close()
	db.Close()
	require.ErrorIs(t, db.Ping(t.Context()), pg.ErrUnavailable)
}

func TestOpenRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, o := range []pg.Options{{}, {ConnString: "nonsense"}, {ConnString: "host=h", MaxConns: -1}, {ConnString: "host=h", LockTimeout: -1}} {
		_, err := pg.Open(t.Context(), o)
		require.Error(t, err)
	}
}
