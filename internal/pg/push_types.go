package pg

import (
	"time"

	"github.com/google/uuid"
)

// A Segment is one packed run of messages for one partition, ready to be stored.
type Segment struct {
	Tenant    uuid.UUID
	Queue     string
	Partition string
	// Count is the number of messages in Blob, at least 1.
	Count int
	// Hashes is 16 bytes per message (xxh3-128 of the transaction id, big-endian), in frame order.
	Hashes []byte
	// Verified is the highest offset up to which the caller knows that none of Hashes occurs inside the deduplication
	// window; -1 claims nothing and is always sound. It is about VerifiedPartition and about what was stored at or after
	// VerifiedSince (zero: about everything), by the database's clock: where the name stands for another partition now, or
	// where the window reaches further back, the database looks for itself.
	Verified          int64
	VerifiedPartition uuid.UUID
	VerifiedSince     time.Time
	// Blob is the compressed frames, never empty.
	Blob []byte
	// Plain says that the payloads in Blob are not encrypted. A queue that demands encryption answers PushConfig to it.
	Plain bool
	// Traces names the frames that carry a trace id. Usually nil.
	Traces []FrameTrace
}

// A FrameTrace is the trace id of one frame of a segment.
type FrameTrace struct {
	// Frame is the index of the message inside its segment, from 0.
	Frame int
	ID    uuid.UUID
}

// PushOptions changes how one PushMulti call is judged. The zero value is the normal push.
type PushOptions struct {
	// SkipCapacity stores messages even when a bounded queue is full: their acceptance was promised earlier.
	SkipCapacity bool
	// Handovers are leases for pops that wait for the segments, to be made by the commit that stores them. Usually nil.
	Handovers []Handover
}

// A Handover asks for a lease on the first messages of a segment that is about to be stored. It is made only where a group has nothing else
// before it and nobody holds the partition; a segment stored any other way than the quickest is not leased.
type Handover struct {
	// Segment is the index of the segment, named once for each group, and Take how many of its messages are leased.
	Segment, Take int
	Group         string
	// Worker is the lease id, LeaseSeconds how long it lasts.
	Worker       string
	LeaseSeconds int
	// Leased is set by PushMulti: the lease was committed together with the segment.
	Leased bool
}

// PushStatus is the verdict on one segment.
type PushStatus string

// The verdicts of log_push_multi_v1. Everything but PushQueued wrote nothing for its segment.
const (
	PushQueued    PushStatus = "queued"
	PushDuplicate PushStatus = "duplicate"
	// PushFull refuses a segment because its bounded queue has no room.
	PushFull PushStatus = "full"
	// PushHeld asks to repeat the same segment: another segment of its bounded queue had duplicates to remove first.
	PushHeld PushStatus = "held"
	// PushConfig says that the queue demands encryption and the segment holds plain payloads.
	PushConfig PushStatus = "config"
)

// A PushVerdict is the answer for one Segment, at the same index.
type PushVerdict struct {
	Status PushStatus
	// PartitionID is the partition that stored or refused the segment; the nil UUID when it was not resolved.
	PartitionID uuid.UUID
	// BaseOffset is the offset of the first message when queued.
	BaseOffset int64
	// CreatedAt is the database's stamp of the segment when queued (microseconds, UTC).
	CreatedAt time.Time
	// Window is the queue's deduplication window at the time of the call; zero or less looks for no duplicates.
	Window time.Duration
	// Duplicates lists the frames already stored, in frame order, when the status is PushDuplicate.
	Duplicates []Duplicate
	// Depth, Limit and Remaining are counted in messages and set only for bounded queues (Limit > 0).
	Depth, Limit, Remaining int64
}

// A Duplicate says that a frame's transaction id is already stored in the partition.
type Duplicate struct {
	Frame int
	// Offset is the smallest offset that holds the same transaction id inside the window.
	Offset int64
}

// A StoredSegment is a segment as it lies in log_segments.
type StoredSegment struct {
	Base, End int64
	CreatedAt time.Time
	Blob      []byte
}

// WindowHashes are the transaction-id hashes of one stored segment.
type WindowHashes struct {
	Base, End int64
	CreatedAt time.Time
	// Since is the same for all segments of one answer: none that was stored at or after it is missing.
	Since time.Time
	// Hashes is 16 bytes per message, in offset order. It is valid until the next segment is read.
	Hashes []byte
}
