package management

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The span that pushed a message follows it into its dead letter and back, whichever way it comes back.
func TestTraceparentFollowsADeadLetterAndItsReplay(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	p.must(0, "POST", "/api/v1/push", `{"items":[{"queue":"q","transactionId":"m","payload":1,"traceparent":"`+traceparent+`"},{"queue":"q","partition":"plain","transactionId":"m","payload":2}]}`)
	// die files what a partition has next and returns where it lies.
	die := func(partition string) (partitionID, transactionID string) {
		popped := p.must(0, "GET", "/api/v1/pop/queue/q/partition/"+partition+"?consumerGroup=g&batch=1", "")
		m := popped["messages"].([]any)[0].(map[string]any)
		if partition == "plain" {
			require.NotContains(t, m, "traceparent")
		} else {
			require.Equal(t, traceparent, m["traceparent"])
		}
		status, _ := p.do(0, "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"consumerGroup":"g","status":"dlq","error":"no"}`,
			m["transactionId"], popped["partitionId"], popped["leaseId"]))
		require.Equal(t, 200, status)
		return popped["partitionId"].(string), m["transactionId"].(string)
	}
	letter := func(partition string) map[string]any {
		letters := p.must(1, "GET", "/api/v1/dlq?queue=q&partition="+partition, "")["messages"].([]any)
		require.Len(t, letters, 1)
		return letters[0].(map[string]any)
	}
	die("plain")
	require.NotContains(t, letter("plain"), "traceparent")
	p.must(1, "POST", fmt.Sprintf("/api/v1/dlq/%s/replay", letter("plain")["id"]), "")
	die("plain")

	die("Default")
	require.Equal(t, traceparent, letter("Default")["traceparent"])
	p.must(1, "POST", fmt.Sprintf("/api/v1/dlq/%s/replay", letter("Default")["id"]), "")
	partitionID, transactionID := die("Default") // which demands the traceparent of what came back
	p.must(1, "POST", fmt.Sprintf("/api/v1/messages/%s/%s/retry?consumerGroup=g", partitionID, transactionID), "")
	die("Default")
	task := p.must(1, "POST", "/api/v1/dlq/tasks", `{"kind":"redrive","filter":{"queue":"q"}}`)
	p.within(15*time.Second, "the task does not end", func() bool {
		return p.must(0, "GET", fmt.Sprintf("/api/v1/dlq/tasks/%s", task["id"]), "")["state"] == "done"
	})
	die("Default")
	die("plain")
}
