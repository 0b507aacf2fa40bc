package management

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))
}

// A pair is two brokers on one database.
type pair struct {
	t    *testing.T
	urls [2]string
	db   *pgxpool.Pool
	http *http.Client
}

func newPair(t *testing.T, settings ...map[string]string) *pair {
	t.Helper()
	database := testdb.New(t)
	p := &pair{t: t, db: database.Pool(t), http: &http.Client{Timeout: 20 * time.Second}}
	for i := range p.urls {
		p.urls[i] = stack.Serve(t, database.ConnString(), settings...)
	}
	t.Cleanup(p.http.CloseIdleConnections)
	return p
}

// do sends a request to one broker and returns status and decoded body.
func (p *pair) do(broker int, method, path, body string) (int, map[string]any) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), method, p.urls[broker]+path, strings.NewReader(body))
	require.NoError(p.t, err)
	answer, err := p.http.Do(request)
	require.NoError(p.t, err)
	defer func() { require.NoError(p.t, answer.Body.Close()) }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(p.t, err)
	var value map[string]any
	_ = json.Unmarshal(text, &value) // lists and empty answers are not looked into
	return answer.StatusCode, value
}

func (p *pair) must(broker int, method, path, body string) map[string]any {
	p.t.Helper()
	status, value := p.do(broker, method, path, body)
	require.Less(p.t, status, 300, "%s %s: %v", method, path, value)
	return value
}

// within polls until the condition holds.
func (p *pair) within(limit time.Duration, what string, holds func() bool) {
	p.t.Helper()
	require.Eventually(p.t, holds, limit, 20*time.Millisecond, what)
}

func TestEveryBrokerHonoursTheMaintenanceSwitches(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	const push = `{"items":[{"queue":"q","payload":1}]}`
	p.must(1, "POST", "/api/v1/push", push)
	// A second is promised; the limit leaves room for a loaded machine.
	const limit = 3 * time.Second
	p.must(0, "POST", "/api/v1/system/maintenance", `{"enabled":true}`)
	buffered := func(broker int) int {
		count, _ := p.must(broker, "GET", "/api/v1/system/maintenance", "")["bufferedMessages"].(float64)
		return int(count)
	}
	p.must(0, "POST", "/api/v1/push", push)
	require.Equal(t, 1, buffered(0))
	p.within(limit, "the other broker goes on storing pushes", func() bool {
		p.must(1, "POST", "/api/v1/push", push)
		return buffered(1) > 0
	})
	status, refusal := p.do(0, "POST", "/api/v1/messages/00000000-0000-0000-0000-000000000000/t/retry", "")
	require.Equal(t, []any{503, "push_maintenance"}, []any{status, refusal["code"]})
	p.must(1, "POST", "/api/v1/system/maintenance", `{"enabled":false}`)
	p.within(limit, "what was kept is not stored", func() bool { return buffered(0)+buffered(1) == 0 })

	// A long poll that is parked when pops are switched off comes back, and one while they are off comes back at once.
	p.must(0, "POST", "/api/v1/system/maintenance/pop", `{"enabled":true}`)
	groups := 0
	p.within(limit, "the other broker goes on delivering", func() bool {
		groups++ // each has something to read
		status, _ := p.do(1, "GET", fmt.Sprint("/api/v1/pop/queue/q?consumerGroup=g", groups), "")
		return status == 204
	})
	began := time.Now()
	status, _ = p.do(1, "GET", "/api/v1/pop/queue/q?wait=true&timeout=15000", "")
	require.Equal(t, 204, status)
	require.Less(t, time.Since(began), 10*time.Second)
	p.must(0, "POST", "/api/v1/system/maintenance/pop", `{"enabled":false}`)
	p.within(limit, "the other broker does not deliver again", func() bool {
		status, _ := p.do(1, "GET", "/api/v1/pop/queue/q?consumerGroup=later", "")
		return status == 200
	})
}

func TestSeekBackReachesConsumersOfEveryBroker(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.must(0, "POST", "/api/v1/push", `{"items":[{"queue":"q","transactionId":"a","payload":1},{"queue":"q","transactionId":"b","payload":2}]}`)
	const pop = "/api/v1/pop/queue/q?consumerGroup=g&autoAck=true"
	p.must(1, "GET", pop, "")
	for broker := range p.urls {
		status, _ := p.do(broker, "GET", pop, "")
		require.Equal(t, 204, status)
	}
	p.must(0, "POST", "/api/v1/consumer-groups/g/queues/q/seek", `{"timestamp":"1970-01-01T00:00:00Z"}`)
	status, popped := p.do(0, "GET", pop+"&batch=1", "")
	require.Equal(t, 200, status, "the broker that was asked delivers at once")
	require.Len(t, popped["messages"], 1)
	p.within(5*time.Second, "the other broker does not see what the seek made readable", func() bool {
		status, _ := p.do(1, "GET", pop, "")
		return status == 200
	})
	p.must(0, "DELETE", "/api/v1/consumer-groups/g", "")
	p.within(5*time.Second, "a deleted group is not a new one", func() bool {
		status, _ := p.do(1, "GET", pop+"&batch=2", "")
		return status == 200
	})
}

func TestRedriveRunsInTheBackgroundAndReachesConsumers(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	const n = 60
	var items, acks []string
	for i := range n {
		items = append(items, fmt.Sprintf(`{"queue":"q","transactionId":"m%d","payload":{"n":%d}}`, i, i))
	}
	p.must(0, "POST", "/api/v1/push", `{"items":[`+strings.Join(items, ",")+`]}`)
	for i := range n {
		popped := p.must(0, "GET", "/api/v1/pop/queue/q?consumerGroup=g&batch=1", "")
		acks = append(acks, "m"+fmt.Sprint(i))
		status, _ := p.do(0, "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"consumerGroup":"g","status":"dlq","error":"disk full on node %d"}`,
			acks[i], popped["partitionId"], popped["leaseId"], i))
		require.Equal(t, 200, status)
	}
	require.EqualValues(t, n, p.must(1, "GET", "/api/v1/dlq/count", "")["count"])
	groups := p.must(1, "GET", "/api/v1/dlq/shapes", "")["groups"].([]any)
	require.Len(t, groups, 1, "the errors differ in a number only")
	dry := p.must(1, "POST", "/api/v1/dlq/tasks", `{"kind":"redrive","filter":{"queue":"q"},"dryRun":true}`)
	require.EqualValues(t, n, dry["total"])
	task := p.must(1, "POST", "/api/v1/dlq/tasks", `{"kind":"redrive","filter":{"queue":"q"}}`)
	p.within(15*time.Second, "the task does not end", func() bool {
		return p.must(0, "GET", fmt.Sprintf("/api/v1/dlq/tasks/%s", task["id"]), "")["state"] == "done"
	})
	require.EqualValues(t, 0, p.must(1, "GET", "/api/v1/dlq/count", "")["count"])
	popped := p.must(1, "GET", "/api/v1/pop/queue/q?consumerGroup=g&batch=1000&autoAck=true", "")
	messages := popped["messages"].([]any)
	require.Len(t, messages, n)
	for i, m := range messages {
		require.EqualValues(t, i, m.(map[string]any)["data"].(map[string]any)["n"])
	}
}

// A damaged segment is named as such, entry by entry, and takes nothing from the rest of a page; a purge is in the history of deletions.
func TestDamagedMessagesAreShownAsUnreadable(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	const trace = "0199b0c4-7be2-4c04-a1d9-5e2c8f0b6731"
	for _, id := range []string{"a", "b", "c"} {
		p.must(0, "POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":"q","transactionId":%q,"traceId":%q,"payload":{"n":1}}]}`, id, trace))
	}
	_, err := p.db.Exec(t.Context(), `UPDATE queen.log_segments SET blob = '\x0102' WHERE base_offset = 1`)
	require.NoError(t, err)
	partition := ""
	for _, path := range []string{"/api/v1/messages?queue=q", "/api/v1/pipelines/" + trace, "partition"} {
		if path == "partition" {
			path = "/api/v1/partitions/" + partition + "/messages"
		}
		readable := 0
		messages := p.must(1, "GET", path, "")["messages"].([]any)
		require.Len(t, messages, 3, path)
		for _, one := range messages {
			m := one.(map[string]any)
			if id, found := m["partitionId"].(string); found {
				partition = id
			}
			if m["offset"] == 1.0 {
				require.Contains(t, m["unreadable"], "malformed segment", path)
				require.Nil(t, m["data"], path)
				continue
			}
			require.Nil(t, m["unreadable"], path)
			require.NotNil(t, m["data"], path)
			readable++
		}
		require.Equal(t, 2, readable, path)
	}
	one := p.must(1, "GET", "/api/v1/messages/"+partition+"/b", "")
	require.Contains(t, one["unreadable"], "malformed segment")

	require.EqualValues(t, 3, p.must(0, "POST", "/api/v1/resources/queues/q/purge", `{"mode":"all"}`)["messages"])
	totals := p.must(1, "GET", "/api/v1/analytics/retention?queue=q", "")["totals"].(map[string]any)
	require.Equal(t, []any{3.0, 3.0}, []any{totals["purgeMsgs"], totals["totalMsgs"]})
}

// However many pushes come through both brokers at once, a bounded queue takes exactly what it has room for; and room that an answered ack
// made is there for the next push through either.
func TestBoundedQueueIsExactOverBrokers(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	const room, pushers, each = 60, 8, 20
	p.must(0, "POST", "/api/v1/configure", fmt.Sprintf(`{"queue":"q","options":{"maxSize":%d}}`, room))
	var taken, refused atomic.Int64
	var running sync.WaitGroup
	for i := range pushers {
		running.Go(func() {
			for range each {
				answer, err := p.http.Post(p.urls[i%2]+"/api/v1/push", "application/json", strings.NewReader(fmt.Sprintf(`{"items":[{"queue":"q","partition":"p%d","payload":1}]}`, i%3)))
				if err != nil {
					t.Error(err)
					return
				}
				text, err := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				switch {
				case err == nil && strings.Contains(string(text), `"status":"queued"`):
					taken.Add(1)
				case err == nil && strings.Contains(string(text), `"code":"QUEUE_FULL"`):
					refused.Add(1)
				default:
					t.Errorf("%v: %s", err, text)
				}
			}
		})
	}
	running.Wait()
	require.Equal(t, []int64{room, pushers*each - room}, []int64{taken.Load(), refused.Load()})
	for broker := range p.urls {
		queues := p.must(broker, "GET", "/api/v1/resources/capacity", "")["queues"].([]any)
		require.Equal(t, []any{0.0, true}, []any{queues[0].(map[string]any)["remainingCapacity"], queues[0].(map[string]any)["full"]})
	}
	popped := p.must(0, "GET", "/api/v1/pop/queue/q?batch=1&autoAck=true", "")
	require.Len(t, popped["messages"], 1)
	const push = `{"items":[{"queue":"q","partition":"p1","payload":1}]}`
	status, _ := p.do(1, "POST", "/api/v1/push", push)
	require.Equal(t, 201, status)
	queues := p.must(0, "GET", "/api/v1/resources/capacity", "")["queues"].([]any)
	require.Equal(t, 0.0, queues[0].(map[string]any)["remainingCapacity"], "the one message of room was given out again")
}
