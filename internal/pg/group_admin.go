package pg

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
)

// ConsumerGroups returns the groups of a tenant, one element per (group, queue).
func (db *DB) ConsumerGroups(ctx context.Context, tenant uuid.UUID) (json.RawMessage, error) {
	return db.manage(ctx, "list consumer groups", `SELECT queen.get_consumer_groups_v4($1::uuid)`, uuidArgument(tenant))
}

// LaggingPartitions returns the (group, partition) pairs that lag by more than minLagSeconds, the longest first.
func (db *DB) LaggingPartitions(ctx context.Context, tenant uuid.UUID, minLagSeconds int) (json.RawMessage, error) {
	return db.manage(ctx, "list lagging partitions", `SELECT queen.get_lagging_partitions_v1($1::int, $2::uuid)`, clampInt32(minLagSeconds), uuidArgument(tenant))
}

// ConsumerGroupDetails returns the cursors of one group keyed by queue; {} for an unknown group.
func (db *DB) ConsumerGroupDetails(ctx context.Context, tenant uuid.UUID, group string) (json.RawMessage, error) {
	return db.manage(ctx, "read a consumer group", `SELECT queen.get_consumer_group_details_v1($1::text, $2::uuid)`, group, uuidArgument(tenant))
}

// SetGroupSubscription changes where a group starts on partitions it has not touched. An unreadable timestamp is ErrBadData.
func (db *DB) SetGroupSubscription(ctx context.Context, tenant uuid.UUID, group, timestamp string) (json.RawMessage, error) {
	return db.manage(ctx, "change a subscription", `SELECT queen.update_consumer_group_subscription_v1($1::text, $2::text, $3::uuid)`,
		group, timestamp, uuidArgument(tenant))
}

// SeekGroup moves the cursors of a group on every partition of a queue and returns the procedure's answer, which says
// success:false with an error for unknown names. An unreadable timestamp is ErrBadData.
func (db *DB) SeekGroup(ctx context.Context, tenant uuid.UUID, group, queue string, to SeekTarget) (json.RawMessage, error) {
	if to.Group != "" {
		return db.cloneGroup(ctx, tenant, group, queue, nil, to.Group, false)
	}
	if to.Offset != nil && !to.ToEnd {
		return db.manage(ctx, "seek a group", `SELECT queen.log_seek_offset_v1($1::text, $2::text, NULL, $3::bigint, $4::uuid)`,
			group, queue, *to.Offset, uuidArgument(tenant))
	}
	return db.manage(ctx, "seek a group", `SELECT queen.log_seek_consumer_group_v1($1::text, $2::text, $3::boolean, queen.parse_time_v1($4::text), $5::uuid)`,
		group, queue, to.ToEnd, to.timestamp(), uuidArgument(tenant))
}

// SeekPartition moves the cursor of a group on one partition; see SeekGroup.
func (db *DB) SeekPartition(ctx context.Context, tenant uuid.UUID, group, queue, partition string, to SeekTarget) (json.RawMessage, error) {
	if to.Group != "" {
		return db.cloneGroup(ctx, tenant, group, queue, &partition, to.Group, false)
	}
	if to.Offset != nil && !to.ToEnd {
		return db.manage(ctx, "seek a partition", `SELECT queen.log_seek_offset_v1($1::text, $2::text, $3::text, $4::bigint, $5::uuid)`,
			group, queue, partition, *to.Offset, uuidArgument(tenant))
	}
	return db.manage(ctx, "seek a partition", `SELECT queen.log_seek_partition_v1($1::text, $2::text, $3::text, $4::boolean, queen.parse_time_v1($5::text), $6::uuid)`,
		group, queue, partition, to.ToEnd, to.timestamp(), uuidArgument(tenant))
}

// SeekPreview counts what a seek would do and changes nothing; partition nil is every partition of the queue. The answer is the
// procedure's; see SeekGroup for its failures.
func (db *DB) SeekPreview(ctx context.Context, tenant uuid.UUID, group, queue string, partition *string, to SeekTarget) (json.RawMessage, error) {
	if to.Group != "" {
		return db.cloneGroup(ctx, tenant, group, queue, partition, to.Group, true)
	}
	return db.manage(ctx, "preview a seek", `SELECT queen.log_seek_preview_v1($1::text, $2::text, $3::text, $4::boolean, queen.parse_time_v1($5::text), $6::bigint, $7::uuid)`,
		group, queue, partition, to.ToEnd, to.timestamp(), to.Offset, uuidArgument(tenant))
}

// cloneGroup is the seek to where another group is, or its preview; partition nil is every partition of the queue.
func (db *DB) cloneGroup(ctx context.Context, tenant uuid.UUID, group, queue string, partition *string, from string, dryRun bool) (json.RawMessage, error) {
	return db.manage(ctx, "clone a group", `SELECT queen.log_clone_group_v1($1::text, $2::text, $3::text, $4::text, $5::boolean, $6::uuid)`,
		group, from, queue, partition, dryRun, uuidArgument(tenant))
}

// timestamp is the text to parse: none when the end was asked for.
func (to SeekTarget) timestamp() string {
	if to.ToEnd {
		return ""
	}
	return to.Timestamp
}

// DeleteGroup deletes the cursors of a group in all queues of a tenant and, with metadata, its subscriptions, in one transaction.
// An unknown group is no error.
func (db *DB) DeleteGroup(ctx context.Context, tenant uuid.UUID, group string, metadata bool) (json.RawMessage, error) {
	return db.manage(ctx, "delete a group", `SELECT queen.log_delete_consumer_group_v1($1::text, $2::boolean, $3::uuid)`, group, metadata, uuidArgument(tenant))
}

// DeleteGroupForQueue is DeleteGroup in one queue.
func (db *DB) DeleteGroupForQueue(ctx context.Context, tenant uuid.UUID, group, queue string, metadata bool) (json.RawMessage, error) {
	return db.manage(ctx, "delete a group of a queue", `SELECT queen.log_delete_consumer_group_for_queue_v1($1::text, $2::text, $3::boolean, $4::uuid)`,
		group, queue, metadata, uuidArgument(tenant))
}
