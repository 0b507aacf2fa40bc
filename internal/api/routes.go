package api

import (
	"net/http"
	"strings"
)

// access is who may call a route. Levels are sets of roles without an order: see docs/http.md.
type access string

// The access levels.
const (
	accessPublic    access = "public"
	accessReadOnly  access = "read-only"
	accessWriteOnly access = "write-only"
	accessReadWrite access = "read-write"
	accessAdmin     access = "admin"
)

// A route is one row of the table.
type route struct {
	method, path string
	access       access
	handler      func(*Server, http.ResponseWriter, *http.Request) error
	summary      string
	// failed is the contract's word in front of the text of unexpected errors, "" when it has none.
	failed string
	// query lists the query parameters, as in "queue limit:int wait:bool"; without a type they are texts.
	query string
	// body is the shape of the request, "" when there is none. bodyOptional says that it may be left out.
	body         shape
	bodyOptional bool
	// live answers are never shared with other callers.
	live bool
	// busy routes are those of the data path, called for every message or batch. Their answers are written whole. See [Busy].
	busy bool
	// status is that of success, 0 is 200. answer is the shape of its body, "" when it is no JSON.
	status int
	answer shape
}

// needsDatabase reports whether a route has to wait until the broker has prepared its database.
func (r *route) needsDatabase() bool {
	return isAPIPath(r.path) || strings.HasPrefix(r.path, "/streams/") || strings.HasPrefix(r.path, "/internal/")
}

// isShared reports whether callers who take an older answer may share one.
func (r *route) isShared() bool {
	return r.method == http.MethodGet && !r.live && strings.HasPrefix(r.path, "/api/v1/") && (r.access == accessReadOnly || r.access == accessAdmin)
}

// The query parameters that several routes share.
const (
	queryQueues      = "queue namespace task limit:int offset:int"
	querySeries      = "from to queue"
	queryReplicas    = "from to hostname workerId"
	queryDeadLetters = "queue partition consumerGroup from to error shape transactionId partitionId"
	queryPop         = "batch:int partitions:int autoAck:bool wait:bool timeout:int leaseSeconds:int consumerGroup subscriptionMode subscriptionFrom"
)

// routes is the only list of routes: the router, docs/http.md, /openapi.json and the tests are made from it.
var routes = []route{
	{method: "POST", path: "/api/v1/push", access: accessWriteOnly, busy: true, handler: (*Server).push, body: shapePush, status: 201, answer: shapePushed, summary: "Append messages to one or more partitions."},
	{method: "GET", path: "/api/v1/pop", access: accessReadWrite, busy: true, handler: (*Server).popDiscovery, failed: "pop failed", query: "namespace task " + queryPop, answer: shapePopped, summary: "Claim messages from the queues of a namespace or task."},
	{method: "GET", path: "/api/v1/pop/queue/{queue}", access: accessReadWrite, busy: true, handler: (*Server).popQueue, failed: "pop failed", query: queryPop, answer: shapePopped, summary: "Claim messages from any partitions of a queue."},
	{method: "GET", path: "/api/v1/pop/queue/{queue}/partition/{partition}", access: accessReadWrite, busy: true, handler: (*Server).popPartition, failed: "pop failed", query: queryPop, answer: shapePopped, summary: "Claim messages from one partition."},
	{method: "POST", path: "/api/v1/ack", access: accessReadWrite, busy: true, handler: (*Server).ack, body: shapeAck, answer: shapeAcked, summary: "Acknowledge one message."},
	{method: "POST", path: "/api/v1/ack/batch", access: accessReadWrite, busy: true, handler: (*Server).ackBatch, body: shapeAckBatch, answer: shapeAcked, summary: "Acknowledge several messages of one consumer group."},
	{method: "POST", path: "/api/v1/transaction", access: accessReadWrite, busy: true, handler: (*Server).transaction, body: shapeTransaction, answer: shapeTransacted, summary: "Push and acknowledge in one commit, all or nothing."},
	{method: "POST", path: "/api/v1/lease/{leaseId}/extend", access: accessReadWrite, busy: true, handler: (*Server).extend, failed: "renew failed", body: shapeExtend, bodyOptional: true, answer: shapeExtended, summary: "Lengthen the lease of everything one pop claimed."},

	{method: "POST", path: "/api/v1/configure", access: accessReadWrite, handler: (*Server).configure, failed: "configure failed", body: shapeConfigure, answer: shapeConfigured, summary: "Create a queue or change its options."},
	{method: "GET", path: "/api/v1/resources/queues", access: accessReadOnly, handler: (*Server).listQueues, failed: "list failed", query: queryQueues + " stats contains pending:bool dead:bool bounded:bool sort cursor", answer: shapeQueues, summary: "List the queues, the newest first; with stats=cached as of the last statistics, with sort (a column, - in front turns it around) also page by page."},
	{method: "GET", path: "/api/v1/resources/queues/{queue}", access: accessReadOnly, handler: (*Server).getQueue, failed: "get failed", query: "limit:int cursor", answer: shapeQueue, summary: "Describe a queue with its options and partitions, at most 1,000 an answer."},
	{method: "DELETE", path: "/api/v1/resources/queues/{queue}", access: accessAdmin, handler: (*Server).deleteQueue, failed: "delete failed", answer: shapeDeletedQueue, summary: "Delete a queue with everything in it."},
	{method: "GET", path: "/api/v1/resources/queues/{queue}/options", access: accessReadOnly, handler: (*Server).queueOptions, failed: "get failed", answer: shapeOptions, summary: "Show the stored options of a queue."},
	{method: "GET", path: "/api/v1/resources/queues/{queue}/partitions", access: accessReadOnly, handler: (*Server).queuePartitions, failed: "list failed", query: "prefix group leases:bool sort cursor limit:int", answer: shapePartitions, summary: "List the partitions of a queue page by page, by name, depth or age."},
	{method: "GET", path: "/api/v1/resources/queues/{queue}/depth", access: accessReadOnly, handler: (*Server).queueDepth, failed: "get failed", query: "group", answer: shapeDepth, summary: "Count what a group has not consumed, partition by partition."},
	{method: "POST", path: "/api/v1/resources/queues/{queue}/purge", access: accessAdmin, handler: (*Server).purgeQueue, failed: "purge failed", body: shapePurge, bodyOptional: true, answer: shapePurged, summary: "Delete the consumed messages of a queue, or all; with dryRun only count them."},
	{method: "GET", path: "/api/v1/resources/capacity", access: accessReadOnly, handler: (*Server).queueCapacity, failed: "list failed", query: queryQueues, answer: shapeCapacity, summary: "List the queues with a maxSize and the room they have."},
	{method: "GET", path: "/api/v1/resources/overview", access: accessReadOnly, handler: (*Server).overview, failed: "overview failed", answer: shapeOverview, summary: "Sum up what is stored, pending and flowing."},
	{method: "GET", path: "/api/v1/resources/namespaces", access: accessReadOnly, handler: (*Server).namespaces, failed: "namespaces failed", answer: shapeNamespaces, summary: "List the namespaces with their counters."},
	{method: "GET", path: "/api/v1/resources/tasks", access: accessReadOnly, handler: (*Server).tasks, failed: "tasks failed", answer: shapeTaskNames, summary: "List the task names with their counters."},

	{method: "GET", path: "/api/v1/consumer-groups", access: accessReadOnly, handler: (*Server).listGroups, failed: "consumer groups failed", answer: shapeGroups, summary: "List every consumer group and queue with the lag."},
	{method: "GET", path: "/api/v1/resources/consumer-groups", access: accessReadOnly, handler: (*Server).groupPage, failed: "consumer groups failed", query: "queue group contains behind:bool neverConsumed:bool minLagSeconds:int sort cursor limit:int", answer: shapeGroupPage, summary: "List the consumer groups page by page, by name, queue, lag, partitions or age; - in front of sort turns it around."},
	{method: "GET", path: "/api/v1/resources/consumer-groups/{group}/partitions", access: accessReadOnly, handler: (*Server).groupPartitions, failed: "details failed", query: "queue contains behind:bool leased:bool abandoned:bool sort cursor limit:int", answer: shapeGroupPartitions, summary: "List the partitions of a consumer group page by page, by name, lag, age, attempts or consumed, with who holds each."},
	{method: "GET", path: "/api/v1/consumer-groups/lagging", access: accessReadOnly, handler: (*Server).laggingPartitions, failed: "lagging failed", query: "minLagSeconds:int", answer: shapeLagging, summary: "List the partitions that a group is far behind in, the worst first."},
	{method: "GET", path: "/api/v1/consumer-groups/{group}", access: accessReadOnly, handler: (*Server).getGroup, failed: "details failed", answer: shapeGroup, summary: "Describe a consumer group, queue by queue."},
	{method: "POST", path: "/api/v1/consumer-groups/{group}/subscription", access: accessReadWrite, handler: (*Server).setSubscription, failed: "subscription failed", body: shapeSubscription, answer: shapeSubscribed, summary: "Move the time from which a group reads partitions that it has not touched."},
	{method: "POST", path: "/api/v1/consumer-groups/{group}/queues/{queue}/seek", access: accessReadWrite, handler: (*Server).seekGroup, failed: "seek failed", body: shapeSeek, answer: shapeSoughtGroup, summary: "Move the cursors of a group in a queue to the end, a time, an offset or where another group is; with dryRun only count what would be read again."},
	{method: "POST", path: "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek", access: accessReadWrite, handler: (*Server).seekPartition, failed: "seek failed", body: shapeSeek, bodyOptional: true, answer: shapeSoughtPartition, summary: "Move the cursor of a group in one partition; without a body to the end; with dryRun only count what would be read again."},
	{method: "DELETE", path: "/api/v1/consumer-groups/{group}", access: accessAdmin, handler: (*Server).deleteGroup, failed: "delete(seg) failed", query: "deleteMetadata:bool", answer: shapeDeletedGroup, summary: "Forget a consumer group."},
	{method: "DELETE", path: "/api/v1/consumer-groups/{group}/queues/{queue}", access: accessAdmin, handler: (*Server).deleteGroupForQueue, failed: "delete(seg) failed", query: "deleteMetadata:bool", answer: shapeDeletedGroup, summary: "Forget a consumer group in one queue."},

	{method: "GET", path: "/api/v1/messages", access: accessReadOnly, handler: (*Server).listMessages, failed: "list failed", query: "queue partition namespace ns task status group transactionId traceId payload from to limit:int offset:int cursor", answer: shapeMessages, summary: "List stored messages, the newest first; with payload (order.total > 100, name ~ ann, order.id) those that fit among the next 2,000 at most, and how many were looked at."},
	{method: "GET", path: "/api/v1/messages/tail", access: accessReadOnly, handler: (*Server).tailMessages, failed: "tail failed", query: "queue partition", live: true, summary: "Watch the messages of a queue as they come, as server-sent events."},
	{method: "GET", path: "/api/v1/messages/{partitionId}/{transactionId}", access: accessReadOnly, handler: (*Server).getMessage, failed: "resolve failed", answer: shapeMessage, summary: "Show one message and how far each group is with it."},
	{method: "DELETE", path: "/api/v1/messages/{partitionId}/{transactionId}", access: accessReadWrite, handler: (*Server).deleteMessage, failed: "delete failed", answer: shapeDeletedMessage, summary: "Delete the dead letters of one message."},
	{method: "POST", path: "/api/v1/messages/{partitionId}/{transactionId}/retry", access: accessReadWrite, handler: (*Server).retryMessage, failed: "dlq lookup failed", query: "consumerGroup", answer: shapeReplayed, summary: "Move the newest dead letter of a message back into its queue."},
	{method: "GET", path: "/api/v1/partitions/{partitionId}/messages", access: accessReadOnly, handler: (*Server).partitionMessages, failed: "list failed", query: "offset:int limit:int", answer: shapePartitionMessages, summary: "List the stored messages of a partition by offset, the oldest first; moves no cursor."},
	{method: "GET", path: "/api/v1/dlq", access: accessReadOnly, handler: (*Server).listDeadLetters, failed: "dlq failed", query: queryDeadLetters + " limit:int offset:int cursor", answer: shapeDeadLetters, summary: "List dead letters, the newest failure first."},
	{method: "DELETE", path: "/api/v1/dlq", access: accessAdmin, handler: (*Server).deleteDeadLetters, failed: "dlq cleanup failed", query: queryDeadLetters, answer: shapeDeletedDeadLetters, summary: "Delete the dead letters of a queue that the filters choose."},
	{method: "GET", path: "/api/v1/dlq/count", access: accessReadOnly, handler: (*Server).countDeadLetters, failed: "dlq failed", query: queryDeadLetters, answer: shapeCount, summary: "Count the dead letters that the filters choose."},
	{method: "GET", path: "/api/v1/dlq/shapes", access: accessReadOnly, handler: (*Server).deadLetterShapes, failed: "dlq failed", query: queryDeadLetters + " limit:int cursor", answer: shapeErrorShapes, summary: "Group the dead letters by the shape of their error texts, page by page, the most frequent first."},
	{method: "POST", path: "/api/v1/dlq/{id}/replay", access: accessReadWrite, handler: (*Server).replayDeadLetter, failed: "dlq lookup failed", body: shapeDestination, bodyOptional: true, answer: shapeReplayed, summary: "Move one dead letter back into its queue or into another one."},
	{method: "POST", path: "/api/v1/dlq/tasks", access: accessAdmin, handler: (*Server).startTask, failed: "dlq failed", body: shapeNewTask, status: 201, answer: shapeTask, summary: "Start moving or deleting all dead letters that a filter chooses; with dryRun only count them."},
	{method: "GET", path: "/api/v1/dlq/tasks", access: accessReadOnly, handler: (*Server).listTasks, failed: "dlq failed", query: "kind state queue limit:int cursor", answer: shapeTasks, summary: "List the tasks over dead letters page by page, the newest first; state active has those that have not ended."},
	{method: "GET", path: "/api/v1/dlq/tasks/{id}", access: accessReadOnly, handler: (*Server).getTask, failed: "dlq failed", answer: shapeTask, summary: "Show the progress of a task over dead letters."},
	{method: "POST", path: "/api/v1/dlq/tasks/{id}/cancel", access: accessAdmin, handler: (*Server).cancelTask, failed: "dlq failed", answer: shapeTask, summary: "Stop a task over dead letters; what it has done stays done."},
	{method: "GET", path: "/api/v1/pipelines/{traceId}", access: accessReadOnly, handler: (*Server).pipeline, failed: "list failed", query: "limit:int", answer: shapePipeline, summary: "List the messages of a trace across queues, in the order of time."},

	{method: "POST", path: "/api/v1/traces", access: accessReadWrite, handler: (*Server).recordTrace, failed: "trace failed", body: shapeTrace, status: 201, answer: shapeTraced, summary: "Record an event about a message."},
	{method: "GET", path: "/api/v1/traces/names", access: accessReadOnly, handler: (*Server).listTraceNames, failed: "trace names failed", query: "contains limit:int offset:int cursor", answer: shapeTraceNames, summary: "List the names under which events were recorded, the most recent first."},
	{method: "GET", path: "/api/v1/traces/by-name/{traceName}", access: accessReadOnly, handler: (*Server).tracesByName, failed: "traces failed", query: "limit:int offset:int cursor", answer: shapeNamedTraces, summary: "List the events of a name, the oldest first."},
	{method: "GET", path: "/api/v1/traces/{partitionId}/{transactionId}", access: accessReadOnly, handler: (*Server).messageTraces, failed: "traces failed", answer: shapeTraces, summary: "List the events of a message, the oldest first."},

	{method: "GET", path: "/api/v1/leases", access: accessReadOnly, handler: (*Server).listLeases, failed: "leases failed", query: "queue partition consumerGroup expiringWithinSeconds:int heldLongerThanSeconds:int minAttempts:int abandoned:bool limit:int offset:int", answer: shapeLeases, summary: "List the live leases, or the batches that their holders abandoned, or those that were delivered again and again."},
	{method: "GET", path: "/api/v1/leases/utilization", access: accessReadOnly, handler: (*Server).leaseUtilization, failed: "leases failed", query: "queue consumerGroup", answer: shapeUtilization, summary: "Show how many partitions of each queue are leased."},
	{method: "POST", path: "/api/v1/leases/release", access: accessAdmin, handler: (*Server).releaseLease, failed: "leases failed", body: shapeRelease, answer: shapeReleased, summary: "End a lease, so that its messages are delivered again at once."},

	{method: "GET", path: "/api/v1/status", access: accessReadOnly, handler: (*Server).systemStatus, failed: "status failed", query: "from to queue namespace task", answer: shapeStatus, summary: "Show throughput, counters, leases, dead letters and brokers."},
	{method: "GET", path: "/api/v1/status/queues", access: accessReadOnly, handler: (*Server).queueStatuses, failed: "status queues failed", query: queryQueues, answer: shapeQueueStatuses, summary: "List the counters of the queues, the newest queue first."},
	{method: "GET", path: "/api/v1/status/queues/{queue}", access: accessReadOnly, handler: (*Server).queueStatus, failed: "queue detail failed", query: "limit:int cursor", answer: shapeQueueStatus, summary: "Show the counters of a queue, partition by partition, at most 1,000 an answer."},
	{method: "GET", path: "/api/v1/status/analytics", access: accessReadOnly, handler: (*Server).messageVolume, failed: "analytics failed", query: "from to interval queue namespace task", answer: shapeVolume, summary: "Count the stored messages by the time of their push."},
	{method: "GET", path: "/api/v1/status/buffers", access: accessReadOnly, handler: (*Server).buffers, answer: shapeBuffers, summary: "Show what waits in the file buffer."},
	{method: "GET", path: "/api/v1/analytics/queue-lag", access: accessReadOnly, handler: (*Server).queueLag, failed: "queue lag failed", query: querySeries, answer: shapeQueueLag, summary: "Show how long messages waited until they were popped."},
	{method: "GET", path: "/api/v1/analytics/queue-ops", access: accessReadOnly, handler: (*Server).queueOps, failed: "queue ops failed", query: querySeries, answer: shapeQueueOps, summary: "Show what happened in each queue over time."},
	{method: "GET", path: "/api/v1/analytics/queue-parked-replicas", access: accessReadOnly, handler: (*Server).parkedReplicas, failed: "parked replicas failed", query: querySeries, answer: shapeParked, summary: "Show the waiting long polls of each broker over time."},
	{method: "GET", path: "/api/v1/analytics/retention", access: accessReadOnly, handler: (*Server).retentionSeries, failed: "retention failed", query: querySeries, answer: shapeRetention, summary: "Show what retention deleted over time."},
	{method: "GET", path: "/api/v1/analytics/system-metrics", access: accessReadOnly, handler: (*Server).systemMetrics, failed: "system metrics failed", query: queryReplicas, answer: shapeSystemMetrics, summary: "Show processor, memory and pool of each broker over time."},
	{method: "GET", path: "/api/v1/analytics/worker-metrics", access: accessReadOnly, handler: (*Server).workerMetrics, failed: "worker metrics failed", query: queryReplicas + " queue", answer: shapeWorkerMetrics, summary: "Show the throughput of each broker over time."},
	{method: "GET", path: "/api/v1/analytics/postgres-stats", access: accessReadOnly, handler: (*Server).postgresStats, failed: "postgres stats failed", answer: shapePostgres, summary: "Show sizes, caches, vacuum and sessions of PostgreSQL."},

	{method: "GET", path: "/api/v1/system/maintenance", access: accessAdmin, handler: (*Server).maintenance, answer: shapeMaintenance, summary: "Show the maintenance switches."},
	{method: "POST", path: "/api/v1/system/maintenance", access: accessAdmin, handler: (*Server).setMaintenance, failed: "maintenance failed", body: shapeSwitch, answer: shapeMaintenanceSet, summary: "Switch pushes off or on, for all brokers."},
	{method: "GET", path: "/api/v1/system/maintenance/pop", access: accessAdmin, handler: (*Server).popMaintenance, answer: shapePopMaintenance, summary: "Show the pop switch."},
	{method: "POST", path: "/api/v1/system/maintenance/pop", access: accessAdmin, handler: (*Server).setPopMaintenance, failed: "maintenance failed", body: shapeSwitch, answer: shapePopMaintenance, summary: "Switch pops off or on, for all brokers."},
	{method: "GET", path: "/api/v1/system/brokers", access: accessAdmin, handler: (*Server).brokers, failed: "brokers failed", query: "contains alive:bool limit:int cursor", answer: shapeBrokers, summary: "List the brokers of the database page by page, with those that died in the last day."},
	{method: "GET", path: "/api/v1/system/settings", access: accessAdmin, handler: (*Server).settings, answer: shapeSettings, summary: "Show the settings of this broker as they are in force, secrets masked."},
	{method: "GET", path: "/api/v1/system/shared-state", access: accessAdmin, handler: (*Server).sharedState, answer: shapeSharedState, summary: "Show the maintenance switches in the older shape."},
	{method: "POST", path: "/api/v1/stats/refresh", access: accessAdmin, handler: (*Server).refreshStats, failed: "refresh failed", answer: shapeRefreshed, summary: "Compute the cached counters now."},
	{method: "POST", path: "/internal/api/notify", access: accessAdmin, handler: (*Server).notify, body: shapeNotify, answer: shapeStatusWord, summary: "Wake the long polls of a queue."},
	{method: "GET", path: "/internal/api/shared-state/stats", access: accessAdmin, handler: (*Server).meshStats, answer: shapeMesh, summary: "Show the traffic between brokers."},
	{method: "GET", path: "/internal/api/inter-instance/stats", access: accessAdmin, handler: (*Server).meshStats, answer: shapeMesh, summary: "Show the traffic between brokers, under its older name."},

	{method: "GET", path: "/api/v1/streams", access: accessReadOnly, handler: (*Server).listStreams, failed: "list failed", query: "contains sort limit:int cursor", answer: shapeStreams, summary: "List the streaming queries page by page with the size and age of their state and how far they are, by name, source, sink, created or updated."},
	{method: "POST", path: "/streams/v1/queries", access: accessReadWrite, handler: (*Server).registerStream, failed: "register failed", body: shapeRegister, answer: shapeRegistered, summary: "Register a streaming query."},
	{method: "POST", path: "/streams/v1/state/get", access: accessReadOnly, handler: (*Server).streamState, failed: "state get failed", body: shapeStateGet, answer: shapeState, summary: "Read the state rows of a streaming query for one partition."},
	{method: "POST", path: "/streams/v1/state/ripe", access: accessReadOnly, handler: (*Server).streamRipe, failed: "ripe partitions failed", body: shapeRipeAsk, answer: shapeRipe, summary: "List the idle partitions of a streaming query whose windows have ended."},
	{method: "POST", path: "/streams/v1/cycle", access: accessReadWrite, handler: (*Server).streamCycle, failed: "cycle failed", body: shapeCycle, answer: shapeCycled, summary: "Commit state, sink pushes and source ack of a streaming query together."},

	{method: "GET", path: "/auth/me", access: accessPublic, handler: (*Server).me, answer: shapeIdentity, summary: "Say who the dashboard acts as."},
	{method: "GET", path: "/auth/login", access: accessPublic, handler: (*Server).login, status: 303, summary: "Lead to the start page."},
	{method: "POST", path: "/auth/logout", access: accessPublic, handler: (*Server).logout, answer: `{"ok":"bool"}`, summary: "Forget who the dashboard acts as."},
	{method: "GET", path: "/openapi.json", access: accessPublic, handler: (*Server).openAPI, answer: `{"*":"any"}`, summary: "Describe all routes in OpenAPI 3.1."},
	{method: "GET", path: "/health", access: accessPublic, handler: (*Server).health, answer: shapeHealth, summary: "Make a round trip to the database: 200 or 503."},
	{method: "GET", path: "/livez", access: accessPublic, handler: (*Server).livez, answer: shapeStatusWord, summary: "Say that the process serves requests; touches nothing else."},
	{method: "GET", path: "/readyz", access: accessPublic, handler: (*Server).readyz, answer: `{"ready":"bool","checks":{"*":"string"}}`, summary: "Say whether the broker can do its work, with the reasons when it cannot."},
	{method: "GET", path: "/status", access: accessReadOnly, handler: (*Server).status, answer: `{"status":"string","engine":"string"}`, summary: "Say that the process serves requests, in the older shape."},
	{method: "GET", path: "/metrics", access: accessPublic, handler: (*Server).metricsJSON, answer: shapeMetrics, summary: "Basic figures of this process as JSON."},
	{method: "GET", path: "/metrics/prometheus", access: accessPublic, handler: (*Server).metricsPrometheus, summary: "Metrics in the Prometheus text format."},
}
