package api

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"queenmq/internal/engine/browse"
	"queenmq/internal/engine/replay"
	"queenmq/internal/engine/stream"
	"queenmq/internal/pg"
)

// emptyBroker answers every management call with the simplest success, or with err when it is set.
type emptyBroker struct {
	err error
	// answer replaces the answer of calls that answer with JSON, calls are their names in order.
	answer json.RawMessage
	paused bool
}

func (f *emptyBroker) raw() (json.RawMessage, error) {
	if f.err != nil {
		return nil, f.err
	}
	if f.answer != nil {
		return f.answer, nil
	}
	return json.RawMessage(`{"success":true}`), nil
}

func (f *emptyBroker) PushesPaused() bool            { return f.paused }
func (f *emptyBroker) PopsPaused() bool              { return false }
func (f *emptyBroker) Refresh(context.Context) error { return f.err }

func (f *emptyBroker) List(context.Context, uuid.UUID, pg.MessageFilter) (browse.Page, error) {
	return browse.Page{}, f.err
}

func (f *emptyBroker) Search(context.Context, uuid.UUID, pg.MessageFilter, browse.Condition) (browse.Page, browse.Searched, error) {
	return browse.Page{}, browse.Searched{}, f.err
}

func (f *emptyBroker) Partition(context.Context, uuid.UUID, uuid.UUID, int64, int) (browse.Part, bool, error) {
	return browse.Part{Queue: "q", Partition: "p"}, true, f.err
}

func (f *emptyBroker) Find(context.Context, uuid.UUID, uuid.UUID, string) (browse.Detail, bool, error) {
	return browse.Detail{}, true, f.err
}

func (f *emptyBroker) Trace(context.Context, uuid.UUID, uuid.UUID, int) ([]browse.Traced, error) {
	return nil, f.err
}

func (f *emptyBroker) ByID(context.Context, uuid.UUID, uuid.UUID, replay.Destination) (replay.Outcome, error) {
	return replay.Outcome{Found: true, Move: pg.DeadLetterMoveResult{Status: replay.Moved}}, f.err
}

func (f *emptyBroker) ByAddress(context.Context, uuid.UUID, uuid.UUID, string, string) (replay.Outcome, error) {
	return replay.Outcome{Found: true, Move: pg.DeadLetterMoveResult{Status: replay.Moved}}, f.err
}

// A fakeStreamer is emptyBroker for cycles, whose method has the name of the transactor's.
type fakeStreamer struct{ *emptyBroker }

func (f fakeStreamer) State(context.Context, uuid.UUID, uuid.UUID, uuid.UUID, stream.Filter) (json.RawMessage, error) {
	return f.raw()
}

func (f fakeStreamer) Progress(context.Context, uuid.UUID, []uuid.UUID) (map[uuid.UUID]stream.Progress, error) {
	return nil, f.err
}

func (f fakeStreamer) Run(context.Context, uuid.UUID, string, stream.Cycle) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) PartitionOwner(context.Context, uuid.UUID) (uuid.UUID, string, string, bool, error) {
	return pg.DefaultTenant, "q", "p", true, f.err
}

func (f *emptyBroker) Set(context.Context, pg.SystemFlag, bool) bool { return f.err == nil }

func (f *emptyBroker) PurgeQueue(context.Context, uuid.UUID, string, string, pg.PurgeOptions) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) ListQueues(context.Context, uuid.UUID, pg.QueueFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) QueueSummary(context.Context, uuid.UUID, string, pg.PartitionPage) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) QueueDetail(context.Context, uuid.UUID, string, pg.PartitionPage) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) QueueStatuses(context.Context, uuid.UUID, pg.QueueFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) QueueDepth(context.Context, uuid.UUID, string, string) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) QueueCapacity(context.Context, uuid.UUID, pg.QueueFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) ListPartitions(context.Context, uuid.UUID, string, pg.PartitionPage) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) Namespaces(context.Context, uuid.UUID) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) Tasks(context.Context, uuid.UUID) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) MessageVolume(context.Context, uuid.UUID, pg.VolumeFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) ConsumerGroups(context.Context, uuid.UUID) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) ListGroups(context.Context, uuid.UUID, pg.GroupFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) ListGroupPartitions(context.Context, uuid.UUID, string, pg.GroupPartitionFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) QueuePage(context.Context, uuid.UUID, pg.QueuePageFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) LaggingPartitions(context.Context, uuid.UUID, int) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) ConsumerGroupDetails(context.Context, uuid.UUID, string) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) SetGroupSubscription(context.Context, uuid.UUID, string, string) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) SeekGroup(context.Context, uuid.UUID, string, string, pg.SeekTarget) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) SeekPartition(context.Context, uuid.UUID, string, string, string, pg.SeekTarget) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) DeleteGroup(context.Context, uuid.UUID, string, bool) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) DeleteGroupForQueue(context.Context, uuid.UUID, string, string, bool) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) SystemOverview(context.Context, uuid.UUID, bool) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) Status(context.Context, pg.SeriesFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) QueueLag(context.Context, pg.SeriesFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) QueueOps(context.Context, pg.SeriesFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) ParkedReplicas(context.Context, pg.SeriesFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) RetentionSeries(context.Context, pg.SeriesFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) WorkerMetrics(context.Context, pg.SeriesFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) SystemMetrics(context.Context, pg.SeriesFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) PostgresStats(context.Context) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) DeadLetters(context.Context, uuid.UUID, pg.DeadLetterFilter) (pg.DeadLetterPage, error) {
	return pg.DeadLetterPage{}, f.err
}

func (f *emptyBroker) CountDeadLetters(context.Context, uuid.UUID, pg.DeadLetterFilter) (int64, error) {
	return 0, f.err
}

func (f *emptyBroker) DeadLetterShapes(context.Context, uuid.UUID, pg.DeadLetterFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) DeleteDeadLetterAt(context.Context, uuid.UUID, uuid.UUID, string) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) DeleteDeadLetters(context.Context, uuid.UUID, pg.DeadLetterFilter, int) (int64, error) {
	return 0, f.err
}

func (f *emptyBroker) CreateTask(context.Context, uuid.UUID, pg.NewTask) (pg.Task, error) {
	return pg.Task{}, f.err
}

func (f *emptyBroker) Task(context.Context, uuid.UUID, uuid.UUID) (pg.Task, bool, error) {
	return pg.Task{}, true, f.err
}

func (f *emptyBroker) ListTasks(context.Context, uuid.UUID, pg.TaskFilter) ([]pg.Task, string, error) {
	return nil, "", f.err
}

func (f *emptyBroker) CancelTask(context.Context, uuid.UUID, uuid.UUID) (pg.Task, bool, error) {
	return pg.Task{}, true, f.err
}

func (f *emptyBroker) Leases(context.Context, uuid.UUID, pg.LeaseFilter) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) LeaseUtilization(context.Context, uuid.UUID, string, string) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) ReleaseLeaseOf(context.Context, uuid.UUID, uuid.UUID, string, string) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) RecordTrace(context.Context, uuid.UUID, pg.TraceRecord) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) MessageTraces(context.Context, uuid.UUID, uuid.UUID, string) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) TracesByName(context.Context, uuid.UUID, string, pg.TracePage) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) TraceNames(context.Context, uuid.UUID, pg.TracePage) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) RegisterStreamQuery(context.Context, uuid.UUID, json.RawMessage) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) StreamRipe(context.Context, uuid.UUID, json.RawMessage) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) QueueOptionsOf(context.Context, uuid.UUID, string) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) SeekPreview(context.Context, uuid.UUID, string, string, *string, pg.SeekTarget) (json.RawMessage, error) {
	return f.raw()
}

func (f *emptyBroker) ListStreams(context.Context, uuid.UUID, pg.StreamFilter) (json.RawMessage, error) {
	return f.raw()
}
