package pg

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

func (q QueueFilter) filter(tenant uuid.UUID) filter {
	f := tenantFilter(tenant).limited(q.Limit, q.Offset)
	f["queue"], f["namespace"], f["task"], f["cached"] = q.Queue, q.Namespace, q.Task, q.Cached
	return f
}

// ListQueues returns {"queues":[…]}, newest first, with live partitions, segments and totals.
func (db *DB) ListQueues(ctx context.Context, tenant uuid.UUID, q QueueFilter) (json.RawMessage, error) {
	return db.filtered(ctx, "list queues", "log_queue_list_v1", q.filter(tenant))
}

// QueueSummary returns a queue with its totals, a page of its partitions by name, options and capacity, or {"error":"Queue not
// found"}. Of the page, Limit (0: 1,000, which is also the most) and Cursor count. Errors: ErrInvalidCursor.
func (db *DB) QueueSummary(ctx context.Context, tenant uuid.UUID, queue string, p PartitionPage) (json.RawMessage, error) {
	return db.partitionPage(ctx, "read a queue", "log_queue_summary_v1", tenant, queue, filter{}, p)
}

// QueueOptionsOf returns {"queue","namespace","task","options"} of a queue, with the options in the form that Configure takes; nil
// when there is no such queue. It reads one row.
func (db *DB) QueueOptionsOf(ctx context.Context, tenant uuid.UUID, queue string) (json.RawMessage, error) {
	return db.manage(ctx, "read queue options", `SELECT (SELECT jsonb_build_object('queue', q.name, 'namespace', q.namespace, 'task', q.task,
    'options', queen.queue_options_v1(q.id)) FROM queen.queues AS q WHERE q.tenant_id = $2::uuid AND q.name = $1::text)`, queue, uuidArgument(tenant))
}

// QueueDetail returns the status form of a queue, paged like QueueSummary, or {"error":"Queue not found"}.
func (db *DB) QueueDetail(ctx context.Context, tenant uuid.UUID, queue string, p PartitionPage) (json.RawMessage, error) {
	return db.partitionPage(ctx, "read the detail of a queue", "log_queue_detail_v1", tenant, queue, filter{}, p)
}

// partitionPage calls a procedure that shows partitions of a queue page by page, with f and the page as its filters.
func (db *DB) partitionPage(ctx context.Context, act, procedure string, tenant uuid.UUID, queue string, f filter, p PartitionPage) (json.RawMessage, error) {
	after, err := decodePosition(p.Cursor, partitionPosition)
	if err != nil {
		return nil, err
	}
	f = f.limited(p.Limit, 0)
	f["after"] = after
	text, err := f.text()
	if err != nil {
		return nil, err
	}
	answer, err := db.manage(ctx, act, `SELECT queen.`+procedure+`($1::text, $2::jsonb, $3::uuid)`, queue, text, uuidArgument(tenant))
	if err != nil {
		return nil, err
	}
	return withCursor(answer)
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
	return db.manage(ctx, "read the status of queues", `SELECT queen.get_status_queues_v2($1::jsonb, $2::int, $3::int)`, text, clampInt32(limit), clampInt32(q.Offset))
}

// Namespaces returns {"namespaces":[…]} of a tenant's queues.
func (db *DB) Namespaces(ctx context.Context, tenant uuid.UUID) (json.RawMessage, error) {
	return db.manage(ctx, "list namespaces", `SELECT queen.get_namespaces_v2($1::uuid)`, uuidArgument(tenant))
}

// Tasks returns {"tasks":[…]}: the task labels of a tenant's queues. (Administrative tasks are ListTasks.)
func (db *DB) Tasks(ctx context.Context, tenant uuid.UUID) (json.RawMessage, error) {
	return db.manage(ctx, "list task labels", `SELECT queen.get_tasks_v2($1::uuid)`, uuidArgument(tenant))
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
	return db.manage(ctx, "read the depth of a queue", `SELECT queen.log_queue_depth_v1($1::text, $2::text, $3::uuid)`, queue, group, uuidArgument(tenant))
}

// ListPartitions returns {"partitions":[…],"nextCursor"}, or {"error":"Queue not found"}. Errors: ErrInvalidCursor.
func (db *DB) ListPartitions(ctx context.Context, tenant uuid.UUID, queue string, p PartitionPage) (json.RawMessage, error) {
	sort := "name"
	if p.Sort == "depth" || p.Sort == "age" {
		sort = p.Sort
	}
	return db.partitionPage(ctx, "list partitions", "log_partition_list_v1", tenant, queue, filter{"prefix": p.Prefix, "group": p.Group, "sort": sort, "leases": p.Leases}, p)
}

// QueueCapacity returns {"queues":[{"queue","maxSize","queueDepth","remainingCapacity","full"}]} of the queues with a limit.
func (db *DB) QueueCapacity(ctx context.Context, tenant uuid.UUID, q QueueFilter) (json.RawMessage, error) {
	return db.filtered(ctx, "read queue capacities", "log_capacity_v1", q.filter(tenant))
}

// PurgeQueue deletes stored messages of a queue, or of one partition when partition is not "". It does a bounded part, 1,000
// segments when p.Limit is 0: repeat while the answer's done is false. Returns {"queue","mode","dryRun","partitions","messages",
// "unread","done"} or {"error"}.
func (db *DB) PurgeQueue(ctx context.Context, tenant uuid.UUID, queue, partition string, p PurgeOptions) (json.RawMessage, error) {
	limit := p.Limit
	if limit <= 0 {
		limit = 1000
	}
	return db.manage(ctx, "purge a queue", `SELECT queen.log_purge_v1($1::text, $2::text, $3::text, $4::boolean, $5::int, $6::uuid)`,
		queue, partition, p.Mode, p.DryRun, clampInt32(limit), uuidArgument(tenant))
}

// RegisterStreamQuery registers one streaming query under the tenant, whatever tenant the request names, and returns the result
// object of streams_register_query_v1.
func (db *DB) RegisterStreamQuery(ctx context.Context, tenant uuid.UUID, request json.RawMessage) (json.RawMessage, error) {
	return db.manage(ctx, "register a streaming query",
		`SELECT queen.streams_register_query_v1(jsonb_build_array($1::jsonb || jsonb_build_object('idx', 0, 'tenant', $2::uuid))) #> '{0,result}'`,
		string(request), uuidArgument(tenant))
}

// StreamState reads state of one streaming query and returns the result object of streams_state_get_v1. A query of another tenant
// reads as empty.
func (db *DB) StreamState(ctx context.Context, tenant uuid.UUID, request json.RawMessage) (json.RawMessage, error) {
	return db.manage(ctx, "read streaming state",
		`SELECT queen.streams_state_get_v1(jsonb_build_array($1::jsonb || '{"idx":0}'), $2::uuid) #> '{0,result}'`, string(request), uuidArgument(tenant))
}

// StreamRipe lists the partitions of a streaming query with windows that nobody is going to close, as streams_ripe_v1 describes
// it. A query of another tenant has none.
func (db *DB) StreamRipe(ctx context.Context, tenant uuid.UUID, request json.RawMessage) (json.RawMessage, error) {
	return db.manage(ctx, "list idle streaming partitions", `SELECT queen.streams_ripe_v1($1::jsonb, $2::uuid)`, string(request), uuidArgument(tenant))
}

// Leases returns {"leases":[…],"total","abandoned","pagination"}.
func (db *DB) Leases(ctx context.Context, tenant uuid.UUID, l LeaseFilter) (json.RawMessage, error) {
	f := tenantFilter(tenant).limited(l.Limit, l.Offset)
	f["queue"], f["partition"], f["consumerGroup"], f["abandoned"] = l.Queue, l.Partition, l.Group, l.Abandoned
	f["expiringWithinSeconds"], f["heldLongerThanSeconds"], f["minAttempts"] = l.ExpiringWithin, l.HeldLonger, l.MinAttempts
	return db.filtered(ctx, "list leases", "lease_list_v1", f)
}

// LeaseUtilization returns {"queues":[{"queue","totalPartitions","leasedPartitions","utilizationPct"}]}; "" is all.
func (db *DB) LeaseUtilization(ctx context.Context, tenant uuid.UUID, queue, group string) (json.RawMessage, error) {
	return db.manage(ctx, "read the utilization of leases", `SELECT queen.lease_utilization_v1($1::text, $2::text, $3::uuid)`, queue, group, uuidArgument(tenant))
}

// ReleaseLeaseOf takes the batch of (partition, group) back; worker "" is whoever holds it. Returns {"released","partitionId",
// "consumerGroup","leaseId","queue","partition"}, or {"error":"Partition not found"}.
func (db *DB) ReleaseLeaseOf(ctx context.Context, tenant, partition uuid.UUID, group, worker string) (json.RawMessage, error) {
	return db.manage(ctx, "release a lease", `SELECT queen.lease_release_v1($1::uuid, $2::text, $3::text, $4::uuid)`,
		uuidArgument(partition), group, worker, uuidArgument(tenant))
}

// RecordTrace stores a trace and returns {"success":true,"traceId"}, or {"success":false,"error":"Message not found"} when the
// partition belongs to another tenant. Text that is too long is ErrBadData.
func (db *DB) RecordTrace(ctx context.Context, tenant uuid.UUID, t TraceRecord) (json.RawMessage, error) {
	f := filter{
		"transactionId": t.TransactionID, "partitionId": t.PartitionID, "consumerGroup": t.Group, "eventType": t.EventType,
		"workerId": "queen", "traceNames": t.Names, "encrypted": t.Encrypted,
	}
	if t.Data != nil {
		f["data"] = json.RawMessage(t.Data)
	}
	text, err := f.text()
	if err != nil {
		return nil, err
	}
	return db.manage(ctx, "record a trace", `SELECT CASE WHEN EXISTS (
    SELECT 1 FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = $2::uuid AND q.tenant_id <> $3::uuid)
THEN '{"success":false,"error":"Message not found"}'::jsonb ELSE queen.record_trace_v1($1::jsonb) END`, text, uuidArgument(t.PartitionID), uuidArgument(tenant))
}

// MessageTraces returns {"traces":[…]} of one message, oldest first; a partition of another tenant has none.
func (db *DB) MessageTraces(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (json.RawMessage, error) {
	answer, err := db.manage(ctx, "read the traces of a message",
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
