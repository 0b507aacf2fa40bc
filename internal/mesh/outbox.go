package mesh

import (
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/google/uuid"
)

const (
	// maxGathered is how many partitions the outbox remembers; queues stand for those beyond.
	maxGathered = 200_000
	// maxPayloads is how many payloads of partitions one flush may send; queues stand for them when it would be more.
	maxPayloads = 8
	// maxReleased is how many ended leases the outbox remembers. Those beyond are dropped: others look at leased partitions once a second.
	maxReleased = 10_000
	// maxChanges bounds the changes of queues and groups between two flushes. Those beyond are dropped: reconciliation heals them.
	maxChanges = 10_000
)

type queueKey struct {
	tenant uuid.UUID
	queue  string
}

// A change is told once, however often it happened since the last flush.
type change struct {
	kind  kind
	key   queueKey
	group string
}

// A groupKey is a group of a queue.
type groupKey struct {
	queueKey
	group string
}

// dirty is what has messages in a queue.
type dirty struct {
	partitions map[string]struct{}
	somewhere  bool // a partition that was not named
}

// An outbox gathers what is to be told. Its methods never block and may be called concurrently.
type outbox struct {
	filled chan struct{} // has a value when there is something to send

	mu       sync.Mutex
	queues   map[queueKey]*dirty
	gathered int
	released map[groupKey]map[string]struct{} // partitions
	ended    int                              // partitions in released
	changes  map[change]struct{}
	flags    bool
	lost     uint64
}

func newOutbox() *outbox {
	return &outbox{filled: make(chan struct{}, 1), queues: make(map[queueKey]*dirty), released: make(map[groupKey]map[string]struct{}), changes: make(map[change]struct{})}
}

func (o *outbox) signal() {
	select {
	case o.filled <- struct{}{}:
	default: // the reader will look anyway
	}
}

// available notes messages in a partition, or with "" somewhere in the queue.
func (o *outbox) available(key queueKey, partition string) {
	if !isName(key.queue) {
		return
	}
	o.mu.Lock()
	d := o.queues[key]
	if d == nil {
		d = &dirty{}
		o.queues[key] = d
	}
	switch {
	case d.somewhere: // says more than any name
	case partition == "" || o.gathered >= maxGathered || !isName(partition):
		o.gathered -= len(d.partitions)
		d.somewhere, d.partitions = true, nil
	default:
		if d.partitions == nil {
			d.partitions = make(map[string]struct{})
		}
		before := len(d.partitions)
		d.partitions[partition] = struct{}{}
		o.gathered += len(d.partitions) - before
	}
	o.mu.Unlock()
	o.signal()
}

// leaseEnded notes the end of a lease.
func (o *outbox) leaseEnded(key queueKey, partition, group string) {
	if !isName(key.queue) || !isName(group) {
		return
	}
	if !isName(partition) {
		o.available(key, "")
		return
	}
	o.mu.Lock()
	if o.ended < maxReleased {
		of := groupKey{key, group}
		if o.released[of] == nil {
			o.released[of] = make(map[string]struct{})
		}
		before := len(o.released[of])
		o.released[of][partition] = struct{}{}
		o.ended += len(o.released[of]) - before
	}
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) changed(c change) {
	o.mu.Lock()
	if len(o.changes) < maxChanges && isName(c.key.queue) && isName(c.group) {
		o.changes[c] = struct{}{}
	} else {
		o.lost++
	}
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) flagsTurned() {
	o.mu.Lock()
	o.flags = true
	o.mu.Unlock()
	o.signal()
}

// contents is what gathered between two flushes.
type contents struct {
	queues   map[queueKey]*dirty
	released map[groupKey]map[string]struct{}
	changes  []change
	flags    bool
}

// take empties the outbox of changes and, unless they must wait, of messages. left tells that some are left.
func (o *outbox) take(messages bool) (c contents, left bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c = contents{flags: o.flags, changes: slices.Collect(maps.Keys(o.changes))}
	o.flags = false
	clear(o.changes)
	if !messages {
		return c, len(o.queues) > 0 || len(o.released) > 0
	}
	c.queues, c.released = o.queues, o.released
	o.released, o.ended = make(map[groupKey]map[string]struct{}), 0
	o.queues, o.gathered = make(map[queueKey]*dirty, min(len(o.queues), 1024)), 0
	return c, false
}

// putBack tells changes again that could not be sent. Messages are not worth it: pops look for them by themselves.
func (o *outbox) putBack(c contents) {
	for _, one := range c.changes {
		o.changed(one)
	}
	if c.flags {
		o.flagsTurned()
	}
}

// encode makes the payloads of the changes, which come first because there are few and they matter most, and of the messages. partial
// tells that queues stand for partitions, because these would have filled too many payloads.
func (c contents) encode(s sender) (payloads []string, weight int, partial bool) {
	if c.flags {
		payloads = append(payloads, s.bare(kindFlags))
		weight++
	}
	for _, k := range []kind{kindQueue, kindGroup} {
		e := s.newEncoder(k, math.MaxInt)
		for _, one := range c.changes {
			if one.kind == k {
				e.add(one.key, one.group, nil)
			}
		}
		more, w := e.payloads()
		payloads, weight = append(payloads, more...), weight+w
	}
	ended := c.encodeReleased(s)
	more, w := ended.payloads()
	payloads, weight = append(payloads, more...), weight+w
	e := c.encodeMessages(s, true)
	if partial = e.overflows() || ended.overflows(); partial {
		e = c.encodeMessages(s, false)
	}
	more, w = e.payloads()
	return append(payloads, more...), weight + w, partial
}

// encodeReleased names the leases that ended. When these are too many, their queues have messages somewhere instead.
func (c *contents) encodeReleased(s sender) *encoder {
	e := s.newEncoder(kindReleased, maxPayloads)
	for of, partitions := range c.released {
		e.add(of.queueKey, of.group, slices.Collect(maps.Keys(partitions)))
	}
	if !e.overflows() {
		return e
	}
	if c.queues == nil {
		c.queues = make(map[queueKey]*dirty)
	}
	for of := range c.released {
		c.queues[of.queueKey] = &dirty{somewhere: true}
	}
	return e
}

// encodeMessages names the queues, in random order so that none is always among those that do not fit, with or without partitions.
func (c contents) encodeMessages(s sender, named bool) *encoder {
	e := s.newEncoder(kindMessages, maxPayloads)
	for key, d := range c.queues {
		var partitions []string
		if named && !d.somewhere {
			partitions = slices.Collect(maps.Keys(d.partitions))
		}
		e.add(key, "", partitions)
	}
	return e
}
