package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// How a task is worked on.
const (
	// batchRows is the most dead letters of one step, which is one transaction.
	batchRows = 200
	// batchBytes is when a batch is cut short: what it holds must fit in memory and in a statement.
	batchBytes = 8 << 20
	// taskLease is how long a broker owns a task without a sign of life. Another one takes over after that.
	taskLease = 30 * time.Second
	// fullPause is the wait after a destination had no room.
	fullPause = time.Second
)

// A TaskStore is what a Runner needs of the database door.
type TaskStore interface {
	ClaimTask(ctx context.Context, holder string, lease time.Duration) (pg.Task, bool, error)
	TaskBatch(ctx context.Context, task uuid.UUID, holder string, limit int) ([]pg.DeadLetterRow, error)
	RedriveStep(ctx context.Context, s pg.RedriveStep) (pg.TaskStep, error)
	PurgeStep(ctx context.Context, task uuid.UUID, holder string, limit int) (pg.TaskStep, error)
}

// A Runner works on the tasks of the database. Make one with [NewRunner].
type Runner struct {
	holder string
	packer *segment.Packer
	db     TaskStore
	gates  Gates
	slots  *admission.Controller
	// pushesPaused stops redrives while pushes are switched off.
	pushesPaused func() bool
	keys         Keys
}

// NewRunner returns a runner that works under the name holder, which no other broker may use. A nil packer is level 3, a nil
// pushesPaused is never.
func NewRunner(holder string, packer *segment.Packer, db TaskStore, gates Gates, slots *admission.Controller, pushesPaused func() bool, keys Keys) *Runner {
	if packer == nil {
		packer = segment.DefaultPacker()
	}
	if pushesPaused == nil {
		pushesPaused = func() bool { return false }
	}
	return &Runner{holder: holder, packer: packer, db: db, gates: gates, slots: slots, pushesPaused: pushesPaused, keys: keys}
}

// Step does one batch of one task. busy is false when no task wants work; pause is the wait before the next step that the task's
// rate asks for. A step that fails has changed nothing; the next one, on any broker, repeats it.
func (r *Runner) Step(ctx context.Context) (busy bool, pause time.Duration, err error) {
	if r.pushesPaused() {
		return false, 0, nil
	}
	task, found, err := r.db.ClaimTask(ctx, r.holder, taskLease)
	if err != nil || !found {
		return false, 0, err
	}
	slot, err := r.slots.Acquire(ctx, admission.Maintenance)
	if err != nil {
		return false, 0, fmt.Errorf("task %s: wait for a slot: %w", task.ID, err)
	}
	defer slot.Release()
	limit := batchRows
	if task.Rate > 0 {
		limit = min(limit, task.Rate) // at most a second's worth, so that the lease outlives the pause
	}
	var done pg.TaskStep
	if task.Kind == pg.TaskPurge {
		done, err = r.db.PurgeStep(ctx, task.ID, r.holder, limit)
	} else {
		done, err = r.redrive(ctx, task, limit)
	}
	if errors.Is(err, pg.ErrVanished) {
		return true, 0, nil // somebody else took a row meanwhile: read the batch again
	}
	if err != nil {
		return false, 0, fmt.Errorf("task %s: %w", task.ID, err)
	}
	handled := done.Moved + done.Deleted + done.Duplicate + done.Skipped
	switch {
	case done.Full:
		pause = fullPause
	case task.Rate > 0:
		pause = time.Duration(handled) * time.Second / time.Duration(task.Rate)
	}
	return true, pause, nil
}

// redrive moves one batch. Rows keep their order: the frames of a destination partition lie in one segment.
func (r *Runner) redrive(ctx context.Context, task pg.Task, limit int) (pg.TaskStep, error) {
	rows, err := r.db.TaskBatch(ctx, task.ID, r.holder, limit)
	if err != nil {
		return pg.TaskStep{}, err
	}
	step, err := r.pack(ctx, task, cut(rows))
	if err != nil {
		return pg.TaskStep{}, err
	}
	done, err := r.db.RedriveStep(ctx, step)
	if err != nil {
		return pg.TaskStep{}, err
	}
	if done.Moved > 0 {
		for _, s := range step.Segments {
			r.gates.Wake(task.Tenant, s.Queue, s.Partition)
		}
	}
	return done, nil
}

// cut shortens a batch to what batchBytes allows, at least one row.
func cut(rows []pg.DeadLetterRow) []pg.DeadLetterRow {
	size := 0
	for i := range rows {
		size += len(rows[i].Payload)
		if size > batchBytes && i > 0 {
			return rows[:i]
		}
	}
	return rows
}

// pack makes one segment per destination partition. Rows without a message cannot be replayed: they are in Rows, and in no segment.
func (r *Runner) pack(ctx context.Context, task pg.Task, rows []pg.DeadLetterRow) (pg.RedriveStep, error) {
	type place struct{ queue, partition string }
	step := pg.RedriveStep{Task: task.ID, Holder: r.holder, Rows: make([]uuid.UUID, len(rows))}
	var frames [][]segment.Frame
	at := make(map[place]int)
	for i := range rows {
		row := &rows[i]
		step.Rows[i] = row.ID
		to := place{row.Queue, row.Partition}
		if task.Queue != nil {
			to.queue = *task.Queue
		}
		if task.Partition != nil {
			to.partition = *task.Partition
		}
		if row.Payload == nil || to.queue == "" {
			continue
		}
		n, ok := at[to]
		if !ok {
			n = len(frames)
			at[to] = n
			frames = append(frames, nil)
			step.Segments = append(step.Segments, pg.Segment{Tenant: task.Tenant, Queue: to.queue, Partition: to.partition, Verified: -1})
			step.RowsOf = append(step.RowsOf, nil)
		}
		frame, plain, err := r.keys.frameOf(ctx, task.Tenant, to.queue, *row)
		if err != nil {
			return step, err
		}
		step.Segments[n].Plain = step.Segments[n].Plain || plain
		if frame.TraceID.Valid {
			step.Segments[n].Traces = append(step.Segments[n].Traces, pg.FrameTrace{Frame: len(frames[n]), ID: frame.TraceID.UUID})
		}
		frames[n] = append(frames[n], frame)
		step.RowsOf[n] = append(step.RowsOf[n], row.ID)
	}
	for n := range frames {
		blob, hashes, err := r.packer.Pack(frames[n])
		if err != nil {
			return step, fmt.Errorf("pack %d dead letters: %w", len(frames[n]), err)
		}
		step.Segments[n].Blob, step.Segments[n].Hashes, step.Segments[n].Count = blob, hashes, len(frames[n])
	}
	return step, nil
}
