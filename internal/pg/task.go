package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// A taskJSON is a task as task_json_v1 writes it.
type taskJSON struct {
	ID         uuid.UUID      `json:"id"`
	Tenant     uuid.UUID      `json:"tenant"`
	Kind       TaskKind       `json:"kind"`
	State      string         `json:"state"`
	Filter     taskFilterJSON `json:"filter"`
	Queue      *string        `json:"queue"`
	Partition  *string        `json:"partition"`
	Rate       int            `json:"rate"`
	Total      int64          `json:"total"`
	Moved      int64          `json:"moved"`
	Deleted    int64          `json:"deleted"`
	Duplicate  int64          `json:"duplicate"`
	Skipped    int64          `json:"skipped"`
	LastError  *string        `json:"lastError"`
	CreatedBy  *string        `json:"createdBy"`
	CreatedAt  time.Time      `json:"createdAt"`
	UpdatedAt  time.Time      `json:"updatedAt"`
	FinishedAt time.Time      `json:"finishedAt"`
}

// A taskFilterJSON is the filter of a task as DeadLetterFilter.filter wrote it.
type taskFilterJSON struct {
	Queue         string        `json:"queue"`
	Partition     string        `json:"partition"`
	Group         string        `json:"consumerGroup"`
	TransactionID string        `json:"transactionId"`
	PartitionID   uuid.NullUUID `json:"partitionId"`
	From          string        `json:"from"`
	To            string        `json:"to"`
	Error         string        `json:"error"`
	Shape         string        `json:"shape"`
}

func (t *taskJSON) task() Task {
	f := t.Filter
	return Task{
		ID: t.ID, Tenant: t.Tenant, State: t.State,
		NewTask: NewTask{
			Kind: t.Kind, Queue: t.Queue, Partition: t.Partition, Rate: t.Rate, CreatedBy: orEmpty(t.CreatedBy),
			Filter: DeadLetterFilter{
				Queue: f.Queue, Partition: f.Partition, Group: f.Group, TransactionID: f.TransactionID, PartitionID: f.PartitionID,
				From: f.From, To: f.To, Error: f.Error, Shape: f.Shape,
			},
		},
		Total: t.Total, Moved: t.Moved, Deleted: t.Deleted, Duplicate: t.Duplicate, Skipped: t.Skipped, Error: orEmpty(t.LastError),
		CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt, FinishedAt: t.FinishedAt,
	}
}

// task runs a statement that returns one task, or NULL for none.
func (db *DB) task(ctx context.Context, act, query string, args ...any) (Task, bool, error) {
	var answer taskJSON
	found, err := db.decoded(ctx, &answer, act, query, args...)
	if err != nil || !found {
		return Task{}, false, err
	}
	return answer.task(), true, nil
}

// CreateTask records a task; a broker picks it up with ClaimTask. Only dead letters filed before now are touched. An unreadable
// time in the filter is ErrBadData.
func (db *DB) CreateTask(ctx context.Context, tenant uuid.UUID, n NewTask) (Task, error) {
	text, err := n.Filter.filter().text()
	if err != nil {
		return Task{}, err
	}
	task, found, err := db.task(ctx, "create a task", `SELECT queen.task_create_v1($1::text, $2::jsonb, $3::text, $4::text, $5::int, $6::text, $7::uuid)`,
		string(n.Kind), text, n.Queue, n.Partition, clampInt32(n.Rate), n.CreatedBy, uuidArgument(tenant))
	if err == nil && !found {
		err = fmt.Errorf("create a task: %w: NULL", ErrMalformedAnswer)
	}
	return task, err
}

// Task reads a task; false when the tenant has none with that id.
func (db *DB) Task(ctx context.Context, tenant, id uuid.UUID) (Task, bool, error) {
	return db.task(ctx, "read a task", `SELECT queen.task_get_v1($1::uuid, $2::uuid)`, uuidArgument(id), uuidArgument(tenant))
}

// A TaskFilter chooses tasks. The zero filter chooses all.
type TaskFilter struct {
	Kind TaskKind
	// State is one of Task.State, or "active" for those that have not ended.
	State string
	// Queue is the one whose dead letters a task is about, or where it moves them.
	Queue string
	// Limit is the most rows of a page; 0 is 50. Cursor is that of the page before, "" for the first one.
	Limit  int
	Cursor string
}

// ListTasks returns a page of a tenant's tasks, newest first, and the cursor of the next page, "" when there is none. Errors:
// ErrInvalidCursor.
func (db *DB) ListTasks(ctx context.Context, tenant uuid.UUID, t TaskFilter) ([]Task, string, error) {
	after, err := decodePosition(t.Cursor, deadLetterPosition)
	if err != nil {
		return nil, "", err
	}
	f := filter{"kind": string(t.Kind), "state": t.State, "queue": t.Queue, "after": after}
	text, err := f.limited(t.Limit, 0).text()
	if err != nil {
		return nil, "", err
	}
	var page struct {
		Tasks []taskJSON `json:"tasks"`
		Next  position   `json:"next"`
	}
	if _, err := db.decoded(ctx, &page, "list tasks", `SELECT queen.task_page_v1($1::jsonb, $2::uuid)`, text, uuidArgument(tenant)); err != nil {
		return nil, "", err
	}
	tasks := make([]Task, len(page.Tasks))
	for i := range page.Tasks {
		tasks[i] = page.Tasks[i].task()
	}
	return tasks, page.Next.encode(), nil
}

// CancelTask stops a task that has not ended, once a step under way is through, and returns it as it is then.
func (db *DB) CancelTask(ctx context.Context, tenant, id uuid.UUID) (Task, bool, error) {
	return db.task(ctx, "cancel a task", `SELECT queen.task_cancel_v1($1::uuid, $2::uuid)`, uuidArgument(id), uuidArgument(tenant))
}

// ClaimTask takes the runnable task of any tenant that has waited longest, for as long as lease without a step; false when there
// is none.
func (db *DB) ClaimTask(ctx context.Context, holder string, lease time.Duration) (Task, bool, error) {
	return db.task(ctx, "claim a task", `SELECT queen.task_claim_v1($1::text, $2::int)`, holder, clampInt32(int(lease/time.Second)))
}

// TaskBatch returns the next dead letters of a redrive, in its order, which keeps the order inside every partition. No rows mean
// that nothing is left, and the task is done; or that the holder lost it.
func (db *DB) TaskBatch(ctx context.Context, task uuid.UUID, holder string, limit int) ([]DeadLetterRow, error) {
	var answer struct {
		Rows []deadLetterJSON `json:"rows"`
	}
	if _, err := db.decoded(ctx, &answer, "read a batch of a task", `SELECT queen.task_batch_v1($1::uuid, $2::text, $3::int)`,
		uuidArgument(task), holder, clampInt32(limit)); err != nil {
		return nil, err
	}
	return deadLetterRows(answer.Rows), nil
}

// A taskStepJSON is the answer of a step.
type taskStepJSON struct {
	State     string `json:"state"`
	Moved     int64  `json:"moved"`
	Deleted   int64  `json:"deleted"`
	Duplicate int64  `json:"duplicate"`
	Skipped   int64  `json:"skipped"`
	Full      bool   `json:"full"`
}

func (t taskStepJSON) step() TaskStep {
	return TaskStep{
		Moved: t.Moved, Deleted: t.Deleted, Duplicate: t.Duplicate, Skipped: t.Skipped,
		Lost: t.State == "lost", Finished: t.State == "done", Full: t.Full,
	}
}

// RedriveStep pushes the segments, deletes the rows of those that were stored and moves the task on, in one transaction. Rows
// that lie in no segment are skipped. Of a segment that holds a duplicate nothing is stored; the duplicates count and stay, and
// the other rows come again with the next TaskBatch. ErrVanished says that a row is gone: nothing was written, read the batch
// again.
func (db *DB) RedriveStep(ctx context.Context, s RedriveStep) (TaskStep, error) {
	if len(s.Rows) == 0 {
		return TaskStep{Finished: true}, nil // TaskBatch has closed the task
	}
	segmentOf, err := s.segmentOf()
	if err != nil {
		return TaskStep{}, fmt.Errorf("redrive dead letters: %w", err)
	}
	pushed, err := pushArguments(s.Segments)
	if err != nil {
		return TaskStep{}, fmt.Errorf("redrive dead letters: %w", err)
	}
	ids := make([]pgtype.UUID, len(s.Rows))
	for i, id := range s.Rows {
		ids[i] = uuidArgument(id)
	}
	var answer taskStepJSON
	if _, err := db.decoded(ctx, &answer, "redrive dead letters", `SELECT queen.task_redrive_step_v1($1::uuid, $2::text, $3::uuid[], $4::int[], $5::text[],
    $6::text[], $7::int[], $8::bytea[], $9::bytea[], $10::boolean[], $11::jsonb)`,
		uuidArgument(s.Task), s.Holder, ids, segmentOf, pushed.queues, pushed.partitions, pushed.counts, pushed.hashes, pushed.blobs, pushed.plain, pushed.traces); err != nil {
		return TaskStep{}, err
	}
	return answer.step(), nil
}

// segmentOf says for each row in which segment it lies, -1 for none, after checking that frames and rows agree in number and order.
func (s *RedriveStep) segmentOf() ([]int32, error) {
	if len(s.RowsOf) != len(s.Segments) {
		return nil, fmt.Errorf("%w: rows of %d segments for %d", ErrBadData, len(s.RowsOf), len(s.Segments))
	}
	of := make(map[uuid.UUID]int32, len(s.Rows))
	for n, rows := range s.RowsOf {
		if len(rows) != s.Segments[n].Count {
			return nil, fmt.Errorf("%w: %d rows for the %d frames of segment %d", ErrBadData, len(rows), s.Segments[n].Count, n)
		}
		for _, id := range rows {
			of[id] = int32(n) //nolint:gosec // a few hundred segments
		}
	}
	segments, next := make([]int32, len(s.Rows)), make([]int, len(s.Segments))
	for i, id := range s.Rows {
		n, ok := of[id]
		if !ok {
			segments[i] = -1
			continue
		}
		if next[n] >= len(s.RowsOf[n]) || s.RowsOf[n][next[n]] != id {
			return nil, fmt.Errorf("%w: segment %d does not hold its rows in the order of the batch", ErrBadData, n)
		}
		next[n]++
		segments[i] = n
	}
	for n := range next {
		if next[n] != len(s.RowsOf[n]) {
			return nil, fmt.Errorf("%w: segment %d holds a row that is not of the batch", ErrBadData, n)
		}
	}
	return segments, nil
}

// PurgeStep deletes the next dead letters of a purge, at most limit, and moves the task on.
func (db *DB) PurgeStep(ctx context.Context, task uuid.UUID, holder string, limit int) (TaskStep, error) {
	var answer taskStepJSON
	_, err := db.decoded(ctx, &answer, "purge dead letters", `SELECT queen.task_purge_step_v1($1::uuid, $2::text, $3::int)`, uuidArgument(task), holder, clampInt32(limit))
	return answer.step(), err
}
