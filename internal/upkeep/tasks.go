package upkeep

import (
	"context"
	"log/slog"
	"time"
)

// A TaskRunner does one bounded piece of a task over dead letters. It says whether there was one, and how long to wait before the
// next piece.
type TaskRunner interface {
	Step(ctx context.Context) (busy bool, pause time.Duration, err error)
}

const (
	// tasksInterval is how long a new task waits for a broker at most.
	tasksInterval = time.Second
	// tasksPass bounds one pass over a long task, so that the loop shows signs of life.
	tasksPass = 10 * time.Second
)

// Tasks is the loop that works on the tasks over dead letters. Every broker runs it; the database hands a task to one at a time.
type Tasks struct {
	*Loop
	runner TaskRunner
}

// NewTasks makes the loop.
func NewTasks(runner TaskRunner, log *slog.Logger) *Tasks {
	t := &Tasks{runner: runner}
	t.Loop = newLoop("tasks", tasksInterval, tasksInterval, log, t.Step)
	return t
}

// Step works on tasks until none is left, or for a while.
func (t *Tasks) Step(ctx context.Context) error {
	for began := time.Now(); time.Since(began) < tasksPass; {
		busy, pause, err := t.runner.Step(ctx)
		if err != nil || !busy {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
	return nil
}
