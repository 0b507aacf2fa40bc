package pg_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func TestLeader(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	competitor := func() *pg.Leader {
		leader := db.NewLeader(737099)
		t.Cleanup(leader.Close)
		return leader
	}
	run := func(leader *pg.Leader, f func(context.Context) error) (bool, error) {
		return leader.Lead(t.Context(), f)
	}
	nothing := func(context.Context) error { return nil }
	first, second := competitor(), competitor()

	led, err := run(first, func(context.Context) error {
		led, err := run(second, func(context.Context) error { panic("two leaders") })
		require.NoError(t, err)
		require.False(t, led)
		return nil
	})
	require.NoError(t, err)
	require.True(t, led)
	led, err = run(second, nothing)
	require.NoError(t, err)
	require.True(t, led, "the end of the work releases the lock")

	mine := errors.New("mine")
	_, err = run(first, func(context.Context) error { return mine })
	require.ErrorIs(t, err, mine)
	led, err = run(second, nothing)
	require.NoError(t, err)
	require.True(t, led, "a failure releases the lock too")

	// Whoever ends the leader's session ends its work, and another takes over at once.
	began := time.Now()
	led, err = run(first, func(ctx context.Context) error {
		_, err := database.Pool(t).Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 737099 AND granted`)
		require.NoError(t, err)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Second):
			return errors.New("the work was not told")
		}
		require.ErrorIs(t, context.Cause(ctx), pg.ErrLeadershipLost)
		// The server says goodbye before it lets go of the lock.
		require.Eventually(t, func() bool {
			led, err := run(second, nothing)
			return err == nil && led
		}, 10*time.Second, time.Millisecond)
		return ctx.Err()
	})
	require.True(t, led)
	require.ErrorIs(t, err, pg.ErrLeadershipLost)
	require.Less(t, time.Since(began), 15*time.Second)
	led, err = run(first, nothing)
	require.NoError(t, err, "a leader connects anew")
	require.True(t, led)

	require.Eventually(t, func() bool { // a session that was given up ends a moment later
		var locks int
		require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 737099`).Scan(&locks))
		return locks == 0
	}, 30*time.Second, time.Millisecond)
	var snapshots int
	_, err = run(first, func(context.Context) error {
		return database.Pool(t).QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory' AND l.objid = 737099
WHERE a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL`).Scan(&snapshots)
	})
	require.NoError(t, err)
	require.Zero(t, snapshots, "a leader holds back no vacuum")
}

func TestLeaderWithoutADatabase(t *testing.T) {
	t.Parallel()
	db := open(t, "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	leader := db.NewLeader(1)
	defer leader.Close()
	led, err := leader.Lead(t.Context(), func(context.Context) error { panic("led without a database") })
	require.ErrorIs(t, err, pg.ErrUnavailable)
	require.False(t, led)
}

func TestOneBrokerRefreshes(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	push(t, db, segment("q", "p", "1", "2"))
	answer, err := db.RefreshStats(t.Context(), time.Minute)
	require.NoError(t, err)
	require.Contains(t, string(answer), `"queuesUpdated"`)
	answer, err = db.RefreshRetainedBytes(t.Context(), time.Minute)
	require.NoError(t, err)
	require.JSONEq(t, `{"queuesUpdated":1}`, string(answer))

	tx, err := database.Pool(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(737002), pg_advisory_xact_lock(737003)`)
	require.NoError(t, err)
	for _, refresh := range []func(context.Context, time.Duration) (json.RawMessage, error){db.RefreshStats, db.RefreshRetainedBytes} {
		answer, err := refresh(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Nil(t, answer, "another session is at it")
	}
	require.NoError(t, tx.Rollback(t.Context()))

	blocker, err := database.Pool(t).Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), `LOCK TABLE queen.stats`)
	require.NoError(t, err)
	_, err = db.RefreshStats(t.Context(), 200*time.Millisecond)
	require.ErrorIs(t, err, pg.ErrTimeout)
	require.NoError(t, blocker.Rollback(t.Context()))
	_, err = db.RefreshStats(t.Context(), time.Minute)
	require.NoError(t, err, "the timeout ended with its transaction")
}
