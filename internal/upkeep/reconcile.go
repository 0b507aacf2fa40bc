package upkeep

import (
	"context"
	"log/slog"
	"time"
)

// Reconcile drops what the broker remembers of options, subscriptions and owners, so that a change made through another broker
// whose hint was lost is seen at last.
type Reconcile struct {
	*Loop
	forget func()
}

// NewReconcile makes the loop. forget drops the caches and must not block.
func NewReconcile(interval time.Duration, forget func(), log *slog.Logger) *Reconcile {
	r := &Reconcile{forget: forget}
	r.Loop = newLoop("reconciliation", interval, min(interval, 5*time.Second), log, r.Step)
	return r
}

// Step reconciles once.
func (r *Reconcile) Step(context.Context) error {
	r.forget()
	return nil
}
