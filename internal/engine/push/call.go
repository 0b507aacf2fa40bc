package push

import (
	"sync/atomic"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
)

// A call is one Push while it runs. Shards and flushes write the verdicts of the items they own, each item exactly once;
// the caller reads them after done is closed and never when it left earlier.
type call struct {
	tenant      uuid.UUID
	producerSub string
	items       []Item
	verdicts    []Verdict
	// hashes holds the transaction-id hash of every item that came with an id.
	hashes [][segment.HashBytes]byte
	parts  []*part
	// sealed tells of replayed items whose payload is encrypted already; nil otherwise.
	sealed []bool
	// followers are the repeats inside the call; they have no frame and get their leader's verdict.
	followers []follower
	pending   atomic.Int32 // parts that are not finished
	done      chan struct{}
}

type follower struct{ leader, item int32 }

// A part is the messages of one call for one partition, in order. After submission it belongs to its shard.
type part struct {
	call      *call
	queue     string
	partition string
	items     []int32
	bytes     int
	taken     int // items that a flush has taken
	finished  int // items whose flush is over
}

// itemBytes estimates what an item adds to a segment, uncompressed.
func itemBytes(it *Item) int { return len(it.Payload) + len(it.TransactionID) + 64 }

// newCall groups the items of r by partition and drops repeats of a transaction id: the first one leads. Two ids with one
// 128-bit hash count as the same id here as they do in the database.
func newCall(r Request) *call { return newCallWithRepeats(r, nil) }

// newCallWithRepeats is newCall for items of which those of some queues keep their repeats; nil is none.
func newCallWithRepeats(r Request, repeats func(queue string) bool) *call {
	n := len(r.Items)
	c := &call{
		tenant: r.Tenant, producerSub: r.ProducerSub, items: r.Items,
		verdicts: make([]Verdict, n),
		hashes:   make([][segment.HashBytes]byte, n),
		done:     make(chan struct{}),
	}
	type place struct{ queue, partition string }
	type id struct {
		part int32
		hash [segment.HashBytes]byte
	}
	var (
		places map[place]int32
		leader map[id]int32
	)
	current := int32(-1) // most requests name one partition, or run after run of the same
	for i := range r.Items {
		it := &r.Items[i]
		if current < 0 || c.parts[current].partition != it.Partition || c.parts[current].queue != it.Queue {
			at, known := places[place{it.Queue, it.Partition}]
			if !known {
				at = int32(len(c.parts)) //nolint:gosec // a request has far fewer items than 2^31
				c.parts = append(c.parts, &part{call: c, queue: it.Queue, partition: it.Partition})
				if n > 1 {
					if places == nil {
						places = make(map[place]int32)
					}
					places[place{it.Queue, it.Partition}] = at
				}
			}
			current = at
		}
		if it.TransactionID != "" {
			c.verdicts[i].TransactionID = it.TransactionID
			c.hashes[i] = segment.Hash(it.TransactionID)
			if n > 1 && (repeats == nil || !repeats(it.Queue)) {
				if leader == nil {
					leader = make(map[id]int32, n)
				}
				k := id{current, c.hashes[i]}
				if first, repeated := leader[k]; repeated {
					c.followers = append(c.followers, follower{leader: first, item: int32(i)}) //nolint:gosec // as above
					continue
				}
				leader[k] = int32(i) //nolint:gosec // as above
			}
		}
		p := c.parts[current]
		if p.items == nil {
			p.items = make([]int32, 0, n-i) // exact for one partition; a little too much for several
		}
		p.items = append(p.items, int32(i)) //nolint:gosec // as above
		p.bytes += itemBytes(it)
	}
	c.pending.Store(int32(len(c.parts))) //nolint:gosec // as above
	return c
}

// mint gives the leaders of p their message ids. The order of the calls is the order of the ids.
func (p *part) mint() {
	var ids [64]uuid.UUID
	for items := p.items; len(items) > 0; {
		n := min(len(items), len(ids))
		segment.NewIDs(ids[:n])
		for i, item := range items[:n] {
			p.call.verdicts[item].MessageID = ids[i]
		}
		items = items[n:]
	}
}

// finish counts n more items of p as done and wakes the caller after the last one of the call.
func (p *part) finish(n int) {
	p.finished += n
	if p.finished == len(p.items) && p.call.pending.Add(-1) == 0 {
		close(p.call.done)
	}
}

// inherit makes v, the verdict of a repeat, follow from its leader's.
func (v *Verdict) inherit(leader *Verdict) {
	txn := v.TransactionID
	*v = *leader
	v.TransactionID = txn
	if leader.Status == StatusQueued {
		v.Status = StatusDuplicate
	}
}

func (c *call) resolveFollowers() {
	for _, f := range c.followers {
		c.verdicts[f.item].inherit(&c.verdicts[f.leader])
	}
}
