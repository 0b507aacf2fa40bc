package push

import "errors"

var (
	// ErrStopped says that the pusher is stopping and took nothing.
	ErrStopped = errors.New("the broker is stopping and takes no more messages")
	// ErrQueueFull matches every [QueueFullError].
	ErrQueueFull = errors.New("queue is full")
	// ErrEncryptionRequired says that the queue demands encrypted payloads and this broker cannot encrypt: nothing was
	// stored, least of all in plain text.
	ErrEncryptionRequired = errors.New("the queue demands encryption and this broker has no key: set QUEEN_ENCRYPTION_KEY on every broker")
	// ErrInternal says that the broker or the database broke its own rules; the log has the details.
	ErrInternal = errors.New("internal error while storing messages")
)

// A QueueFullError refuses the items of one request for a bounded queue. Counts are messages.
type QueueFullError struct {
	Queue string
	// Depth is how many messages the queue held, Limit its maxSize, Remaining the room that was left.
	Depth, Limit, Remaining int64
}

// Error returns the text of the wire contract.
func (e *QueueFullError) Error() string {
	return "Queue '" + e.Queue + "' is full. Max capacity reached."
}

// Is makes errors.Is(err, ErrQueueFull) true.
func (e *QueueFullError) Is(target error) bool { return target == ErrQueueFull }
