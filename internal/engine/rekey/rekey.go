package rekey

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
	"queenmq/internal/engine/stream"
	"queenmq/internal/pg"
	"queenmq/internal/secret"
)

// batchRows is the most rows of a batch; segments are also bounded in bytes by the database.
const batchRows = 200

// A Store is what this package needs of the database door.
type Store interface {
	RotationOf(ctx context.Context, key string) (pg.Rotation, error)
	SealedRows(ctx context.Context, stage pg.RotationStage, afterID uuid.UUID, afterOffset int64, limit int) ([]pg.SealedRow, error)
	StoreRotation(ctx context.Context, before, after pg.Rotation, rows []pg.Resealed) (bool, error)
}

// A Census says what is stored under which key.
type Census struct {
	// Payloads counts the envelopes that a key opens, by its id.
	Payloads map[string]int64
	// Unreadable counts those that no key opens, by the key that they name; "" for what is no envelope, and for damaged segments.
	Unreadable map[string]int64
	// Rows is what was looked at.
	Rows int64
}

// Count looks at everything that is stored. seen hears of the rows looked at so far after each batch.
func Count(ctx context.Context, db Store, ring *secret.Ring, seen func(rows int64)) (Census, error) {
	c := Census{Payloads: map[string]int64{}, Unreadable: map[string]int64{}}
	for _, stage := range stages {
		after, offset := uuid.Nil, int64(-1)
		for {
			rows, err := db.SealedRows(ctx, stage, after, offset, batchRows)
			if err != nil {
				return c, err
			}
			if len(rows) == 0 {
				break
			}
			for _, row := range rows {
				c.add(ring, row)
			}
			last := rows[len(rows)-1]
			after, offset = last.ID, last.Offset
			c.Rows += int64(len(rows))
			seen(c.Rows)
		}
	}
	return c, nil
}

var stages = [...]pg.RotationStage{pg.RotateSegments, pg.RotateLetters, pg.RotateTraces, pg.RotateStates}

func (c *Census) add(ring *secret.Ring, row pg.SealedRow) {
	count := func(envelope []byte, marked bool) {
		_, key, err := ring.OpenWith(envelope)
		var why *secret.UndecryptableError
		switch {
		case err == nil:
			c.Payloads[key.String()]++
		case !marked: // a payload that only may have been an envelope
		case errors.As(err, &why) && why.Envelope:
			c.Unreadable[why.Key.String()]++
		default:
			c.Unreadable[""]++
		}
	}
	if row.Blob != nil {
		frames, err := segment.Unpack(row.Blob)
		if err != nil {
			c.Unreadable[""]++
			return
		}
		defer frames.Release()
		for i := range frames.Len() {
			if frame := frames.View(i); frame.Encrypted {
				count(frame.Payload, true)
			}
		}
		return
	}
	if row.Payload != nil {
		count(row.Payload, row.Marked)
	}
	if row.Error != nil {
		count(row.Error, true)
	}
}

// Rotate puts everything that the ring opens under its active key, from where the last run ended. progress hears of it after each
// batch. Ending ctx ends it after the batch under way. Two runs at a time do no harm: one of them does the work.
func Rotate(ctx context.Context, db Store, ring *secret.Ring, packer *segment.Packer, progress func(pg.Rotation)) (pg.Rotation, error) {
	if packer == nil {
		packer = segment.DefaultPacker()
	}
	at, err := db.RotationOf(ctx, ring.ActiveID().String())
	for err == nil && at.Stage != pg.RotationDone {
		if err = ctx.Err(); err == nil {
			at, err = step(ctx, db, ring, packer, at)
		}
		if err == nil {
			progress(at)
		}
	}
	return at, err
}

// step does one batch and returns how far the rotation has come.
func step(ctx context.Context, db Store, ring *secret.Ring, packer *segment.Packer, at pg.Rotation) (pg.Rotation, error) {
	rows, err := db.SealedRows(ctx, at.Stage, at.AfterID, at.AfterOffset, batchRows)
	if err != nil {
		return at, err
	}
	next := at
	if len(rows) == 0 {
		next.Stage, next.AfterID, next.AfterOffset = following(at.Stage), uuid.Nil, -1
	}
	var changed []pg.Resealed
	for _, row := range rows {
		r := resealer{ring: ring, packer: packer}
		now, err := r.row(row)
		if err != nil {
			return at, fmt.Errorf("%s %s/%d: %w", at.Stage, row.ID, row.Offset, err)
		}
		if r.payloads > 0 {
			changed = append(changed, pg.Resealed{Was: row, Now: now})
			next.Changed++
		}
		next.Payloads += r.payloads
		next.Unreadable += r.unreadable
		next.Seen++
		next.AfterID, next.AfterOffset = row.ID, row.Offset
	}
	moved, err := db.StoreRotation(ctx, at, next, changed)
	if err != nil {
		return at, err
	}
	if !moved { // another process did this batch
		return db.RotationOf(ctx, at.Key)
	}
	return next, nil
}

func following(stage pg.RotationStage) pg.RotationStage {
	for i, s := range stages[:len(stages)-1] {
		if s == stage {
			return stages[i+1]
		}
	}
	return pg.RotationDone
}

// A resealer works on one row.
type resealer struct {
	ring                 *secret.Ring
	packer               *segment.Packer
	payloads, unreadable int64
}

func (r *resealer) row(row pg.SealedRow) (pg.SealedRow, error) {
	if row.Blob != nil {
		blob, err := r.segment(row.Blob)
		row.Blob = blob
		return row, err
	}
	if row.Query != uuid.Nil {
		return r.state(row)
	}
	if row.Payload != nil {
		row.Payload = r.envelope(row.Payload, row.Marked)
	}
	if row.Error != nil {
		row.Error = r.envelope(row.Error, true)
	}
	return row, nil
}

// state seals a row of streaming state, whose name changes with the key.
func (r *resealer) state(row pg.SealedRow) (pg.SealedRow, error) {
	was := r.payloads
	envelope := r.envelope(row.Payload, true)
	if r.payloads == was {
		return row, nil
	}
	name, err := stream.NameOf(r.ring, row.Query, row.Partition, row.ID, row.Payload)
	if err != nil { // it lies where it does not belong
		r.payloads, r.unreadable = was, r.unreadable+1
		return row, nil
	}
	row.ID, row.Payload = name, envelope
	return row, nil
}

func (r *resealer) segment(blob []byte) ([]byte, error) {
	frames, err := segment.Unpack(blob)
	if err != nil { // damaged: it must not hold up the others
		r.unreadable++
		return blob, nil
	}
	defer frames.Release()
	if !frames.Encrypted() {
		return blob, nil
	}
	all := make([]segment.Frame, frames.Len())
	for i := range all {
		all[i] = frames.At(i)
		if all[i].Encrypted {
			all[i].Payload = r.envelope(all[i].Payload, true)
		}
	}
	if r.payloads == 0 {
		return blob, nil
	}
	packed, _, err := r.packer.Pack(all)
	return packed, err
}

// envelope seals what another key than the active one sealed again.
func (r *resealer) envelope(text []byte, marked bool) []byte {
	payload, key, err := r.ring.OpenWith(text)
	switch {
	case err != nil && marked:
		r.unreadable++
		return text
	case err != nil, key == r.ring.ActiveID():
		return text
	}
	r.payloads++
	return r.ring.Seal(payload)
}
