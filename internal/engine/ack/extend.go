package ack

import (
	"context"

	"github.com/google/uuid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/pg"
)

// The bounds of a lease extension.
const (
	// DefaultExtendSeconds is what a request without a number of seconds means.
	DefaultExtendSeconds = 60
	// MaxExtendSeconds is the longest extension: one day. A consumer that needs longer extends again.
	MaxExtendSeconds = 24 * 60 * 60
)

// Extend lengthens every live lease held under the id to at least seconds from now, clamped to 1..MaxExtendSeconds; it never
// shortens one. A lease that is unknown, over or another tenant's renews nothing, which is no error.
func (s *Server) Extend(ctx context.Context, tenant uuid.UUID, leaseID string, seconds int) (pg.Renewal, error) {
	if leaseID == "" || !storable(leaseID) {
		return pg.Renewal{}, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
	defer cancel()
	slot, err := s.slots.Acquire(ctx, admission.Ack)
	if err != nil {
		return pg.Renewal{}, err
	}
	defer slot.Release()
	return s.db.RenewLease(ctx, tenant, leaseID, min(max(seconds, 1), MaxExtendSeconds))
}
