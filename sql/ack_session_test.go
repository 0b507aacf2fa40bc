package sql_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// patience bounds every wait for another session.
const patience = 20 * time.Second

// A session is one connection of its own, for tests in which the order of steps matters.
type session struct {
	*pgx.Conn
	log ackLog
	pid uint32
}

func (l ackLog) session(t *testing.T) *session {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), l.Config().ConnConfig)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &session{Conn: conn, log: l, pid: conn.PgConn().PID()}
}

// do runs a statement that must not fail.
func (s *session) do(t *testing.T, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := s.Exec(ctx, sql, args...)
	require.NoError(t, err)
}

// A step is a statement under way in a session; its value is the text of the one column that it returns.
type step struct {
	session *session
	done    chan struct{}
	value   string
	err     error
}

func (s *session) start(t *testing.T, sql string, args ...any) *step {
	st := &step{session: s, done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	go func() {
		defer cancel()
		defer close(st.done)
		st.err = s.QueryRow(ctx, sql, args...).Scan(&st.value)
	}()
	return st
}

// requireBlocked waits until the statement waits for a lock that the other session holds.
func (st *step) requireBlocked(t *testing.T, by *session) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		select {
		case <-st.done:
			t.Fatalf("the statement did not wait: %s, %v", st.value, st.err)
		default:
		}
		var blocked bool
		require.NoError(t, st.session.log.QueryRow(t.Context(), `SELECT $1 = ANY (pg_blocking_pids($2))`, by.pid, st.session.pid).Scan(&blocked))
		if blocked {
			return
		}
	}
	t.Fatal("the statement neither ended nor waited for the lock")
}

// wait returns the answer.
func (st *step) wait(t *testing.T) string {
	t.Helper()
	<-st.done
	require.NoError(t, st.err)
	return st.value
}
