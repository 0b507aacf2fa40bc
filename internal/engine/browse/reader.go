package browse

import (
	"bytes"
	"context"
	"fmt"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

const (
	// segmentsAtOnce bounds the compressed segments in memory while a page is decoded.
	segmentsAtOnce = 64
	// scanAtOnce and scanAtMost bound the search for a message whose index row is gone: the newest segments of its partition.
	scanAtOnce = 100
	scanAtMost = 5000
)

// A Store is what this package needs of the database door.
type Store interface {
	ListMessages(ctx context.Context, tenant uuid.UUID, filter pg.MessageFilter) (pg.MessagePage, error)
	SegmentsOf(ctx context.Context, keys []pg.SegmentKey) (map[pg.SegmentKey]pg.StoredSegment, error)
	FindMessage(ctx context.Context, tenant, partition uuid.UUID, hash []byte) (pg.MessageDetail, bool, error)
	MessageAt(ctx context.Context, tenant, partition uuid.UUID, offset int64) (pg.MessageDetail, bool, error)
	NewestSegments(ctx context.Context, tenant, partition uuid.UUID, below int64, limit int) ([]pg.StoredSegment, error)
	SegmentsFrom(ctx context.Context, tenant, partition uuid.UUID, from int64, limit int) (pg.PartitionPart, bool, error)
	TraceMessages(ctx context.Context, tenant, trace uuid.UUID, limit int) ([]pg.TracedMessage, error)
	ListDeadLetters(ctx context.Context, tenant uuid.UUID, filter pg.DeadLetterFilter) (pg.DeadLetterPage, error)
}

// Content is a decoded message.
type Content struct {
	// Available is false when retention took the segment, or when it is damaged: then nothing else is known.
	Available bool
	// Unreadable says what is wrong with a damaged segment, "" when nothing is.
	Unreadable    string
	ID            uuid.UUID
	TransactionID string
	TraceID       uuid.NullUUID
	// Context is the span that pushed the message, zero for none.
	Context     segment.TraceContext
	ProducerSub string
	Encrypted   bool
	// Payload is the exact bytes that were pushed, empty for none; the envelope when Encrypted is true and no key opens it.
	Payload []byte
	// sealed says that Payload is an envelope.
	sealed bool
}

// A Message is one entry of a page.
type Message struct {
	pg.MessageEntry
	Content
}

// A Page is one page of messages, newest first.
type Page struct {
	Messages []Message
	pg.MessagePage
}

// A Detail is one message with the state of every group.
type Detail struct {
	pg.MessageDetail
	Content
}

// A Traced message is one station of a trace.
type Traced struct {
	pg.TracedMessage
	Content
}

// A Reader reads stored messages. Make one with [New].
type Reader struct {
	db     Store
	opener Opener
}

// An Opener decrypts payloads; an error leaves them as they are stored.
type Opener interface {
	Open(payload []byte, flagged bool) ([]byte, error)
}

// New returns a reader of db. opener decrypts what is stored encrypted; nil shows it as it is stored.
func New(db Store, opener Opener) *Reader { return &Reader{db, opener} }

// List returns one page of messages.
func (r *Reader) List(ctx context.Context, tenant uuid.UUID, filter pg.MessageFilter) (Page, error) {
	found, err := r.db.ListMessages(ctx, tenant, filter)
	if err != nil {
		return Page{}, err
	}
	page := Page{Messages: make([]Message, len(found.Messages)), MessagePage: found}
	places := make([]place, len(found.Messages))
	for i, entry := range found.Messages {
		page.Messages[i].MessageEntry = entry
		places[i] = place{entry.Segment, entry.Frame, &page.Messages[i].Content}
	}
	return page, r.fill(ctx, places)
}

// DeadLetters returns one page of dead letters, their payloads and what their consumers reported decrypted where they can be.
func (r *Reader) DeadLetters(ctx context.Context, tenant uuid.UUID, filter pg.DeadLetterFilter) (pg.DeadLetterPage, error) {
	page, err := r.db.ListDeadLetters(ctx, tenant, filter)
	if err != nil || r.opener == nil {
		return page, err
	}
	for i := range page.Rows {
		row := &page.Rows[i]
		if row.Encrypted || row.EncryptionUnknown {
			if plain, err := r.opener.Open(row.Payload, row.Encrypted); err == nil {
				row.Encrypted = row.Encrypted || !bytes.Equal(plain, row.Payload)
				row.Payload = plain
			}
		}
		if row.SealedError == nil {
			continue
		}
		if text, err := r.opener.Open(row.SealedError, true); err == nil {
			row.Error = string(text)
		}
	}
	return page, nil
}

// Trace returns the messages that carry a trace id, across queues, in the order of time; limit is the most.
func (r *Reader) Trace(ctx context.Context, tenant, trace uuid.UUID, limit int) ([]Traced, error) {
	found, err := r.db.TraceMessages(ctx, tenant, trace, limit)
	if err != nil {
		return nil, err
	}
	messages := make([]Traced, len(found))
	places := make([]place, len(found))
	for i, m := range found {
		messages[i].TracedMessage = m
		places[i] = place{m.Segment, int(m.Offset - m.Segment.Base), &messages[i].Content}
	}
	return messages, r.fill(ctx, places)
}

// A place is where a message lies and where its content goes.
type place struct {
	segment pg.SegmentKey
	frame   int
	content *Content
}

// fill decodes every segment once. A damaged segment takes nothing from the others: its own places say that it is unreadable.
func (r *Reader) fill(ctx context.Context, places []place) error {
	bySegment := make(map[pg.SegmentKey][]place)
	var keys []pg.SegmentKey
	for _, p := range places {
		if bySegment[p.segment] == nil {
			keys = append(keys, p.segment)
		}
		bySegment[p.segment] = append(bySegment[p.segment], p)
	}
	for len(keys) > 0 {
		n := min(len(keys), segmentsAtOnce)
		stored, err := r.db.SegmentsOf(ctx, keys[:n])
		if err != nil {
			return err
		}
		for key, s := range stored {
			r.fillFrom(s, bySegment[key])
		}
		keys = keys[n:]
	}
	return nil
}

func (r *Reader) fillFrom(stored pg.StoredSegment, places []place) {
	frames, err := segment.Unpack(stored.Blob)
	if err != nil {
		for _, p := range places {
			*p.content = Content{Unreadable: err.Error()}
		}
		return
	}
	defer frames.Release()
	for _, p := range places {
		if p.frame < 0 || p.frame >= frames.Len() {
			*p.content = Content{Unreadable: fmt.Sprintf("the segment holds %d messages, not message %d that it was stored with", frames.Len(), p.frame)}
			continue
		}
		*p.content = r.contentOf(frames.At(p.frame))
	}
}

// contentOf copies a frame out of the buffer it lies in, decrypted when it can be.
func (r *Reader) contentOf(f segment.Frame) Content {
	sealed := f.Encrypted
	if f.Encrypted && r.opener != nil {
		if plain, err := r.opener.Open(f.Payload, true); err == nil {
			f.Payload, sealed = plain, false
		}
	}
	return Content{
		Available: true, ID: f.ID, TransactionID: f.TransactionID, TraceID: f.TraceID, Context: f.Context, ProducerSub: f.ProducerSub,
		Encrypted: f.Encrypted, Payload: bytes.Clone(f.Payload), sealed: sealed,
	}
}

// Find returns the message with a transaction id in a partition of the tenant; false when there is none. One whose segment is damaged
// is Unreadable. When the index no longer knows the id, the newest segments of the partition are searched; what is not in those that
// can be read may lie in a damaged one, which then is the error.
func (r *Reader) Find(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (Detail, bool, error) {
	hash := segment.Hash(transactionID)
	found, ok, err := r.db.FindMessage(ctx, tenant, partition, hash[:])
	if err != nil {
		return Detail{}, false, err
	}
	if !ok {
		if found, ok, err = r.search(ctx, tenant, partition, transactionID); err != nil || !ok {
			return Detail{}, false, err
		}
	}
	detail := Detail{MessageDetail: found}
	if !found.SegmentFound {
		return detail, false, nil
	}
	p := place{frame: int(found.Offset - found.Segment.Base), content: &detail.Content}
	r.fillFrom(found.Segment, []place{p})
	return detail, detail.Available || detail.Unreadable != "", nil
}

// search looks for a transaction id in the newest segments, backwards.
func (r *Reader) search(ctx context.Context, tenant, partition uuid.UUID, transactionID string) (pg.MessageDetail, bool, error) {
	below := int64(1<<63 - 1)
	var damaged error
	for seen := 0; seen < scanAtMost; {
		stored, err := r.db.NewestSegments(ctx, tenant, partition, below, scanAtOnce)
		if err != nil {
			return pg.MessageDetail{}, false, err
		}
		for _, s := range stored {
			frame, err := frameWith(s.Blob, transactionID)
			if err != nil && damaged == nil {
				damaged = fmt.Errorf("segment %d of partition %s: %w", s.Base, partition, err)
			}
			if frame >= 0 {
				return r.db.MessageAt(ctx, tenant, partition, s.Base+int64(frame))
			}
			below = s.Base
		}
		if len(stored) < scanAtOnce {
			break
		}
		seen += len(stored)
	}
	return pg.MessageDetail{}, false, damaged
}

// frameWith returns the index of the last frame with a transaction id, -1 when there is none.
func frameWith(blob []byte, transactionID string) (int, error) {
	frames, err := segment.Unpack(blob)
	if err != nil {
		return -1, err
	}
	defer frames.Release()
	for i := frames.Len() - 1; i >= 0; i-- {
		if view := frames.View(i); string(view.TransactionID) == transactionID {
			return i, nil
		}
	}
	return -1, nil
}
