package segment

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/google/uuid"
)

// NewID returns a fresh UUIDv7. Inside one process every id is greater than all earlier ones, also within a millisecond and
// when the clock steps back: clients restore the order of messages that share a timestamp by their ids.
func NewID() uuid.UUID {
	var one [1]uuid.UUID
	NewIDs(one[:])
	return one[0]
}

// NewIDs fills dst with ids as NewID makes them, in increasing order, at a fifth of the cost for each.
func NewIDs(dst []uuid.UUID) {
	var random [64 * 8]byte
	for len(dst) > 0 {
		n := min(len(dst), len(random)/8)
		// Lease ids are made here too and work like a password for a batch: the random part comes from the system's source,
		// which does not fail.
		_, _ = rand.Read(random[:8*n])
		first := ids.reserve(time.Now(), n)
		for i := range dst[:n] {
			tick := uint64(first) + uint64(i) //nolint:gosec // a time, positive
			id := &dst[i]
			binary.BigEndian.PutUint64(id[:8], tick>>12<<16|0x7000|tick&0xfff)
			copy(id[8:], random[8*i:8*i+8])
			id[8] = id[8]&0x3f | 0x80
		}
		dst = dst[n:]
	}
}

var ids idSource

// An idSource hands out the upper part of ids: milliseconds since 1970 with 12 bits of fraction, which count on when the
// clock does not.
type idSource struct {
	mu   sync.Mutex
	last int64
}

// reserve returns the first of n consecutive values that nobody else gets, all greater than every earlier one.
func (s *idSource) reserve(now time.Time, n int) int64 {
	nanos := now.UnixNano()
	tick := nanos/1e6<<12 | nanos%1e6<<12/1e6
	s.mu.Lock()
	defer s.mu.Unlock()
	first := max(tick, s.last+1)
	s.last = first + int64(n) - 1
	return first
}
