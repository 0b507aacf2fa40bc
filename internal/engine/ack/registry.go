package ack

import (
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/segment"
)

const (
	// DefaultRegistryBytes is the memory of the registry unless configured otherwise: some 35,000 batches of 100 messages.
	DefaultRegistryBytes = 64 << 20
	// leaseSlack is how long an entry outlives its lease: the two clocks start at different moments.
	leaseSlack = 10 * time.Second
	// unknownLease is the life of an entry whose lease time is not known here.
	unknownLease = time.Minute
	// entryBytes is the memory of an entry beside its texts and hashes: itself, its map cell and allocation overhead.
	entryBytes = 256
	// sweepStep is how many expired entries one registration removes. More than one, so that they cannot pile up.
	sweepStep = 2
)

// A Delivery describes one leased batch that is about to be sent to a consumer: everything that the lease covers.
type Delivery struct {
	Tenant           uuid.UUID
	Queue, Partition string
	PartitionID      uuid.UUID
	Group, LeaseID   string
	// End is the offset of the last message, which is also where the leased batch ends.
	End int64
	// Hashes are the hashes of the transaction ids, segment.HashBytes each, in offset order. They are kept.
	Hashes []byte
	// Lease is how long the batch is held; 0 is unknown.
	Lease time.Duration
}

// A batchKey names the only batch that a group can hold of a partition at a time.
type batchKey struct {
	partition uuid.UUID
	group     string
}

// A heldBatch is one batch that was delivered and not acknowledged yet. Entries form a list from the oldest to the newest.
type heldBatch struct {
	key     batchKey
	worker  string
	end     int64
	hashes  []byte
	expires time.Time

	older, newer *heldBatch
}

// messages is how many messages the batch has.
func (b *heldBatch) messages() int { return len(b.hashes) / segment.HashBytes }

func (b *heldBatch) bytes() int64 {
	return int64(entryBytes + len(b.key.group) + len(b.worker) + len(b.hashes))
}

// A registry recognises acks that complete exactly one delivered batch, whose transaction ids then need no look-up.
//
// It is a hint and may forget anything. What it claims is claimed about the delivery only: the database still checks the lease and
// the end of the leased batch. A wrong hit would complete messages that nobody acknowledged, so that nothing but the same messages
// under the same lease is one.
type registry struct {
	limit int64

	mu             sync.Mutex
	batches        map[batchKey]*heldBatch
	oldest, newest *heldBatch
	bytes          int64

	hits, misses atomic.Uint64
}

// newRegistry returns a registry of at most limit bytes; one of 0 bytes recognises nothing.
func newRegistry(limit int64) *registry {
	return &registry{limit: limit, batches: make(map[batchKey]*heldBatch)}
}

// put remembers a delivery. It takes the place of an earlier one of the same partition and group, whose lease has ended.
func (r *registry) put(d Delivery) {
	life := d.Lease
	if life <= 0 {
		life = unknownLease
	}
	now := time.Now()
	batch := &heldBatch{
		key: batchKey{d.PartitionID, d.Group}, worker: d.LeaseID, end: d.End, hashes: d.Hashes, expires: now.Add(life + leaseSlack),
	}
	if batch.bytes() > r.limit {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(r.batches[batch.key])
	for range sweepStep {
		if r.oldest != nil && now.After(r.oldest.expires) {
			r.removeLocked(r.oldest)
		}
	}
	for r.bytes+batch.bytes() > r.limit {
		r.removeLocked(r.oldest)
	}
	r.batches[batch.key] = batch
	r.bytes += batch.bytes()
	batch.older = r.newest
	if r.newest == nil {
		r.oldest = batch
	} else {
		r.newest.newer = batch
	}
	r.newest = batch
}

// take returns the batch when worker completes exactly its messages, and forgets it. hashes are those of the ack's items. When it is
// another ack of the same worker the batch is forgotten all the same: the ack changes it. A foreign worker changes nothing.
func (r *registry) take(key batchKey, worker string, hashes []byte) *heldBatch {
	batch := r.remove(key, worker)
	// Compared outside the lock: nobody else has the batch any more.
	if batch == nil || time.Now().After(batch.expires) || !covers(hashes, batch.hashes) {
		r.misses.Add(1)
		return nil
	}
	r.hits.Add(1)
	return batch
}

// evict forgets the batch before worker acknowledges a part of it. Without a lease the ack acts on whatever is held.
func (r *registry) evict(key batchKey, worker string) { r.remove(key, worker) }

// remove takes out and returns the batch when it is worker's, or anybody's for an ack without a lease; else nil.
func (r *registry) remove(key batchKey, worker string) *heldBatch {
	r.mu.Lock()
	defer r.mu.Unlock()
	batch := r.batches[key]
	if batch == nil || worker != "" && batch.worker != worker {
		return nil
	}
	r.removeLocked(batch)
	return batch
}

// size is how many batches are remembered, and their memory in bytes.
func (r *registry) size() (batches int, size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.batches), r.bytes
}

// removeLocked takes a batch out; nil is fine. The caller holds the mutex.
func (r *registry) removeLocked(batch *heldBatch) {
	if batch == nil {
		return
	}
	if batch.older == nil {
		r.oldest = batch.newer
	} else {
		batch.older.newer = batch.newer
	}
	if batch.newer == nil {
		r.newest = batch.older
	} else {
		batch.newer.older = batch.older
	}
	batch.older, batch.newer = nil, nil
	delete(r.batches, batch.key)
	r.bytes -= batch.bytes()
}

// covers says whether the acked hashes are the delivered ones: the same set, and each at least as often as it was delivered. An id
// can be delivered twice where de-duplication is off; naming it once completes its first message only.
func covers(acked, delivered []byte) bool {
	if bytes.Equal(acked, delivered) { // consumers mostly keep the order
		return true
	}
	if len(acked) < len(delivered) {
		return false
	}
	have, want := sorted(acked), sorted(delivered)
	i := 0
	for k := 0; k < len(want); {
		hash, times := want[k], 0
		for ; k < len(want) && want[k] == hash; k++ {
			times++
		}
		for ; i < len(have) && have[i] == hash; i++ {
			times--
		}
		if times > 0 {
			return false
		}
	}
	return i == len(have) // else there is one that was not delivered
}

// sorted returns the hashes in ascending order.
func sorted(hashes []byte) [][segment.HashBytes]byte {
	list := make([][segment.HashBytes]byte, 0, len(hashes)/segment.HashBytes)
	for chunk := range slices.Chunk(hashes, segment.HashBytes) {
		list = append(list, [segment.HashBytes]byte(chunk))
	}
	slices.SortFunc(list, func(a, b [segment.HashBytes]byte) int { return bytes.Compare(a[:], b[:]) })
	return list
}
