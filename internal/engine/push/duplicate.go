package push

import (
	"context"
	"log/slog"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// dropDuplicates settles the frames that v names with the ids of the stored messages, and takes them out of w. It reports
// false, changing nothing, when v names no frame of w.
func (f *flush) dropDuplicates(ctx context.Context, w *work, v *pg.PushVerdict) bool {
	found := 0
	for _, d := range v.Duplicates {
		if d.Frame < 0 || d.Frame >= len(w.refs) {
			continue
		}
		verdict := w.refs[d.Frame].verdict()
		if verdict.Status != "" {
			continue // named twice
		}
		verdict.MessageID = f.originals.messageID(ctx, v.PartitionID, d.Offset, verdict.TransactionID)
		verdict.Status, verdict.PartitionID = StatusDuplicate, v.PartitionID
		found++
	}
	if found == 0 {
		return false
	}
	f.pusher.counters.duplicates.Add(uint64(found)) //nolint:gosec // a count
	kept := 0
	for i, r := range w.refs {
		if r.verdict().Status == "" {
			w.keep(kept, i)
			kept++
		}
	}
	w.truncate(kept)
	return true
}

// originals finds the ids of stored messages. Duplicates come in runs (a client repeats a request), so that the last
// decoded segment is kept.
type originals struct {
	db        Store
	log       *slog.Logger
	partition uuid.UUID
	base, end int64
	frames    *segment.Frames
	failed    bool
}

// messageID returns the id of the message at offset, or the nil UUID when it cannot be read: it is a duplicate all the
// same.
func (o *originals) messageID(ctx context.Context, partition uuid.UUID, offset int64, transactionID string) uuid.UUID {
	if !o.load(ctx, partition, offset) {
		return uuid.Nil
	}
	i := offset - o.base
	if i < 0 || i >= int64(o.frames.Len()) {
		return uuid.Nil
	}
	v := o.frames.View(int(i))
	if string(v.TransactionID) != transactionID {
		o.log.WarnContext(ctx, "two transaction ids have the same hash; the second is taken for a duplicate",
			slog.Any("partition_id", partition), slog.Int64("offset", offset))
	}
	return v.ID
}

// load makes the segment that covers offset the current one.
func (o *originals) load(ctx context.Context, partition uuid.UUID, offset int64) bool {
	if o.frames != nil && o.partition == partition && o.base <= offset && offset <= o.end {
		return true
	}
	if o.failed {
		return false // once a flush is enough: the database is not well and every attempt waits
	}
	o.release()
	stored, found, err := o.db.SegmentAt(ctx, partition, offset)
	if err != nil {
		o.failed = true
		o.log.WarnContext(ctx, "the original of a duplicate could not be read", slog.Any("partition_id", partition), slog.Any("error", err))
		return false
	}
	if !found {
		return false // retention was there first
	}
	frames, err := segment.Unpack(stored.Blob)
	if err != nil {
		o.log.ErrorContext(ctx, "a stored segment is damaged", slog.Any("partition_id", partition),
			slog.Int64("offset", stored.Base), slog.Any("error", err))
		return false
	}
	o.partition, o.base, o.end, o.frames = partition, stored.Base, stored.End, frames
	return true
}

func (o *originals) release() {
	if o.frames != nil {
		o.frames.Release()
		o.frames = nil
	}
}
