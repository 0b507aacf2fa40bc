package replay

import (
	"bytes"
	"context"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// A Sealer encrypts payloads, an Opener decrypts them.
type (
	Sealer interface{ Seal(payload []byte) []byte }
	Opener interface {
		Open(payload []byte, flagged bool) ([]byte, error)
	}
)

// Keys are what replays of encrypted messages need. The zero value has none: an envelope then goes on as it is, and a plain message is
// refused by a queue that demands encryption.
type Keys struct {
	Sealer Sealer
	Opener Opener
	// Demanded says whether a queue demands encryption, as far as is known. Nil is never.
	Demanded func(ctx context.Context, tenant uuid.UUID, queue string) (bool, error)
}

// frameOf makes the message that a dead letter becomes in a queue. It keeps the trace id and the span that pushed it, and has no producer: whoever replays it did not
// produce it. What was encrypted stays so in any queue: under the active key where it can be opened, else as it is. plain says that its
// payload is not.
func (k Keys) frameOf(ctx context.Context, tenant uuid.UUID, queue string, row pg.DeadLetterRow) (frame segment.Frame, plain bool, err error) {
	frame = segment.Frame{ID: segment.NewID(), TraceID: row.TraceID, TransactionID: "dlq:" + row.ID.String(), Payload: row.Payload, Encrypted: row.Encrypted}
	if len(row.Context) == len(frame.Context) {
		copy(frame.Context[:], row.Context)
	}
	payload := row.Payload
	if k.Opener != nil && (row.Encrypted || row.EncryptionUnknown) {
		opened, err := k.Opener.Open(row.Payload, row.Encrypted)
		if err == nil && !bytes.Equal(opened, row.Payload) {
			payload, frame.Encrypted = opened, true
		}
	}
	demanded := frame.Encrypted
	if !demanded && k.Demanded != nil {
		if demanded, err = k.Demanded(ctx, tenant, queue); err != nil {
			return frame, true, err
		}
	}
	switch sealed := row.Encrypted && bytes.Equal(payload, row.Payload); {
	case !demanded, k.Sealer == nil && !frame.Encrypted:
		return frame, true, nil
	case sealed, k.Sealer == nil: // an envelope that cannot be opened here
		return frame, false, nil
	}
	frame.Payload, frame.Encrypted = k.Sealer.Seal(payload), true
	return frame, false, nil
}
