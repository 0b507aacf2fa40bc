// Package concurrent lets many producers and consumers work at once on one and on several brokers and holds what they saw
// against the promises: nothing accepted is lost, nothing acknowledged comes again, lanes keep their order, and no two
// workers of a group hold one lane.
package concurrent

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
	"queenmq/test/workload"
)

// runLimit bounds one run; the work takes seconds, the rest is for a loaded machine.
const runLimit = 3 * time.Minute

func TestConcurrentWorkKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		brokers int
		cfg     workload.Config
	}{
		{"orderly consumers", 1, workload.Config{Partitions: 16, Messages: 600, Consumers: 4, Groups: []string{"billing", "mail"}, Lease: 30}},
		{"misbehaving consumers", 1, workload.Config{Partitions: 6, Messages: 120, Consumers: 4, Groups: []string{"billing", "mail"}, Lease: 1, Misbehave: 0.3}},
		{"three brokers", 3, workload.Config{Partitions: 8, Messages: 300, Consumers: 4, Groups: []string{"billing", "mail"}, Lease: 1, Misbehave: 0.1}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			row.cfg.Queue, row.cfg.Seed = "concurrent.test", 7
			database := testdb.New(t)
			clients := make([]*wire.Client, row.brokers)
			for i := range clients {
				clients[i] = wire.NewClient(stack.Serve(t, database.ConnString()), 128)
				defer clients[i].Close()
			}
			var turn atomic.Int64
			client := func() *wire.Client { return clients[int(turn.Add(1))%len(clients)] }
			ctx, cancel := context.WithTimeout(t.Context(), runLimit)
			defer cancel()
			db := database.Pool(t)
			require.NoError(t, client().Configure(ctx, row.cfg.Queue, map[string]any{"retryLimit": 2}))
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
