package faults

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

var transactionTime = flag.Duration("faults.transactions", 8*time.Second, "how long transactions in random order run")

// Many clients run transactions over many partitions of several queues, each in an order of its own, through two brokers: pushes, and
// acknowledgments of what they popped together with pushes. Nobody ever sees a deadlock, a serialization failure or any other error.
func TestTransactionsInRandomOrderNeverFail(t *testing.T) {
	t.Parallel()
	database := testdb.New(t, testdb.Setting("deadlock_timeout", "50ms"))
	clients := make([]*wire.Client, 2)
	for i := range clients {
		clients[i] = wire.NewClient(stack.Serve(t, database.ConnString()), 64)
		defer clients[i].Close()
	}
	require.NoError(t, clients[0].Configure(t.Context(), "random.1", map[string]any{"maxSize": 10_000_000}))
	const workers, partitions = 16, 20
	ctx, cancel := context.WithTimeout(t.Context(), *transactionTime)
	defer cancel()
	var committed, rolledBack atomic.Int64
	var running sync.WaitGroup
	for i := range workers {
		running.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(i)))
			for ctx.Err() == nil {
				client := clients[random.IntN(2)]
				var operations []wire.Operation
				if random.IntN(2) == 0 {
					batch, err := client.Pop(t.Context(), wire.PopRequest{
						Queue: fmt.Sprint("random.", random.IntN(3)), AnyPartition: true, Group: fmt.Sprint("g", random.IntN(2)), Batch: 20, Partitions: 4, LeaseSeconds: 60, Mode: "all",
					})
					if !assert.NoError(t, err) {
						return
					}
					if batch != nil {
						for _, m := range batch.Messages {
							operations = append(operations, wire.Operation{
								Type: "ack", TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, ConsumerGroup: m.ConsumerGroup, Status: "completed",
							})
						}
					}
				}
				for range 2 + random.IntN(5) {
					operations = append(operations, wire.Operation{Type: "push", Items: []wire.PushItem{{
						Queue: fmt.Sprint("random.", random.IntN(3)), Partition: fmt.Sprint("p", random.IntN(partitions)), Payload: json.RawMessage(`1`),
					}}})
				}
				random.Shuffle(len(operations), func(a, b int) { operations[a], operations[b] = operations[b], operations[a] })
				answer, err := client.Transaction(t.Context(), operations)
				switch {
				case !assert.NoError(t, err):
					return
				case answer.Success:
					committed.Add(1)
				default:
					// An ack out of order, because they are shuffled, is a rule; a conflict is not.
					rolledBack.Add(1)
					assert.NotContains(t, answer.Error, "deadlock")
					assert.NotContains(t, answer.Error, "conflict")
				}
			}
		})
	}
	running.Wait()
	t.Logf("%d transactions committed, %d rolled back by a rule", committed.Load(), rolledBack.Load())
	require.Greater(t, committed.Load(), int64(20))
}

// A client that leaves takes its statement with it.
func TestClientThatLeavesCancelsItsStatement(t *testing.T) {
	t.Parallel()
	s := stack.Start(t)
	_, err := s.Client.Push(t.Context(), []wire.PushItem{{Queue: "left", Payload: json.RawMessage(`1`)}})
	require.NoError(t, err)
	unlock := lockTables(t, s.DB)
	defer unlock()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.Client.Do(ctx, http.MethodGet, "/api/v1/messages?queue=left", nil, nil)
		left <- err
	}()
	require.Eventually(t, func() bool { return len(busy(t, s.DB)) > 0 }, 20*time.Second, 5*time.Millisecond)
	leave()
	require.ErrorIs(t, <-left, context.Canceled)
	require.Eventually(t, func() bool {
		for _, query := range busy(t, s.DB) {
			if strings.Contains(query, "messages") {
				return false
			}
		}
		return true
	}, 4*time.Second, 10*time.Millisecond, "the statement ends with its client, not with its timeout of 30 s")
}

// Whatever is asked while other sessions keep the tables locked is answered within the time limits, and nothing of it runs on.
func TestEveryStatementHasATimeLimit(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	s := stack.Start(t, map[string]string{"QUEEN_STMT_TIMEOUT_MS": fmt.Sprint(limit.Milliseconds()), "FILE_BUFFER_DIR": "off"})
	_, err := s.Client.Push(t.Context(), []wire.PushItem{{Queue: "locked", Partition: "p", Payload: json.RawMessage(`1`)}})
	require.NoError(t, err)
	batch, err := s.Client.Pop(t.Context(), wire.PopRequest{Queue: "locked", Partition: "p", Group: "g", Mode: "all"})
	require.NoError(t, err)
	m := batch.Messages[0]
	var document struct {
		Paths map[string]map[string]any
	}
	_, err = s.Client.Do(t.Context(), http.MethodGet, "/openapi.json", nil, &document)
	require.NoError(t, err)

	unlock := lockTables(t, s.DB)
	ask := func(method, path, body string) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, method, s.URL+path, strings.NewReader(body))
		if !assert.NoError(t, err) {
			return
		}
		response, err := http.DefaultClient.Do(request)
		if !assert.NoError(t, err, "%s %s", method, path) {
			return
		}
		_ = response.Body.Close()
		if response.StatusCode == http.StatusServiceUnavailable {
			assert.NotEmpty(t, response.Header.Get("Retry-After"), path)
		}
		// Three attempts of the limit, pauses, and a machine that is five times slower than usual.
		assert.Less(t, time.Since(began), 12*limit+8*time.Second, "%s %s", method, path)
	}
	var asking sync.WaitGroup
	for _, call := range [][3]string{
		{"POST", "/api/v1/push", `{"items":[{"queue":"locked","partition":"p","payload":1}]}`},
		{"POST", "/api/v1/ack/batch", fmt.Sprintf(`{"consumerGroup":"g","acknowledgments":[{"transactionId":%q,"partitionId":%q,"leaseId":%q}]}`, m.TransactionID, m.PartitionID, m.LeaseID)},
		{"POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"locked","payload":1}]}]}`},
		{"POST", "/api/v1/lease/" + m.LeaseID + "/extend", `{"seconds":60}`},
		{"POST", "/api/v1/configure", `{"queue":"locked","options":{"leaseTime":30}}`},
		{"GET", "/api/v1/pop/queue/locked?consumerGroup=h", ""},
		{"GET", "/api/v1/pop/queue/locked/partition/p?consumerGroup=h&autoAck=true", ""},
		{"GET", "/api/v1/pop?namespace=n", ""},
		{"DELETE", "/api/v1/resources/queues/locked", ""},
		{"DELETE", "/api/v1/consumer-groups/g", ""},
		{"POST", "/api/v1/consumer-groups/g/queues/locked/seek", `{"toEnd":true}`},
	} {
		asking.Go(func() { ask(call[0], call[1], call[2]) })
	}
	for path, methods := range document.Paths {
		// Events and the like are streams without an end.
		if methods["get"] != nil && !strings.Contains(path, "{") && !strings.Contains(path, "/pop") && !strings.Contains(path, "stream") && !strings.Contains(path, "tail") {
			asking.Go(func() { ask(http.MethodGet, path, "") })
		}
	}
	asking.Wait()
	require.Eventually(t, func() bool { // the background's statements come and go, none stays
		for _, query := range busy(t, s.DB) {
			if !strings.HasPrefix(query, "0") {
				return false
			}
		}
		return true
	}, 10*time.Second, 10*time.Millisecond, "statements that outlived their requests")
	unlock()
}

// lockTables keeps every table of the data path locked until the returned function is called.
func lockTables(t *testing.T, db *pgxpool.Pool) (unlock func()) {
	t.Helper()
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE queen.queues, queen.log_partitions, queen.log_consumers, queen.log_segments, queen.log_dlq IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)
	return sync.OnceFunc(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
}

// busy lists the statements of brokers that run now, each with the seconds that it has.
func busy(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	var queries []string
	err := db.QueryRow(t.Context(), `SELECT COALESCE(array_agg(floor(extract(epoch FROM clock_timestamp() - query_start) / 3) || ' ' || query), '{}') FROM pg_stat_activity
		WHERE datname = current_database() AND application_name LIKE 'queen %' AND state = 'active'`).Scan(&queries)
	require.NoError(t, err)
	return queries
}
