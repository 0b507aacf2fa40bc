package spool

import (
	"encoding/binary"
	"hash/maphash"

	"github.com/google/uuid"
)

// idsPerGeneration bounds the index of ids: it holds the newest one to two times as many, in up to 50 MB.
const idsPerGeneration = 1 << 18

// An idKey stands for a transaction id in its partition. It is made with seeds that nobody outside knows, so that no tenant can find an id
// that is taken for one of another.
type idKey [16]byte

// A kept id is on the disk, or being written to it.
type keptID struct {
	message uuid.UUID
	write   *writing // nil when it is on the disk
}

// A writing is one append under way. err is valid when done is closed.
type writing struct {
	done chan struct{}
	err  error
}

// An idIndex knows the message ids that were answered for transaction ids which wait, so that a client that repeats a push is answered the same
// id. It forgets the oldest ones when there are many: a repeat of those is written again, and dropped when it comes to be stored. The spool's
// mutex guards it.
type idIndex struct {
	seeds      [2]maphash.Seed
	young, old map[idKey]keptID
	generation int
}

func newIDIndex() *idIndex {
	return &idIndex{seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, young: make(map[idKey]keptID), generation: idsPerGeneration}
}

// key may be called without the mutex.
func (x *idIndex) key(at laneKey, transactionID string) idKey {
	buffer := make([]byte, 0, 256)
	buffer = append(buffer, at.tenant[:]...)
	for _, text := range [...]string{at.queue, at.partition} {
		buffer = binary.LittleEndian.AppendUint32(buffer, uint32(len(text))) //nolint:gosec // names are short
		buffer = append(buffer, text...)
	}
	buffer = append(buffer, transactionID...)
	var key idKey
	binary.LittleEndian.PutUint64(key[:8], maphash.Bytes(x.seeds[0], buffer))
	binary.LittleEndian.PutUint64(key[8:], maphash.Bytes(x.seeds[1], buffer))
	return key
}

func (x *idIndex) get(key idKey) (keptID, bool) {
	if id, ok := x.young[key]; ok {
		return id, true
	}
	id, ok := x.old[key]
	return id, ok
}

func (x *idIndex) put(key idKey, id keptID) {
	if len(x.young) >= x.generation {
		x.young, x.old = make(map[idKey]keptID), x.young
	}
	delete(x.old, key)
	x.young[key] = id
}

// written ends a write: the ids are on the disk, or are forgotten because they are not. What was stored meanwhile is not there any more.
func (x *idIndex) written(keys []idKey, w *writing) {
	for _, generation := range [...]map[idKey]keptID{x.young, x.old} {
		for _, key := range keys {
			id, ok := generation[key]
			switch {
			case !ok || id.write != w:
			case w.err != nil:
				delete(generation, key)
			default:
				generation[key] = keptID{message: id.message}
			}
		}
	}
}

func (x *idIndex) remove(key idKey) {
	delete(x.young, key)
	delete(x.old, key)
}
