package pg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// The pauses between two attempts of WaitReady, and between two of its log lines.
const (
	firstReadyPause = 100 * time.Millisecond
	mostReadyPause  = time.Second
	readyLogEvery   = time.Minute
)

// WaitReady returns when the server answers, trying with growing pauses until ctx ends. What waiting cannot cure is returned
// at once: ErrServerTooOld, ErrNotUTF8, a refused password, a database that does not exist, a pooler that nobody told of.
func (db *DB) WaitReady(ctx context.Context) error {
	var lastLog time.Time
	for pause := firstReadyPause; ; pause = min(2*pause, mostReadyPause) {
		err := db.Ping(ctx)
		if err == nil || errors.Is(err, ErrServerTooOld) || errors.Is(err, ErrNotUTF8) || isRefusal(err) {
			return err
		}
		if now := time.Now(); ctx.Err() == nil && now.Sub(lastLog) >= readyLogEvery {
			lastLog = now
			db.options.Logger.WarnContext(ctx, "waiting for PostgreSQL", slog.Any("error", err))
		}
		if !wait(ctx, pause) {
			return fmt.Errorf("PostgreSQL did not become ready: %w", errors.Join(context.Cause(ctx), err))
		}
	}
}

// isRefusal says that the server is there and does not want us.
func isRefusal(err error) bool {
	serverErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(serverErr.Code, "28") || serverErr.Code == "3D000") || errors.Is(err, ErrUnannouncedPooler)
}
