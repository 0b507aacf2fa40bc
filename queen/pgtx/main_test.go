package pgtx_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/queen"
	"queenmq/queen/pgtx"
	"queenmq/test/stack"
)

func TestMain(m *testing.M) { stack.RunShared(m) }

// broker returns a client of the shared broker and the pool of its database.
func broker(t *testing.T) (*queen.Client, *pgxpool.Pool) {
	t.Helper()
	client, err := queen.Connect(stack.Shared().URL, queen.WithRetryBudget(10*time.Second))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client, stack.Shared().DB
}

// alone returns the pool of a database that has the schema and no broker.
func alone(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return testdb.New(t).Pool(t)
}

func newClient(t *testing.T, db pgtx.Database, options ...pgtx.Option) *pgtx.Client {
	t.Helper()
	c, err := pgtx.New(t.Context(), db, options...)
	require.NoError(t, err)
	return c
}

// commit runs f in a transaction that is committed when f returns no error.
func commit(ctx context.Context, db *pgxpool.Pool, f func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, db, f)
}

func items(queue, partition string, payloads ...string) []queen.Item {
	var all []queen.Item
	for _, payload := range payloads {
		all = append(all, queen.Item{Queue: queue, Partition: partition, Payload: []byte(payload)})
	}
	return all
}

func payloads(batch *queen.Batch) []string {
	var all []string
	for _, m := range batch.Messages {
		all = append(all, string(m.Payload))
	}
	return all
}
