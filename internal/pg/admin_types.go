package pg

import (
	"time"

	"github.com/google/uuid"
)

// A QueueFilter chooses queues. Empty texts choose all; names match exactly.
type QueueFilter struct {
	Queue, Namespace, Task string
	// Limit 0 is the default of the call.
	Limit, Offset int
	// Cached takes every figure of ListQueues from the last refresh of the statistics and leaves the segments out: the form for
	// a page that polls.
	Cached bool
}

// A PartitionPage asks for one page of the partitions of a queue.
type PartitionPage struct {
	// Prefix chooses partitions by the beginning of their names, literally.
	Prefix string
	// Group is whose progress counts; "" is the slowest.
	Group string
	// Sort is "name", "depth" (deepest first) or "age" (oldest unconsumed message first).
	Sort  string
	Limit int
	// Leases says of each partition who holds it, or held it until the lease ran out.
	Leases bool
	// Cursor is the nextCursor of the page before, "" for the first one.
	Cursor string
}

// PurgeOptions say what a purge deletes.
type PurgeOptions struct {
	// DryRun counts and deletes nothing.
	DryRun bool
	// Mode is "consumed" (what every group has passed) or "all".
	Mode string
	// Limit bounds the segments one call deletes.
	Limit int
}

// A SeekTarget is where a cursor goes. Exactly one field is set.
type SeekTarget struct {
	ToEnd bool
	// Timestamp is as the caller wrote it; the database reads it.
	Timestamp string
	// Offset is the first message to deliver.
	Offset *int64
	// Group is another group, whose cursors are copied.
	Group string
}

// A VolumeFilter chooses what MessageVolume counts. Times are as the caller wrote them, "" is the default of the procedure.
type VolumeFilter struct {
	From, To, Interval     string
	Queue, Namespace, Task string
}

// A MessageFilter chooses messages. Zero fields choose all.
type MessageFilter struct {
	Queue, Partition, Namespace, Task string
	// Status is pending, processing, completed or dead_letter, as Group sees it; without a group as http-api 7.1 says.
	Status, Group string
	// From and To bound the time of the push; as the caller wrote them.
	From, To string
	// TransactionHash is the hash of one transaction id.
	TransactionHash []byte
	TraceID         uuid.NullUUID
	Limit, Offset   int
	// After is the Next of the page before.
	After string
}

// A MessagePage is one page of messages, newest first, and who consumes them.
type MessagePage struct {
	Messages     []MessageEntry
	HasQueueMode bool
	BusGroups    int
	// ModeType is queue, bus, hybrid or none.
	ModeType string
	// Next continues after the last message; "" when there are no more.
	Next string
}

// A PartitionPart is a run of stored segments of one partition, oldest first.
type PartitionPart struct {
	Queue, Partition string
	// LogStart is the first offset that retention has not passed, End the one behind the last message. From is the offset that the
	// caller asked for, moved to LogStart when it lay before that; the first segment may begin earlier.
	LogStart, End, From int64
	Segments            []StoredSegment
}

// A MessageEntry is what the database knows of a message without decoding its segment.
type MessageEntry struct {
	PartitionID                       uuid.UUID
	Queue, Partition, Namespace, Task string
	Offset                            int64
	// Hash is the hash of the transaction id.
	Hash []byte
	// Status is as http-api 7.1 says, QueueStatus that of the queue mode alone.
	Status, QueueStatus string
	// ConsumedBy of TotalGroups named groups have passed the message.
	ConsumedBy, TotalGroups int
	QueuePriority           int
	// Segment is where the message lies, Frame its index there. SegmentFound is false when retention took it.
	Segment      SegmentKey
	Frame        int
	SegmentFound bool
	// RetryCount is that of the newest dead letter of the message, 0 without one.
	RetryCount int
	CreatedAt  time.Time
	// LeaseExpiresAt is zero without a live lease.
	LeaseExpiresAt time.Time
}

// A SegmentKey names a stored segment.
type SegmentKey struct {
	PartitionID uuid.UUID
	Base        int64
}

// A MessageDetail is one message with the state of every group.
type MessageDetail struct {
	PartitionID                       uuid.UUID
	Queue, Partition, Namespace, Task string
	Offset                            int64
	Segment                           StoredSegment
	SegmentFound                      bool
	CreatedAt                         time.Time
	Status                            string
	// DeadLetterError and RetryCount are of the dead-letter row, if there is one.
	DeadLetter      bool
	DeadLetterError string
	RetryCount      int
	// LeaseExpiresAt is of a live lease that covers the message, zero without one.
	LeaseExpiresAt time.Time
	LeaseTime      int
	RetryLimit     int
	RetryDelay     int
	TTL            int
	Priority       int
	HasQueueMode   bool
	Groups         []GroupState
	Deliveries     []Delivery
}

// A Delivery is what the cursor of a group, named or not, knows of one message. Nothing is kept of a message that the group has passed.
type Delivery struct {
	Group string
	// State is passed, held (in a live lease), abandoned (in one that ran out), delayed (until RedeliveryAt) or waiting.
	State string
	// Attempts is how often the message was delivered: exactly when AttemptsExact is set, else at least so often; nil where nothing is kept.
	Attempts      *int
	AttemptsExact bool
	// Failures are those of its retry budget, nil where nothing is kept.
	Failures *int
	// LeaseID, AcquiredAt and ExpiresAt are of a lease that covers the message, zero without one; RedeliveryAt is zero but for delayed ones.
	LeaseID                             string
	AcquiredAt, ExpiresAt, RedeliveryAt time.Time
}

// A GroupState is how far one named group is with a message.
type GroupState struct {
	Name           string
	Consumed       bool
	LeaseExpiresAt time.Time
}

// A TracedMessage is one message of a pipeline.
type TracedMessage struct {
	PartitionID      uuid.UUID
	Queue, Partition string
	Offset           int64
	CreatedAt        time.Time
	Segment          SegmentKey
	SegmentFound     bool
	Status           string
	Groups           []GroupState
}

// A DeadLetterFilter chooses dead letters. Zero fields choose all.
type DeadLetterFilter struct {
	Queue, Partition, Group string
	// From and To bound the time of the failure, From inclusive, To exclusive; as the caller wrote them.
	From, To string
	// Shape is an error shape as DeadLetterShapes names it, Error a piece of the error text, literally.
	Shape, Error  string
	TransactionID string
	PartitionID   uuid.NullUUID
	Limit, Offset int
	After         string
}

// A DeadLetterPage is one page of dead letters, newest failure first.
type DeadLetterPage struct {
	Rows []DeadLetterRow
	Next string
}

// A DeadLetterRow is one dead letter of one group.
type DeadLetterRow struct {
	ID, PartitionID uuid.UUID
	// Queue and Partition are "" when they are gone.
	Queue, Partition, Group string
	Offset                  int64
	MessageID               uuid.UUID
	TransactionID           string
	// Payload is the exact bytes; nil when the message had been evicted before it was filed.
	Payload    []byte
	Error      string
	RetryCount int
	FailedAt   time.Time
	TraceID    uuid.NullUUID
	// Encrypted says that Payload is an envelope; EncryptionUnknown that an older build filed it without saying.
	Encrypted, EncryptionUnknown bool
	// SealedError is the envelope of what the consumer reported, nil when Error says it.
	SealedError []byte
	// Context is the span that pushed the message, as frames have it; nil when there was none, or an older build filed the letter.
	Context []byte
}

// A DeadLetterMove replays one dead letter: a push of one frame and the deletion of the row, together.
type DeadLetterMove struct {
	ID         uuid.UUID
	Hash, Blob []byte
	// Queue and Partition are the destination; nil is the row's own.
	Queue, Partition *string
	Plain            bool
}

// MoveStatus is the verdict on a DeadLetterMove.
type MoveStatus = string

// The verdicts on a move. Everything but MoveMoved wrote nothing; the row stays but for MoveGone.
const (
	MoveMoved MoveStatus = "moved"
	// MoveGone says that there is no such row, or that somebody else moved or deleted it meanwhile.
	MoveGone MoveStatus = "gone"
	// MoveDuplicate says that the replay is stored in the destination already.
	MoveDuplicate MoveStatus = "duplicate"
	MoveFull      MoveStatus = "full"
	// MoveConfig says that the destination demands encryption and the frame is plain.
	MoveConfig MoveStatus = "config"
)

// A DeadLetterMoveResult says what became of a move.
type DeadLetterMoveResult struct {
	// Status is moved, gone, duplicate, full, held or config. Everything but moved changed nothing.
	Status MoveStatus
	// Reason explains gone, if there is something to explain.
	Reason                string
	Queue, Partition      string
	PartitionID           uuid.UUID
	BaseOffset            int64
	CreatedAt             time.Time
	Group                 string
	OriginalTransactionID string
	// Depth and Limit are set when full; Offset is where the earlier replay lies when duplicate.
	Depth, Limit, Offset int64
}

// A TaskKind is what a task does with the dead letters it chose.
type TaskKind string

// The kinds of tasks.
const (
	TaskRedrive TaskKind = "redrive"
	TaskPurge   TaskKind = "purge"
)

// A NewTask is a task to be started.
type NewTask struct {
	Kind   TaskKind
	Filter DeadLetterFilter
	// Queue and Partition are the destination of a redrive; nil is each message's own.
	Queue, Partition *string
	// Rate is in messages a second, 0 is unlimited.
	Rate      int
	CreatedBy string
}

// A Task is a tracked piece of work over many dead letters. Rows that failed after it began are not part of it.
type Task struct {
	ID     uuid.UUID
	Tenant uuid.UUID
	NewTask
	// State is pending, running, done or cancelled.
	State string
	// Total is how many rows the filter chose at the start; the other counts are of finished rows.
	Total, Moved, Deleted, Duplicate, Skipped int64
	// Error is what the last attempt failed with, "" when it did not.
	Error                            string
	CreatedAt, UpdatedAt, FinishedAt time.Time
}

// A RedriveStep moves a run of dead letters in one transaction.
type RedriveStep struct {
	Task   uuid.UUID
	Holder string
	// Rows are the ids, in the order of TaskBatch; Segments hold their frames, one segment per destination partition.
	Rows     []uuid.UUID
	Segments []Segment
	// RowsOf is parallel to Segments: the rows of its frames, in frame order.
	RowsOf [][]uuid.UUID
}

// A TaskStep is what one step did.
type TaskStep struct {
	Moved, Deleted, Duplicate, Skipped int64
	// Lost says that the holder's lease on the task is gone, or that the task was cancelled: nothing was done.
	Lost bool
	// Finished says that no rows are left.
	Finished bool
	// Full says that a destination had no room, or demands encryption; the rows are left for a later step.
	Full bool
}

// A LeaseFilter chooses leases. Zero fields choose all live ones.
type LeaseFilter struct {
	Queue, Partition, Group string
	// ExpiringWithin and HeldLonger are in seconds.
	ExpiringWithin, HeldLonger *int
	// MinAttempts chooses batches, held or abandoned, that were delivered at least so often.
	MinAttempts *int
	// Abandoned chooses batches whose lease ran out instead of live ones.
	Abandoned     bool
	Limit, Offset int
}

// A TraceRecord is an event about a message.
type TraceRecord struct {
	PartitionID   uuid.UUID
	TransactionID string
	Group         string
	EventType     string
	// Data is any JSON; Encrypted says that it is an envelope.
	Data      []byte
	Encrypted bool
	Names     []string
}
