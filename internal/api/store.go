package api

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// A Store is what the management routes need of the database door; *pg.DB is one. Methods that return json.RawMessage give
// the whole answer body; see docs/http.md for the shapes.
type Store interface {
	Ping(ctx context.Context) error
	Stats() pg.PoolStats
	PartitionOwner(ctx context.Context, partition uuid.UUID) (tenant uuid.UUID, queue, name string, found bool, err error)
	QueueStore
	GroupStore
	StatisticsStore
	DeadLetterStore
	LeaseStore
	TraceStore
	StreamStore
}

// A QueueStore reads and changes queues.
type QueueStore interface {
	Configure(ctx context.Context, tenant uuid.UUID, queue, namespace, task string, options pg.QueueOptions) (json.RawMessage, error)
	DeleteQueue(ctx context.Context, tenant uuid.UUID, queue string) (json.RawMessage, error)
	PurgeQueue(ctx context.Context, tenant uuid.UUID, queue, partition string, options pg.PurgeOptions) (json.RawMessage, error)
	ListQueues(ctx context.Context, tenant uuid.UUID, filter pg.QueueFilter) (json.RawMessage, error)
	QueuePage(ctx context.Context, tenant uuid.UUID, filter pg.QueuePageFilter) (json.RawMessage, error)
	QueueSummary(ctx context.Context, tenant uuid.UUID, queue string, page pg.PartitionPage) (json.RawMessage, error)
	QueueOptionsOf(ctx context.Context, tenant uuid.UUID, queue string) (json.RawMessage, error)
	QueueDetail(ctx context.Context, tenant uuid.UUID, queue string, page pg.PartitionPage) (json.RawMessage, error)
	QueueStatuses(ctx context.Context, tenant uuid.UUID, filter pg.QueueFilter) (json.RawMessage, error)
	QueueDepth(ctx context.Context, tenant uuid.UUID, queue, group string) (json.RawMessage, error)
	QueueCapacity(ctx context.Context, tenant uuid.UUID, filter pg.QueueFilter) (json.RawMessage, error)
	ListPartitions(ctx context.Context, tenant uuid.UUID, queue string, page pg.PartitionPage) (json.RawMessage, error)
	Namespaces(ctx context.Context, tenant uuid.UUID) (json.RawMessage, error)
	Tasks(ctx context.Context, tenant uuid.UUID) (json.RawMessage, error)
	MessageVolume(ctx context.Context, tenant uuid.UUID, filter pg.VolumeFilter) (json.RawMessage, error)
}

// A GroupStore reads and moves consumer groups.
type GroupStore interface {
	ConsumerGroups(ctx context.Context, tenant uuid.UUID) (json.RawMessage, error)
	ListGroups(ctx context.Context, tenant uuid.UUID, filter pg.GroupFilter) (json.RawMessage, error)
	ListGroupPartitions(ctx context.Context, tenant uuid.UUID, group string, filter pg.GroupPartitionFilter) (json.RawMessage, error)
	LaggingPartitions(ctx context.Context, tenant uuid.UUID, minLagSeconds int) (json.RawMessage, error)
	ConsumerGroupDetails(ctx context.Context, tenant uuid.UUID, group string) (json.RawMessage, error)
	SetGroupSubscription(ctx context.Context, tenant uuid.UUID, group, timestamp string) (json.RawMessage, error)
	SeekGroup(ctx context.Context, tenant uuid.UUID, group, queue string, to pg.SeekTarget) (json.RawMessage, error)
	SeekPartition(ctx context.Context, tenant uuid.UUID, group, queue, partition string, to pg.SeekTarget) (json.RawMessage, error)
	SeekPreview(ctx context.Context, tenant uuid.UUID, group, queue string, partition *string, to pg.SeekTarget) (json.RawMessage, error)
	DeleteGroup(ctx context.Context, tenant uuid.UUID, group string, metadata bool) (json.RawMessage, error)
	DeleteGroupForQueue(ctx context.Context, tenant uuid.UUID, group, queue string, metadata bool) (json.RawMessage, error)
}

// A StatisticsStore reads what the loops have measured.
type StatisticsStore interface {
	SystemOverview(ctx context.Context, tenant uuid.UUID, isolated bool) (json.RawMessage, error)
	Status(ctx context.Context, filter pg.SeriesFilter) (json.RawMessage, error)
	QueueLag(ctx context.Context, filter pg.SeriesFilter) (json.RawMessage, error)
	QueueOps(ctx context.Context, filter pg.SeriesFilter) (json.RawMessage, error)
	ParkedReplicas(ctx context.Context, filter pg.SeriesFilter) (json.RawMessage, error)
	RetentionSeries(ctx context.Context, filter pg.SeriesFilter) (json.RawMessage, error)
	WorkerMetrics(ctx context.Context, filter pg.SeriesFilter) (json.RawMessage, error)
	SystemMetrics(ctx context.Context, filter pg.SeriesFilter) (json.RawMessage, error)
	PostgresStats(ctx context.Context) (json.RawMessage, error)
}

// A DeadLetterStore reads and deletes dead letters, and keeps the tasks over many of them.
type DeadLetterStore interface {
	CountDeadLetters(ctx context.Context, tenant uuid.UUID, filter pg.DeadLetterFilter) (int64, error)
	DeadLetterShapes(ctx context.Context, tenant uuid.UUID, filter pg.DeadLetterFilter) (json.RawMessage, error)
	DeleteDeadLetterAt(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (json.RawMessage, error)
	DeleteDeadLetters(ctx context.Context, tenant uuid.UUID, filter pg.DeadLetterFilter, limit int) (int64, error)
	CreateTask(ctx context.Context, tenant uuid.UUID, task pg.NewTask) (pg.Task, error)
	Task(ctx context.Context, tenant, id uuid.UUID) (pg.Task, bool, error)
	ListTasks(ctx context.Context, tenant uuid.UUID, filter pg.TaskFilter) ([]pg.Task, string, error)
	CancelTask(ctx context.Context, tenant, id uuid.UUID) (pg.Task, bool, error)
}

// A LeaseStore reads and ends leases.
type LeaseStore interface {
	Leases(ctx context.Context, tenant uuid.UUID, filter pg.LeaseFilter) (json.RawMessage, error)
	LeaseUtilization(ctx context.Context, tenant uuid.UUID, queue, group string) (json.RawMessage, error)
	ReleaseLeaseOf(ctx context.Context, tenant, partition uuid.UUID, group, worker string) (json.RawMessage, error)
}

// A TraceStore keeps what clients record about messages.
type TraceStore interface {
	RecordTrace(ctx context.Context, tenant uuid.UUID, record pg.TraceRecord) (json.RawMessage, error)
	MessageTraces(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (json.RawMessage, error)
	TracesByName(ctx context.Context, tenant uuid.UUID, name string, page pg.TracePage) (json.RawMessage, error)
	TraceNames(ctx context.Context, tenant uuid.UUID, page pg.TracePage) (json.RawMessage, error)
}

// A StreamStore keeps the registry and the state of streaming queries.
type StreamStore interface {
	RegisterStreamQuery(ctx context.Context, tenant uuid.UUID, request json.RawMessage) (json.RawMessage, error)
	ListStreams(ctx context.Context, tenant uuid.UUID, filter pg.StreamFilter) (json.RawMessage, error)
	StreamRipe(ctx context.Context, tenant uuid.UUID, request json.RawMessage) (json.RawMessage, error)
}
