package pop

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// A Batch is what one pop delivers of one partition, in offset order.
type Batch struct {
	Queue       string
	Partition   string
	PartitionID uuid.UUID
	// Messages is the number of messages, at least 1.
	Messages int
	// End is the offset of the last message delivered.
	End int64
	// Whole says that everything claimed is delivered: no segment of the batch had to be left out.
	Whole bool
	// CreatedAt is the time of the oldest message.
	CreatedAt time.Time

	slices []slice
}

// EachSegment calls f with the time of every segment that the batch takes messages from, and how many, in offset order.
func (b *Batch) EachSegment(f func(createdAt time.Time, messages int)) {
	for i := range b.slices {
		f(b.slices[i].createdAt, b.slices[i].take)
	}
}

// A slice is the part of one segment that belongs to a batch.
type slice struct {
	frames      *segment.Frames
	base        int64
	start, take int
	createdAt   time.Time
	// plain are the decrypted payloads, by message taken; nil where nothing is encrypted.
	plain [][]byte
}

// A brokenSegment is where the batch of one partition ends because the rest cannot be read.
type brokenSegment struct {
	partition pg.ClaimedPartition
	base      int64
	start     int
	take      int
	// delivered is the number of messages before it that are delivered.
	delivered int
	err       error
}

// decode unpacks what was claimed. The batch of a partition ends before its first segment that cannot be read, which is reported;
// a partition that begins with such a segment has no batch.
func decode(claimed []pg.ClaimedPartition) (batches []Batch, broken []brokenSegment) {
	batches = make([]Batch, 0, len(claimed))
	for _, partition := range claimed {
		batch := Batch{
			Queue:       partition.Queue,
			Partition:   partition.Partition,
			PartitionID: partition.PartitionID,
			Whole:       true,
			slices:      make([]slice, 0, len(partition.Segments)),
		}
		for _, stored := range partition.Segments {
			frames, err := unpack(stored)
			if err != nil {
				batch.Whole = false
				broken = append(broken, brokenSegment{
					partition, stored.Base, stored.StartIndex, stored.Take, batch.Messages, err,
				})
				break
			}
			if batch.Messages == 0 {
				batch.CreatedAt = stored.CreatedAt
			}
			batch.Messages += stored.Take
			batch.End = stored.Base + int64(stored.StartIndex) + int64(stored.Take) - 1
			batch.slices = append(batch.slices, slice{frames: frames, base: stored.Base, start: stored.StartIndex, take: stored.Take, createdAt: stored.CreatedAt})
		}
		if batch.Messages > 0 {
			batches = append(batches, batch)
		}
	}
	return batches, broken
}

// unpack decodes one segment and checks that it holds the messages that the database counts in it.
func unpack(stored pg.ClaimedSegment) (*segment.Frames, error) {
	frames, err := segment.Unpack(stored.Blob)
	if err != nil {
		return nil, err
	}
	if have, need := frames.Len(), stored.StartIndex+stored.Take; stored.StartIndex < 0 || stored.Take < 1 || have < need {
		frames.Release()
		return nil, fmt.Errorf("%w: %d messages stored, %d needed from index %d", segment.ErrMalformed, have, stored.Take, stored.StartIndex)
	}
	return frames, nil
}

// releaseAll gives the buffers of batches back.
func releaseAll(batches []Batch) {
	for _, batch := range batches {
		for _, s := range batch.slices {
			s.frames.Release()
		}
	}
}
