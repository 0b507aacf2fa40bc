package queen

import (
	"context"
	"net/http"
	"time"
)

// A GroupLag is how far a consumer group is with one queue.
type GroupLag struct {
	Group             string `json:"name"` // "__QUEUE_MODE__" are the consumers without a group
	Queue             string `json:"queueName"`
	Members           int    `json:"members"` // workers that hold leases
	PartitionsWithLag int    `json:"partitionsWithLag"`
	Lag               int64  `json:"totalLag"`   // messages
	LagSeconds        int64  `json:"maxTimeLag"` // age of the oldest of them
	State             string `json:"state"`
}

// Groups lists every consumer group with every queue that it reads.
func (a Admin) Groups(ctx context.Context) ([]GroupLag, error) {
	return get[[]GroupLag](ctx, a.client, "/api/v1/consumer-groups", nil)
}

// A PartitionLag is how far a group is with one partition.
type PartitionLag struct {
	Group        string     `json:"consumer_group"`
	Queue        string     `json:"queue_name"`
	Partition    string     `json:"partition_name"`
	PartitionID  string     `json:"partition_id"`
	LeaseID      string     `json:"worker_id"` // "" when nobody holds it
	Lag          int64      `json:"offset_lag"`
	LagSeconds   int64      `json:"time_lag_seconds"`
	LastConsumed *time.Time `json:"last_consumed_at"`
}

// LaggingPartitions lists the partitions whose oldest unconsumed message is at least that old, the worst first.
func (a Admin) LaggingPartitions(ctx context.Context, atLeast time.Duration) ([]PartitionLag, error) {
	return get[[]PartitionLag](ctx, a.client, "/api/v1/consumer-groups/lagging", newValues().number("minLagSeconds", int(wholeSeconds(atLeast))).Values)
}

// A GroupPartition is how far a group is with one of its partitions.
type GroupPartition struct {
	Partition    string     `json:"partition"`
	LeaseID      string     `json:"workerId"` // "" when nobody holds it
	LeaseActive  bool       `json:"leaseActive"`
	LastConsumed *time.Time `json:"lastConsumedAt"`
	Consumed     int64      `json:"totalConsumed"`
	Lag          int64      `json:"offsetLag"`
	LagSeconds   *int64     `json:"timeLagSeconds"`
}

// Group describes a consumer group: its partitions by queue.
func (a Admin) Group(ctx context.Context, group string) (map[string][]GroupPartition, error) {
	answer, err := get[map[string]struct {
		Partitions []GroupPartition `json:"partitions"`
	}](ctx, a.client, groupPath(group), nil)
	if err != nil {
		return nil, err
	}
	queues := make(map[string][]GroupPartition, len(answer))
	for queue, detail := range answer {
		queues[queue] = detail.Partitions
	}
	return queues, nil
}

func groupPath(group string, rest ...string) string {
	return Path(append([]string{"api", "v1", "consumer-groups", group}, rest...)...)
}

// A Position is where a group goes on. Make it with [AtEnd], [AtTime] or [AtOffset].
type Position struct {
	ToEnd     bool       `json:"toEnd,omitempty"`
	Timestamp *time.Time `json:"timestamp,omitempty"`
	Offset    *int64     `json:"offset,omitempty"`
}

// AtEnd skips everything that is stored.
func AtEnd() Position { return Position{ToEnd: true} }

// AtTime replays, or skips, to what was stored at or after a time. Messages that were stored together have one time.
func AtTime(at time.Time) Position { return Position{Timestamp: new(at.UTC())} }

// AtOffset delivers the message with this offset next.
func AtOffset(offset int64) Position { return Position{Offset: &offset} }

// SeekPreview is what a seek would do.
type SeekPreview struct {
	Partitions int   `json:"partitionsMoved"`
	Again      int64 `json:"again"`   // messages that would be delivered again
	Skipped    int64 `json:"skipped"` // messages that would never be delivered
	Leases     int   `json:"leases"`  // live ones that would end
}

// Seek moves the cursors of a group: in one partition of a queue, or with partition "" in all of them. Leases end and retries are
// forgotten. It returns how many partitions were moved.
func (a Admin) Seek(ctx context.Context, group, queue, partition string, to Position) (partitions int, err error) {
	answer, err := change[struct {
		PartitionsUpdated int  `json:"partitionsUpdated"`
		Updated           bool `json:"updated"`
	}](ctx, a.client, http.MethodPost, seekPath(group, queue, partition), nil, bodyOf(to))
	if answer.Updated {
		answer.PartitionsUpdated = 1
	}
	return answer.PartitionsUpdated, err
}

// PreviewSeek counts what [Admin.Seek] would do, and does nothing.
func (a Admin) PreviewSeek(ctx context.Context, group, queue, partition string, to Position) (SeekPreview, error) {
	return change[SeekPreview](ctx, a.client, http.MethodPost, seekPath(group, queue, partition), nil, bodyOf(struct {
		Position
		DryRun bool `json:"dryRun"`
	}{to, true}))
}

func seekPath(group, queue, partition string) string {
	if partition == "" {
		return groupPath(group, "queues", queue, "seek")
	}
	return groupPath(group, "queues", queue, "partitions", partition, "seek")
}

// DeleteGroup forgets a group in one queue, or with queue "" in all of them: it starts anew when it comes again. It returns how many
// partitions it had read.
func (a Admin) DeleteGroup(ctx context.Context, group, queue string) (partitions int, err error) {
	path := groupPath(group)
	if queue != "" {
		path = groupPath(group, "queues", queue)
	}
	answer, err := change[struct {
		DeletedPartitions int `json:"deletedPartitions"`
	}](ctx, a.client, http.MethodDelete, path, nil, nil)
	return answer.DeletedPartitions, err
}

// SetSubscription moves the time from which a group reads partitions that it has not touched yet.
func (a Admin) SetSubscription(ctx context.Context, group string, from time.Time) error {
	_, err := change[struct{}](ctx, a.client, http.MethodPost, groupPath(group, "subscription"), nil, bodyOf(struct {
		From time.Time `json:"subscriptionTimestamp"`
	}{from.UTC()}))
	return err
}

// A Lease is the right of a worker to acknowledge one batch of one partition.
type Lease struct {
	Queue       string     `json:"queue"`
	Partition   string     `json:"partition"`
	PartitionID string     `json:"partitionId"`
	Group       string     `json:"consumerGroup"`
	LeaseID     string     `json:"leaseId"`
	AcquiredAt  *time.Time `json:"acquiredAt"`
	ExpiresAt   time.Time  `json:"leaseExpiresAt"`
	Messages    int64      `json:"messageCount"`
	Attempts    int        `json:"attemptCount"`
}

// LeaseFilter chooses leases. Empty fields choose all.
type LeaseFilter struct {
	Queue, Partition, Group string
	// Abandoned lists the batches whose leases have ended without an acknowledgment, instead of the live ones.
	Abandoned bool
	// Limit is the most to return, at most 1,000; Offset leaves out the first ones.
	Limit, Offset int
}

// Leases lists leases.
func (a Admin) Leases(ctx context.Context, filter LeaseFilter) ([]Lease, error) {
	query := newValues().text("queue", filter.Queue).text("partition", filter.Partition).text("consumerGroup", filter.Group).
		number("limit", filter.Limit).number("offset", filter.Offset)
	if filter.Abandoned {
		query.text("abandoned", "true")
	}
	answer, err := get[struct {
		Leases []Lease `json:"leases"`
	}](ctx, a.client, "/api/v1/leases", query.Values)
	return answer.Leases, err
}

// ReleaseLease ends the lease of a partition, and the delay of a redelivery, so that its messages are delivered again at once. leaseID
// may be "" for whoever holds it. It tells whether there was one.
func (a Admin) ReleaseLease(ctx context.Context, partitionID, group, leaseID string) (released bool, err error) {
	answer, err := change[struct {
		Released bool `json:"released"`
	}](ctx, a.client, http.MethodPost, "/api/v1/leases/release", nil, bodyOf(struct {
		PartitionID string `json:"partitionId"`
		Group       string `json:"consumerGroup,omitempty"`
		LeaseID     string `json:"leaseId,omitempty"`
	}{partitionID, group, leaseID}))
	return answer.Released, err
}
