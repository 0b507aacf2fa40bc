package segment

import "github.com/google/uuid"

// NewID returns a fresh UUIDv7. Inside one process every id is greater than all earlier ones, also within a millisecond and
// when the clock steps back: clients restore the order of messages that share a timestamp by their ids.
func NewID() uuid.UUID {
	// The generator's only error is a failing system random source, on which crypto/rand itself already ends the process.
	return uuid.Must(uuid.NewV7())
}
