package sql_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// begin opens a transaction of its own session; it is rolled back when the test ends.
func begin(t *testing.T, l popLog) pgx.Tx {
	t.Helper()
	tx, err := l.Begin(context.Background())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// pid returns the server process of a session.
func pid(t *testing.T, tx pgx.Tx) int { return scalar[int](t, tx, `SELECT pg_backend_pid()`) }

// waitBlocked waits until one session waits for another.
func waitBlocked(t *testing.T, l popLog, waiter, holder int) {
	t.Helper()
	require.Eventually(t, func() bool {
		return scalar[bool](t, l, `SELECT $2::int = ANY (pg_blocking_pids($1::int))`, waiter, holder)
	}, 10*time.Second, 5*time.Millisecond)
}

// everyPop runs a test with each procedure that claims the messages of partition p of queue q.
func everyPop(t *testing.T, f func(t *testing.T, l popLog, pop func(q pgxQuerier, c popCall) []taken)) {
	for name, pop := range map[string]func(t tester, q pgxQuerier, c popCall) []taken{
		"Specific": func(t tester, q pgxQuerier, c popCall) []taken { s, _ := popSpecific(t, q, "q", "p", c); return s },
		"List": func(t tester, q pgxQuerier, c popCall) []taken {
			s, _, _ := popList(t, q, "q", []string{"p"}, c)
			return s
		},
		"Ready": func(t tester, q pgxQuerier, c popCall) []taken {
			s, _ := popReady(t, q, "q", []string{"p"}, c)
			return s
		},
		"Wildcard": func(t tester, q pgxQuerier, c popCall) []taken { s, _ := popWildcard(t, q, "q", c); return s },
		"Discover": func(t tester, q pgxQuerier, c popCall) []taken { s, _ := popDiscover(t, q, "ns", "", c); return s },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newPopLog(t), func(q pgxQuerier, c popCall) []taken { return pop(t, q, c) })
		})
	}
}

// register makes the group known on the queue, so that pops of it create no records.
func register(t tester, l popLog, queue uuid.UUID) {
	t.Helper()
	l.exec(t, `INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, subscription_mode, subscription_timestamp) VALUES ('g', $1, 'all', 'epoch')`, queue)
}

func TestPopRaceUncommittedClaimIsSkipped(t *testing.T) {
	t.Parallel()
	everyPop(t, func(t *testing.T, l popLog, pop func(pgxQuerier, popCall) []taken) {
		id := l.queue(t, "q", popQueue{Namespace: "ns"})
		l.cursor(t, l.partition(t, id, "p", twoRuns()...), "g", -1, "", 0)
		register(t, l, id)
		for _, autoAck := range []bool{false, true} {
			tx := begin(t, l)
			require.EqualValues(t, 8, messages(pop(tx, popCall{worker: "w1", autoAck: autoAck})))
			require.Empty(t, pop(l, popCall{worker: "w2"}), "the row is locked: no wait, no messages")
			_, _, states := popList(t, l, "q", []string{"p"}, popCall{worker: "w2"})
			requireSoon(t, "p", states[0])
			require.NoError(t, tx.Rollback(context.Background()))
			require.EqualValues(t, 8, messages(pop(l, popCall{worker: "w2", lease: -1})), "a rolled-back claim left nothing")
		}
	})
}

func TestPopRaceFirstContactIsMadeOnce(t *testing.T) {
	t.Parallel()
	everyPop(t, func(t *testing.T, l popLog, pop func(pgxQuerier, popCall) []taken) {
		id := l.queue(t, "q", popQueue{Namespace: "ns"})
		l.partition(t, id, "p", twoRuns()...)
		register(t, l, id)
		tx := begin(t, l)
		require.EqualValues(t, 8, messages(pop(tx, popCall{worker: "w1"})))
		require.Empty(t, pop(l, popCall{worker: "w2"}), "somebody is creating the cursor: no wait, no messages")
		_, _, states := popList(t, l, "q", []string{"p"}, popCall{worker: "w2"})
		requireSoon(t, "p", states[0])
		require.NoError(t, tx.Commit(context.Background()))
		require.Empty(t, pop(l, popCall{worker: "w2"}))
	})
}

// A pop whose group somebody else is registering waits for that registration and then finds its cursors.
func TestPopRaceRegistrationElectsOne(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	for i := range 5 {
		l.partition(t, id, fmt.Sprintf("p%d", i), twoRuns()...)
	}
	first, second := begin(t, l), begin(t, l)
	segments, _ := popWildcard(t, first, "q", popCall{worker: "w1", subMode: "new"})
	require.Empty(t, segments)
	done := make(chan int64)
	waiter := pid(t, second)
	go func() {
		segments, _ := popWildcard(t, second, "q", popCall{worker: "w2", subMode: "all"})
		done <- messages(segments)
	}()
	waitBlocked(t, l, waiter, pid(t, first))
	require.NoError(t, first.Commit(context.Background()))
	require.Zero(t, <-done, "the second pop follows the record of the first: new")
	require.NoError(t, second.Commit(context.Background()))
	require.Equal(t, 5, scalar[int](t, l, `SELECT count(*) FROM queen.log_consumers WHERE committed = 7`))
}

// Two discovery pops that register the same group on the same queues must not deadlock: records are written in queue order.
func TestPopRaceDiscoverRegistrationsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	for i := range 20 {
		l.partition(t, l.queue(t, fmt.Sprintf("q%d", i), popQueue{Namespace: "ns", Task: fmt.Sprint(i % 2)}), "p", twoRuns()...)
	}
	for round := range 5 {
		group := fmt.Sprintf("g%d", round)
		var wg sync.WaitGroup
		errs := make(chan error, 6)
		for worker := range 6 {
			wg.Go(func() {
				task := []string{"", "0", "1"}[worker%3]
				_, err := l.Exec(context.Background(), `SELECT meta FROM queen.log_pop_discover_bin_v1('ns', $1, $2, 100, 60, $3, false, 3)`, task, group, fmt.Sprint(worker))
				errs <- err
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		require.Equal(t, 20, scalar[int](t, l, `SELECT count(*) FROM queen.consumer_groups_metadata WHERE consumer_group = $1`, group))
	}
}

// The deadlock this forbids: a pop holds a consumer row and inserts the first cursor of another partition, whose foreign key check
// would wait for a writer of that partition, which in turn waits for the consumer row the pop holds.
func TestPopRaceFirstContactDoesNotWaitForAWriter(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{})
	a := l.partition(t, id, "a", twoRuns()...)
	l.cursor(t, a, "g", -1, "", 0)
	b := l.partition(t, id, "b", twoRuns()...)

	popper, writer := begin(t, l), begin(t, l)
	require.EqualValues(t, 8, messages(popOne(t, popper, "q", "a", popCall{worker: "w1"})))
	_, err := writer.Exec(context.Background(), `SELECT 1 FROM queen.log_partitions WHERE id = $1 FOR NO KEY UPDATE`, b)
	require.NoError(t, err)
	acked := make(chan error)
	waiter := pid(t, writer)
	go func() {
		_, err := writer.Exec(context.Background(), `SELECT 1 FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = 'g' FOR UPDATE`, a)
		acked <- err
	}()
	waitBlocked(t, l, waiter, pid(t, popper))
	segments, _, _ := popList(t, popper, "q", []string{"b"}, popCall{worker: "w1"})
	require.EqualValues(t, 8, messages(segments), "the first cursor of b is made while its writer holds the partition row")
	require.NoError(t, popper.Commit(context.Background()))
	require.NoError(t, <-acked)
}

// A partition may come into being between the moment a pop starts and the moment it claims: what it delivers has an id.
func TestPopRacePartitionCreationHasItsID(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	id := l.queue(t, "q", popQueue{Namespace: "ns"})
	register(t, l, id)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	const partitions = 60
	seen := make(chan popMetaPartition, partitions)
	for worker := range 3 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				var meta popMeta
				call := popCall{worker: fmt.Sprint(worker), lease: 3600}
				name := fmt.Sprintf("p%d", n%partitions)
				switch worker {
				case 0:
					_, meta = popSpecific(t, l, "q", name, call)
				case 1:
					_, meta, _ = popList(t, l, "q", []string{name}, call)
				case 2:
					_, meta = popWildcard(t, l, "q", call)
				}
				for _, p := range meta.Partitions {
					seen <- p
				}
			}
		})
	}
	for i := range partitions {
		// Partition and first message become visible in one commit, as a push makes them.
		l.exec(t, `WITH p AS (INSERT INTO queen.log_partitions (queue_id, name, last_offset) VALUES ($1, $2, 0) RETURNING id)
			INSERT INTO queen.log_segments SELECT p.id, 0, 0, clock_timestamp(), 'x' FROM p`, id, fmt.Sprintf("p%d", i))
	}
	ids := map[string]uuid.UUID{}
	deadline := time.After(20 * time.Second)
	for len(ids) < partitions {
		select {
		case p := <-seen:
			require.NotContains(t, ids, p.Partition, "delivered to two workers")
			ids[p.Partition] = p.PartitionID
		case <-deadline:
			close(stop)
			wg.Wait()
			require.FailNow(t, "not everything was delivered", "%d of %d", len(ids), partitions)
		}
	}
	close(stop)
	wg.Wait()
	for name, got := range ids {
		require.Equal(t, scalar[uuid.UUID](t, l, `SELECT id FROM queen.log_partitions WHERE queue_id = $1 AND name = $2`, id, name), got)
	}
}

// Many workers over few partitions with every kind of pop: no message is delivered twice while leases live, none is missed.
func TestPopRaceTwoWorkersNeverHoldOnePartition(t *testing.T) {
	t.Parallel()
	for _, autoAck := range []bool{false, true} {
		t.Run(fmt.Sprintf("autoAck=%v", autoAck), func(t *testing.T) {
			t.Parallel()
			l := newPopLog(t)
			id := l.queue(t, "q", popQueue{Namespace: "ns"})
			names := []string{}
			for i := range 12 {
				names = append(names, fmt.Sprintf("p%d", i))
				l.partition(t, id, names[i], run{base: 0, count: 30}, run{base: 30, count: 30}, run{base: 60, count: 30})
			}
			var mu sync.Mutex
			delivered := map[string]int{}
			total := 0
			take := func(segments []taken) {
				mu.Lock()
				defer mu.Unlock()
				for _, s := range segments {
					for i := range s.Take {
						delivered[fmt.Sprintf("%s/%d", s.Partition, s.Base+s.Start+i)]++
						total++
					}
				}
			}
			var wg sync.WaitGroup
			deadline := time.Now().Add(30 * time.Second)
			for worker := range 4 {
				wg.Go(func() {
					for n := 0; time.Now().Before(deadline); n++ {
						mu.Lock()
						all := total >= 12*90
						mu.Unlock()
						if all {
							return
						}
						call := popCall{worker: fmt.Sprintf("w%d-%d", worker, n), budget: 17, lease: 3600, autoAck: autoAck}
						var segments []taken
						switch worker {
						case 0:
							segments, _ = popSpecific(t, l, "q", names[n%len(names)], call)
						case 1:
							segments, _, _ = popList(t, l, "q", append(names[n%12:12:12], names[:n%12]...), call)
						case 2:
							segments, _ = popWildcard(t, l, "q", call)
						default:
							segments, _ = popDiscover(t, l, "ns", "", call)
						}
						take(segments)
						if !autoAck {
							l.exec(t, `UPDATE queen.log_consumers SET committed = batch_end, batch_end = NULL, worker_id = NULL, lease_expires_at = NULL WHERE worker_id = $1`, call.worker)
						}
					}
				})
			}
			wg.Wait()
			require.Len(t, delivered, 12*90)
			require.Equal(t, 12*90, total, "each message once")
			require.Equal(t, 12, scalar[int](t, l, `SELECT count(*) FROM queen.log_consumers WHERE committed = 89 AND worker_id IS NULL`))
		})
	}
}

// Messages are stored one by one while a group takes whatever there is. Pops of one partition left a message out for ever: the search for the
// segment that holds the next message came before its commit, the search for those behind it after the commits of both.
func TestPopRaceOffersEveryMessageInOrder(t *testing.T) {
	t.Parallel()
	everyPop(t, func(t *testing.T, l popLog, pop func(pgxQuerier, popCall) []taken) {
		const all = 3000
		id := l.queue(t, "q", popQueue{Namespace: "ns"})
		partition := l.partition(t, id, "p")
		l.cursor(t, partition, "g", -1, "", 0)
		register(t, l, id)
		stored := make(chan error, 1)
		go func() {
			_, err := l.Exec(context.Background(), fmt.Sprintf(`DO $$ BEGIN
				FOR i IN 0 .. %d LOOP
					UPDATE queen.log_partitions SET last_offset = i, last_write_at = clock_timestamp() WHERE id = '%s';
					INSERT INTO queen.log_segments VALUES ('%[2]s', i, i, clock_timestamp(), 'x');
					COMMIT;
				END LOOP;
			END $$`, all-1, partition))
			stored <- err
		}()
		next := int64(0)
		for deadline := time.Now().Add(time.Minute); next < all && time.Now().Before(deadline); {
			for _, s := range pop(l, popCall{autoAck: true}) {
				require.Equal(t, next, s.Base, "the next message")
				next++
			}
		}
		require.NoError(t, <-stored)
		require.EqualValues(t, all, next)
	})
}
