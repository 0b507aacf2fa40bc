package streams

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// closeIdle looks for idle partitions with windows that have ended, and closes those, until ctx ends. Every runner does it; two that find
// the same partition do no harm, because the second cycle is refused.
func (r *Runner) closeIdle(ctx context.Context) {
	every := min(max(r.query.def.idle/4, 100*time.Millisecond), 10*time.Second)
	for {
		r.pause(ctx, every/2+rand.N(every))
		if ctx.Err() != nil {
			return
		}
		ripe, err := r.wire.ripe(ctx, r.query.def.grace.Milliseconds(), r.query.def.idle.Milliseconds())
		if err != nil {
			r.warn(ctx, "idle partitions could not be listed", err)
			if lasting(err) { // an older broker: windows close with the next record only
				return
			}
			continue
		}
		for _, p := range ripe {
			if ctx.Err() != nil {
				return
			}
			r.warn(ctx, "the windows of an idle partition could not be closed", r.closePartition(ctx, p))
		}
	}
}

// closePartition closes the ended windows of one partition, in as many cycles as that takes.
func (r *Runner) closePartition(ctx context.Context, p ripePartition) error {
	entry := r.shards.use(p.ID, p.Name)
	defer r.shards.done(entry)
	if !entry.TryLock() {
		return nil // it is not idle any more
	}
	defer entry.Unlock()
	entry.reset() // another runner may have worked on it
	if err := r.load(ctx, entry.shard); err != nil {
		return err
	}
	for {
		c := r.newCycle(ctx, entry.shard)
		stopped := r.program.flush(c, int64(p.End))
		var denied *deniedError
		if stopped != nil && !errors.Is(stopped, errMore) && !errors.As(stopped, &denied) {
			entry.reset()
			return stopped
		}
		if err := r.commit(ctx, c, "", 0, false); err != nil {
			entry.reset()
			if errors.Is(err, errStateChanged) {
				return nil
			}
			return err
		}
		if !errors.Is(stopped, errMore) {
			return nil
		}
	}
}
