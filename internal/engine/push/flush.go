package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"queenmq/internal/engine/admission"
	"queenmq/internal/pg"
)

// A flush commits the segments of one bundle. It belongs to its goroutine until it is sent to the shard's finished channel.
type flush struct {
	pusher    *Pusher
	shard     *shard
	slot      *admission.Slot
	started   time.Time
	segments  []*work
	originals originals
	sealed    int // segments that were encrypted
	// replay marks what was accepted earlier: room was promised, and no other flush of the partition has told the verifier about it.
	replay bool
	// handOver concludes the handover that is under way; nil when none is.
	handOver func(context.Context, []pg.PushVerdict)
}

// run decides every item of the flush and hands it back to the shard, whatever happens in between.
func (f *flush) run(ctx context.Context) {
	f.originals = originals{db: f.pusher.db, log: f.pusher.cfg.Logger}
	defer f.finish(ctx)
	live := make([]*work, 0, len(f.segments))
	for _, w := range f.segments {
		w.prepare()
		if f.pusher.settings.encrypts(w.tenant, w.queue) && !f.seal(w) {
			continue
		}
		if f.pack(ctx, w) {
			live = append(live, w)
		}
	}
	f.store(ctx, live) //nolint:errcheck // the items carry it
}

// seal makes the payloads of w encrypted from the next pack on, or fails w because they cannot be: never are they stored as
// they are.
func (f *flush) seal(w *work) bool {
	if f.pusher.cfg.Sealer == nil {
		w.fail(ErrEncryptionRequired)
		return false
	}
	w.sealer = f.pusher.cfg.Sealer
	f.sealed++
	return true
}

// finish is deferred by run. The order matters: first the slot, then (in the shard) the mark of the partition, then the
// callers; a caller that pushes again at once must find room.
func (f *flush) finish(ctx context.Context) {
	err := fmt.Errorf("%w: no verdict", ErrInternal)
	if cause := recover(); cause != nil {
		f.pusher.counters.panics.Add(1)
		f.pusher.cfg.Logger.ErrorContext(ctx, "panic in a push flush", slog.Any("panic", cause), slog.String("stack", string(debug.Stack())))
		err = fmt.Errorf("%w: panic", ErrInternal)
	}
	f.concludeHandover(ctx, nil)
	for _, w := range f.segments {
		w.settle(err)
	}
	f.originals.release()
	f.slot.Release()
	f.shard.finished <- f
}

// pack encodes w and reports whether anything is left to store.
func (f *flush) pack(ctx context.Context, w *work) bool {
	err := w.pack(f.pusher.cfg.Packer, func(r ref, err error) { r.verdict().fail(err) })
	if err != nil {
		f.pusher.cfg.Logger.ErrorContext(ctx, "a segment could not be packed", slog.String("queue", w.queue), slog.Any("error", err))
		w.fail(fmt.Errorf("pack segment: %w", err))
	}
	return len(w.refs) > 0
}

// store commits live, round after round, until every frame is decided. Each round decides a segment, takes at least one
// frame out of it or encrypts it, which bounds the loop. It returns the error that ended it early, after giving it to the items.
func (f *flush) store(ctx context.Context, live []*work) error {
	rounds := 2
	for _, w := range live {
		rounds += len(w.refs)
	}
	provisioned := false
	for len(live) > 0 {
		if rounds == 0 {
			err := fmt.Errorf("%w: the database's verdicts make no progress", ErrInternal)
			f.pusher.cfg.Logger.ErrorContext(ctx, "push flush makes no progress", slog.String("queue", live[0].queue))
			return failAll(live, err)
		}
		rounds--
		segments, verdicts, err := f.commit(ctx, live)
		vanished := errors.Is(err, pg.ErrVanished)
		switch {
		case err == nil:
			before := f.sealed
			live = f.apply(ctx, live, segments, verdicts)
			rounds += f.sealed - before // a segment is encrypted once at most
		case vanished && !provisioned:
			provisioned = true // deleted under our feet: the next call creates it again
		case (vanished || errors.Is(err, pg.ErrBadData) || f.replay && isSlow(err)) && len(live) > 1:
			return f.isolate(ctx, live)
		default:
			return failAll(live, err)
		}
	}
	return nil
}

// mostSlow is how many segments of a replay may not be stored in time before the rest fails without trying: each takes its time.
const mostSlow = 8

// isSlow says that something could not be stored in time, for its locks for example.
func isSlow(err error) bool {
	return errors.Is(err, pg.ErrTimeout) || errors.Is(err, pg.ErrLockTimeout)
}

// isolate stores each segment by itself after the bundle failed for a reason that lies in the data, or, in a replay, in the locks of a
// partition, so that only the offender fails. When the database goes away meanwhile, the rest fails without trying.
func (f *flush) isolate(ctx context.Context, live []*work) error {
	f.pusher.counters.isolations.Add(1)
	slow := 0
	for i := range live {
		err := f.store(ctx, live[i:i+1:i+1])
		switch {
		case err == nil, errors.Is(err, pg.ErrBadData), errors.Is(err, pg.ErrVanished):
		case f.replay && isSlow(err) && slow < mostSlow:
			slow++
		default:
			return failAll(live[i+1:], err)
		}
	}
	return nil
}

// commit makes one call of the store, which repeats by itself what rolled back for a passing reason: conflicts and locks
// that were not free in time.
func (f *flush) commit(ctx context.Context, live []*work) ([]pg.Segment, []pg.PushVerdict, error) {
	segments := make([]pg.Segment, len(live))
	for i, w := range live {
		segments[i] = w.segment()
		if f.pusher.cfg.Verifier != nil && !f.replay {
			f.pusher.cfg.Verifier.Verify(&segments[i])
		}
	}
	options := pg.PushOptions{SkipCapacity: f.replay}
	if f.pusher.cfg.Handover != nil && !f.replay && !live[0].group.key.bounded {
		options.Handovers, f.handOver = f.pusher.cfg.Handover(segments)
	}
	start := time.Now()
	verdicts, err := f.pusher.db.PushMulti(ctx, segments, options)
	f.pusher.counters.flushed(time.Since(start), err)
	if err != nil || len(verdicts) != len(live) {
		f.concludeHandover(ctx, nil)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("push bundle: %w", err)
	}
	if len(verdicts) != len(live) {
		return nil, nil, fmt.Errorf("%w: %d verdicts for %d segments", ErrInternal, len(verdicts), len(live))
	}
	return segments, verdicts, nil
}

// apply gives the items of live their verdicts and returns what goes into the next round.
func (f *flush) apply(ctx context.Context, live []*work, segments []pg.Segment, verdicts []pg.PushVerdict) []*work {
	f.settleQueued(ctx, live, segments, verdicts)
	var next []*work
	for i, w := range live {
		v := &verdicts[i]
		switch v.Status {
		case pg.PushQueued:
		case pg.PushDuplicate:
			if !f.dropDuplicates(ctx, w, v) {
				f.broken(ctx, w, "a duplicate verdict names no frame")
			} else if len(w.refs) > 0 && f.pack(ctx, w) {
				next = append(next, w)
			}
		case pg.PushFull:
			w.fail(&QueueFullError{Queue: w.queue, Depth: v.Depth, Limit: v.Limit, Remaining: v.Remaining})
		case pg.PushHeld:
			next = append(next, w)
		case pg.PushConfig:
			// The queue has come to demand encryption since its settings were read.
			f.pusher.settings.forget(w.tenant, w.queue)
			if w.sealer != nil {
				f.broken(ctx, w, "encrypted payloads were taken for plain ones")
			} else if f.seal(w) && f.pack(ctx, w) {
				next = append(next, w)
			}
		default:
			f.broken(ctx, w, "unknown verdict "+string(v.Status))
		}
		if (v.Limit > 0 || v.Status == pg.PushHeld) && !f.replay && !w.group.key.bounded {
			f.pusher.settings.forget(w.tenant, w.queue) // it has become bounded: later requests are judged by themselves
		}
	}
	return next
}

// settleQueued settles what was committed, before anything else can go wrong, and then tells the verifier and the pop
// side: both before the requests are answered.
func (f *flush) settleQueued(ctx context.Context, live []*work, segments []pg.Segment, verdicts []pg.PushVerdict) {
	stored, frames := 0, 0
	for i, w := range live {
		if verdicts[i].Status == pg.PushQueued {
			w.queued(&verdicts[i])
			stored++
			frames += len(w.refs)
		}
	}
	defer f.concludeHandover(ctx, verdicts)
	if stored == 0 {
		return
	}
	f.pusher.counters.commits.Add(1)
	f.pusher.counters.segments.Add(uint64(stored)) //nolint:gosec // a count
	f.pusher.counters.frames.Add(uint64(frames))   //nolint:gosec // a count
	for i, w := range live {
		if verdicts[i].Status != pg.PushQueued {
			continue
		}
		if f.pusher.cfg.Verifier != nil && !f.replay {
			f.pusher.cfg.Verifier.Stored(&segments[i], &verdicts[i])
		}
		f.pusher.onStored(w.tenant, w.queue, w.partition, verdicts[i].PartitionID, len(w.refs))
	}
}

// concludeHandover ends the handover of the newest commit, if there is one: after its segments were announced.
func (f *flush) concludeHandover(ctx context.Context, verdicts []pg.PushVerdict) {
	if conclude := f.handOver; conclude != nil {
		f.handOver = nil
		conclude(ctx, verdicts)
	}
}

// broken fails w because the answer for it makes no sense.
func (f *flush) broken(ctx context.Context, w *work, what string) {
	f.pusher.cfg.Logger.ErrorContext(ctx, "a push verdict makes no sense", slog.String("queue", w.queue), slog.String("reason", what))
	w.fail(fmt.Errorf("%w: %s", ErrInternal, what))
}

// queued settles the frames of w as committed.
func (w *work) queued(v *pg.PushVerdict) {
	for _, r := range w.refs {
		verdict := r.verdict()
		verdict.Status, verdict.PartitionID = StatusQueued, v.PartitionID
		verdict.Depth, verdict.Limit, verdict.Remaining = v.Depth, v.Limit, v.Remaining
	}
}

func failAll(live []*work, err error) error {
	for _, w := range live {
		w.fail(err)
	}
	return err
}
