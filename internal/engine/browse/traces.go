package browse

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// withheld stands for the data of a trace that could not be encrypted.
var withheld = []byte(`{"withheld":"the queue is encrypted and the broker that recorded this had no key"}`)

// A TraceStore keeps what clients record about messages.
type TraceStore interface {
	RecordTrace(ctx context.Context, tenant uuid.UUID, record pg.TraceRecord) (json.RawMessage, error)
	MessageTraces(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (json.RawMessage, error)
	TracesByName(ctx context.Context, tenant uuid.UUID, name string, page pg.TracePage) (json.RawMessage, error)
	PartitionOwner(ctx context.Context, partition uuid.UUID) (tenant uuid.UUID, queue, name string, found bool, err error)
}

// A Sealer encrypts.
type Sealer interface {
	Seal(text []byte) []byte
}

// Traces keep what clients record about messages of encrypted queues encrypted: it may quote them. It is safe for concurrent use.
type Traces struct {
	DB TraceStore
	// Demanded says whether a queue demands encryption. Nil is never.
	Demanded func(ctx context.Context, tenant uuid.UUID, queue string) (bool, error)
	// Sealer and Opener are nil without a key: the data is then not kept, and not readable.
	Sealer Sealer
	Opener Opener
}

// RecordTrace stores a record, its data encrypted when the queue of its partition demands that.
func (t Traces) RecordTrace(ctx context.Context, tenant uuid.UUID, record pg.TraceRecord) (json.RawMessage, error) {
	owner, queue, _, found, err := t.DB.PartitionOwner(ctx, record.PartitionID)
	if err != nil {
		return nil, err
	}
	if found && owner == tenant && t.Demanded != nil {
		demanded, err := t.Demanded(ctx, tenant, queue)
		if err != nil {
			return nil, err
		}
		switch {
		case demanded && t.Sealer != nil:
			record.Data, record.Encrypted = t.Sealer.Seal(record.Data), true
		case demanded:
			record.Data = withheld
		}
	}
	return t.DB.RecordTrace(ctx, tenant, record)
}

// MessageTraces is that of the store, with the data decrypted where it can be.
func (t Traces) MessageTraces(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (json.RawMessage, error) {
	return t.opened(t.DB.MessageTraces(ctx, tenant, partition, transactionID))
}

// TracesByName is that of the store, with the data decrypted where it can be.
func (t Traces) TracesByName(ctx context.Context, tenant uuid.UUID, name string, page pg.TracePage) (json.RawMessage, error) {
	return t.opened(t.DB.TracesByName(ctx, tenant, name, page))
}

// opened decrypts the data of traces that are marked. An answer without one is passed on byte for byte.
func (t Traces) opened(answer json.RawMessage, err error) (json.RawMessage, error) {
	if err != nil || t.Opener == nil || !bytes.Contains(answer, []byte(`"isEncrypted"`)) {
		return answer, err
	}
	var page map[string]json.RawMessage
	var traces []map[string]json.RawMessage
	if err := json.Unmarshal(answer, &page); err != nil {
		return nil, fmt.Errorf("read traces: %w", err)
	}
	if err := json.Unmarshal(page["traces"], &traces); err != nil {
		return nil, fmt.Errorf("read traces: %w", err)
	}
	for _, trace := range traces {
		if string(trace["isEncrypted"]) != "true" {
			continue
		}
		if plain, err := t.Opener.Open(trace["data"], true); err == nil {
			trace["data"] = plain
		}
	}
	if page["traces"], err = json.Marshal(traces); err != nil {
		return nil, fmt.Errorf("read traces: %w", err)
	}
	return json.Marshal(page)
}
