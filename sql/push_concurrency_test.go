package sql_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// A heldSession is one connection whose transaction the test holds open.
type heldSession struct {
	pgx.Tx
	pid uint32
}

// begin opens a transaction that is rolled back at the end of the test unless it ended before.
func (l pushLog) begin(t *testing.T) heldSession {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), l.Config().ConnConfig.Copy())
	require.NoError(t, err)
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = tx.Rollback(ctx)
		_ = conn.Close(ctx)
	})
	return heldSession{tx, conn.PgConn().PID()}
}

// waitBlocked returns once the session waits for a lock that another session holds.
func (l pushLog) waitBlocked(t *testing.T, s heldSession) {
	t.Helper()
	require.Eventually(t, func() bool {
		return scan[bool](t, l, `SELECT cardinality(pg_blocking_pids($1::int)) > 0`, s.pid)
	}, 20*time.Second, 5*time.Millisecond, "nothing blocks session %d", s.pid)
}

// later runs what is expected to block and hands out its result.
func later[T any](f func() (T, error)) <-chan result[T] {
	done := make(chan result[T], 1)
	go func() {
		value, err := f()
		done <- result[T]{value, err}
	}()
	return done
}

type result[T any] struct {
	value T
	err   error
}

// TestOffsetsBecomeVisibleInOrder: a push waits for the push before it, so that a reader never sees an offset whose predecessors
// are still uncommitted.
func TestOffsetsBecomeVisibleInOrder(t *testing.T) {
	t.Parallel()
	for _, outcome := range []string{"commit", "rollback"} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			log := newPushLog(t)
			id := log.queued(t, "q", "a", "0")
			first, second := log.begin(t), log.begin(t)
			verdicts, err := push(first, parcel{queue: "q", partition: "a", ids: ids("1", "2")})
			require.NoError(t, err)
			require.EqualValues(t, 1, *verdicts[0].BaseOffset)
			waiting := later(func() ([]pushVerdict, error) {
				return push(second, parcel{queue: "q", partition: "b", ids: ids("x")}, parcel{queue: "q", partition: "a", ids: ids("2", "3")})
			})
			log.waitBlocked(t, second)
			require.EqualValues(t, 1, scan[int64](t, log, `SELECT count(*) FROM queen.log_segments WHERE partition_id = $1`, id))
			if outcome == "commit" {
				require.NoError(t, first.Commit(t.Context()))
			} else {
				require.NoError(t, first.Rollback(t.Context()))
			}
			got := <-waiting
			require.NoError(t, got.err)
			if outcome == "commit" {
				// The probe sees what was committed while this push waited.
				require.Equal(t, []string{"queued", "duplicate"}, statuses(got.value))
			} else {
				require.Equal(t, []string{"queued", "queued"}, statuses(got.value))
				require.EqualValues(t, 1, *got.value[1].BaseOffset)
			}
		})
	}
}

func TestConcurrentPushesOfOneIDStoreItOnce(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	const pushers = 24
	results := make([][]pushVerdict, pushers)
	errs := make([]error, pushers)
	var group sync.WaitGroup
	for i := range pushers {
		group.Go(func() {
			// Queue and partition do not exist yet: provisioning races as well.
			results[i], errs[i] = push(log, parcel{queue: "q.new", partition: "a", ids: ids("same")}, parcel{queue: "q.new", partition: fmt.Sprint("own", i), ids: ids("same")})
		})
	}
	group.Wait()
	queued := 0
	for i := range pushers {
		require.NoError(t, errs[i])
		require.Equal(t, "queued", results[i][1].Status)
		switch results[i][0].Status {
		case "queued":
			queued++
		default:
			require.Equal(t, []duplicate{{0, 0}}, results[i][0].Dups)
		}
	}
	require.Equal(t, 1, queued)
	require.EqualValues(t, 1, scan[int64](t, log, `SELECT count(*) FROM queen.queues`))
	require.EqualValues(t, pushers+1, scan[int64](t, log, `SELECT count(*) FROM queen.log_partitions`))
}

// TestConcurrentBundlesInOppositeOrderNeverDeadlock pushes the same partitions, some of bounded queues and some new in every
// round, in opposite orders.
func TestConcurrentBundlesInOppositeOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	log.exec(t, `INSERT INTO queen.queues (name, max_queue_size) VALUES ('q0', 1000000), ('q3', 1000000)`)
	const rounds, width = 40, 12
	var group sync.WaitGroup
	errs := make(chan error, 4*rounds)
	for pusher := range 4 {
		group.Go(func() {
			for round := range rounds {
				parcels := make([]parcel, width)
				for i := range width {
					at := i
					if pusher%2 == 1 {
						at = width - 1 - i
					}
					partition := fmt.Sprint("p", i)
					if i%4 == 0 {
						partition = fmt.Sprint("p", i, "-", round)
					}
					parcels[at] = parcel{queue: fmt.Sprint("q", i%6), partition: partition, ids: ids(fmt.Sprint(pusher, round, i))}
				}
				verdicts, err := push(log, parcels...)
				if err != nil {
					errs <- err
					continue
				}
				for _, v := range verdicts {
					if v.Status != "queued" {
						errs <- fmt.Errorf("unexpected verdict %+v", v)
					}
				}
			}
		})
	}
	group.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.True(t, scan[bool](t, log, `SELECT bool_and(p.last_offset + 1 = (SELECT count(*) FROM queen.log_segments s WHERE s.partition_id = p.id))
		FROM queen.log_partitions p`))
}

// TestPopRegistrationDoesNotWaitForAPush: what went wrong was a pop that held a cursor and registered on a second partition; the
// foreign key check of its new row waited for a transaction that held the partition FOR UPDATE and wanted to ack that cursor.
func TestPopRegistrationDoesNotWaitForAPush(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	id := log.queued(t, "q", "a", "0")
	log.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, batch_end, worker_id, lease_expires_at)
		VALUES ($1, 'g', 0, 'w', now() + interval '1 h')`, id)
	pop, transaction := log.begin(t), log.begin(t)
	_, err := pop.Exec(t.Context(), `SELECT FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = 'g' FOR UPDATE`, id)
	require.NoError(t, err)
	_, err = push(transaction, parcel{queue: "q", partition: "a", ids: ids("1")})
	require.NoError(t, err)
	acked := later(func() (ackAnswer, error) {
		return callJSON[ackAnswer](transaction, `SELECT queen.log_ack_at_v1($1, 'g', 'w', 0)`, id)
	})
	log.waitBlocked(t, transaction)
	_, err = pop.Exec(t.Context(), `SET LOCAL lock_timeout = '3s'`)
	require.NoError(t, err)
	_, err = pop.Exec(t.Context(), `INSERT INTO queen.log_consumers (partition_id, consumer_group) VALUES ($1, 'other')`, id)
	require.NoError(t, err)
	require.NoError(t, pop.Commit(t.Context()))
	got := <-acked
	require.NoError(t, got.err)
	require.True(t, got.value.OK)
}

func TestPushIntoADeletedPartitionFailsLoudly(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	id := log.queued(t, "q", "a", "0")
	deletion, pushing := log.begin(t), log.begin(t)
	_, err := deletion.Exec(t.Context(), `DELETE FROM queen.log_partitions WHERE id = $1`, id)
	require.NoError(t, err)
	waiting := later(func() ([]pushVerdict, error) { return push(pushing, parcel{queue: "q", partition: "a", ids: ids("1")}) })
	log.waitBlocked(t, pushing)
	require.NoError(t, deletion.Commit(t.Context()))
	got := <-waiting
	requireSQLState(t, got.err, "QU002", "QPUSH partition "+id.String()+" vanished mid-push")

	again := log.push(t, parcel{queue: "q", partition: "a", ids: ids("1")})[0]
	require.NotEqual(t, id, again.PartitionID)
	require.Zero(t, *again.BaseOffset)
}

// TestBoundedQueueNeverExceedsItsLimit: concurrent pushers fill a queue, over several partitions, to the last message that fits.
func TestBoundedQueueNeverExceedsItsLimit(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	const limit, size, pushers = 200, 7, 8
	log.exec(t, `INSERT INTO queen.queues (name, max_queue_size) VALUES ('q', $1)`, limit)
	var group sync.WaitGroup
	errs := make(chan error, pushers)
	for pusher := range pushers {
		group.Go(func() {
			for round := 0; ; round++ {
				p := parcel{queue: "q", partition: fmt.Sprint("p", pusher%3)}
				for i := range size {
					p.ids = append(p.ids, fmt.Sprint(pusher, "-", round, "-", i))
				}
				verdicts, err := push(log, p)
				switch {
				case err != nil:
					errs <- err
					return
				case verdicts[0].Status == "full":
					return
				case *verdicts[0].Depth > limit:
					errs <- fmt.Errorf("stored beyond the limit: %+v", verdicts[0])
					return
				}
			}
		})
	}
	group.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	depth := scan[int64](t, log, `SELECT sum(last_offset + 1)::bigint FROM queen.log_partitions`)
	require.EqualValues(t, limit/size*size, depth)
}

func TestDeleteQueueWaitsForPushesInFlight(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	id := log.queued(t, "q", "a", "0")
	log.queued(t, "keep", "a", "0")
	pushing, deletion := log.begin(t), log.begin(t)
	_, err := push(pushing, parcel{queue: "q", partition: "a", ids: ids("1")})
	require.NoError(t, err)
	deleted := later(func() (map[string]any, error) {
		answer, err := callJSON[map[string]any](deletion, `SELECT queen.delete_queue_v1('q')`)
		if err != nil {
			return nil, err
		}
		return answer, deletion.Commit(context.Background())
	})
	log.waitBlocked(t, deletion)
	require.NoError(t, pushing.Commit(t.Context()))
	got := <-deleted
	require.NoError(t, got.err)
	require.Equal(t, map[string]any{"deleted": true, "queue": "q", "existed": true}, got.value)
	// Nothing of it is left, in the sidecar neither, where no cascade reaches.
	for _, table := range []string{"log_txns", "log_segments", "log_consumers"} {
		require.Zero(t, scan[int64](t, log, `SELECT count(*) FROM queen.`+table+` WHERE partition_id = $1`, id), table)
	}
	require.EqualValues(t, 1, scan[int64](t, log, `SELECT count(*) FROM queen.log_txns`))
}

// TestCleanupStepsOverAPartitionInUse: a pusher holds one dead-looking partition; cleanup takes the others and does not wait.
func TestCleanupStepsOverAPartitionInUse(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	var partitions []uuid.UUID
	for _, name := range []string{"a", "b", "c"} {
		id := log.queued(t, "q", name, "0")
		log.exec(t, `SELECT queen.log_retention_step_v1($1, 'infinity', NULL, 10)`, id)
		log.age(t, id, 48*time.Hour)
		partitions = append(partitions, id)
	}
	pushing := log.begin(t)
	_, err := push(pushing, parcel{queue: "q", partition: "b", ids: ids("1")})
	require.NoError(t, err)
	step, err := callJSON[map[string]any](log, `SELECT queen.log_partition_cleanup_step_v1(now() - interval '1 day', 10)`)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"deleted": 2.0, "done": true}, step)
	require.NoError(t, pushing.Commit(t.Context()))
	step, err = callJSON[map[string]any](log, `SELECT queen.log_partition_cleanup_step_v1(now() - interval '1 day', 10)`)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"deleted": 0.0, "done": true}, step)
	require.Equal(t, []uuid.UUID{partitions[1]}, scan[[]uuid.UUID](t, log, `SELECT array_agg(id) FROM queen.log_partitions`))
}

var _ querier = heldSession{}

// Exec and QueryRow of a session use a context that outlives the test's own waiting, so that a rollback can still be sent.
func (s heldSession) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return s.Tx.Exec(context.WithoutCancel(ctx), sql, args...)
}
