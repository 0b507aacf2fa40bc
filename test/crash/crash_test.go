package crash

import (
	"context"
	"os"
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

func TestMain(m *testing.M) {
	code := m.Run()
	stack.RemoveBinary()
	os.Exit(code)
}

// runLimit bounds one whole run; the work takes seconds, the rest is for a loaded machine.
const runLimit = 3 * time.Minute

func TestKilledBrokerLosesNothing(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	broker := stack.StartProcess(t, database.ConnString())
	run(t, database.Pool(t), broker.URL, func(context.Context) {
		broker.Kill()
		broker.Start(t)
	})
}

func TestCrashedDatabaseLosesNothing(t *testing.T) {
	t.Parallel()
	server := testdb.StartServer(t, testdb.ServerOptions{})
	database := testdb.OnServer(server, "postgres")
	broker := stack.StartProcess(t, database.ConnString())
	run(t, database.Pool(t), broker.URL, func(context.Context) {
		server.Stop(t, "immediate")
		server.Start(t)
	})
}

func TestBothCrashTogetherLosesNothing(t *testing.T) {
	t.Parallel()
	server := testdb.StartServer(t, testdb.ServerOptions{})
	database := testdb.OnServer(server, "postgres")
	broker := stack.StartProcess(t, database.ConnString())
	run(t, database.Pool(t), broker.URL, func(context.Context) {
		server.Stop(t, "immediate")
		broker.Kill()
		server.Start(t)
		broker.Start(t)
	})
}

// crashes is how often each run is interrupted.
const crashes = 4

// run drives the workload while crash is called again and again, then holds the record against the promises.
func run(t *testing.T, db *pgxpool.Pool, url string, crash func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	client := wire.NewClient(url, 128)
	defer client.Close()
	cfg := workload.Config{
		Queue: "crash.test", Partitions: 8, Messages: 800, Consumers: 3, Groups: []string{"billing", "mail"}, Lease: 2, Misbehave: 0.03, Seed: 11,
	}
	var left atomic.Int64
	left.Store(crashes)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for ; left.Load() > 0 && ctx.Err() == nil; left.Add(-1) {
			// Crashes fall into the work.
			workload.AwaitStored(ctx, db, int64(cfg.Partitions*cfg.Messages)*(crashes-left.Load()+1)/(crashes+1))
			crash(ctx)
		}
	}()
	history, err := workload.Run(ctx, cfg, func() *wire.Client { return client }, func(ctx context.Context) (bool, error) {
		done, err := workload.AtEnd(ctx, db, cfg)
		return done && left.Load() <= 0, err
	})
	<-finished
	require.NoError(t, err, "the run did not finish")
	deadLetters, err := workload.DeadLetters(ctx, db)
	require.NoError(t, err)
	require.Empty(t, history.Violations(deadLetters))
	t.Logf("%d batches delivered, %d calls repeated over %d crashes", history.Deliveries(), history.Failures(), crashes)
}
