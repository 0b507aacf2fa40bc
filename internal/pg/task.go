package pg

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// TaskKind says what a task does with the dead letters that it selects.
type TaskKind string

// The kinds of tasks.
const (
	TaskRedrive TaskKind = "dlq_redrive"
	TaskPurge   TaskKind = "dlq_purge"
)

// TaskState is how far a task is.
type TaskState string

// The states of tasks. The last three do not change any more; TaskLost is none of a task but says that a step came too late:
// another broker took the task over, or it was cancelled.
const (
	TaskPending   TaskState = "pending"
	TaskRunning   TaskState = "running"
	TaskCompleted TaskState = "completed"
	TaskCancelled TaskState = "cancelled"
	TaskLost      TaskState = "lost"
)

// A NewTask describes a task to be made.
type NewTask struct {
	Kind   TaskKind
	Filter DeadLetterFilter
	// Queue and Partition are the destination of a redrive; nil is where each message came from.
	Queue, Partition *string
	// Rate is the most messages per second, 0 is no limit.
	Rate      int
	CreatedBy string
}

// A Task is long administrative work. Its JSON form is the wire's.
type Task struct {
	ID        uuid.UUID       `json:"id"`
	Tenant    uuid.UUID       `json:"tenant"`
	Kind      TaskKind        `json:"kind"`
	State     TaskState       `json:"state"`
	Filter    json.RawMessage `json:"filter"`
	Queue     *string         `json:"queue"`
	Partition *string         `json:"partition"`
	Rate      int             `json:"rate"`
	// Total dead letters matched when the task was made; Done were pushed or deleted; Duplicates stay because their replay is
	// stored already; Skipped stay because they cannot be pushed.
	Total      int64   `json:"total"`
	Done       int64   `json:"done"`
	Duplicates int64   `json:"duplicates"`
	Skipped    int64   `json:"skipped"`
	LastError  *string `json:"lastError"`
	CreatedBy  *string `json:"createdBy"`
	// Times are UTC with microseconds.
	CreatedAt  time.Time  `json:"createdAt"`
	StartedAt  *time.Time `json:"startedAt"`
	FinishedAt *time.Time `json:"finishedAt"`
	UpdatedAt  time.Time  `json:"updatedAt"`
}

// CreateTask records a task; a broker picks it up with ClaimTask. Only dead letters filed before now are touched.
func (db *DB) CreateTask(ctx context.Context, tenant uuid.UUID, n NewTask) (Task, error) {
	text, err := n.Filter.filter().text()
	if err != nil {
		return Task{}, err
	}
	var task Task
	_, err = db.decoded(ctx, &task, "create a task", `SELECT queen.task_create_v1($1::text, $2::jsonb, $3::text, $4::text, $5::int, $6::text, $7::uuid)`,
		string(n.Kind), text, n.Queue, n.Partition, clampInt32(n.Rate), n.CreatedBy, uuidArgument(tenant))
	return task, err
}

// Task reads a task; false when the tenant has none with that id.
func (db *DB) Task(ctx context.Context, tenant, id uuid.UUID) (Task, bool, error) {
	var task Task
	found, err := db.decoded(ctx, &task, "read a task", `SELECT queen.task_get_v1($1::uuid, $2::uuid)`, uuidArgument(id), uuidArgument(tenant))
	return task, found, err
}

// ListTasks returns up to limit tasks of a tenant, newest first, and the cursor of the next page, "" when there is none. Errors:
// ErrInvalidCursor.
func (db *DB) ListTasks(ctx context.Context, tenant uuid.UUID, limit int, after string) ([]Task, string, error) {
	from, err := decodePosition(after, deadLetterPosition)
	if err != nil {
		return nil, "", err
	}
	var page struct {
		Tasks []Task   `json:"tasks"`
		Next  position `json:"next"`
	}
	_, err = db.decoded(ctx, &page, "list tasks", `SELECT queen.task_list_v1($1::int, $2::text, $3::uuid)`, clampInt32(limit), string(from), uuidArgument(tenant))
	return page.Tasks, page.Next.encode(), err
}

// CancelTask stops a task that has not ended, once a step under way is through, and returns it as it is then.
func (db *DB) CancelTask(ctx context.Context, tenant, id uuid.UUID) (Task, bool, error) {
	var task Task
	found, err := db.decoded(ctx, &task, "cancel a task", `SELECT queen.task_cancel_v1($1::uuid, $2::uuid)`, uuidArgument(id), uuidArgument(tenant))
	return task, found, err
}

// ClaimTask takes the runnable task of any tenant that has waited longest, for as long as lease without a step; false when there
// is none.
func (db *DB) ClaimTask(ctx context.Context, holder string, lease time.Duration) (Task, bool, error) {
	var task Task
	found, err := db.decoded(ctx, &task, "claim a task", `SELECT queen.task_claim_v1($1::text, $2::int)`, holder, clampInt32(int(lease/time.Second)))
	return task, found, err
}

// TaskBatch returns the next dead letters of a redrive, in its order, which keeps the order inside every partition. No rows
// mean that the task has ended: TaskCompleted, or TaskLost.
func (db *DB) TaskBatch(ctx context.Context, task uuid.UUID, holder string, limit int) ([]DeadLetterRow, TaskState, error) {
	var answer struct {
		State TaskState        `json:"state"`
		Rows  []deadLetterJSON `json:"rows"`
	}
	if _, err := db.decoded(ctx, &answer, "read a batch of a task", `SELECT queen.task_batch_v1($1::uuid, $2::text, $3::int)`,
		uuidArgument(task), holder, clampInt32(limit)); err != nil {
		return nil, "", err
	}
	return deadLetterRows(answer.Rows), answer.State, nil
}

// A RedriveStep pushes a batch of dead letters.
type RedriveStep struct {
	Task   uuid.UUID
	Holder string
	// IDs are the rows of the batch that are pushed, SegmentOf is parallel to it: the index into Segments of the segment that
	// holds the row's frame. Rows of one destination lie in one segment, in the order of the batch.
	IDs       []uuid.UUID
	SegmentOf []int
	Segments  []Segment
	// Through is the last row of the batch, whether pushed or not.
	Through uuid.UUID
	// Duplicates and Skipped count the rows of the batch that are not pushed.
	Duplicates, Skipped int
}

// A TaskStep is the outcome of a step.
type TaskStep struct {
	// State is TaskRunning, TaskCompleted or TaskLost.
	State TaskState
	// Moved is the number of dead letters that were pushed or deleted, and are gone.
	Moved int64
	// Verdicts are parallel to the Segments of a redrive. One that is not PushQueued wrote nothing and its rows stay: drop the
	// duplicates and repeat, or read the batch again later.
	Verdicts []PushVerdict
	// Wait is how long the rate, or a full queue, asks to pause.
	Wait time.Duration
}

type taskStepJSON struct {
	State    TaskState         `json:"state"`
	Moved    int64             `json:"moved"`
	Verdicts []pushVerdictJSON `json:"verdicts"`
	Wait     float64           `json:"waitSeconds"`
}

func (t *taskStepJSON) step() TaskStep {
	return TaskStep{State: t.State, Moved: t.Moved, Wait: time.Duration(t.Wait * float64(time.Second))}
}

// RedriveStep pushes the segments, deletes the rows of those that were queued and moves the task on, in one transaction. ErrVanished
// says that a row of the batch is gone: nothing was written, read the batch again.
func (db *DB) RedriveStep(ctx context.Context, s RedriveStep) (TaskStep, error) {
	args, err := pushArguments(s.Segments, PushOptions{})
	if err != nil {
		return TaskStep{}, fmt.Errorf("redrive dead letters: %w", err)
	}
	ids, of := make([]pgtype.UUID, len(s.IDs)), make([]int32, len(s.SegmentOf))
	for i, id := range s.IDs {
		ids[i] = uuidArgument(id)
	}
	for i, segment := range s.SegmentOf {
		of[i] = clampInt32(segment)
	}
	var answer taskStepJSON
	if _, err := db.decoded(ctx, &answer, "redrive dead letters", `SELECT queen.task_redrive_step_v1($1::uuid, $2::text, $3::uuid[], $4::int[], $5::text[],
    $6::text[], $7::int[], $8::bytea[], $9::bytea[], $10::boolean[], $11::jsonb, $12::uuid, $13::bigint, $14::bigint)`,
		uuidArgument(s.Task), s.Holder, ids, of, args[0], args[1], args[2], args[3], args[5], args[7], args[9],
		uuidArgument(s.Through), int64(s.Duplicates), int64(s.Skipped)); err != nil {
		return TaskStep{}, err
	}
	step := answer.step()
	if answer.State == TaskLost {
		return step, nil
	}
	if len(answer.Verdicts) != len(s.Segments) {
		return TaskStep{}, fmt.Errorf("redrive dead letters: %w: %d verdicts for %d segments", ErrMalformedAnswer, len(answer.Verdicts), len(s.Segments))
	}
	for i := range answer.Verdicts {
		verdict, err := answer.Verdicts[i].verdict(s.Segments[i].Count)
		if err != nil {
			return TaskStep{}, fmt.Errorf("redrive dead letters: verdict %d: %w", i, err)
		}
		step.Verdicts = append(step.Verdicts, verdict)
	}
	return step, nil
}

// PurgeStep deletes the next dead letters of a purge, at most limit, and moves the task on.
func (db *DB) PurgeStep(ctx context.Context, task uuid.UUID, holder string, limit int) (TaskStep, error) {
	var answer taskStepJSON
	_, err := db.decoded(ctx, &answer, "purge dead letters", `SELECT queen.task_purge_step_v1($1::uuid, $2::text, $3::int)`, uuidArgument(task), holder, clampInt32(limit))
	return answer.step(), err
}
