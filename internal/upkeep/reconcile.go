package upkeep

import (
	"context"
	"log/slog"
	"time"
)

// Reconcile drops what the broker remembers of options, subscriptions and owners, so that a change made through another broker
// whose hint was lost is seen at last, and applies the repair markers that seeks and deleted groups leave in the database.
type Reconcile struct {
	*Loop
	forget  func()
	repairs func(context.Context) error
}

// NewReconcile makes the loop. forget drops the caches and must not block; repairs reads the markers and may be nil.
func NewReconcile(interval time.Duration, forget func(), repairs func(context.Context) error, log *slog.Logger) *Reconcile {
	r := &Reconcile{forget: forget, repairs: repairs}
	r.Loop = newLoop("reconciliation", interval, min(interval, 5*time.Second), log, r.Step)
	return r
}

// Step reconciles once. The caches are dropped also when the markers cannot be read.
func (r *Reconcile) Step(ctx context.Context) error {
	r.forget()
	if r.repairs == nil {
		return nil
	}
	return r.repairs(ctx)
}
