package ack

// The statuses that the database knows.
const (
	Completed = "completed"
	Failed    = "failed"
	Retry     = "retry"
	DLQ       = "dlq"
)

// An Item acknowledges one message.
type Item struct {
	TransactionID string
	// PartitionID is the partition's UUID as the client sent it.
	PartitionID string
	// Status is the word the client sent, see [Status]; the caller puts Completed where there was none.
	Status string
	// LeaseID is the lease that holds the message; empty skips the lease check.
	LeaseID string
	// Error is why a message was not processed. It becomes the reason of a dead letter.
	Error string
	// DelayMs is how long a Failed or Retry message is not delivered again, in milliseconds from 0 to MaxDelayMs. It wins over the
	// delay of the queue, which a nil leaves in force. Other statuses ignore it.
	DelayMs *int
}

// MaxDelayMs is the longest delay of a redelivery: one day.
const MaxDelayMs = 86_400_000

// TextDelay is what an item with a delay beyond its bounds is told.
const TextDelay = "delayMs must be an integer from 0 to 86400000 (one day); leave it out for the delay of the queue"

// RedeliveryDelay returns the milliseconds that the item asks for, below 0 when it says nothing that matters; false when they are out
// of bounds.
func (i *Item) RedeliveryDelay() (milliseconds int32, valid bool) {
	if status := Status(i.Status); i.DelayMs == nil || status != Failed && status != Retry {
		return -1, true
	}
	if *i.DelayMs < 0 || *i.DelayMs > MaxDelayMs {
		return -1, false
	}
	return int32(*i.DelayMs), true //nolint:gosec // bounded above
}

// AppendDelay appends the delay of the item that the last of n hashes belongs to. The list stays nil until an item has something to say.
func AppendDelay(delays []int32, n int, delay int32) []int32 {
	if delays == nil && delay < 0 {
		return nil
	}
	for len(delays) < n-1 {
		delays = append(delays, -1)
	}
	return append(delays, delay)
}

// A Result is the outcome of the item at the same index.
type Result struct {
	TransactionID string
	// Success says that the instruction was carried out; a failure report that was processed is a success too.
	Success bool
	// Error is why not, in the exact words of the wire; empty on success.
	Error string
	// Cause is set beside Error when a call to the database failed: whoever answers the client says it in its own words for such
	// errors, and logs it. Its text is not for clients.
	Cause error
	// LeaseReleased says that the call ended the lease on the partition.
	LeaseReleased bool
	// DeadLetter says that this item's message was filed as a dead letter.
	DeadLetter bool
	// Noop says that the message was completed before.
	Noop bool
	// Queue and Partition are the names behind the partition id; empty when it is unknown.
	Queue, Partition string
}

// The texts of the wire, word for word.
const (
	textInvalidLease   = "invalid or expired lease"
	textConsumer       = "consumer not found"
	textStale          = "already committed: the cursor moved past this message before this ack"
	textUnresolvable   = "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers"
	textNoLeasedBatch  = "no leased batch"
	textDLQRejected    = "dlq rejected"
	textAckRejected    = "ack rejected"
	textPool           = "pool"
	textNotCommitted   = "the acknowledgment was not committed; repeat it"
	textNotOwned       = "partition not owned by tenant"
	textRetryExhausted = "Retries exhausted"
	// What the dead letter of an encrypted message says instead of the words of its consumer.
	textErrorSealed   = "reported by the consumer; the text is kept encrypted"
	textErrorWithheld = "reported by the consumer; the text was not kept: the message is encrypted and this broker had no key"
)

// Status maps the word a client sent to one of the four statuses, exactly and with regard to case. What nobody knows is a failure:
// a message whose fate is unclear is delivered again.
func Status(sent string) string {
	switch sent {
	case "completed", "success", "acked", "ok":
		return Completed
	case Retry: // the constants, so that a word read from a buffer need not outlive it
		return Retry
	case DLQ:
		return DLQ
	default:
		return Failed
	}
}

// failureText is what an item says when its call to the database failed. It holds nothing of the error itself, which may quote values
// and statements.
func failureText(err error) string {
	if isPoolTimeout(err) {
		return textPool
	}
	return textNotCommitted
}

// isSignal says that a status acts on the leased batch instead of completing a message.
func isSignal(status string) bool { return status != Completed }
