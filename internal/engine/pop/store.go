package pop

import (
	"context"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// A Store is what this package needs of the database door.
type Store interface {
	PopWildcard(ctx context.Context, r pg.PopRequest) (pg.Claim, error)
	PopSpecific(ctx context.Context, r pg.PopRequest) (pg.Claim, error)
	PopDiscover(ctx context.Context, r pg.PopRequest) (pg.Claim, error)
	PopList(ctx context.Context, r pg.PopRequest) (pg.Claim, error)
	HasPending(ctx context.Context, tenant uuid.UUID, queue, group string) (bool, error)
	QueueSettings(ctx context.Context, tenant uuid.UUID, queue string) (pg.QueueSettings, bool, error)
	ReleaseLease(ctx context.Context, partition uuid.UUID, group, worker string) error
}

// Candidates names the partitions of a queue that may have messages for a group, so that a queue pop claims those instead of
// letting the database search the queue. It is a hint: nothing is delivered because of it.
type Candidates interface {
	// Take returns at most limit partitions, those worth trying first in front, whose known messages should make up budget.
	// None with known set means that there is nothing to do. When known is false the list has no opinion about the group and
	// the database searches. What is taken must be settled.
	Take(ctx context.Context, tenant uuid.UUID, queue, group string, limit, budget int) (partitions []string, known bool, err error)
	// Settle reports what became of the partitions taken. Those without a verdict were not reached, all of them after a
	// failed claim.
	Settle(tenant uuid.UUID, queue, group string, taken []string, claim pg.Claim)
}
