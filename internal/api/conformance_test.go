package api

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// A lived is a stack in which something has happened: two queues with consumers, dead letters, traces, a task, a streaming query
// and metrics. Every answer is held against the description.
type lived struct {
	t *testing.T
	*stack
	conformance
	pool      *pgxpool.Pool
	partition string // of queue "shop.orders", partition "p1"
	dead      string // id of the dead letter of message "m1"
}

// do makes a request, holds its answer against the description and decodes it.
func (l *lived) do(method, path, body string, status int) map[string]any {
	l.t.Helper()
	answer := call(l.t, l.Server, method, path, body)
	require.Equal(l.t, status, answer.status, "%s %s: %s", method, path, answer.body)
	l.check(l.t, method, path, answer)
	var value map[string]any
	if strings.HasPrefix(strings.TrimSpace(answer.body), "{") {
		require.NoError(l.t, json.Unmarshal([]byte(answer.body), &value))
	}
	return value
}

func (l *lived) list(path string) []any {
	l.t.Helper()
	answer := call(l.t, l.Server, "GET", path, "")
	l.check(l.t, "GET", path, answer)
	return read[[]any](l.t, answer, 200)
}

// pages reads a list by its cursors to the end, which has so many rows.
func (l *lived) pages(path, member string, rows int) {
	l.t.Helper()
	got := 0
	for cursor := ""; ; {
		page := l.do("GET", path+"&cursor="+url.QueryEscape(cursor), "", 200)
		got += len(page[member].([]any))
		next, more := page["nextCursor"].(string)
		if !more {
			require.Equal(l.t, rows, got, path)
			return
		}
		cursor = next
	}
}

const pipelineID = "0199b0c4-7be2-4c04-a1d9-5e2c8f0b6731"

func newLived(t *testing.T) *lived {
	t.Helper()
	database := testdb.New(t)
	l := &lived{t: t, stack: newStack(t, database), pool: database.Pool(t)}
	l.conformance = conformance{description(t, l.Server), map[string]bool{}}
	l.do("POST", "/api/v1/configure", `{"queue":"shop.orders","options":{"leaseTime":60,"retryLimit":0,"maxSize":1000}}`, 200)
	var items []string
	for i := range 10 {
		items = append(items, fmt.Sprintf(`{"queue":"shop.orders","partition":"p%d","transactionId":"m%d","traceId":%q,"payload":{ "n":%d }}`, i%2, i, pipelineID, i))
	}
	items = append(items, `{"queue":"shop.invoices","transactionId":"i0","traceId":"`+pipelineID+`","payload":null}`)
	l.do("POST", "/api/v1/push", `{"items":[`+strings.Join(items, ",")+`]}`, 201)
	for _, group := range []string{"billing", "audit"} {
		popped := l.do("GET", "/api/v1/pop/queue/shop.orders/partition/p1?batch=3&consumerGroup="+group, "", 200)
		l.partition = popped["partitionId"].(string)
		if group == "audit" {
			continue // keeps its lease
		}
		l.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"m1","partitionId":%q,"leaseId":%q,"consumerGroup":"billing","status":"failed","error":"printer offline"}`,
			l.partition, popped["leaseId"]), 200)
	}
	// Queue mode too, and its lease is kept.
	l.do("GET", "/api/v1/pop/queue/shop.orders?batch=2", "", 200)
	dead := l.do("GET", "/api/v1/dlq", "", 200)["messages"].([]any)
	require.Len(t, dead, 1)
	l.dead = dead[0].(map[string]any)["id"].(string)
	l.do("POST", "/api/v1/traces", fmt.Sprintf(`{"transactionId":"m1","partitionId":%q,"data":{"text":"printed"},"traceNames":["order-1"],"consumerGroup":"billing"}`, l.partition), 201)
	l.sample()
	l.do("POST", "/api/v1/stats/refresh", "", 200)
	return l
}

// sample stores what the metrics loop would have measured.
func (l *lived) sample() {
	l.t.Helper()
	ctx := l.t.Context()
	_, err := l.db.InsertWorkerMetrics(ctx, pg.WorkerSample{Hostname: "h", PID: 1, PushRequests: 1, PushMessages: 11, PopRequests: 3, PopMessages: 8, AckRequests: 1, AckMessages: 1, LagCount: 8, AvgLag: 20, MaxLag: 30, PoolIdle: 3, PoolActive: 1})
	require.NoError(l.t, err)
	gauges := `{"cpu":{"user_us":1,"system_us":1},"memory":{"rss_bytes":1,"virtual_bytes":1},"database":{"pool_size":1,"pool_idle":1,"pool_active":1},"threadpool":{"db":{"pool_size":0,"queue_size":0},"system":{"pool_size":0,"queue_size":0}},"registries":{"response":0}}`
	require.NoError(l.t, l.db.InsertSystemMetrics(ctx, "h", 6632, "worker-0", 60, json.RawMessage(gauges)))
	sample := []pg.QueueSample{{Tenant: pg.DefaultTenant, Queue: "shop.orders", PushRequests: 1, PushMessages: 10, PopMessages: 8, LagSum: 160, LagCount: 8, LagMax: 30, Parked: 2}}
	require.NoError(l.t, l.db.AddQueueMetrics(ctx, sample))
	require.NoError(l.t, l.db.SetParked(ctx, "h", 0, sample))
}

// Every route answers on a real database as /openapi.json says, and no route is left out.
func TestEveryAnswerLooksAsDescribed(t *testing.T) {
	t.Parallel()
	l := newLived(t)
	address := "/api/v1/messages/" + l.partition + "/"

	l.do("GET", "/api/v1/pop?namespace=shop&consumerGroup=discovery", "", 200)
	l.do("GET", "/api/v1/pop/queue/shop.invoices?consumerGroup=x", "", 200)
	l.do("POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"shop.tx","payload":1}]}]}`, 200)
	l.do("POST", "/api/v1/ack/batch", `{"acknowledgments":[]}`, 200)
	l.do("POST", "/api/v1/lease/nobody/extend", "", 200)

	queue := l.do("GET", "/api/v1/resources/queues/shop.orders", "", 200)
	require.Len(t, queue["partitions"], 2)
	require.EqualValues(t, 1000, queue["maxSize"])
	require.Len(t, l.do("GET", "/api/v1/resources/queues?namespace=shop", "", 200)["queues"], 2, "a configured queue has the namespace that was given: none")
	require.Len(t, l.do("GET", "/api/v1/resources/queues", "", 200)["queues"], 3)
	require.Len(t, l.do("GET", "/api/v1/resources/queues?limit=1&offset=1", "", 200)["queues"], 1)
	require.EqualValues(t, 60, l.do("GET", "/api/v1/resources/queues/shop.orders/options", "", 200)["options"].(map[string]any)["leaseTime"])
	l.do("GET", "/api/v1/resources/queues/shop.orders/depth?group=billing", "", 200)
	require.Len(t, l.do("GET", "/api/v1/resources/capacity", "", 200)["queues"], 1)
	for _, path := range []string{"overview", "namespaces", "tasks"} {
		l.do("GET", "/api/v1/resources/"+path, "", 200)
	}

	require.Len(t, l.list("/api/v1/consumer-groups"), 5, "four groups and the queue mode")
	l.list("/api/v1/consumer-groups/lagging?minLagSeconds=0")
	l.pages("/api/v1/resources/consumer-groups?limit=2&sort=-age", "groups", 5)
	l.pages("/api/v1/resources/consumer-groups/billing/partitions?queue=shop.orders&sort=-lag&limit=1", "partitions", 1)
	l.do("GET", "/api/v1/resources/consumer-groups/nobody/partitions", "", 200)
	l.pages("/api/v1/resources/queues?sort=-pending&limit=1", "queues", 3)
	for _, address := range []string{"consumer-groups?", "consumer-groups/billing/partitions?", "queues?"} {
		l.do("GET", "/api/v1/resources/"+address+"cursor=nonsense", "", 400)
		l.do("GET", "/api/v1/resources/"+address+"sort=weight", "", 400)
		l.do("GET", "/api/v1/resources/"+address+"sort=-name&cursor=nonsense", "", 400)
	}
	require.Contains(t, l.do("GET", "/api/v1/consumer-groups/billing", "", 200), "shop.orders")
	require.Empty(t, l.do("GET", "/api/v1/consumer-groups/nobody", "", 200))

	found := l.do("GET", "/api/v1/messages?queue=shop.orders&partition=p1", "", 200)
	require.Len(t, found["messages"], 5)
	part := l.do("GET", "/api/v1/partitions/"+l.partition+"/messages?offset=1&limit=3", "", 200)
	require.Len(t, part["messages"], 3)
	require.EqualValues(t, 4, part["nextOffset"])
	l.do("GET", "/api/v1/partitions/"+uuid.NewString()+"/messages", "", 404)
	detail := l.do("GET", address+"m1", "", 200)
	require.Equal(t, []any{"dead_letter", "printer offline"}, []any{detail["status"], detail["errorMessage"]})
	for _, m := range found["messages"].([]any) {
		m := m.(map[string]any)
		if m["transactionId"] == "m1" {
			require.Equal(t, detail["retryCount"], m["retryCount"])
		} else {
			require.Zero(t, m["retryCount"])
		}
	}
	pipeline := l.do("GET", "/api/v1/pipelines/"+pipelineID, "", 200)
	require.EqualValues(t, 11, pipeline["total"])
	require.EqualValues(t, 1, l.do("GET", "/api/v1/dlq/count?queue=shop.orders", "", 200)["count"])
	require.EqualValues(t, 0, l.do("GET", "/api/v1/dlq/count?queue=other", "", 200)["count"])
	l.do("GET", "/api/v1/dlq/shapes", "", 200)

	require.Len(t, l.do("GET", "/api/v1/traces/"+l.partition+"/m1", "", 200)["traces"], 1)
	require.EqualValues(t, 1, l.do("GET", "/api/v1/traces/by-name/order-1", "", 200)["total"])
	require.EqualValues(t, 1, l.do("GET", "/api/v1/traces/names", "", 200)["total"])
	l.do("GET", "/api/v1/traces/names?cursor=nonsense", "", 400)
	l.do("GET", "/api/v1/traces/by-name/nothing?cursor=nonsense", "", 400)

	leases := l.do("GET", "/api/v1/leases?consumerGroup=audit", "", 200)
	require.Len(t, leases["leases"], 1)
	l.do("GET", "/api/v1/leases/utilization", "", 200)
	released := l.do("POST", "/api/v1/leases/release", fmt.Sprintf(`{"partitionId":%q,"consumerGroup":"audit"}`, l.partition), 200)
	require.Equal(t, true, released["released"])

	for _, path := range []string{"", "/queues", "/queues/shop.orders", "/analytics?interval=minute", "/buffers"} {
		l.do("GET", "/api/v1/status"+path, "", 200)
	}
	for _, path := range []string{"queue-ops", "queue-parked-replicas", "retention", "system-metrics", "worker-metrics", "postgres-stats"} {
		l.do("GET", "/api/v1/analytics/"+path, "", 200)
	}
	l.list("/api/v1/analytics/queue-lag")
	for _, path := range []string{"/auth/me", "/openapi.json", "/health", "/livez", "/readyz", "/status", "/metrics", "/api/v1/system/brokers", "/api/v1/system/shared-state", "/internal/api/shared-state/stats", "/internal/api/inter-instance/stats"} {
		l.do("GET", path, "", 200)
	}
	l.do("POST", "/auth/logout", "", 200)
	l.do("POST", "/internal/api/notify", `{"queue":"shop.orders"}`, 200)

	t.Run("Replay", func(t *testing.T) {
		replayed := l.do("POST", "/api/v1/dlq/"+l.dead+"/replay", "", 200)
		require.Equal(t, []any{"moved", true}, []any{replayed["result"], replayed["dlqRowRemoved"]})
		l.do("POST", "/api/v1/dlq/"+l.dead+"/replay", "", 404)
		l.do("POST", address+"m1/retry", "", 404)
		l.do("DELETE", address+"m1", "", 404)
	})
	t.Run("Tasks", func(t *testing.T) {
		task := l.do("POST", "/api/v1/dlq/tasks", `{"kind":"purge","filter":{"queue":"shop.orders"}}`, 201)
		id := task["id"].(string)
		l.do("GET", "/api/v1/dlq/tasks/"+id, "", 200)
		require.Len(t, l.do("GET", "/api/v1/dlq/tasks", "", 200)["tasks"], 1)
		require.Equal(t, "cancelled", l.do("POST", "/api/v1/dlq/tasks/"+id+"/cancel", "", 200)["state"])
		l.do("DELETE", "/api/v1/dlq?queue=shop.orders", "", 200)
	})
	t.Run("Seek", func(t *testing.T) {
		group := "/api/v1/consumer-groups/billing"
		preview := l.do("POST", group+"/queues/shop.orders/seek", `{"timestamp":"1970-01-01T00:00:00Z","dryRun":true}`, 200)
		require.Equal(t, []any{true, 2.0}, []any{preview["dryRun"], preview["partitionsUpdated"]})
		l.do("POST", group+"/queues/shop.orders/partitions/p1/seek", `{"offset":2,"dryRun":true}`, 200)
		l.do("POST", group+"/queues/nothing/seek", `{"toEnd":true,"dryRun":true}`, 404)
		l.do("POST", group+"/queues/shop.orders/seek", `{"timestamp":"soon","dryRun":true}`, 400)
		l.do("POST", group+"/queues/shop.orders/seek", `{"toEnd":true,"dryRun":"yes"}`, 400)
		l.do("POST", group+"/queues/shop.orders/seek", `{"toEnd":true}`, 200)
		clone := "/api/v1/consumer-groups/twin/queues/shop.orders"
		preview = l.do("POST", clone+"/seek", `{"group":"billing","dryRun":true}`, 200)
		require.Equal(t, []any{true, "billing", 2.0, 0.0}, []any{preview["dryRun"], preview["targetGroup"], preview["partitionsUpdated"], preview["pending"]})
		require.Equal(t, 2.0, l.do("POST", clone+"/seek", `{"group":"billing"}`, 200)["partitionsUpdated"])
		require.Equal(t, 0.0, l.do("GET", "/api/v1/resources/queues/shop.orders/depth?group=twin", "", 200)["depth"])
		l.do("POST", clone+"/partitions/p1/seek", `{"group":"billing"}`, 200)
		l.do("POST", clone+"/seek", `{"group":"nobody"}`, 404)
		l.do("POST", clone+"/seek", `{"group":"billing","offset":1}`, 400)
		l.do("POST", clone+"/seek", `{"group":7}`, 400)
		l.do("DELETE", "/api/v1/consumer-groups/twin", "", 200)
		l.do("POST", group+"/queues/shop.orders/seek", `{"timestamp":"1970-01-01T00:00:00Z"}`, 200)
		l.do("POST", group+"/queues/nothing/seek", `{"toEnd":true}`, 404)
		l.do("POST", group+"/queues/shop.orders/seek", `{"timestamp":"soon"}`, 400)
		l.do("POST", group+"/queues/shop.orders/partitions/p1/seek", `{"offset":2}`, 200)
		popped := l.do("GET", "/api/v1/pop/queue/shop.orders/partition/p1?consumerGroup=billing&batch=1", "", 200)
		require.Equal(t, "m5", popped["messages"].([]any)[0].(map[string]any)["transactionId"], "m1 m3 m5: offset 2")
		l.do("POST", group+"/queues/shop.orders/partitions/nothing/seek", "", 404)
		l.do("POST", group+"/subscription", `{"subscriptionTimestamp":"2026-01-01T00:00:00Z"}`, 200)
		l.do("POST", group+"/subscription", `{"subscriptionTimestamp":"soon"}`, 400)
		l.do("DELETE", group+"/queues/shop.orders", "", 200)
		l.do("DELETE", group, "", 200)
		l.do("DELETE", "/api/v1/consumer-groups/nobody", "", 200)
	})
	t.Run("Maintenance", func(t *testing.T) {
		l.do("POST", "/api/v1/system/maintenance", `{"enabled":true}`, 200)
		require.Equal(t, true, l.do("GET", "/api/v1/system/maintenance", "", 200)["maintenanceMode"])
		l.do("POST", "/api/v1/push", `{"items":[{"queue":"shop.orders","partition":"p0","payload":1}]}`, 503)
		l.do("POST", "/api/v1/system/maintenance", `{"enabled":false}`, 200)
		l.do("POST", "/api/v1/push", `{"items":[{"queue":"shop.orders","partition":"p0","payload":1}]}`, 201)
		l.do("POST", "/api/v1/system/maintenance/pop", `{"enabled":true}`, 200)
		require.Equal(t, true, l.do("GET", "/api/v1/system/maintenance/pop", "", 200)["popMaintenanceMode"])
		require.Equal(t, 204, call(t, l.Server, "GET", "/api/v1/pop/queue/shop.orders?consumerGroup=new", "").status)
		l.do("POST", "/api/v1/system/maintenance/pop", `{"enabled":false}`, 200)
		l.do("GET", "/api/v1/pop/queue/shop.orders?consumerGroup=new", "", 200)
	})
	t.Run("Partitions", func(t *testing.T) {
		first := l.do("GET", "/api/v1/resources/queues/shop.orders/partitions?limit=1", "", 200)
		second := l.do("GET", "/api/v1/resources/queues/shop.orders/partitions?limit=1&cursor="+url.QueryEscape(first["nextCursor"].(string)), "", 200)
		require.Equal(t, "p0", first["partitions"].([]any)[0].(map[string]any)["name"])
		require.Equal(t, "p1", second["partitions"].([]any)[0].(map[string]any)["name"])
		l.do("GET", "/api/v1/resources/queues/shop.orders/partitions?cursor=nonsense", "", 400)
		l.do("GET", "/api/v1/resources/queues/nothing/partitions", "", 404)
	})
	t.Run("Streams", func(t *testing.T) { l.streams(t) })
	t.Run("Unknown", func(t *testing.T) {
		l.do("GET", "/api/v1/resources/queues/nothing", "", 404)
		l.do("GET", "/api/v1/resources/queues/nothing/options", "", 404)
		l.do("GET", "/api/v1/status/queues/nothing", "", 404)
		l.do("GET", address+"nothing", "", 404)
		l.do("GET", "/api/v1/messages?cursor=nonsense", "", 400)
		l.do("GET", "/api/v1/messages?from=soon", "", 400)
		l.do("GET", "/api/v1/dlq?cursor=nonsense", "", 400)
		l.do("POST", "/api/v1/resources/queues/nothing/purge", "", 404)
	})
	t.Run("Purge", func(t *testing.T) {
		dry := l.do("POST", "/api/v1/resources/queues/shop.orders/purge", `{"mode":"all","dryRun":true}`, 200)
		done := l.do("POST", "/api/v1/resources/queues/shop.orders/purge", `{"mode":"all"}`, 200)
		require.Equal(t, dry["messages"], done["messages"])
		require.Equal(t, true, done["done"])
		for _, m := range l.do("GET", "/api/v1/messages?queue=shop.orders", "", 200)["messages"].([]any) {
			require.Equal(t, []any{false, nil}, []any{m.(map[string]any)["payloadAvailable"], m.(map[string]any)["data"]}, "only the index still knows the message")
		}
	})
	l.do("DELETE", "/api/v1/resources/queues/shop.orders", "", 200)

	// What has a message to give back needs one; the move by address has its own test.
	require.Equal(t, []string{"DELETE /api/v1/messages/{partitionId}/{transactionId}", "POST /api/v1/messages/{partitionId}/{transactionId}/retry"}, l.unseen())
}

// streams runs one query over queue "stream.in".
func (l *lived) streams(t *testing.T) {
	t.Helper()
	l.do("POST", "/api/v1/push", `{"items":[{"queue":"stream.in","transactionId":"a","payload":1},{"queue":"stream.in","transactionId":"b","payload":2}]}`, 201)
	const register = `{"name":"rate","source_queue":"stream.in","sink_queue":"stream.out","config_hash":"%s"%s}`
	query := l.do("POST", "/streams/v1/queries", fmt.Sprintf(register, "h1", ""), 200)
	listed := l.do("GET", "/api/v1/streams", "", 200)
	first := listed["streams"].([]any)[0].(map[string]any)
	require.Equal(t, "rate", first["name"])
	require.Equal(t, []any{nil, nil, 0.0}, []any{first["watermark"], first["lateRecords"], first["watermarkPartitions"]}, "what no runner noted is not known")
	require.Empty(t, l.do("GET", "/api/v1/streams?contains=nothing", "", 200)["streams"])
	l.do("GET", "/api/v1/system/settings", "", 200)
	require.Equal(t, true, query["fresh"])
	require.Equal(t, false, l.do("POST", "/streams/v1/queries", fmt.Sprintf(register, "h1", ""), 200)["fresh"])
	mismatch := l.do("POST", "/streams/v1/queries", fmt.Sprintf(register, "h2", ""), 409)
	require.Contains(t, mismatch["error"], "config_hash mismatch")
	popped := l.do("GET", "/api/v1/pop/queue/stream.in?consumerGroup=rate&batch=2", "", 200)
	cycle := func(lease, items string) map[string]any {
		return l.do("POST", "/streams/v1/cycle", fmt.Sprintf(`{"query_id":%q,"partition_id":%q,"consumer_group":"rate",
			"state_ops":[{"type":"upsert","key":"k\u001f1","value":{"windowEnd":5,"sum":3}}],"push_items":[%s],
			"ack":{"transactionId":"b","leaseId":%q,"status":"completed","count":2},"release_lease":true}`, query["query_id"], popped["partitionId"], items, lease), 200)
	}
	lost := cycle("nobody", "")
	require.Equal(t, []any{false, "invalid or expired lease"}, []any{lost["success"], lost["error"]})
	// One of the two results is in the sink already, as after a crash between two runs: only the other one is new.
	l.do("POST", "/api/v1/push", `{"items":[{"queue":"stream.out","transactionId":"r1","payload":0}]}`, 201)
	done := cycle(popped["leaseId"].(string), `{"queue":"stream.out","transactionId":"r1","payload":1},{"queue":"","payload":9},{"queue":"stream.out","messageId":"0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731","data":{"a": 1.50}}`)
	require.Equal(t, true, done["success"], "%v", done)
	state := l.do("POST", "/streams/v1/state/get", fmt.Sprintf(`{"query_id":%q,"partition_id":%q,"keys":[],"key_prefix":"k\u001f","ripe_at_or_before":5}`, query["query_id"], popped["partitionId"]), 200)
	require.Len(t, state["rows"], 1)
	require.Equal(t, "k\x1f1", state["rows"].([]any)[0].(map[string]any)["key"])
	// A cycle that was computed from other state is refused as a whole; one that expects what is stored goes through.
	expecting := func(value string) map[string]any {
		return l.do("POST", "/streams/v1/cycle", fmt.Sprintf(`{"query_id":%q,"partition_id":%q,"if_state":[{"key":"k\u001f1","value":%s},{"key":"absent","value":null}],
			"state_ops":[{"type":"upsert","key":"k\u001f1","value":{"windowEnd":5,"sum":4}}],"push_items":[],"ack":null}`, query["query_id"], popped["partitionId"], value), 200)
	}
	require.Contains(t, expecting(`{"windowEnd":5,"sum":2}`)["error"], "state changed")
	require.Contains(t, expecting(`null`)["error"], "state changed")
	require.Equal(t, true, expecting(`{"sum":3,"windowEnd":5}`)["success"])
	require.Contains(t, expecting(`{"windowEnd":5,"sum":3}`)["error"], "state changed")
	ripe := l.do("POST", "/streams/v1/state/ripe", fmt.Sprintf(`{"query_id":%q,"consumer_group":"rate"}`, query["query_id"]), 200)
	require.Len(t, ripe["partitions"], 1)
	require.Equal(t, popped["partitionId"], ripe["partitions"].([]any)[0].(map[string]any)["partition_id"])
	busy := l.do("POST", "/streams/v1/state/ripe", fmt.Sprintf(`{"query_id":%q,"consumer_group":"rate","idle_ms":3600000}`, query["query_id"]), 200)
	require.Empty(t, busy["partitions"], "it was written to within the hour")
	unread := l.do("POST", "/streams/v1/state/ripe", fmt.Sprintf(`{"query_id":%q,"consumer_group":"other"}`, query["query_id"]), 200)
	require.Empty(t, unread["partitions"], "this group has not read it")
	answer := call(t, l.Server, "GET", "/api/v1/pop/queue/stream.out?consumerGroup=s", "")
	require.Len(t, read[popAnswer](t, answer, 200).Messages, 2)
	require.Contains(t, answer.body, `"data":{"a": 1.50}`)
	require.Equal(t, 204, call(t, l.Server, "GET", "/api/v1/pop/queue/stream.in?consumerGroup=rate", "").status, "the batch was acknowledged")
}

func TestReplayByAddressTakesTheNewestGroupOnly(t *testing.T) {
	t.Parallel()
	l := newLived(t)
	popped := l.do("GET", "/api/v1/pop/queue/shop.orders/partition/p1?batch=1&consumerGroup=late", "", 200)
	l.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"m1","partitionId":%q,"leaseId":%q,"consumerGroup":"late","status":"dlq","error":"second"}`, l.partition, popped["leaseId"]), 200)
	require.Len(t, l.do("GET", "/api/v1/dlq", "", 200)["messages"], 2)
	// Keyset pages show each row once.
	first := l.do("GET", "/api/v1/dlq?limit=1", "", 200)
	second := l.do("GET", "/api/v1/dlq?limit=1&cursor="+url.QueryEscape(first["nextCursor"].(string)), "", 200)
	require.Equal(t, "late", first["messages"].([]any)[0].(map[string]any)["consumerGroup"])
	require.Equal(t, l.dead, second["messages"].([]any)[0].(map[string]any)["id"])

	retry := "/api/v1/messages/" + l.partition + "/m1/retry"
	require.Equal(t, "late", l.do("POST", retry, "", 200)["consumerGroup"])
	rest := l.do("GET", "/api/v1/dlq", "", 200)["messages"].([]any)
	require.Len(t, rest, 1)
	require.Equal(t, l.dead, rest[0].(map[string]any)["id"])
	l.do("DELETE", "/api/v1/messages/"+l.partition+"/m1", "", 200)
	l.do("POST", retry, "", 404)
	// The replayed message is the exact message again, with its trace.
	answer := call(t, l.Server, "GET", "/api/v1/pop/queue/shop.orders/partition/p1?batch=100&consumerGroup=reader", "")
	m := read[popAnswer](t, answer, 200).Messages[5]
	require.Equal(t, `{ "n":1 }`, string(m.Data))
	require.Equal(t, pipelineID, *m.TraceID)
	require.Contains(t, m.TransactionID, "dlq:")
}
