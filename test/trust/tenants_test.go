package trust

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
)

// Two tenants use the same names for everything. Neither sees, moves, takes or deletes anything of the other, and an id of the
// other's is answered exactly as one that never existed.
func TestTenantsDoNotMeet(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_TENANCY_HEADER": "true"})
	owner, stranger := as(t, s.URL, tenantHeader(uuid.New())), as(t, s.URL, tenantHeader(uuid.New()))
	nobody := as(t, s.URL, nil) // the default tenant is a tenant like others

	owner.configure("orders", `{"leaseTime":120,"retryLimit":0}`)
	for _, id := range []string{"a", "b", "c"} {
		owner.mustPush("orders", id, `"of the owner"`)
	}
	for _, other := range []*caller{stranger, nobody} {
		require.Empty(t, other.pop("orders", ""))
		require.Equal(t, 204, other.call("GET", "/api/v1/pop?namespace=orders", "").status)
		// The same transaction ids are no duplicates in another tenant.
		other.mustPush("orders", "a", `"of another"`)
	}
	held := owner.pop("orders", "batch=1&consumerGroup=g")
	require.Len(t, held, 1)
	require.Equal(t, `"of the owner"`, string(held[0].Data))
	own := held[0]

	// Every route that takes an id: once with the owner's, once with one that nobody has.
	unknown := own
	unknown.PartitionID, unknown.LeaseID = uuid.NewString(), uuid.NewString()
	// What cannot exist but is said as often, such as ids made for the answer, is made the same.
	made := regexp.MustCompile(`"transactionId":"[0-9a-f-]{36}"`)
	for name, request := range map[string]func(m message) (method, path, body string){
		"ack": func(m message) (string, string, string) {
			return "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"consumerGroup":"g"}`, m.TransactionID, m.PartitionID, m.LeaseID)
		},
		"nack": func(m message) (string, string, string) {
			return "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"status":"failed","consumerGroup":"g"}`, m.TransactionID, m.PartitionID)
		},
		"dead letter": func(m message) (string, string, string) {
			return "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"status":"dlq","leaseId":%q,"consumerGroup":"g"}`, m.TransactionID, m.PartitionID, m.LeaseID)
		},
		"ack batch": func(m message) (string, string, string) {
			return "POST", "/api/v1/ack/batch", fmt.Sprintf(`{"consumerGroup":"g","acknowledgments":[{"transactionId":%q,"partitionId":%q,"leaseId":%q}]}`, m.TransactionID, m.PartitionID, m.LeaseID)
		},
		"transaction": func(m message) (string, string, string) {
			return "POST", "/api/v1/transaction", fmt.Sprintf(
				`{"operations":[{"type":"push","items":[{"queue":"stolen","payload":1}]},{"type":"ack","transactionId":%q,"partitionId":%q,"consumerGroup":"g"}],"requiredLeases":[%q]}`,
				m.TransactionID, m.PartitionID, m.LeaseID)
		},
		"extend": func(m message) (string, string, string) {
			return "POST", "/api/v1/lease/" + m.LeaseID + "/extend", `{"seconds":600}`
		},
	} {
		for who, other := range map[string]*caller{"a stranger": stranger, "the default tenant": nobody} {
			method, path, body := request(own)
			foreign := other.call(method, path, body)
			method, path, body = request(unknown)
			absent := other.call(method, path, body)
			same := func(a answer, m message) string {
				text := strings.NewReplacer(m.PartitionID, "PARTITION", m.LeaseID, "LEASE").Replace(a.body)
				return fmt.Sprint(a.status, made.ReplaceAllString(text, `"transactionId":"MADE"`))
			}
			require.Equal(t, same(absent, unknown), same(foreign, own), "%s by %s", name, who)
			require.Less(t, foreign.status, 500)
			require.NotContains(t, foreign.body, `"success":true`)
			require.NotContains(t, foreign.body, "of the owner")
		}
	}
	require.Empty(t, stranger.pop("stolen", ""), "a refused transaction pushed nothing")

	// Deleting a queue of the same name deletes one's own.
	require.Equal(t, 200, stranger.call("DELETE", "/api/v1/resources/queues/orders", "").status)
	stranger.configure("orders", `{"leaseTime":1,"maxSize":1}`)

	acked := owner.call("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"consumerGroup":"g"}`, own.TransactionID, own.PartitionID, own.LeaseID))
	require.Contains(t, acked.body, `"success":true`, "nothing of the above touched the lease")
	rest := owner.pop("orders", "batch=10&consumerGroup=g")
	require.Len(t, rest, 2)
	require.Equal(t, []string{"b", "c"}, []string{rest[0].TransactionID, rest[1].TransactionID})
}

// A push of one tenant wakes no waiting pop of another, on a queue or on a namespace.
func TestPushesWakeTheirTenantOnly(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_TENANCY_HEADER": "true"})
	one, other := as(t, s.URL, tenantHeader(uuid.New())), as(t, s.URL, tenantHeader(uuid.New()))
	ended := make(chan answer, 1)
	go func() { ended <- other.call("GET", "/api/v1/pop/queue/orders?wait=true&timeout=1500", "") }()
	require.Eventually(t, func() bool {
		one.mustPush("orders", "", `"secret of one"`)
		return len(ended) == 1
	}, 20e9, 50e6)
	a := <-ended
	require.Equal(t, 204, a.status, a.body)
}
