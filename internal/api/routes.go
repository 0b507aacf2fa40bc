package api

import "net/http"

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
}

// routes is the only list of routes: the router, docs/http.md and the tests are made from it.
var routes = []route{
	{method: "POST", path: "/api/v1/push", access: accessWriteOnly, handler: (*Server).push, summary: "Append messages to one or more partitions."},
	{method: "GET", path: "/api/v1/pop", access: accessReadWrite, handler: (*Server).popDiscovery, failed: "pop failed", summary: "Claim messages from the queues of a namespace or task."},
	{method: "GET", path: "/api/v1/pop/queue/{queue}", access: accessReadWrite, handler: (*Server).popQueue, failed: "pop failed", summary: "Claim messages from any partitions of a queue."},
	{method: "GET", path: "/api/v1/pop/queue/{queue}/partition/{partition}", access: accessReadWrite, handler: (*Server).popPartition, failed: "pop failed", summary: "Claim messages from one partition."},
	{method: "POST", path: "/api/v1/ack", access: accessReadWrite, handler: (*Server).ack, summary: "Acknowledge one message."},
	{method: "POST", path: "/api/v1/ack/batch", access: accessReadWrite, handler: (*Server).ackBatch, summary: "Acknowledge several messages of one consumer group."},
	{method: "POST", path: "/api/v1/transaction", access: accessReadWrite, handler: (*Server).transaction, summary: "Push and acknowledge in one commit, all or nothing."},
	{method: "POST", path: "/api/v1/lease/{leaseId}/extend", access: accessReadWrite, handler: (*Server).extend, failed: "renew failed", summary: "Lengthen the lease of everything one pop claimed."},
	{method: "POST", path: "/api/v1/configure", access: accessReadWrite, handler: (*Server).configure, failed: "configure failed", summary: "Create a queue or change its options."},
	{method: "DELETE", path: "/api/v1/resources/queues/{queue}", access: accessAdmin, handler: (*Server).deleteQueue, failed: "delete failed", summary: "Delete a queue with everything in it."},
	{method: "GET", path: "/health", access: accessPublic, handler: (*Server).health, summary: "Make a round trip to the database: 200 or 503."},
	{method: "GET", path: "/livez", access: accessPublic, handler: (*Server).livez, summary: "Say that the process serves requests; touches nothing else."},
	{method: "GET", path: "/readyz", access: accessPublic, handler: (*Server).readyz, summary: "Say whether the broker can do its work, with the reasons when it cannot."},
	{method: "GET", path: "/status", access: accessReadOnly, handler: (*Server).status, summary: "Say that the process serves requests, in the older shape."},
	{method: "GET", path: "/metrics", access: accessPublic, handler: (*Server).metricsJSON, summary: "Basic figures of this process as JSON."},
	{method: "GET", path: "/metrics/prometheus", access: accessPublic, handler: (*Server).metricsPrometheus, summary: "Metrics in the Prometheus text format."},
}
