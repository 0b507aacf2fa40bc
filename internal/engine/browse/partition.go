package browse

import (
	"context"
	"time"

	"github.com/google/uuid"
)

const (
	// segmentsInTurn bounds the compressed segments that are read at a time: small batches would pay a round trip for a few messages.
	segmentsInTurn = 32
	// maxPartBytes ends a part after the message that passes it, whatever the limit is.
	maxPartBytes = 16 << 20
)

// A Stored message is one message of a partition.
type Stored struct {
	Offset    int64
	CreatedAt time.Time
	Content
}

// A Part is a run of messages of one partition, oldest first.
type Part struct {
	Queue, Partition string
	// LogStart is the first offset that retention has not passed, End the one behind the last message, Next where the following
	// part begins; at Next = End there are no more.
	LogStart, End, Next int64
	Messages            []Stored
}

// Partition returns up to limit messages of a partition of the tenant by offset, from one on; from < 0 counts back from the end. A
// part ends early once its payloads pass 16 MiB. What a damaged segment held is Unreadable. Nothing is claimed and no cursor moves. False when there is no such partition.
func (r *Reader) Partition(ctx context.Context, tenant, partition uuid.UUID, from int64, limit int) (Part, bool, error) {
	var part Part
	for size := 0; len(part.Messages) < limit && size < maxPartBytes; {
		read, found, err := r.db.SegmentsFrom(ctx, tenant, partition, from, min(segmentsInTurn, limit-len(part.Messages)))
		if err != nil || !found {
			return Part{}, false, err
		}
		part.Queue, part.Partition, part.LogStart, part.End = read.Queue, read.Partition, read.LogStart, read.End
		part.Next = read.End
		from = read.From
		for _, stored := range read.Segments {
			first := max(from, stored.Base)
			taken := make([]Stored, max(min(stored.End-first+1, int64(limit-len(part.Messages))), 0))
			places := make([]place, len(taken))
			for i := range taken {
				taken[i].Offset, taken[i].CreatedAt = first+int64(i), stored.CreatedAt
				places[i] = place{frame: int(taken[i].Offset - stored.Base), content: &taken[i].Content}
			}
			r.fillFrom(stored, places)
			for _, m := range taken {
				if size >= maxPartBytes {
					break
				}
				part.Messages = append(part.Messages, m)
				size += len(m.Payload)
				from, part.Next = m.Offset+1, m.Offset+1
			}
		}
		if len(read.Segments) == 0 || from >= read.End {
			break
		}
	}
	return part, true, nil
}
