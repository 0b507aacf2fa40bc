package queen_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/queen"
	"queenmq/test/stack"
)

func TestMain(m *testing.M) { stack.RunShared(m) }

// connect returns a client of the shared broker that gives up early, so that a test fails rather than hangs.
func connect(t testing.TB, options ...queen.Option) *queen.Client {
	t.Helper()
	client, err := queen.Connect(stack.Shared().URL, append([]queen.Option{queen.WithRetryBudget(10 * time.Second)}, options...)...)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}
