package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A page is a route that the public web dashboard calls, with the fields that it reads and their JSON types. The table was taken
// by running its pages; a field that it reads and does not find is a hole in a page.
type page struct {
	path  string
	reads shape
	// mayBeEmpty lists arrays that have nothing to show in the test.
	mayBeEmpty []string
}

const gauge = `{"avg":"number|null","min":"number|null","max":"number|null","last":"number|null"}`

var dashboard = []page{
	{path: "/health", reads: `{"status":"string"}`},
	{path: "/api/v1/system/maintenance", reads: `{"maintenanceMode":"bool","popMaintenanceMode":"bool","bufferedMessages":"int","bufferStats":{"failedCount":"int","failedFiles":{"totalMB":"number"}}}`},
	{path: "/api/v1/resources/queues", reads: `{"queues":[{"id":"string","name":"string","namespace":"string|null","task":"string|null","partitions":"int","createdAt":"time","messages":{"pending":"int","processing":"int","total":"int"}}]}`},
	{path: "/api/v1/consumer-groups", reads: `[{"name":"string","queueName":"string","topics":["string"],"members":"int","state":"string","maxTimeLag":"int","partitionsWithLag":"int"}]`},
	{path: "/api/v1/consumer-groups/lagging?minLagSeconds=0", reads: `[{"consumer_group":"string","queue_name":"string","partition_name":"string","worker_id":"string|null","offset_lag":"int","time_lag_seconds":"int","oldest_unconsumed_at":"time"}]`},
	{path: "/api/v1/resources/overview", reads: `{"queues":"int","messages":{"total":"int","pending":"int","completed":"int"},"throughput":{"ingestedPerSecond":"number","processedPerSecond":"number"},"lag":{"time":{"avg":"number","max":"number"}}}`},
	{path: "/api/v1/status", reads: `{"bucketMinutes":"int","throughput":[{"timestamp":"time","ingested":"int","processed":"int","ingestedPerSecond":"number","processedPerSecond":"number","popPerSecond":"number","avgLagMs":"number|null",
		"maxLagMs":"number|null","dbErrors":"int","ackFailed":"int","dlqCount":"int","avgEventLoopLagMs":"number|null","maxEventLoopLagMs":"number|null","queenCpuUserPct":"number|null","queenCpuSysPct":"number|null",
		"dbPoolSize":"number|null","dbPoolActive":"number|null","dbPoolIdle":"number|null"}],
		"workers":[{"avgEventLoopLagMs":"number","maxEventLoopLagMs":"number","dbConnections":"number","freeSlots":"number","jobQueueSize":"number|null"}],
		"messages":{"total":"int","pending":"int","processing":"int","completed":"int","failed":"int","deadLetter":"int","batchEfficiency":{"push":"number","pop":"number","ack":"number"}},
		"leases":{"active":"int","partitionsWithLeases":"int","totalBatchSize":"int","totalAcked":"int"},
		"deadLetterQueue":{"totalMessages":"int","affectedPartitions":"int","topErrors":[{"error":"string","count":"int"}]}}`},
	{path: "/api/v1/analytics/queue-ops", reads: `{"bucketMinutes":"int","queues":["string"],"timeRange":{"from":"time","to":"time"},"series":[{"bucket":"time","queueName":"string","pushMessages":"int","pushPerSecond":"number",
		"popMessages":"int","popPerSecond":"number","popEmpty":"int","emptyPerSecond":"number","ackPerSecond":"number","ackFailed":"int","transactions":"int","avgLagMs":"number|null","maxLagMs":"number|null",
		"parkedCount":"number","partitionCount":"int|null","partitionsCreated":"int","partitionsDeleted":"int"}]}`},
	{path: "/api/v1/analytics/queue-ops?queue=shop.orders", reads: `{"series":[{"queueName":"string"}]}`},
	{path: "/api/v1/analytics/retention", reads: `{"bucketMinutes":"int","timeRange":{"from":"time","to":"time"},"series":[{"bucket":"time","retentionMsgs":"int","completedRetentionMsgs":"int","evictionMsgs":"int"}],
		"totals":{"retentionMsgs":"int","completedRetentionMsgs":"int","evictionMsgs":"int"}}`},
	{path: "/api/v1/analytics/system-metrics", reads: `{"replicaCount":"int","pointCount":"int","bucketMinutes":"int","replicas":[{"hostname":"string","port":"int","workerId":"string","timeSeries":[{"timestamp":"time",
		"metrics":{"cpu":{"user_us":` + gauge + `,"system_us":` + gauge + `},"memory":{"rss_bytes":` + gauge + `},"database":{"pool_active":` + gauge + `,"pool_idle":` + gauge + `},
		"threadpool":{"db":{"queue_size":` + gauge + `},"system":{"queue_size":` + gauge + `}}}}]}]}`},
	{path: "/api/v1/analytics/worker-metrics", reads: `{"bucketMinutes":"int","pointCount":"int","timeRange":{"from":"time","to":"time"},"timeSeries":[{"timestamp":"time","pushPerSecond":"number","popPerSecond":"number","ackPerSecond":"number",
		"avgLagMs":"number|null","maxLagMs":"number|null","avgEventLoopLagMs":"number","maxEventLoopLagMs":"number","avgFreeSlots":"number","avgJobQueueSize":"number|null","maxJobQueueSize":"number|null","dbConnections":"number",
		"dbErrors":"int","ackFailed":"int","dlqCount":"int"}],"workers":[{"workerId":"int","hostname":"string","lastSeen":"time","freeSlots":"number","dbConnections":"number","jobQueueSize":"number|null",
		"avgEventLoopLagMs":"number","maxEventLoopLagMs":"number"}],"queues":[{"queueName":"string"}],"summary":{"*":"number"}}`},
	{path: "/api/v1/analytics/queue-lag", reads: `[{"bucketTime":"time","queueName":"string","avgLagMs":"number|null","maxLagMs":"number|null","popCount":"int"}]`},
	{path: "/api/v1/analytics/queue-parked-replicas", reads: `{"bucketMinutes":"int","timeRange":{"from":"time","to":"time"},"replicas":[{"hostname":"string","workerId":"int"}],"series":[{"bucket":"time","queueName":"string","hostname":"string","workerId":"int","parkedCount":"number"}]}`},
	{path: "/api/v1/resources/queues/shop.orders", reads: `{"name":"string","namespace":"string|null","task":"string|null","priority":"int","createdAt":"time","config":{"leaseTime":"int"},"partitions":[{"id":"string"}]}`},
	{path: "/api/v1/status/queues/shop.orders", reads: `{"queue":{"id":"string","name":"string","namespace":"string|null","task":"string|null","priority":"int","createdAt":"time",
		"config":{"leaseTime":"int","retryLimit":"int","retryDelay":"int","ttl":"int","maxQueueSize":"int","deadLetterQueue":"bool"}},
		"totals":{"messages":{"pending":"int","processing":"int","completed":"int","failed":"int|null","deadLetter":"int","total":"int"}},"partitions":[{"cursor":{"totalConsumed":"int"}}]}`},
	{path: "/api/v1/status/queues", reads: `{"queues":[{"name":"string","messages":{"pending":"int","processing":"int","completed":"int","total":"int"}}]}`},
	{path: "/api/v1/resources/namespaces", reads: `{"namespaces":[{"namespace":"string"}]}`},
	{path: "/api/v1/resources/tasks", reads: `{"tasks":[{"task":"string"}]}`},
	{path: "/api/v1/messages?queue=shop.orders", reads: `{"messages":[{"id":"string","transactionId":"string","partitionId":"string","queue":"string","partition":"string","status":"string","createdAt":"time",
		"busStatus":{"consumedBy":"int","totalGroups":"int"}}],"mode":{"type":"string"}}`},
	{path: "/api/v1/messages/{partition}/m1", reads: `{"transactionId":"string","partitionId":"string","queue":"string","partition":"string","status":"string","createdAt":"time","errorMessage":"string","retryCount":"int","traceId":"string",
		"payload":{"n":"int"},"consumerGroups":[{"name":"string","consumed":"bool"}],"queueConfig":{"leaseTime":"int","ttl":"int","retryLimit":"int","retryDelay":"int"}}`},
	{path: "/api/v1/dlq", reads: `{"messages":[{"id":"string","transactionId":"string","partitionId":"string","queue":"string","partition":"string","consumerGroup":"string","errorMessage":"string","retryCount":"int","createdAt":"time",
		"failedAt":"time","producerSub":"string|null","data":{"n":"int"}}]}`},
	{path: "/api/v1/traces/by-name/order-1", reads: `{"total":"int","traces":[{"id":"string","transaction_id":"string","queue_name":"string","partition_name":"string","consumer_group":"string","worker_id":"string","event_type":"string",
		"trace_names":["string"],"data":{"text":"string"},"created_at":"time"}]}`},
	{
		path: "/api/v1/analytics/postgres-stats", reads: `{"database":"string","databaseCache":{"cacheHitRatio":"number|null"},"cacheSummary":{"tables":{"hitRatio":"number|null"},"indexes":{"hitRatio":"number|null"}},
		"bufferConfig":{"sharedBuffersSize":"string"},"bufferUsage":[{"object":"string","bufferedSize":"string","percentOfCache":"number"}],"tableSizes":[{"table":"string","tableSize":"string","indexSize":"string","totalSize":"string"}],
		"tableCache":[{"table":"string","cacheHits":"int","diskReads":"int","cacheHitRatio":"number|null"}],"indexCache":[{"table":"string","index":"string","cacheHits":"int","diskReads":"int","cacheHitRatio":"number|null"}],
		"deadTuples":[{"table":"string","deadTuples":"int","deadPercentage":"number|null","lastVacuum":"time|null","lastAutovacuum":"time|null"}],
		"hotUpdates":[{"table":"string","totalUpdates":"int","hotUpdatePercentage":"number|null"}],"autovacuumStatus":[{"table":"string","deadTuples":"int","autovacuumCount":"int","lastAutovacuum":"time|null"}],
		"activeQueries":[{"pid":"int","state":"string|null","duration":"number","waitEventType":"string|null","waitEvent":"string|null","query":"string"}]}`,
		mayBeEmpty: []string{".bufferUsage", ".activeQueries", ".tableCache", ".indexCache", ".deadTuples", ".hotUpdates", ".autovacuumStatus"},
	},
	// Parameters that the pages send.
	{path: "/api/v1/status?from=2026-01-01T00:00:00.000Z&to=2099-01-01T00:00:00.000Z", reads: `{"bucketMinutes":"int","throughput":[{"timestamp":"time"}]}`},
	{path: "/api/v1/analytics/retention?from=2026-01-01T00:00:00.000Z&to=2099-01-01T00:00:00.000Z", reads: `{"series":[{"bucket":"time"}]}`},
	{path: "/api/v1/messages?queue=shop.orders&partition=p1&status=dead_letter&from=2026-01-01T00:00:00.000Z&to=2099-01-01T00:00:00.000Z&limit=50&offset=0", reads: `{"messages":[{"status":"string"}]}`},
	{path: "/api/v1/traces/by-name/order-1?limit=100&offset=0", reads: `{"total":"int","traces":[{"id":"string"}]}`},
	// Columns of the command-line client that the fields above do not cover.
	{path: "/api/v1/resources/queues", reads: `{"queues":[{"partitionCount":"int","priority":"int","leaseTime":"int","retryLimit":"int","maxSize":"int","encryptionEnabled":"bool"}]}`},
	{path: "/api/v1/status", reads: `{"queues":[{"name":"string","namespace":"string|null","task":"string|null","pending":"int","processing":"int","completed":"int","dlq":"int"}]}`},
	{path: "/api/v1/status/queues/shop.orders", reads: `{"partitions":[{"name":"string","pending":"int","processing":"int","completed":"int","dlq":"int","messages":{"total":"int"}}]}`},
	{path: "/api/v1/consumer-groups", reads: `[{"name":"string","queue":"string","lagMessages":"int","lagSeconds":"int"}]`},
	{path: "/api/v1/messages?queue=shop.orders", reads: `{"messages":[{"producerSub":"string|null"}]}`},
	{path: "/api/v1/dlq", reads: `{"total":"int","pagination":{"limit":"int","offset":"int"}}`},
}

func TestDashboardFindsEveryFieldItReads(t *testing.T) {
	t.Parallel()
	l := newLived(t)
	l.do("POST", "/api/v1/resources/queues/shop.invoices/purge", `{"mode":"all"}`, 200) // something for the history of deletions
	require.Eventually(t, func() bool { return len(l.list("/api/v1/consumer-groups/lagging?minLagSeconds=0")) > 0 }, 30*time.Second, 100*time.Millisecond, "whole seconds count")
	for _, p := range dashboard {
		t.Run(p.path, func(t *testing.T) {
			t.Parallel()
			answer := call(t, l.Server, "GET", strings.ReplaceAll(p.path, "{partition}", l.partition), "")
			require.Equal(t, 200, answer.status, answer.body)
			require.Equal(t, "application/json", answer.header.Get("Content-Type"))
			var reads, value any
			require.NoError(t, json.Unmarshal([]byte(p.reads), &reads))
			require.NoError(t, json.Unmarshal([]byte(answer.body), &value))
			var faults []string
			walk("", reads, value, func(at, fault string) {
				if fault == emptyArray {
					for _, known := range p.mayBeEmpty {
						if known == at {
							return
						}
					}
				}
				faults = append(faults, at+": "+fault)
			})
			require.Empty(t, faults, answer.body)
		})
	}
}

const emptyArray = "nothing in it"

// walk holds a value against what a page reads and reports every difference with its place.
func walk(at string, reads, value any, report func(at, fault string)) {
	switch reads := reads.(type) {
	case map[string]any:
		object, ok := value.(map[string]any)
		if !ok {
			report(at, fmt.Sprintf("%T is no object", value))
			return
		}
		for name, inner := range reads {
			if name == "*" {
				for other, member := range object {
					walk(at+"."+other, inner, member, report)
				}
				continue
			}
			member, ok := object[name]
			if !ok {
				report(at+"."+name, "missing")
				continue
			}
			walk(at+"."+name, inner, member, report)
		}
	case []any:
		array, ok := value.([]any)
		if !ok {
			report(at, fmt.Sprintf("%T is no array", value))
			return
		}
		if len(array) == 0 {
			report(at, emptyArray)
		}
		for _, element := range array {
			walk(at+"[]", reads[0], element, report)
		}
	case string:
		if fault := mismatch(reads, value); fault != "" {
			report(at, fault)
		}
	}
}

func mismatch(kind string, value any) string {
	name, nullable := strings.CutSuffix(kind, "|null")
	if value == nil && nullable {
		return ""
	}
	ok := false
	switch name {
	case "string", "uuid":
		_, ok = value.(string)
	case "time":
		text, isText := value.(string)
		ok = isText && len(text) >= len("2026-09-14T06:21:00Z") && strings.HasSuffix(text, "Z")
	case "number":
		_, ok = value.(float64)
	case "int":
		n, isNumber := value.(float64)
		ok = isNumber && n == float64(int64(n))
	case "bool":
		_, ok = value.(bool)
	}
	if !ok {
		return fmt.Sprintf("%v is no %s", value, kind)
	}
	return ""
}

// The buttons of the dashboard, with the bodies that it sends, in an order in which each has something to do. It looks at the status
// and, where reads is given, at fields; what only its proxy serves must be a JSON 404, which it takes for a bare broker.
func TestDashboardButtons(t *testing.T) {
	t.Parallel()
	l := newLived(t)
	message := "/api/v1/messages/" + l.partition + "/m1"
	for _, button := range []struct {
		method, path, body string
		status             int
		reads              shape
	}{
		{"POST", "/api/v1/system/maintenance", `{"enabled":true}`, 200, `{"maintenanceMode":"bool","bufferedMessages":"int"}`},
		{"POST", "/api/v1/system/maintenance", `{"enabled":false}`, 200, `{"maintenanceMode":"bool","bufferedMessages":"int"}`},
		{"POST", "/api/v1/system/maintenance/pop", `{"enabled":true}`, 200, `{"popMaintenanceMode":"bool"}`},
		{"POST", "/api/v1/system/maintenance/pop", `{"enabled":false}`, 200, `{"popMaintenanceMode":"bool"}`},
		{"POST", "/api/v1/consumer-groups/billing/queues/shop.orders/seek", `{"toEnd":true}`, 200, ""},
		{"POST", "/api/v1/consumer-groups/billing/queues/shop.orders/seek", `{"timestamp":"2026-01-01T00:00:00.000Z"}`, 200, ""},
		{"POST", "/api/v1/consumer-groups/billing/queues/shop.orders/partitions/p1/seek", "", 200, ""},
		{"DELETE", "/api/v1/consumer-groups/billing/queues/shop.orders?deleteMetadata=true", "", 200, ""},
		{"DELETE", "/api/v1/consumer-groups/audit?deleteMetadata=false", "", 200, ""},
		{"POST", message + "/retry", "", 200, ""},
		{"DELETE", message, "", 404, ""}, // the retry was a move: nothing is left to delete
		{"POST", message + "/dlq", "", 404, ""},
		{"DELETE", "/api/v1/resources/queues/shop.orders", "", 200, ""},
		{"GET", "/api/me", "", 404, ""},
		{"POST", "/api/logout", "", 404, ""},
		{"GET", "/api/v1/migration/status", "", 404, ""},
		{"POST", "/api/v1/migration/test-connection", `{}`, 404, ""},
		{"POST", "/api/v1/migration/start", `{}`, 404, ""},
		{"POST", "/api/v1/migration/validate", `{}`, 404, ""},
		{"POST", "/api/v1/migration/reset", `{}`, 404, ""},
	} {
		answer := call(t, l.Server, button.method, button.path, button.body)
		require.Equal(t, button.status, answer.status, "%s %s: %s", button.method, button.path, answer.body)
		require.Equal(t, "application/json", answer.header.Get("Content-Type"), "%s %s", button.method, button.path)
		var value, reads any
		require.NoError(t, json.Unmarshal([]byte(answer.body), &value))
		if button.reads != "" {
			require.NoError(t, json.Unmarshal([]byte(button.reads), &reads))
			walk("", reads, value, func(at, fault string) { t.Errorf("%s %s: %s: %s", button.method, button.path, at, fault) })
		}
	}
	word := call(t, l.Server, "GET", "/health", "")
	require.Contains(t, []any{"healthy", "ok"}, read[map[string]any](t, word, 200)["status"], "the dashboard knows no other word")
}
