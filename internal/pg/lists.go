package pg

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
)

// A GroupFilter chooses and orders the rows of ListGroups. Zero fields choose all.
type GroupFilter struct {
	Queue, Group string
	// Contains stands somewhere in the name of the group or of the queue, in any case.
	Contains string
	// Behind has only rows with something before them, NeverConsumed only groups that never consumed anything.
	Behind, NeverConsumed bool
	// MinLagSeconds is the least age of the oldest pending message; 0 does not choose.
	MinLagSeconds int
	// Sort is "name", "queue", "lag", "partitions" or "age", with a minus in front for descending; "" is by name.
	Sort string
	// Limit is the most rows of a page; 0 is 100. Cursor is the nextCursor of the page before, "" for the first one.
	Limit  int
	Cursor string
}

// ListGroups returns a page of {"groups":[…],"total","nextCursor"}, one row for each (group, queue) that has a cursor. Errors:
// ErrInvalidCursor, also for a cursor of another order.
func (db *DB) ListGroups(ctx context.Context, tenant uuid.UUID, g GroupFilter) (json.RawMessage, error) {
	f := filter{"queue": g.Queue, "group": g.Group, "contains": g.Contains, "behind": g.Behind, "neverConsumed": g.NeverConsumed, "minLagSeconds": clampInt32(g.MinLagSeconds)}
	f = f.limited(g.Limit, 0)
	if err := f.inOrder(g.Sort, g.Cursor); err != nil {
		return nil, err
	}
	return db.paged(ctx, "list consumer groups page by page", "group_list_v1", tenant, f)
}

// A GroupPartitionFilter chooses and orders the rows of ListGroupPartitions. Zero fields choose all.
type GroupPartitionFilter struct {
	Queue string
	// Contains stands somewhere in the name of the partition, in any case.
	Contains string
	// Behind has only partitions with something before the group, Leased only those that it holds now, Abandoned those whose lease ran out
	// and that it has not taken since.
	Behind, Leased, Abandoned bool
	// Sort is "name", "lag", "age", "attempts" (deliveries) or "consumed", with a minus in front for descending; "" is by name.
	Sort string
	// Limit is the most rows of a page; 0 is 100. Cursor is the nextCursor of the page before, "" for the first one.
	Limit  int
	Cursor string
}

// ListGroupPartitions returns a page of {"partitions":[…],"totals","total","nextCursor"}: the cursors of a group and who holds each. An
// unknown group has none. Errors: ErrInvalidCursor, also for a cursor of another order.
func (db *DB) ListGroupPartitions(ctx context.Context, tenant uuid.UUID, group string, g GroupPartitionFilter) (json.RawMessage, error) {
	f := filter{"queue": g.Queue, "contains": g.Contains, "behind": g.Behind, "leased": g.Leased, "abandoned": g.Abandoned}
	f = f.limited(g.Limit, 0)
	if err := f.inOrder(g.Sort, g.Cursor); err != nil {
		return nil, err
	}
	return db.paged(ctx, "list the partitions of a group", "group_partition_list_v1", tenant, f, group)
}

// A QueuePageFilter chooses and orders the rows of QueuePage. Zero fields choose all.
type QueuePageFilter struct {
	Namespace, Task string
	// Contains stands somewhere in the name, in any case.
	Contains string
	// Pending has only queues with pending messages, Dead with dead letters, Bounded with a maximum size.
	Pending, Dead, Bounded bool
	// Sort is "name", "pending", "processing", "dead", "stored", "in", "partitions", "size", "namespace" or "created", with a minus in front
	// for descending; "" is by name.
	Sort string
	// Limit is the most rows of a page; 0 is 100. Cursor is the nextCursor of the page before, "" for the first one.
	Limit  int
	Cursor string
}

// QueuePage returns a page of {"queues":[…],"total","all","nextCursor"} with the figures of the last refresh of the statistics; of a queue
// that is younger they are null. Errors: ErrInvalidCursor, also for a cursor of another order.
func (db *DB) QueuePage(ctx context.Context, tenant uuid.UUID, q QueuePageFilter) (json.RawMessage, error) {
	f := filter{"namespace": q.Namespace, "task": q.Task, "contains": q.Contains, "pending": q.Pending, "dead": q.Dead, "bounded": q.Bounded}
	f = f.limited(q.Limit, 0)
	if err := f.inOrder(q.Sort, q.Cursor); err != nil {
		return nil, err
	}
	return db.paged(ctx, "list queues page by page", "queue_page_v1", tenant, f)
}

// A TracePage asks for a page of what was recorded.
type TracePage struct {
	// Contains stands somewhere in the name, in any case; it counts for names only.
	Contains string
	// Limit is the most rows of a page; 0 is the default of the list. Offset skips rows behind Cursor.
	Limit, Offset int
	// Cursor is the nextCursor of the page before, "" for the first one.
	Cursor string
}

// TracesByName returns {"traces":[…],"total","pagination","nextCursor"}, oldest first. Errors: ErrInvalidCursor.
func (db *DB) TracesByName(ctx context.Context, tenant uuid.UUID, name string, p TracePage) (json.RawMessage, error) {
	after, err := decodePosition(p.Cursor, deadLetterPosition)
	if err != nil {
		return nil, err
	}
	f := filter{"after": after}
	return db.paged(ctx, "read traces by name", "traces_of_name_v1", tenant, f.limited(p.Limit, p.Offset), name)
}

// TraceNames returns {"trace_names":[…],"total","pagination","nextCursor"}, most recently used first. Errors: ErrInvalidCursor.
func (db *DB) TraceNames(ctx context.Context, tenant uuid.UUID, p TracePage) (json.RawMessage, error) {
	after, err := decodePosition(p.Cursor, partitionPosition)
	if err != nil {
		return nil, err
	}
	f := filter{"after": after, "contains": p.Contains}
	return db.paged(ctx, "list trace names", "trace_names_v1", tenant, f.limited(p.Limit, p.Offset))
}
