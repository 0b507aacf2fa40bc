package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

const (
	lanes   = 4
	letters = 60 // in each lane
)

// soon bounds what needs no more than a moment.
const soon = time.Minute

func scalar[T any](t *testing.T, db *pgxpool.Pool, sql string, args ...any) (value T) {
	t.Helper()
	require.NoError(t, db.QueryRow(t.Context(), sql, args...).Scan(&value))
	return value
}

// fileLetters pushes numbered messages and files a dead letter of each, for a group that needs no consumer.
func fileLetters(t *testing.T, db *pgxpool.Pool, client *wire.Client, queue string) {
	t.Helper()
	var items []wire.PushItem
	for lane := range lanes {
		for n := range letters {
			items = append(items, wire.PushItem{Queue: queue, Partition: fmt.Sprint("p", lane), TransactionID: fmt.Sprintf("%s/%d/%d", queue, lane, n), Payload: json.RawMessage(fmt.Sprint(n))})
		}
	}
	verdicts, err := client.Push(t.Context(), items)
	require.NoError(t, err)
	for _, v := range verdicts {
		require.Equal(t, "queued", v.Status)
	}
	_, err = db.Exec(t.Context(), `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", message_id, transaction_id, payload, error, retry_count, payload_raw)
		SELECT p.id, 'g', n, gen_random_uuid(), q.name || '/' || p.name || '/' || n, to_jsonb(n), 'printer offline', 3, n::text::bytea
		  FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id CROSS JOIN generate_series(0, $2::int - 1) n WHERE q.name = $1`, queue, letters)
	require.NoError(t, err)
}

// hold locks rows until the returned function is called.
func hold(t *testing.T, db *pgxpool.Pool, sql string, args ...any) (release func()) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
	return func() {
		err := tx.Rollback(context.WithoutCancel(t.Context()))
		require.True(t, err == nil || err == pgx.ErrTxClosed, "%v", err)
	}
}

// stuck waits until a call of the procedure waits for a lock.
func stuck(t *testing.T, db *pgxpool.Pool, procedure string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return scalar[bool](t, db, `SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%')`, procedure)
	}, soon, 5*time.Millisecond, procedure)
}

// A task over dead letters is worked on by brokers that are killed in the middle of a step, one after the other: each time another one
// goes on, every letter is dealt with once, and the messages of a partition keep their order.
func TestKilledBrokersFinishTheirTask(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"redrive", "purge"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			database := testdb.New(t)
			db := database.Pool(t)
			brokers := map[string]*stack.Process{}
			for _, name := range []string{"alpha", "beta"} {
				brokers[name] = stack.StartProcess(t, database.ConnString(), "QUEEN_SERVER_ID="+name)
			}
			client := wire.NewClient(brokers["alpha"].URL, 4)
			defer client.Close()
			fileLetters(t, db, client, "orders")
			fileLetters(t, db, client, "other")
			var task struct {
				ID    string
				Total int
			}
			// A step a second, so that the task outlives the deaths.
			_, err := client.Do(t.Context(), "POST", "/api/v1/dlq/tasks", fmt.Appendf(nil, `{"kind":%q,"filter":{"queue":"orders"},"rate":5}`, kind), &task)
			require.NoError(t, err)
			require.Equal(t, lanes*letters, task.Total)

			dealtWith := func() int {
				return scalar[int](t, db, `SELECT moved + deleted FROM queen.tasks WHERE id = $1`, task.ID)
			}
			var holders []string
			for range 2 {
				before := dealtWith()
				require.Eventually(t, func() bool { return dealtWith() > before }, soon, 5*time.Millisecond, "no broker goes on")
				release := hold(t, db, `SELECT 1 FROM queen.log_dlq FOR UPDATE`)
				stuck(t, db, "task_"+kind+"_step_v1")
				holder, _, _ := strings.Cut(scalar[string](t, db, `SELECT holder FROM queen.tasks WHERE id = $1`, task.ID), " ")
				brokers[holder].Kill()
				release() // the step of the dead may still commit: nobody hears of it
				holders = append(holders, holder)
				// Its lease runs out.
				_, err := db.Exec(t.Context(), `UPDATE queen.tasks SET lease_until = clock_timestamp() WHERE holder LIKE $1 || ' %'`, holder)
				require.NoError(t, err)
				require.Eventually(t, func() bool {
					return scalar[bool](t, db, `SELECT COALESCE(holder NOT LIKE $2 || ' %', false) FROM queen.tasks WHERE id = $1`, task.ID, holder)
				}, soon, 5*time.Millisecond, "nobody takes over")
				brokers[holder].Start(t)
			}
			require.NotEqual(t, holders[0], holders[1])
			require.Less(t, dealtWith(), task.Total, "the brokers died before the end")
			_, err = db.Exec(t.Context(), `UPDATE queen.tasks SET rate = 0, next_run_at = clock_timestamp()`)
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				return scalar[string](t, db, `SELECT state FROM queen.tasks WHERE id = $1`, task.ID) == "done"
			}, soon, 5*time.Millisecond)

			require.Equal(t, task.Total, dealtWith())
			require.Zero(t, scalar[int](t, db, `SELECT duplicate + skipped FROM queen.tasks`))
			require.Equal(t, map[string]int{"other": lanes * letters}, lettersLeft(t, db))
			requireLanes(t, client, "orders", map[string]int{"redrive": 2, "purge": 1}[kind])
		})
	}
}

func lettersLeft(t *testing.T, db *pgxpool.Pool) map[string]int {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT q.name, count(*) FROM queen.log_dlq d JOIN queen.log_partitions p ON p.id = d.partition_id JOIN queen.queues q ON q.id = p.queue_id GROUP BY 1`)
	require.NoError(t, err)
	left := map[string]int{}
	var queue string
	var n int
	_, err = pgx.ForEachRow(rows, []any{&queue, &n}, func() error { left[queue] = n; return nil })
	require.NoError(t, err)
	return left
}

// requireLanes reads a queue to its end: every partition holds the numbers from 0 on, in order, the given number of times.
func requireLanes(t *testing.T, client *wire.Client, queue string, times int) {
	t.Helper()
	got := map[string][]string{}
	for {
		batch, err := client.Pop(t.Context(), wire.PopRequest{Queue: queue, AnyPartition: true, Group: "check", Batch: 500, Partitions: lanes, AutoAck: true})
		require.NoError(t, err)
		if batch == nil {
			break
		}
		for _, m := range batch.Messages {
			got[m.Partition] = append(got[m.Partition], string(m.Data))
		}
	}
	for lane := range lanes {
		var want []string
		for range times {
			for n := range letters {
				want = append(want, fmt.Sprint(n))
			}
		}
		require.Equal(t, want, got[fmt.Sprint("p", lane)], "partition %d", lane)
	}
}

// The broker that leads retention is killed in the middle of a step: another one leads within 15 seconds, and everything is deleted and
// recorded once.
func TestKilledLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	db := database.Pool(t)
	leader := stack.StartProcess(t, database.ConnString(), "RETENTION_INTERVAL=200")
	client := wire.NewClient(leader.URL, 4)
	defer client.Close()
	const messages = 40
	for n := range messages {
		verdicts, err := client.Push(t.Context(), []wire.PushItem{{Queue: "old", Partition: "p", Payload: json.RawMessage(fmt.Sprint(n))}})
		require.NoError(t, err)
		require.Equal(t, "queued", verdicts[0].Status)
	}
	_, err := db.Exec(t.Context(), `UPDATE queen.log_segments SET created_at = created_at - interval '1 h'`)
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), `UPDATE queen.log_partitions SET oldest_live_at = oldest_live_at - interval '1 h'`)
	require.NoError(t, err)
	release := hold(t, db, `SELECT 1 FROM queen.log_partitions FOR UPDATE`)
	require.NoError(t, client.Configure(t.Context(), "old", map[string]any{"retentionEnabled": true, "retentionSeconds": 60}))
	stuck(t, db, "log_retention_step_v1")
	const lock = `SELECT COALESCE((SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 737001 AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())), 0)`
	dead := scalar[int](t, db, lock)
	require.NotZero(t, dead)

	stack.StartProcess(t, database.ConnString(), "RETENTION_INTERVAL=200")
	require.Equal(t, dead, scalar[int](t, db, lock), "one leads, and the other waits")
	leader.Kill()
	killed := time.Now()
	require.Eventually(t, func() bool {
		pid := scalar[int](t, db, lock)
		return pid != 0 && pid != dead
	}, 15*time.Second, 5*time.Millisecond, "nobody leads in the place of the dead")
	t.Logf("another broker led %s after the death", time.Since(killed))
	release()
	require.Eventually(t, func() bool { return scalar[int](t, db, `SELECT count(*) FROM queen.log_segments`) == 0 }, soon, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		return scalar[int](t, db, `SELECT COALESCE(sum(messages_deleted), 0) FROM queen.retention_history WHERE retention_type = 'retention'`) == messages
	}, soon, 10*time.Millisecond, "deleted and recorded once")
}
