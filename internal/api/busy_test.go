package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBusyRoutes(t *testing.T) {
	t.Parallel()
	for path, method := range map[string]string{
		"/api/v1/push": "POST", "/api/v1/pop": "GET", "/api/v1/pop/queue/q": "GET", "/api/v1/pop/queue/q/partition/p": "GET", "/api/v1/ack": "POST",
		"/api/v1/ack/batch": "POST", "/api/v1/transaction": "POST", "/api/v1/lease/l/extend": "POST",
	} {
		require.True(t, Busy(method, path), path)
		for _, other := range []string{"GET", "POST", "HEAD", "DELETE", ""} {
			require.Equal(t, other == method, Busy(other, path), "%s %s", other, path)
		}
	}
	for _, path := range []string{"", "/", "/api/v1/pushed", "/api/v1/push/x", "/api/v1/queues", "/api/v1/leases", "/api/v1/tail", "/health"} {
		require.False(t, Busy("GET", path) || Busy("POST", path), path)
	}
}
