package push

import (
	"github.com/google/uuid"
)

// A groupKey names what may have only one flush in flight: a partition, or, with an empty partition and bounded set, all
// partitions of a bounded queue.
type groupKey struct {
	tenant    uuid.UUID
	queue     string
	partition string
	bounded   bool
}

func keyOf(p *part, bounded bool) groupKey {
	if bounded {
		return groupKey{tenant: p.call.tenant, queue: p.queue, bounded: true}
	}
	return groupKey{tenant: p.call.tenant, queue: p.queue, partition: p.partition}
}

// A unit is what must reach the same group at once: one part, or all parts of a call for a bounded queue.
type unit struct {
	key   groupKey
	parts []*part
}

// A group is the messages of one key that wait for the next flush.
type group struct {
	key      groupKey
	waiting  []unit
	inFlight bool
	// prev and next link the groups with waiting messages in order of arrival.
	prev, next *group
}

// A run is a piece of a part inside one segment: items[from:to].
type run struct {
	part     *part
	from, to int
}

// take cuts the next segments off the group: for a partition one segment of whatever waits, up to the segment cap; for a
// bounded queue one request, one segment per partition. It returns them with their uncompressed size.
func (g *group) take() (segments []*work, bytes int) {
	if g.key.bounded {
		u := g.waiting[0]
		g.drop(1)
		for _, p := range u.parts {
			w := newWork(g, p)
			w.runs = append(w.runs, run{p, 0, len(p.items)})
			p.taken = len(p.items)
			bytes += p.bytes
			segments = append(segments, w)
		}
		return segments, bytes
	}
	w := newWork(g, g.waiting[0].parts[0])
	count, whole := 0, 0
	for _, u := range g.waiting {
		p := u.parts[0]
		from := p.taken
		if from == 0 && count+len(p.items) <= MaxSegmentMessages && bytes+p.bytes <= MaxSegmentBytes {
			p.taken = len(p.items)
			bytes += p.bytes
		} else {
			for p.taken < len(p.items) {
				size := itemBytes(&p.call.items[p.items[p.taken]])
				n := count + p.taken - from
				if n > 0 && (n >= MaxSegmentMessages || bytes+size > MaxSegmentBytes) {
					break
				}
				p.taken++
				bytes += size
			}
		}
		if p.taken > from {
			w.runs = append(w.runs, run{p, from, p.taken})
			count += p.taken - from
		}
		if p.taken < len(p.items) {
			break
		}
		whole++
	}
	g.drop(whole)
	return []*work{w}, bytes
}

// drop removes the first n units.
func (g *group) drop(n int) {
	clear(g.waiting[:n])
	if n == len(g.waiting) {
		g.waiting = g.waiting[:0]
		return
	}
	g.waiting = g.waiting[n:]
}

// An arrivals list holds the groups with waiting messages, oldest first. Groups in flight stay in it: their place is the
// arrival of their first waiting message.
type arrivals struct {
	first, last *group
	ready       int // groups of the list without a flush in flight
	bytes       int // uncompressed size of all that waits
}

func (l *arrivals) push(g *group) {
	g.prev, g.next = l.last, nil
	if l.last == nil {
		l.first = g
	} else {
		l.last.next = g
	}
	l.last = g
	if !g.inFlight {
		l.ready++
	}
}

func (l *arrivals) remove(g *group) {
	if g.prev == nil {
		l.first = g.next
	} else {
		g.prev.next = g.next
	}
	if g.next == nil {
		l.last = g.prev
	} else {
		g.next.prev = g.prev
	}
	g.prev, g.next = nil, nil
	if !g.inFlight {
		l.ready--
	}
}
