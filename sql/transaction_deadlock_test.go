package sql_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

// Many sessions push, pop, ack, renew and run transactions and streams cycles over the same few partitions, groups and bounded queues, naming them in
// random order. The one global lock order promises that nobody ever meets a deadlock.
func TestNoDeadlockUnderRandomOrder(t *testing.T) {
	t.Parallel()
	log := ackLog{testdb.New(t, testdb.TimeZone("Asia/Kolkata"), testdb.Setting("deadlock_timeout", "50ms")).Pool(t)}
	_, err := log.Exec(t.Context(), `INSERT INTO queen.queues (name, max_queue_size) VALUES ('bounded-a', 100000), ('bounded-b', 100000)`)
	require.NoError(t, err)
	queues := []string{"open", "bounded-a", "bounded-b"}
	names := []string{"p0", "p1", "p2", "p3"}
	groups := []string{"g0", "g1", "g2"}
	var partitions []uuid.UUID
	for _, queue := range queues {
		for _, name := range names {
			got, err := transact(log, wireTransaction{Pushes: []wirePush{pushOf(queue, name, "first-"+queue+name)}})
			require.NoError(t, err)
			partitions = append(partitions, uuid.MustParse(got.Pushes[0].PartitionID))
		}
	}

	var query uuid.UUID
	require.NoError(t, log.QueryRow(t.Context(), `INSERT INTO queen_streams.queries (name, source_queue, config_hash) VALUES ('s', 'open', 'h') RETURNING id`).Scan(&query))

	// Three seconds, and longer where a slow machine has not done everything once by then.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	acts := []string{"transaction", "push", "pop", "ack", "renewal", "cycle"}
	var mu sync.Mutex
	done := map[string]int{}
	var deadlocks []string
	enough := func() bool {
		return time.Since(began) > 3*time.Second && !slices.ContainsFunc(acts, func(act string) bool { return done[act] == 0 })
	}
	record := func(act string, err error) {
		mu.Lock()
		defer mu.Unlock()
		pgErr, fromServer := errors.AsType[*pgconn.PgError](err)
		switch {
		case err == nil:
			done[act]++
		case fromServer && pgErr.Code == "40P01":
			deadlocks = append(deadlocks, act+": "+pgErr.Detail)
		case fromServer && pgErr.Code == "QU004": // an ack that a rule refused has taken its locks all the same
			done[act+" refused"]++
		case ctx.Err() == nil:
			t.Errorf("%s: %v", act, err)
		}
		if enough() {
			cancel()
		}
	}

	const sessions = 10
	var wg sync.WaitGroup
	for n := range sessions {
		conn := log.session(t)
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(n)))
			pick := func(list []string) string { return list[r.IntN(len(list))] }
			worker := ""
			for i := 0; ctx.Err() == nil; i++ {
				// Some partitions are new, so that provisioning takes part too.
				partition := func() string {
					if r.IntN(8) == 0 {
						return fmt.Sprintf("new-%d", r.IntN(200))
					}
					return pick(names)
				}
				id := fmt.Sprintf("%d-%d", n, i)
				group := pick(groups)
				switch act := r.IntN(7); act {
				case 0, 1:
					var request wireTransaction
					for j := range r.IntN(4) {
						request.Pushes = append(request.Pushes, pushOf(pick(queues), partition(), fmt.Sprintf("%s-%d", id, j)))
					}
					for _, k := range r.Perm(len(partitions) * len(groups))[:1+r.IntN(5)] {
						request.Acks = append(request.Acks, wireAck{PartitionID: partitions[k/len(groups)].String(), Group: groups[k%len(groups)], OK: new(act == 0 && r.IntN(2) == 0)})
					}
					_, err := transact(timed{ctx, conn}, request)
					record("transaction", err)
				case 2:
					_, err := conn.Exec(ctx, `SELECT queen.log_push_multi_v1($1, $2, ARRAY[1,1,1], $3, ARRAY[-1,-1,-1], ARRAY['x','x','x']::bytea[])`,
						[]string{pick(queues), pick(queues), pick(queues)}, []string{partition(), partition(), partition()},
						[][]byte{hashOf(id + "a"), hashOf(id + "b"), hashOf(id + "c")})
					record("push", err)
				case 3:
					worker = id
					_, err := conn.Exec(ctx, `SELECT * FROM queen.log_pop_wildcard_bin_v1($1, $2, 100, 60, $3, $4, 4)`, pick(queues), group, worker, r.IntN(3) == 0)
					record("pop", err)
				case 4:
					k := r.Perm(len(partitions))[:4]
					_, err := conn.Exec(ctx, `SELECT queen.log_ack_multi_v1($1, $2, ARRAY[0,0,0,0], ARRAY['','','',''], ARRAY[1,1,1,1])`,
						[]string{partitions[k[0]].String(), partitions[k[1]].String(), partitions[k[2]].String(), partitions[k[3]].String()},
						[]string{pick(groups), pick(groups), pick(groups), pick(groups)})
					record("ack", err)
				case 6: // without an ack it commits, with one it loses for want of a lease, after it took all its locks
					request := cycleRequest{Query: query.String(), Source: partitions[r.IntN(3)].String(), Group: group, Worker: worker}
					for j := range 1 + r.IntN(3) {
						request.StateOps = append(request.StateOps, stateOp{"upsert", new(pick(names)), nil})
						request.Sinks = append(request.Sinks, sinkOf(pick(queues), partition(), fmt.Sprintf("%s-%d", id, j)))
					}
					if r.IntN(2) == 0 {
						request.Ack = &cycleAck{}
					}
					_, err := cycles(timed{ctx, conn}, request)
					record("cycle", err)
				case 5:
					_, err := conn.Exec(ctx, `SELECT queen.log_renew_lease_v1($1, 60)`, worker)
					record("renewal", err)
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, deadlocks)
	for _, act := range acts {
		require.NotZero(t, done[act], "%v", done)
	}
	t.Logf("%v", done)
}

// timed runs statements under a context of its own, for helpers that take none.
type timed struct {
	ctx context.Context
	*session
}

func (q timed) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	return q.session.QueryRow(q.ctx, sql, args...)
}
