package trust

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
)

// Consumers that die with one message in hand: it is found among the messages that it was delivered with, filed with its reason, and
// every other message is delivered and acknowledged. The consumers are killed by not hearing from them again: their lease runs out.
func TestMessageThatKillsItsConsumersIsFiled(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{"HotList": nil, "Search": {"QUEEN_HOTLIST": "0"}} {
		s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA}, settings)
		for kind, path := range map[string]string{
			"Queue":     "/api/v1/pop/queue/%[1]s",
			"Partition": "/api/v1/pop/queue/%[1]s/partition/Default",
			"Discovery": "/api/v1/pop?namespace=%[1]s",
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				c := as(t, s.URL, nil)
				queue := "jobs" + kind
				a := c.call("POST", "/api/v1/configure", fmt.Sprintf(`{"queue":%[1]q,"namespace":%[1]q,"options":{"maxDeliveries":2,"leaseTime":1,"encryptionEnabled":true}}`, queue))
				require.Equal(t, 200, a.status, a.body)
				require.Contains(t, a.body, `"notApplied": []`)
				for i := range 5 {
					c.mustPush(queue, fmt.Sprintf("m%d", i), fmt.Sprintf(`"%s %d"`, clear, i))
				}
				const killer = "m2"
				deliveries, done := map[string]int{}, map[string]bool{}
				for !done["m4"] {
					batch := c.popAt(fmt.Sprintf(path, queue), "batch=10&wait=true&timeout=20000")
					require.NotEmpty(t, batch)
					first := len(deliveries) == 0
					if !first {
						require.Len(t, batch, 1)
					}
					for _, m := range batch {
						deliveries[m.TransactionID]++
					}
					if m := batch[0]; !first && m.TransactionID != killer {
						a := c.call("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"completed"}`, m.TransactionID, m.PartitionID, m.LeaseID))
						require.Contains(t, a.body, `"success":true`)
						done[m.TransactionID] = true
					}
				}
				require.Equal(t, map[string]int{"m0": 2, "m1": 2, killer: 3, "m3": 2, "m4": 2}, deliveries, "once together, then alone")
				letters := c.call("GET", "/api/v1/dlq?queue="+queue, "")
				require.Contains(t, letters.body, `"transactionId":"m2"`)
				require.Contains(t, letters.body, `"errorMessage":"delivered 2 times without an acknowledgment, the most that maxDeliveries of the queue allows"`)
				require.Contains(t, letters.body, `"total":1`)
				c.mustPush(queue, "m5", `5`)
				c.mustPush(queue, "m6", `6`)
				require.Len(t, c.popAt(fmt.Sprintf(path, queue), "batch=10"), 2, "batches have grown back")
				requireNowhere(t, s, clear)
			})
		}
	}
}
