package pop

import (
	"context"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// A Store is what this package needs of the database door.
type Store interface {
	PopWildcard(ctx context.Context, r pg.PopRequest) (pg.Claim, error)
	PopSpecific(ctx context.Context, r pg.PopRequest) (pg.Claim, error)
	PopDiscover(ctx context.Context, r pg.PopRequest) (pg.Claim, error)
	PopList(ctx context.Context, r pg.PopRequest) (pg.Claim, error)
	PopReady(ctx context.Context, r pg.PopRequest) (pg.Claim, error)
	GroupRegistered(ctx context.Context, tenant uuid.UUID, queue, group string) (bool, error)
	Pending(ctx context.Context, page pg.PendingPage) (names []string, messages []int64, next pg.PendingCursor, err error)
	SeedGroup(ctx context.Context, tenant uuid.UUID, queue, group string, after pg.PendingCursor, limit int) (next pg.PendingCursor, err error)
	HotListRepairs(ctx context.Context) ([]pg.HotListRepair, error)
	RaiseScanFloor(ctx context.Context, tenant uuid.UUID, queue, group string, before time.Time) (floor time.Time, more bool, err error)
	HasPending(ctx context.Context, tenant uuid.UUID, queue, group string) (bool, error)
	QueueSettings(ctx context.Context, tenant uuid.UUID, queue string) (pg.QueueSettings, bool, error)
	ShortenLeases(ctx context.Context, group, worker string, cuts []pg.LeaseCut) (kept []uuid.UUID, err error)
	ReleaseLease(ctx context.Context, partition uuid.UUID, group, worker string) error
}
