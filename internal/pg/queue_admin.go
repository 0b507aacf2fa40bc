package pg

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// A QueueFilter selects queues by exact names; "" is all. Limit 0 is the procedure's default: everything, or 100 for QueueStatuses.
type QueueFilter struct {
	Queue, Namespace, Task string
	Limit, Offset          int
	// Cached takes every figure of ListQueues from the last refresh of the statistics and leaves the segments out: the form
	// for a page that polls.
	Cached bool
}

func (q QueueFilter) filter(tenant uuid.UUID) filter {
	f := tenantFilter(tenant).limited(q.Limit, q.Offset)
	f["queue"], f["namespace"], f["task"], f["cached"] = q.Queue, q.Namespace, q.Task, q.Cached
	return f
}

// ListQueues returns {"queues":[…]}, newest first, with live partitions, segments and totals.
func (db *DB) ListQueues(ctx context.Context, tenant uuid.UUID, q QueueFilter) (json.RawMessage, error) {
	return db.filtered(ctx, "list queues", "log_queue_list_v1", q.filter(tenant))
}

// QueueSummary returns a queue with its partitions, options and capacity, or {"error":"Queue not found"}.
func (db *DB) QueueSummary(ctx context.Context, tenant uuid.UUID, queue string) (json.RawMessage, error) {
	return db.answer(ctx, "read a queue", `SELECT queen.get_queue_v2($1::text, $2::uuid)`, queue, uuidArgument(tenant))
}

// QueueDetail returns the status form of a queue with its partitions, or {"error":"Queue not found"}.
func (db *DB) QueueDetail(ctx context.Context, tenant uuid.UUID, queue string) (json.RawMessage, error) {
	return db.answer(ctx, "read the detail of a queue", `SELECT queen.get_queue_detail_v2($1::text, $2::uuid)`, queue, uuidArgument(tenant))
}

// QueueStatuses returns {"queues":[…],"pagination"} from the figures of the last refresh.
func (db *DB) QueueStatuses(ctx context.Context, tenant uuid.UUID, q QueueFilter) (json.RawMessage, error) {
	text, err := q.filter(tenant).text()
	if err != nil {
		return nil, err
	}
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	return db.answer(ctx, "read the status of queues", `SELECT queen.get_status_queues_v2($1::jsonb, $2::int, $3::int)`, text, clampInt32(limit), clampInt32(q.Offset))
}

// Namespaces returns {"namespaces":[…]} of a tenant's queues.
func (db *DB) Namespaces(ctx context.Context, tenant uuid.UUID) (json.RawMessage, error) {
	return db.answer(ctx, "list namespaces", `SELECT queen.get_namespaces_v2($1::uuid)`, uuidArgument(tenant))
}

// Tasks returns {"tasks":[…]}: the task labels of a tenant's queues. (Administrative tasks are ListTasks.)
func (db *DB) Tasks(ctx context.Context, tenant uuid.UUID) (json.RawMessage, error) {
	return db.answer(ctx, "list task labels", `SELECT queen.get_tasks_v2($1::uuid)`, uuidArgument(tenant))
}

// A VolumeFilter selects what MessageVolume counts. Times are as the client sent them, "" is the default (24 hours ago, now);
// Interval is minute, hour or day, anything else is hour.
type VolumeFilter struct {
	From, To, Interval     string
	Queue, Namespace, Task string
}

// MessageVolume returns {"dataPoints":[…],"interval","from","to"}. An unreadable time is ErrBadData.
func (db *DB) MessageVolume(ctx context.Context, tenant uuid.UUID, v VolumeFilter) (json.RawMessage, error) {
	f := tenantFilter(tenant)
	f["from"], f["to"], f["interval"] = v.From, v.To, v.Interval
	f["queue"], f["namespace"], f["task"] = v.Queue, v.Namespace, v.Task
	return db.filtered(ctx, "read the message volume", "get_analytics_v1", f)
}

// QueueDepth returns {"queue","group","depth","partitions":[…]}: the unconsumed messages by partition, of one group or, with group
// "", of the slowest one that counts.
func (db *DB) QueueDepth(ctx context.Context, tenant uuid.UUID, queue, group string) (json.RawMessage, error) {
	return db.answer(ctx, "read the depth of a queue", `SELECT queen.log_queue_depth_v1($1::text, $2::text, $3::uuid)`, queue, group, uuidArgument(tenant))
}

// A PartitionPage asks for a page of the partitions of a queue.
type PartitionPage struct {
	// Prefix is the literal start of the names; Group, when not "", has the figures of that group alone.
	Prefix, Group string
	// Sort is "name" (also ""), "depth" or "age". Anything else acts as "name".
	Sort string
	// Limit 0 is 100. Cursor is nextCursor of the page before.
	Limit  int
	Cursor string
}

// ListPartitions returns {"partitions":[…],"nextCursor"}, or {"error":"Queue not found"}. Errors: ErrInvalidCursor.
func (db *DB) ListPartitions(ctx context.Context, tenant uuid.UUID, queue string, p PartitionPage) (json.RawMessage, error) {
	after, err := decodePosition(p.Cursor, partitionPosition)
	if err != nil {
		return nil, err
	}
	f := filter{}.limited(p.Limit, 0)
	f["prefix"], f["group"], f["after"], f["sort"] = p.Prefix, p.Group, after, p.Sort
	if p.Sort != "depth" && p.Sort != "age" {
		f["sort"] = "name"
	}
	text, err := f.text()
	if err != nil {
		return nil, err
	}
	answer, err := db.answer(ctx, "list partitions", `SELECT queen.log_partition_list_v1($1::text, $2::jsonb, $3::uuid)`, queue, text, uuidArgument(tenant))
	if err != nil {
		return nil, err
	}
	return withCursor(answer)
}

// QueueCapacity returns {"queues":[{"queue","maxSize","queueDepth","remainingCapacity","full"}]} of the queues with a limit.
func (db *DB) QueueCapacity(ctx context.Context, tenant uuid.UUID, q QueueFilter) (json.RawMessage, error) {
	return db.filtered(ctx, "read queue capacities", "log_capacity_v1", q.filter(tenant))
}

// PurgeOptions says what PurgeQueue deletes.
type PurgeOptions struct {
	DryRun bool
	// Mode is "consumed" (what every group has passed) or "all" (unread messages too).
	Mode string
	// Limit is the most partitions of one call, 0 is 100. Cursor is nextCursor of the call before.
	Limit  int
	Cursor string
}

// PurgeQueue deletes stored messages of a queue, or of one partition when partition is not "". It does a bounded part: repeat
// with the answer's nextCursor while its done is false. Returns {"queue","mode","dryRun","partitions","messages","unread","done",
// "nextCursor"} or {"error"}. Errors: ErrInvalidCursor.
func (db *DB) PurgeQueue(ctx context.Context, tenant uuid.UUID, queue, partition string, p PurgeOptions) (json.RawMessage, error) {
	after, err := decodePosition(p.Cursor, purgePosition)
	if err != nil {
		return nil, err
	}
	limit := p.Limit
	if limit <= 0 {
		limit = 100
	}
	answer, err := db.answer(ctx, "purge a queue", `SELECT queen.log_purge_v1($1::text, $2::text, $3::text, $4::boolean, $5::int, $6::text, $7::uuid)`,
		queue, partition, p.Mode, p.DryRun, clampInt32(limit), string(after), uuidArgument(tenant))
	if err != nil {
		return nil, err
	}
	return withCursor(answer)
}

// A MetricsFilter selects samples of the replicas. Times are as the client sent them, "" is the default.
type MetricsFilter struct {
	From, To, Hostname, WorkerID string
}

// SystemMetrics returns what the replicas' collectors sampled, by bucket. An unreadable time is ErrBadData.
func (db *DB) SystemMetrics(ctx context.Context, m MetricsFilter) (json.RawMessage, error) {
	return db.filtered(ctx, "read system metrics", "get_system_metrics_v1",
		filter{"from": m.From, "to": m.To, "hostname": m.Hostname, "workerId": m.WorkerID})
}

// RefreshStats recomputes the cached figures and returns what was done; nil when another broker is doing it.
func (db *DB) RefreshStats(ctx context.Context) (json.RawMessage, error) {
	return db.answer(ctx, "refresh the statistics", `SELECT CASE WHEN pg_try_advisory_xact_lock(737002) THEN queen.log_refresh_all_stats_v1() END`)
}

// RegisterStreamQuery registers one streaming query under the tenant, whatever tenant the request names, and returns the result
// object of streams_register_query_v1.
func (db *DB) RegisterStreamQuery(ctx context.Context, tenant uuid.UUID, request json.RawMessage) (json.RawMessage, error) {
	return db.answer(ctx, "register a streaming query",
		`SELECT queen.streams_register_query_v1(jsonb_build_array($1::jsonb || jsonb_build_object('idx', 0, 'tenant', $2::uuid))) #> '{0,result}'`,
		string(request), uuidArgument(tenant))
}

// StreamState reads state of one streaming query and returns the result object of streams_state_get_v1. A query of another tenant
// reads as empty.
func (db *DB) StreamState(ctx context.Context, tenant uuid.UUID, request json.RawMessage) (json.RawMessage, error) {
	return db.answer(ctx, "read streaming state",
		`SELECT queen.streams_state_get_v1(jsonb_build_array($1::jsonb || '{"idx":0}'), $2::uuid) #> '{0,result}'`, string(request), uuidArgument(tenant))
}

// A LeaseFilter selects leases by exact names; "" is all.
type LeaseFilter struct {
	Queue, Partition, Group string
	// ExpiringWithin and HeldLonger are seconds; nil does not filter.
	ExpiringWithin, HeldLonger *int
	// Abandoned lists batches whose lease ran out instead of live ones.
	Abandoned     bool
	Limit, Offset int
}

// Leases returns {"leases":[…],"total","abandoned","pagination"}.
func (db *DB) Leases(ctx context.Context, tenant uuid.UUID, l LeaseFilter) (json.RawMessage, error) {
	f := tenantFilter(tenant).limited(l.Limit, l.Offset)
	f["queue"], f["partition"], f["consumerGroup"], f["abandoned"] = l.Queue, l.Partition, l.Group, l.Abandoned
	f["expiringWithinSeconds"], f["heldLongerThanSeconds"] = l.ExpiringWithin, l.HeldLonger
	return db.filtered(ctx, "list leases", "lease_list_v1", f)
}

// LeaseUtilization returns {"queues":[{"queue","totalPartitions","leasedPartitions","utilizationPct"}]}; "" is all.
func (db *DB) LeaseUtilization(ctx context.Context, tenant uuid.UUID, queue, group string) (json.RawMessage, error) {
	return db.answer(ctx, "read the utilization of leases", `SELECT queen.lease_utilization_v1($1::text, $2::text, $3::uuid)`, queue, group, uuidArgument(tenant))
}

// ReleaseLeaseOf takes the batch of (partition, group) back; worker "" is whoever holds it. Returns {"released","partitionId",
// "consumerGroup","leaseId","queue","partition"}, or {"error":"Partition not found"}.
func (db *DB) ReleaseLeaseOf(ctx context.Context, tenant, partition uuid.UUID, group, worker string) (json.RawMessage, error) {
	return db.answer(ctx, "release a lease", `SELECT queen.lease_release_v1($1::uuid, $2::text, $3::text, $4::uuid)`,
		uuidArgument(partition), group, worker, uuidArgument(tenant))
}

// A TraceRecord is what a client says about a message. The caller has checked the ownership of the partition.
type TraceRecord struct {
	TransactionID, PartitionID string
	// Group "" is __QUEUE_MODE__, EventType "" is info.
	Group, EventType, WorkerID string
	Data                       json.RawMessage
	Names                      []string
}

// RecordTrace stores a trace and returns {"success":true,"traceId"}. A partition id that is no UUID, or text that is too long, is
// ErrBadData.
func (db *DB) RecordTrace(ctx context.Context, t TraceRecord) (json.RawMessage, error) {
	f := filter{
		"transactionId": t.TransactionID, "partitionId": t.PartitionID, "consumerGroup": t.Group, "eventType": t.EventType,
		"workerId": t.WorkerID, "traceNames": t.Names,
	}
	if t.Data != nil {
		f["data"] = t.Data
	}
	return db.filtered(ctx, "record a trace", "record_trace_v1", f)
}

// MessageTraces returns {"traces":[…]} of one message, oldest first; a partition of another tenant has none.
func (db *DB) MessageTraces(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (json.RawMessage, error) {
	answer, err := db.answer(ctx, "read the traces of a message",
		`SELECT queen.get_message_traces_v1(p.id, $2::text) FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
WHERE p.id = $1::uuid AND q.tenant_id = $3::uuid UNION ALL SELECT '{"traces":[]}'::jsonb LIMIT 1`, uuidArgument(partition), transactionID, uuidArgument(tenant))
	if err != nil {
		return nil, err
	}
	if answer == nil {
		return nil, fmt.Errorf("read the traces of a message: %w", ErrMalformedAnswer)
	}
	return answer, nil
}

// TracesByName returns {"traces":[…],"total","pagination"}, oldest first.
func (db *DB) TracesByName(ctx context.Context, tenant uuid.UUID, name string, limit, offset int) (json.RawMessage, error) {
	return db.answer(ctx, "read traces by name", `SELECT queen.get_traces_by_name_v1($1::text, $2::int, $3::int, $4::uuid)`,
		name, clampInt32(limit), clampInt32(offset), uuidArgument(tenant))
}

// TraceNames returns {"trace_names":[…],"total","pagination"}, most recently used first.
func (db *DB) TraceNames(ctx context.Context, tenant uuid.UUID, limit, offset int) (json.RawMessage, error) {
	return db.answer(ctx, "list trace names", `SELECT queen.get_available_trace_names_v1($1::int, $2::int, $3::uuid)`,
		clampInt32(limit), clampInt32(offset), uuidArgument(tenant))
}
