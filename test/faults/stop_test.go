package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
	"queenmq/test/workload"
)

// requireExit tells a broker to stop and fails unless it ends within its grace time, with room for a loaded machine. The log of one that does
// not ends with where it hangs.
func requireExit(t *testing.T, broker *stack.Process, grace time.Duration) {
	t.Helper()
	require.NoError(t, broker.Signal(syscall.SIGTERM))
	select {
	case <-broker.Exited():
	case <-time.After(grace + 5*time.Second):
		require.NoError(t, broker.Signal(syscall.SIGQUIT))
		<-broker.Exited()
		t.Fatalf("the broker did not end within its grace time:\n%s", broker.Log())
	}
}

// A broker that is told to stop while a client does not read its answer gives the messages back and ends within its grace time.
func TestStopGivesBackWhatNobodyReceived(t *testing.T) {
	t.Parallel()
	const grace = 2 * time.Second
	database := testdb.New(t)
	broker := stack.StartProcess(t, database.ConnString(), fmt.Sprintf("QUEEN_SHUTDOWN_TIMEOUT_MS=%d", grace.Milliseconds()))
	client := wire.NewClient(broker.URL, 4)
	defer client.Close()
	// More than the kernel keeps for a client that does not read.
	large := json.RawMessage(`"` + strings.Repeat("x", 24<<20) + `"`)
	verdicts, err := client.Push(t.Context(), []wire.PushItem{{Queue: "stopped", Partition: "p", Payload: large}})
	require.NoError(t, err)
	require.Equal(t, "queued", verdicts[0].Status)

	address, err := url.Parse(broker.URL)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", address.Host)
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "GET /api/v1/pop/queue/stopped?leaseSeconds=3600 HTTP/1.1\r\nHost: %s\r\n\r\n", address.Host)
	require.NoError(t, err)
	pool := database.Pool(t)
	leased := func() (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM queen.log_consumers WHERE worker_id IS NOT NULL AND lease_expires_at > now()`).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return leased() == 1 }, 30*time.Second, 5*time.Millisecond)

	requireExit(t, broker, grace)
	require.Zero(t, leased(), "nobody has to wait for the lease")
	require.NotContains(t, broker.Log(), "panic")
}

// A broker that is told to stop while the database hangs, with requests of every kind under way, still ends within its grace time.
func TestStopWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	const grace = 3 * time.Second
	database := testdb.New(t)
	target, err := url.Parse(database.ConnString())
	require.NoError(t, err)
	proxy := stack.StartProxy(t, target.Host)
	target.Host = proxy.Address()
	broker := stack.StartProcess(t, target.String(), fmt.Sprintf("QUEEN_SHUTDOWN_TIMEOUT_MS=%d", grace.Milliseconds()))
	client := wire.NewClient(broker.URL, 64)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = client.Push(ctx, []wire.PushItem{{Queue: "hung", Partition: "p", Payload: json.RawMessage(`1`)}})
	require.NoError(t, err)
	batch, err := client.Pop(ctx, wire.PopRequest{Queue: "hung", Partition: "p"})
	require.NoError(t, err)
	m := batch.Messages[0]

	proxy.Cut()
	answers := make(chan error)
	for _, call := range []func() error{
		func() error {
			_, err := client.Push(ctx, []wire.PushItem{{Queue: "hung", Partition: "p", Payload: json.RawMessage(`2`)}})
			return err
		},
		func() error {
			_, err := client.Pop(ctx, wire.PopRequest{Queue: "hung", AnyPartition: true, Wait: true, Timeout: 30 * time.Second})
			return err
		},
		func() error { _, err := client.Pop(ctx, wire.PopRequest{Queue: "hung", Partition: "q"}); return err },
		func() error {
			_, err := client.Ack(ctx, "", []wire.AckItem{{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID}})
			return err
		},
		func() error {
			_, err := client.Transaction(ctx, []wire.Operation{{Type: "push", Items: []wire.PushItem{{Queue: "hung", Payload: json.RawMessage(`3`)}}}})
			return err
		},
	} {
		go func() { answers <- call() }()
	}
	time.Sleep(300 * time.Millisecond) // they are under way; nothing tells when
	requireExit(t, broker, grace)
	for range 5 {
		<-answers // each ends, one way or the other
	}
}

// Three brokers are restarted one after the other under load, and one is killed: a client that repeats its requests elsewhere sees no
// failure, and no promise is broken.
func TestRollingRestartUnderLoad(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	var brokers []*stack.Process
	var urls []string
	for i := range 3 {
		broker := stack.StartProcess(t, database.ConnString(), "DB_POOL_SIZE=20", fmt.Sprint("QUEEN_SERVER_ID=broker-", i))
		brokers, urls = append(brokers, broker), append(urls, broker.URL)
	}
	client := wire.NewFailoverClient(urls, 128)
	defer client.Close()
	pool := database.Pool(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cfg := workload.Config{
		Queue: "rolling.test", Partitions: 6, Messages: 500, Consumers: 3, Groups: []string{"billing", "mail"}, Lease: 3, Misbehave: 0.01, Seed: 8,
	}
	rolled := make(chan struct{})
	var stopped []error
	go func() {
		defer close(rolled)
		for i, broker := range brokers {
			workload.AwaitStored(ctx, pool, int64(cfg.Partitions*cfg.Messages*(i+1)/5))
			stopped = append(stopped, broker.Stop())
			broker.Start(t)
		}
		workload.AwaitStored(ctx, pool, int64(cfg.Partitions*cfg.Messages*4/5))
		brokers[0].Kill()
		brokers[0].Start(t)
	}()
	history, err := workload.Run(ctx, cfg, func() *wire.Client { return client }, func(ctx context.Context) (bool, error) {
		select {
		case <-rolled:
			return workload.AtEnd(ctx, pool, cfg)
		default:
			return false, nil
		}
	})
	require.NoError(t, err, "the run did not finish")
	for _, err := range stopped {
		require.NoError(t, err, "a clean stop")
	}
	require.Zero(t, history.Failures(), "requests that failed although they were repeated")
	deadLetters, err := workload.DeadLetters(ctx, pool)
	require.NoError(t, err)
	require.Empty(t, history.Violations(deadLetters))
}
