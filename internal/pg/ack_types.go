package pg

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// A HashAck acknowledges messages of one partition by transaction-id hash: the authoritative form.
type HashAck struct {
	PartitionID uuid.UUID
	Group       string
	// Worker is the lease id; empty skips the lease check.
	Worker string
	// Hashes are 16 bytes each; Statuses is parallel to it ("completed", "failed", "retry", "dlq").
	Hashes   [][]byte
	Statuses []string
	// DelaysMs is parallel to Hashes, or nil: how long the batch stays away when the item releases it, in milliseconds. Below 0 the
	// item does not say, and a "failed" has the delay of its queue.
	DelaysMs []int32
}

// A HashAckResult is the answer of log_ack_by_hash_v1.
type HashAckResult struct {
	OK bool
	// Error is the reason when OK is false, verbatim for the wire ("consumer not found", "invalid or expired lease").
	Error string
	// DeadLetter asks the caller to file the message at Offset with FileDeadLetter, as Worker; the lease is still held.
	DeadLetter bool
	// Dropped says that the retry budget ended and dead-lettering is off: the message at Offset was skipped.
	Dropped bool
	// Worker is the holder of the row when DeadLetter is set; it may differ from the request's.
	Worker string
	Offset int64
	// Acked is the number of offsets the cursor moved over.
	Acked         int64
	LeaseReleased bool
	// SignalIgnored says that failed, retry or dlq items had no leased batch to act on.
	SignalIgnored bool
	// RedeliverIn is how long the released batch stays away; 0 when it can be delivered at once.
	RedeliverIn time.Duration
	// Noop, Stale and Unresolved are 32-digit lower-case hex hashes, in input order.
	Noop, Stale, Unresolved []string
}

// A PositionalAck moves the cursor of one (partition, group) to End, or releases its lease.
type PositionalAck struct {
	PartitionID uuid.UUID
	Group       string
	Worker      string
	End         int64
	// Count is the number of messages completed, for the lifetime counter.
	Count int
}

// A PositionalAckResult is the answer to one PositionalAck.
type PositionalAckResult struct {
	OK    bool
	Acked int64
	Error string
}

// A DeadLetter is one message to be filed; it carries everything a reader or a replay needs.
type DeadLetter struct {
	PartitionID   uuid.UUID
	Group         string
	Worker        string
	Offset        int64
	MessageID     uuid.NullUUID
	TransactionID string
	// Payload is the exact payload bytes; nil when the segment is gone. The JSONB column gets its parsed form when
	// PostgreSQL accepts it and NULL otherwise.
	Payload []byte
	TraceID uuid.NullUUID
	// Encrypted says that Payload is an envelope.
	Encrypted bool
	// Error is the reason; empty says that the message was delivered as often as its queue allows, which the database then writes out.
	Error string
	// SealedError is the envelope of a text that Error stands for; nil for none.
	SealedError []byte
	// Context is the span that pushed the message, as frames have it; nil when there was none.
	Context []byte
}

// A DeadLetterResult is the answer of log_dlq_head_v1.
type DeadLetterResult struct {
	OK    bool
	Error string
	ID    uuid.UUID
}

// A Renewal is the answer of a lease extension.
type Renewal struct {
	// Renewed is the number of partitions whose lease was extended; 0 when nothing was live.
	Renewed int
	// ExpiresAt is the smallest expiry among them; zero when Renewed is 0.
	ExpiresAt time.Time
}

// A Transaction is a set of pushes and acks that commit together or not at all.
type Transaction struct {
	Tenant uuid.UUID
	// Pushes has at most one element per partition.
	Pushes []Segment
	// Acks has at most one element per (partition, group).
	Acks []HashAck
}

// A TransactionResult is the answer of a committed transaction.
type TransactionResult struct {
	// Pushes are the verdicts in input order, all PushQueued.
	Pushes []PushVerdict
	// Acks are in the order of Transaction.Acks.
	Acks []HashAckResult
}

// A TransactionError says why a transaction was rolled back. Reason is the wire text.
type TransactionError struct {
	Reason string
	// QueueFull says that a bounded queue had no room.
	QueueFull bool
	// Config says that a queue demands encryption and was sent plain payloads.
	Config bool
}

// Error returns the wire text.
func (e *TransactionError) Error() string { return e.Reason }

// QueueSettings are the options of a queue that the data plane reads.
type QueueSettings struct {
	ID                uuid.UUID
	LeaseSeconds      int
	EncryptionEnabled bool
	// MaxSize is the most unconsumed messages of a bounded queue; 0 is unbounded.
	MaxSize int
	// DelayedProcessing and WindowBuffer are whole seconds; MinPopWait is milliseconds.
	DelayedProcessing, WindowBuffer, MinPopWait int
	// DedupWindow is for how many seconds a transaction id is remembered; 0 is not at all.
	DedupWindow int
}

// QueueOptions is a JSON object of queue options as the client sent them.
type QueueOptions = json.RawMessage
