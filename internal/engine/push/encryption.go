package push

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
)

// Encryption is how callers that commit by themselves encrypt what queues demand; a [Pusher] offers Demanded and Forget. The zero
// value encrypts nothing, and the database then refuses what it must not hold in plain text.
type Encryption struct {
	// Demanded says whether a queue demands encryption, as far as is known. Nil is never.
	Demanded func(ctx context.Context, tenant uuid.UUID, queue string) (bool, error)
	// Forget drops what is known of a queue after the database contradicted it. Nil drops nothing.
	Forget func(tenant uuid.UUID, queue string)
	// Sealer encrypts. Nil cannot: such pushes are refused with [ErrEncryptionRequired].
	Sealer Sealer
}

// Pack is [Pack] with the payloads encrypted whose queue demands it. Without a key the items are refused as a whole.
func (e Encryption) Pack(ctx context.Context, packer *segment.Packer, tenant uuid.UUID, producerSub string, items []Item) (*Bundle, error) {
	sealers := make(map[string]Sealer)
	for i := range items {
		queue := items[i].Queue
		if _, known := sealers[queue]; known || e.Demanded == nil {
			continue
		}
		demanded, err := e.Demanded(ctx, tenant, queue)
		switch {
		case err != nil:
			return nil, err
		case demanded && e.Sealer == nil:
			return nil, fmt.Errorf("queue %q: %w", queue, ErrEncryptionRequired)
		case demanded:
			sealers[queue] = e.Sealer
		default:
			sealers[queue] = nil
		}
	}
	return Pack(packer, func(queue string) Sealer { return sealers[queue] }, tenant, producerSub, items)
}

// Recheck forgets what is known of the queues of a bundle that was refused, and reports whether one of them, packed plain, demands
// encryption after all: then packing anew may help.
func (e Encryption) Recheck(ctx context.Context, tenant uuid.UUID, b *Bundle) (again bool, err error) {
	for i := range b.Segments {
		s := &b.Segments[i]
		if !s.Plain || e.Demanded == nil {
			continue
		}
		if e.Forget != nil {
			e.Forget(tenant, s.Queue)
		}
		demanded, err := e.Demanded(ctx, tenant, s.Queue)
		if err != nil || demanded {
			return demanded, err
		}
	}
	return false, nil
}
