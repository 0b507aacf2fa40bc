package faults

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
	"queenmq/test/workload"
)

// Behind PgBouncer in transaction mode a broker does everything it does without, also while the pooler is restarted again and again.
func TestPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t) // so that the schema is applied, past the pooler
	pooler := stack.StartPooler(t, database.ConnString())
	url := stack.Serve(t, pooler.ConnString(), map[string]string{"QUEEN_LISTEN_URL": database.ConnString()})
	client := wire.NewClient(url, 128)
	defer client.Close()
	pool := database.Pool(t)

	t.Run("sessions have the timeouts of the broker", func(t *testing.T) {
		var settings []string
		err := pool.QueryRow(t.Context(), `SELECT s.setconfig FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
			WHERE d.datname = current_database() AND s.setrole <> 0`).Scan(&settings)
		require.NoError(t, err)
		require.Subset(t, settings, []string{"statement_timeout=31000", "lock_timeout=5000", "idle_in_transaction_session_timeout=60000"})
	})

	t.Run("every look at the database is answered", func(t *testing.T) {
		_, err := client.Push(t.Context(), []wire.PushItem{{Queue: "looked.at", Partition: "p", Payload: json.RawMessage(`1`)}})
		require.NoError(t, err)
		_, err = client.Pop(t.Context(), wire.PopRequest{Queue: "looked.at", AnyPartition: true, Group: "g", Mode: "all"})
		require.NoError(t, err)
		var document struct {
			Paths map[string]map[string]any
		}
		_, err = client.Do(t.Context(), http.MethodGet, "/openapi.json", nil, &document)
		require.NoError(t, err)
		looks := 0
		for round := range 2 { // the second time, descriptions of the statements are cached
			for path, methods := range document.Paths {
				if methods["get"] == nil || strings.Contains(path, "/pop") {
					continue
				}
				path = strings.NewReplacer("{queue}", "looked.at", "{group}", "g", "{partition}", "p").Replace(path)
				if strings.Contains(path, "{") {
					continue
				}
				response, err := http.Get(url + path)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				require.Less(t, response.StatusCode, 500, "%s, round %d", path, round)
				looks++
			}
		}
		require.Greater(t, looks, 30)
	})

	t.Run("promises hold while the pooler is restarted", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cfg := workload.Config{
			Queue: "pooled.test", Partitions: 6, Messages: 400, Consumers: 3, Groups: []string{"billing", "mail"}, Lease: 2, Misbehave: 0.02, Seed: 3,
		}
		restarted := make(chan struct{})
		go func() {
			defer close(restarted)
			for fifths := range int64(3) {
				workload.AwaitStored(ctx, pool, int64(cfg.Partitions*cfg.Messages)*(fifths+1)/5)
				pooler.Stop()
				pooler.Start()
			}
		}()
		history, err := workload.Run(ctx, cfg, func() *wire.Client { return client }, func(ctx context.Context) (bool, error) {
			select {
			case <-restarted:
				return workload.AtEnd(ctx, pool, cfg)
			default:
				return false, nil
			}
		})
		require.NoError(t, err, "the run did not finish")
		deadLetters, err := workload.DeadLetters(ctx, pool)
		require.NoError(t, err)
		require.Empty(t, history.Violations(deadLetters))
	})

	t.Run("transactions", func(t *testing.T) {
		batch, err := client.Pop(t.Context(), wire.PopRequest{Queue: "looked.at", AnyPartition: true, Group: "other", Mode: "all"})
		require.NoError(t, err)
		m := batch.Messages[0]
		answer, err := client.Transaction(t.Context(), []wire.Operation{
			{Type: "ack", TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, ConsumerGroup: "other", Status: "completed"},
			{Type: "push", Items: []wire.PushItem{{Queue: "looked.at", Partition: "q", Payload: json.RawMessage(`2`)}}},
		})
		require.NoError(t, err)
		require.True(t, answer.Success, answer.Error)
	})
}

// A pooler that the settings say nothing of stops the start with a line that says what to do.
func TestUnannouncedPoolerIsRefused(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	pooler := stack.StartPooler(t, database.ConnString())
	broker := stack.NewProcess(t, pooler.ConnString(), stack.ProcessOptions{})
	broker.Launch(t)
	select {
	case <-broker.Exited():
		require.Contains(t, broker.Log(), "QUEEN_LISTEN_URL")
	case <-time.After(time.Minute):
		t.Fatal("the broker waits for something that will not come true")
	}
}
