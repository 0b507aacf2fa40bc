package trust

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
)

func TestTokensOfAWholeBroker(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"JWT_ENABLED": "true", "JWT_SECRET": secret, "QUEEN_REQUIRE_AUTH": "1"})
	nobody := as(t, s.URL, nil)
	for _, path := range []string{"/health", "/metrics", "/metrics/prometheus", "/livez", "/readyz"} {
		require.Equal(t, 200, nobody.call("GET", path, "").status, path)
	}
	const body = `{"producerSub":"root","items":[{"queue":"orders","payload":1,"producerSub":"root"}]}`
	for name, row := range map[string]struct {
		header map[string]string
		push   int
		pop    int
		remove int
	}{
		"nobody":     {nil, 401, 401, 401},
		"expired":    {map[string]string{"Authorization": token(t, jwt.MapClaims{"role": "admin", "exp": time.Now().Add(-time.Hour).Unix()})}, 401, 401, 401},
		"roleless":   {bearer(t, ""), 403, 403, 403},
		"read-only":  {bearer(t, "read-only"), 403, 403, 403},
		"write-only": {bearer(t, "write-only"), 201, 403, 403},
		"read-write": {bearer(t, "read-write"), 201, 204, 403},
		"admin":      {bearer(t, "admin"), 201, 204, 200},
	} {
		c := as(t, s.URL, row.header)
		require.Equal(t, row.push, c.call("POST", "/api/v1/push", body).status, name)
		require.Equal(t, row.pop, c.call("GET", "/api/v1/pop/queue/empty", "").status, name)
		require.Equal(t, row.remove, c.call("DELETE", "/api/v1/resources/queues/nothing", "").status, name)
	}
	unsigned, err := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{"role": "admin"}).SignedString(jwt.UnsafeAllowNoneSignatureType)
	require.NoError(t, err)
	refused := as(t, s.URL, map[string]string{"Authorization": "Bearer " + unsigned}).call("DELETE", "/api/v1/resources/queues/orders", "")
	require.Equal(t, 401, refused.status)
	require.JSONEq(t, `{"error":"Unsupported token algorithm","code":"invalid_token"}`, refused.body)

	writer := as(t, s.URL, bearer(t, "read-write"))
	subjects := map[string]bool{}
	for _, m := range writer.pop("orders", "batch=100") {
		subjects[*m.ProducerSub] = true
	}
	require.Equal(t, map[string]bool{"sub of write-only": true, "sub of read-write": true, "sub of admin": true}, subjects)

	done := writer.call("POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"moved","payload":1,"producerSub":"root"}]}]}`)
	require.Contains(t, done.body, `"success":true`)
	moved := writer.pop("moved", "")
	require.Len(t, moved, 1)
	require.Equal(t, "sub of read-write", *moved[0].ProducerSub)

	// What a streaming query pushes carries the subject of the token that committed the cycle, whatever its body says.
	var query struct {
		ID string `json:"query_id"`
	}
	registered := writer.call("POST", "/streams/v1/queries", `{"name":"s","source_queue":"source","sink_queue":"sink","config_hash":"h","producerSub":"root"}`)
	require.NoError(t, json.Unmarshal([]byte(registered.body), &query), registered.body)
	writer.mustPush("source", "in", "1")
	in := writer.pop("source", "consumerGroup=streams")[0]
	cycled := writer.call("POST", "/streams/v1/cycle", fmt.Sprintf(`{"query_id":%q,"partition_id":%q,"consumer_group":"streams","producerSub":"root","producer_sub":"root",
		"push_items":[{"queue":"sink","payload":1,"producerSub":"root","producer_sub":"root"}],"ack":{"transactionId":"in","leaseId":%q,"status":"completed"}}`, query.ID, in.PartitionID, in.LeaseID))
	require.Contains(t, cycled.body, `"success": true`)
	sunk := writer.pop("sink", "")
	require.Len(t, sunk, 1)
	require.Equal(t, "sub of read-write", *sunk[0].ProducerSub)
}
