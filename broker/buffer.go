package broker

import (
	"context"
	"fmt"
	"log/slog"

	"queenmq/internal/api"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/spool"
	"queenmq/internal/pg"
	"queenmq/internal/upkeep"
)

// bufferOff is the directory of a broker that keeps nothing.
const bufferOff = "off"

// A buffer is the file buffer in front of the pusher.
type buffer struct {
	spool  *spool.Spool
	pusher *spool.Pusher
	drain  *upkeep.Drain
}

// newBuffer opens the file buffer. Without one, because it is off or its directory cannot be used, it returns nil: pushes then fail while
// the database is away, as the log says. Nothing is ever kept in another place than the one that was named.
func (b *Broker) newBuffer(pusher *push.Pusher, flags *upkeep.Flags, sealer push.Sealer) *buffer {
	cfg := b.cfg.Buffer
	if cfg.Dir == bufferOff {
		return nil
	}
	kept, err := spool.Open(spool.Config{
		Dir: cfg.Dir, Sync: spool.Sync(cfg.Fsync), FlushInterval: cfg.FlushInterval, MaxBatch: cfg.MaxBatch, RecordsPerFile: cfg.EventsPerFile,
		MaxBytes: cfg.MaxBytes, Log: b.log,
	})
	if err != nil {
		b.log.ErrorContext(context.Background(), "the file buffer cannot be used: pushes fail while the database is away, and in maintenance",
			slog.String("setting", "FILE_BUFFER_DIR"), slog.String("directory", cfg.Dir), slog.Any("error", err))
		return nil
	}
	if err := flags.KeepIn(kept); err != nil {
		b.log.ErrorContext(context.Background(), "maintenance switches that were turned before the restart may be forgotten",
			slog.String("directory", cfg.Dir), slog.Any("error", err))
	}
	return &buffer{
		spool: kept, pusher: kept.NewPusher(pusher, flags.PushesPaused, sealer),
		drain: upkeep.NewDrain(kept, pusher, flags.PushesPaused, b.log),
	}
}

// tieBuffer makes sure that what the file buffer keeps goes to the database it was kept for.
func (b *Broker) tieBuffer(ctx context.Context, db *pg.DB, kept *buffer) error {
	if kept == nil {
		return nil
	}
	identity, err := db.Identity(ctx)
	if err != nil {
		return fmt.Errorf("database %s: %w", b.target(), err)
	}
	if err := kept.spool.Tie(ctx, identity, b.target()); err != nil {
		return fmt.Errorf("FILE_BUFFER_DIR: %w", err)
	}
	return nil
}

// figures puts the account in the form of the interface.
func (b *buffer) figures() api.BufferFigures {
	stats := b.spool.Stats()
	return api.BufferFigures{Pending: stats.Pending, Failed: stats.Failed, DBHealthy: stats.Healthy, Files: stats.Files, Bytes: stats.Bytes}
}
