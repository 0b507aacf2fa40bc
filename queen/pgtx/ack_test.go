package pgtx_test

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/queen"
	"queenmq/queen/pgtx"
)

func TestAckTx(t *testing.T) {
	t.Parallel()
	client, db := broker(t)
	q := newClient(t, db)
	push := func(t *testing.T, queue string) {
		t.Helper()
		_, err := client.Push(t.Context(), items(queue, "p", "1", "2", "3")...)
		require.NoError(t, err)
	}
	pop := func(t *testing.T, queue string) *queen.Batch {
		t.Helper()
		batch, err := client.Pop(t.Context(), queue, queen.PopOptions{Group: "g", Wait: 10 * time.Second})
		require.NoError(t, err)
		require.NotEmpty(t, batch.Messages)
		return batch
	}
	none := func(t *testing.T, queue string) {
		t.Helper()
		batch, err := client.Pop(t.Context(), queue, queen.PopOptions{Group: "g"})
		require.NoError(t, err)
		require.Empty(t, batch.Messages)
	}

	t.Run("CommitsWithTheTransaction", func(t *testing.T) {
		t.Parallel()
		push(t, "tx.ack")
		batch := pop(t, "tx.ack")
		regret := errors.New("regret")
		require.ErrorIs(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			require.NoError(t, q.AckTx(t.Context(), tx, batch.Completed()...))
			return regret
		}), regret)
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			return q.AckTx(t.Context(), tx, batch.Messages[0].Completed(), batch.Messages[1].Completed())
		}))
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error { return q.AckTx(t.Context(), tx, batch.Messages[2].Completed()) }))
		none(t, "tx.ack")
	})

	t.Run("NothingIsCompletedTwice", func(t *testing.T) {
		t.Parallel()
		push(t, "tx.twice")
		batch := pop(t, "tx.twice")
		first := batch.Messages[0].Completed()
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error { return q.AckTx(t.Context(), tx, first) }))
		require.ErrorIs(t, commit(t.Context(), db, func(tx pgx.Tx) error { return q.AckTx(t.Context(), tx, first) }), queen.ErrLeaseLost)
		require.ErrorIs(t, commit(t.Context(), db, func(tx pgx.Tx) error { return q.AckTx(t.Context(), tx, batch.Completed()...) }), queen.ErrLeaseLost,
			"with one that was completed all of them fail")
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error { return q.AckTx(t.Context(), tx, batch.Messages[2].Completed()) }))
		none(t, "tx.twice")
	})

	t.Run("LostLeaseEndsTheTransaction", func(t *testing.T) {
		t.Parallel()
		push(t, "tx.lost")
		batch := pop(t, "tx.lost")
		_, err := client.Ack(t.Context(), batch.Released()...)
		require.NoError(t, err)
		again := pop(t, "tx.lost")
		err = commit(t.Context(), db, func(tx pgx.Tx) error {
			require.ErrorIs(t, q.AckTx(t.Context(), tx, batch.Completed()...), queen.ErrLeaseLost)
			return nil // whoever forgets to roll back
		})
		require.Error(t, err, "nothing is committed")
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error { return q.AckTx(t.Context(), tx, again.Completed()...) }))
		none(t, "tx.lost")
	})

	t.Run("NobodyTakesOverWhileTheTransactionIsOpen", func(t *testing.T) {
		t.Parallel()
		push(t, "tx.open")
		batch, err := client.Pop(t.Context(), "tx.open", queen.PopOptions{Group: "g", Lease: time.Second})
		require.NoError(t, err)
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			require.NoError(t, q.AckTx(t.Context(), tx, batch.Completed()...))
			ended := time.Now().Add(1500 * time.Millisecond)
			for time.Now().Before(ended) { // past the end of the lease
				none(t, "tx.open")
			}
			return nil
		}))
		none(t, "tx.open")
	})

	t.Run("PushAfterAckIsRefused", func(t *testing.T) {
		t.Parallel()
		push(t, "tx.order")
		batch := pop(t, "tx.order")
		err := commit(t.Context(), db, func(tx pgx.Tx) error {
			require.NoError(t, q.AckTx(t.Context(), tx, batch.Completed()...))
			_, err := q.PushTx(t.Context(), tx, items("tx.order.next", "", "1")...)
			return err
		})
		require.ErrorIs(t, err, queen.ErrInvalid)
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			if _, err := q.PushTx(t.Context(), tx, items("tx.order.next", "", "1")...); err != nil {
				return err
			}
			return q.AckTx(t.Context(), tx, batch.Completed()...)
		}), "the mark does not outlive its transaction")
	})

	t.Run("OnlyCompletionsUnderALease", func(t *testing.T) {
		t.Parallel()
		push(t, "tx.only")
		batch := pop(t, "tx.only")
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			require.ErrorIs(t, q.AckTx(t.Context(), tx, batch.Messages[0].Rejected(nil)), queen.ErrInvalid)
			leaseless := batch.Messages[0].Completed()
			leaseless.LeaseID = ""
			require.ErrorIs(t, q.AckTx(t.Context(), tx, leaseless), queen.ErrInvalid)
			return nil
		}))
	})
}

func TestPop(t *testing.T) {
	t.Parallel()
	db := alone(t)
	q := newClient(t, db, pgtx.WithoutHints())
	for _, partition := range []string{"a", "b"} {
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			_, err := q.PushTx(t.Context(), tx, items("shop.orders", partition, `"1`+partition+`"`, `"2`+partition+`"`)...)
			return err
		}))
	}
	one, err := q.Pop(t.Context(), db, "shop.orders", queen.PopOptions{Group: "g", Batch: 1, Lease: time.Minute})
	require.NoError(t, err)
	require.Len(t, one.Messages, 1)
	other, err := q.Pop(t.Context(), db, "", queen.PopOptions{Namespace: "shop", Group: "g", Partitions: -1})
	require.NoError(t, err)
	require.Len(t, other.Messages, 2, "the other partition only")
	require.NotEqual(t, one.Messages[0].Partition, other.Messages[0].Partition)
	_, err = q.Extend(t.Context(), db, one.LeaseID, time.Hour)
	require.NoError(t, err)
	require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
		return q.AckTx(t.Context(), tx, append(one.Completed(), other.Completed()...)...)
	}))
	rest, err := q.Pop(t.Context(), db, "shop.orders", queen.PopOptions{Group: "g", Partition: one.Messages[0].Partition, Wait: time.Second})
	require.NoError(t, err)
	require.Len(t, rest.Messages, 1)
	fresh, err := q.Pop(t.Context(), db, "shop.orders", queen.PopOptions{Group: "new", Start: queen.StartNew})
	require.NoError(t, err)
	require.Empty(t, fresh.Messages)
	_, err = q.Pop(t.Context(), db, "shop.orders", queen.PopOptions{AutoAck: true})
	require.ErrorIs(t, err, queen.ErrInvalid)
}

// TestRights: a role with the documented rights can do everything that this package does and nothing else in the schema.
func TestRights(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	owner := database.Pool(t)
	role := "app_" + database.Name
	if len(role) > 63 {
		role = role[:63]
	}
	name := pgx.Identifier{role}.Sanitize()
	_, err := owner.Exec(t.Context(), `CREATE ROLE `+name+` LOGIN PASSWORD 'app'`)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := owner.Exec(context.Background(), `DROP OWNED BY `+name+`; DROP ROLE `+name)
		require.NoError(t, err)
	})
	address, err := url.Parse(database.ConnString())
	require.NoError(t, err)
	address.User = url.UserPassword(role, "app")
	app, err := pgxpool.New(t.Context(), address.String())
	require.NoError(t, err)
	t.Cleanup(app.Close)

	_, err = pgtx.New(t.Context(), app)
	require.ErrorIs(t, err, pgtx.ErrNotGranted)
	_, err = owner.Exec(t.Context(), `GRANT USAGE ON SCHEMA queen TO `+name)
	require.NoError(t, err)
	q := newClient(t, app)
	err = commit(t.Context(), app, func(tx pgx.Tx) error {
		_, err := q.PushTx(t.Context(), tx, items("q", "", "1")...)
		return err
	})
	require.ErrorIs(t, err, pgtx.ErrNotGranted)
	_, err = owner.Exec(t.Context(), `GRANT EXECUTE ON FUNCTION queen.log_caller_push_v1, queen.log_caller_ack_v1, queen.log_caller_pop_v1, queen.log_caller_extend_v1 TO `+name)
	require.NoError(t, err)

	require.NoError(t, commit(t.Context(), app, func(tx pgx.Tx) error {
		_, err := q.PushTx(t.Context(), tx, items("q", "", "1")...)
		return err
	}))
	batch, err := q.Pop(t.Context(), app, "q", queen.PopOptions{})
	require.NoError(t, err)
	require.Len(t, batch.Messages, 1)
	_, err = q.Extend(t.Context(), app, batch.LeaseID, time.Hour)
	require.NoError(t, err)
	require.NoError(t, commit(t.Context(), app, func(tx pgx.Tx) error { return q.AckTx(t.Context(), tx, batch.Completed()...) }))

	_, err = app.Exec(t.Context(), `SELECT * FROM queen.log_segments`)
	require.ErrorContains(t, err, "permission denied")
	_, err = app.Exec(t.Context(), `DELETE FROM queen.queues`)
	require.ErrorContains(t, err, "permission denied")
}

func TestSchemaThatIsMissingOrTooOld(t *testing.T) {
	t.Parallel()
	empty := testdb.NewEmpty(t).Pool(t)
	_, err := pgtx.New(t.Context(), empty)
	require.ErrorIs(t, err, pgtx.ErrSchemaTooOld)
	old := alone(t)
	_, err = old.Exec(t.Context(), `DROP FUNCTION queen.log_caller_push_v1`)
	require.NoError(t, err)
	_, err = pgtx.New(t.Context(), old)
	require.ErrorIs(t, err, pgtx.ErrSchemaTooOld)
}

// TestEveryWayOfSendingStatements: programs behind a pooler that shares sessions send statements without preparing them.
func TestEveryWayOfSendingStatements(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		config, err := pgxpool.ParseConfig(database.ConnString())
		require.NoError(t, err)
		config.ConnConfig.DefaultQueryExecMode = mode
		db, err := pgxpool.NewWithConfig(t.Context(), config)
		require.NoError(t, err)
		defer db.Close()
		q := newClient(t, db)
		queue := mode.String()
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			_, err := q.PushTx(t.Context(), tx, append(items(queue, "a", "1", "2"), items(queue, "b", "3")...)...)
			return err
		}), mode)
		batch, err := q.Pop(t.Context(), db, queue, queen.PopOptions{Group: "g", Partitions: -1, Lease: time.Minute})
		require.NoError(t, err, mode)
		require.Len(t, batch.Messages, 3)
		_, err = q.Extend(t.Context(), db, batch.LeaseID, time.Hour)
		require.NoError(t, err, mode)
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error { return q.AckTx(t.Context(), tx, batch.Completed()...) }), mode)
	}
}
