package concurrent

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
	"queenmq/test/workload"
)

// runLimit bounds one run; the work takes seconds, the rest is for a loaded machine.
const runLimit = 3 * time.Minute

var threeBrokers = workload.Config{Partitions: 8, Messages: 300, Consumers: 4, Groups: []string{"billing", "mail"}, Lease: 1, Misbehave: 0.1}

func TestConcurrentWorkKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		brokers int
		cfg     workload.Config
		// settings are those of the brokers; disturb works beside the run until its context ends.
		settings map[string]string
		disturb  func(context.Context, *testing.T, *pgxpool.Pool)
	}{
		{name: "orderly consumers", brokers: 1, cfg: workload.Config{Partitions: 16, Messages: 600, Consumers: 4, Groups: []string{"billing", "mail"}, Lease: 30}},
		{name: "misbehaving consumers", brokers: 1, cfg: workload.Config{Partitions: 6, Messages: 120, Consumers: 4, Groups: []string{"billing", "mail"}, Lease: 1, Misbehave: 0.3}},
		{name: "three brokers", brokers: 3, cfg: threeBrokers},
		{name: "three brokers that tell each other nothing", brokers: 3, cfg: threeBrokers, settings: map[string]string{"QUEEN_SYNC_ENABLED": "0"}},
		{name: "three brokers whose hints are lost, repeated, late and forged", brokers: 3, cfg: threeBrokers, disturb: hostileHints},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.cfg.Queue, row.cfg.Seed = "concurrent.test", 7
			database := testdb.New(t)
			clients := make([]*wire.Client, row.brokers)
			for i := range clients {
				clients[i] = wire.NewClient(stack.Serve(t, database.ConnString(), row.settings), 128)
				defer clients[i].Close()
			}
			var turn atomic.Int64
			client := func() *wire.Client { return clients[int(turn.Add(1))%len(clients)] }
			ctx, cancel := context.WithTimeout(t.Context(), runLimit)
			defer cancel()
			db := database.Pool(t)
			require.NoError(t, client().Configure(ctx, row.cfg.Queue, map[string]any{"retryLimit": 2}))
			if row.disturb != nil {
				disturbed, calm := context.WithCancel(ctx)
				var disturbing sync.WaitGroup
				disturbing.Go(func() { row.disturb(disturbed, t, db) })
				defer disturbing.Wait()
				defer calm()
			}
			history, err := workload.Run(ctx, row.cfg, client, func(ctx context.Context) (bool, error) {
				return workload.AtEnd(ctx, db, row.cfg)
			})
			require.NoError(t, err, "the run did not finish")
			require.Zero(t, history.Failures(), "calls failed although nothing was disturbed")
			deadLetters, err := workload.DeadLetters(ctx, db)
			require.NoError(t, err)
			require.Empty(t, history.Violations(deadLetters))
		})
	}
}
