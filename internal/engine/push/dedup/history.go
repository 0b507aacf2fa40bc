package dedup

import (
	"encoding/binary"
	"math/bits"
	"time"
)

const (
	hashBytes = 16
	// minSlots is a table of one cache line; maxSlots bounds what becomes free, or is allocated, at a time to 4 MiB.
	minSlots = 16
	maxSlots = 1 << 20
	// smallSlots is up to where a table is followed by one of four times its size, so that partitions of some thousand ids have few tables.
	// Larger ones double: a new table is empty, and with many partitions of one pace all of them have one at the same time.
	smallSlots = 1 << 12
	// margin keeps ids a little longer than the window, so that a table does not go while the database still counts it.
	margin = 5 * time.Second
	// slices is how many tables share a window in the steady state: what is kept too long is at most a slice of it.
	slices = 4
)

// A history knows the ids of one partition: all that were stored at or after since with offsets up to upto.
type history struct {
	tables []table // in order of time
	upto   int64
	since  time.Time // zero: from the beginning
}

// A table holds four bytes of each hash at the place that other bytes of it name, or the next free one. A zero is free.
type table struct {
	slots          []uint32
	used           int
	oldest, newest time.Time
}

// size is the memory of the tables in bytes.
func (h *history) size() int {
	n := 0
	for i := range h.tables {
		n += 4 * len(h.tables[i].slots)
	}
	return n
}

// has reports whether hash may be known. It is wrong about once in 2^32 comparisons, never the other way.
func (h *history) has(hash []byte) bool {
	place, mark := split(hash)
	for i := range h.tables {
		if h.tables[i].has(place, mark) {
			return true
		}
	}
	return false
}

// add appends the hashes of the messages base to end, stored at created; base must be upto+1.
func (h *history) add(end int64, created time.Time, window time.Duration, hashes []byte) {
	for ; len(hashes) >= hashBytes; hashes = hashes[hashBytes:] {
		place, mark := split(hashes)
		h.open(created, window).add(place, mark, created)
	}
	h.upto = end
}

// open returns the table that takes the next id. One that spans its part of the window is followed by one that fits what
// came in that time, a full one by a larger one that will last as long.
func (h *history) open(created time.Time, window time.Duration) *table {
	slots := minSlots
	if n := len(h.tables); n > 0 {
		last := &h.tables[n-1]
		span, whole := created.Sub(last.oldest), window/slices
		switch {
		case span > whole && last.used > minSlots/2:
			slots = last.used * 3 / 2
		case 4*last.used >= 3*len(last.slots):
			slots = 4 * len(last.slots)
			if len(last.slots) >= smallSlots {
				slots = 2 * len(last.slots)
			}
			if grown := float64(last.used) * 3 / 2 * float64(whole) / float64(max(span, 1)); grown < float64(slots) {
				slots = max(int(grown), len(last.slots))
			}
		default:
			return last
		}
	}
	slots = min(max(slots, minSlots), maxSlots)
	h.tables = append(h.tables, table{slots: make([]uint32, slots), oldest: created, newest: created})
	return &h.tables[len(h.tables)-1]
}

// expire drops tables whose ids have all left a window that ends at now, by the database's clock.
func (h *history) expire(now time.Time, window time.Duration) {
	limit := now.Add(-window - margin)
	dropped := 0
	for dropped < len(h.tables) && h.tables[dropped].newest.Before(limit) {
		if next := h.tables[dropped].newest.Add(time.Microsecond); next.After(h.since) {
			h.since = next
		}
		dropped++
	}
	if dropped > 0 {
		clear(h.tables[:dropped])
		h.tables = append(h.tables[:0:0], h.tables[dropped:]...)
	}
}

func (t *table) has(place uint64, mark uint32) bool {
	for i := t.at(place); ; i++ {
		if i == len(t.slots) {
			i = 0
		}
		switch t.slots[i] {
		case mark:
			return true
		case 0:
			return false
		}
	}
}

// add stores mark. The table has free slots: open sees to that.
func (t *table) add(place uint64, mark uint32, created time.Time) {
	i := t.at(place)
	for t.slots[i] != 0 && t.slots[i] != mark {
		if i++; i == len(t.slots) {
			i = 0
		}
	}
	if t.slots[i] == 0 {
		t.slots[i] = mark
		t.used++
	}
	if created.Before(t.oldest) {
		t.oldest = created
	}
	if created.After(t.newest) {
		t.newest = created
	}
}

// at is where a search for a hash with this place begins.
func (t *table) at(place uint64) int {
	i, _ := bits.Mul64(place, uint64(len(t.slots)))
	return int(i) //nolint:gosec // below the number of slots
}

// split takes a place and a mark from different bytes of a hash. A mark is never zero.
func split(hash []byte) (place uint64, mark uint32) {
	_ = hash[hashBytes-1]
	return binary.LittleEndian.Uint64(hash), max(binary.LittleEndian.Uint32(hash[8:]), 1)
}
