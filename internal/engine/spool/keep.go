package spool

import (
	"fmt"

	"github.com/google/uuid"

	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
)

// A keeping is one call of keep under way. Items are named by their place in the request.
type keeping struct {
	request  push.Request
	verdicts []push.Verdict
	items    []int
	out      []laneKey   // of items that are not written after all
	repeats  map[int]int // items by the earlier item of the request with their transaction id
	// kept are items whose transaction id waits already, through another push.
	kept     map[int]keptID
	messages []push.Accepted
	written  []int // the item of each message
	keys     []idKey
	write    *writing
}

// keep writes items, which are in the account, to the disk and gives them their verdicts. A transaction id that comes again is not written:
// the first one leads, in the request and among what waits.
func (p *Pusher) keep(r push.Request, verdicts []push.Verdict, items []int) {
	if len(items) == 0 {
		return
	}
	k := &keeping{request: r, verdicts: verdicts, items: items, repeats: map[int]int{}, kept: map[int]keptID{}, write: &writing{done: make(chan struct{})}}
	p.collect(k)
	p.lookUp(k)
	if len(k.messages) > 0 {
		k.write.err = p.spool.append(k.messages)
	}
	for _, i := range k.written {
		if k.write.err != nil {
			k.verdicts[i].Status, k.verdicts[i].Err = push.StatusFailed, k.write.err
			k.leave(i)
		}
	}
	p.close(k)
	for i, id := range k.kept {
		k.follow(i, id)
	}
	for i, leader := range k.repeats {
		verdicts[i] = verdicts[leader]
		verdicts[i].TransactionID = r.Items[i].TransactionID
		if verdicts[leader].Status == push.StatusBuffered {
			verdicts[i].Status = push.StatusDuplicate
		}
	}
	p.spool.kick()
}

func (k *keeping) at(i int) laneKey {
	return laneKey{k.request.Tenant, k.request.Items[i].Queue, k.request.Items[i].Partition}
}

func (k *keeping) leave(i int) { k.out = append(k.out, k.at(i)) }

// collect makes the messages of the items.
func (p *Pusher) collect(k *keeping) {
	type id struct{ queue, partition, transaction string }
	leaders := make(map[id]int, len(k.items))
	for _, i := range k.items {
		it, v := &k.request.Items[i], &k.verdicts[i]
		if it.TransactionID != "" {
			at := id{it.Queue, it.Partition, it.TransactionID}
			if leader, repeated := leaders[at]; repeated {
				k.repeats[i] = leader
				k.leave(i)
				continue
			}
			leaders[at] = i
		}
		m, err := p.accept(k.request, it, v.MessageID)
		if err != nil {
			*v = push.Verdict{Status: push.StatusFailed, MessageID: v.MessageID, TransactionID: it.TransactionID, Err: err}
			k.leave(i)
			continue
		}
		*v = push.Verdict{Status: push.StatusBuffered, MessageID: m.ID, TransactionID: m.TransactionID}
		k.messages, k.written = append(k.messages, m), append(k.written, i)
	}
}

// lookUp takes out of the messages what waits already, and makes the rest known, so that a repeat meanwhile waits for this write.
func (p *Pusher) lookUp(k *keeping) {
	s := p.spool
	keys := make([]idKey, len(k.messages))
	options := make([]push.Options, len(k.messages))
	for n := range k.messages {
		if hasOwnID(&k.messages[n]) {
			keys[n] = s.ids.key(keyOf(&k.messages[n]), k.messages[n].TransactionID)
			options[n] = p.next.LastKnown(k.request.Tenant, k.messages[n].Queue)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	left := 0
	for n := range k.messages {
		m, i := &k.messages[n], k.written[n]
		if hasOwnID(m) && !options[n].Repeats {
			id, waits := s.ids.get(keys[n])
			switch {
			case !waits:
				s.ids.put(keys[n], keptID{m.ID, k.write})
				k.keys = append(k.keys, keys[n])
			case options[n].Known:
				k.kept[i] = id
				k.leave(i)
				continue
			default:
				// The queue may take repeats: the database decides when it comes to that, and the id is the same either way.
				m.ID, k.verdicts[i].MessageID = id.message, id.message
			}
		}
		k.messages[left], k.written[left] = *m, i
		left++
	}
	clear(k.messages[left:])
	k.messages, k.written = k.messages[:left], k.written[:left]
}

// close makes the outcome of the write known and puts the account right.
func (p *Pusher) close(k *keeping) {
	s := p.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids.written(k.keys, k.write)
	close(k.write.done)
	for _, key := range k.out {
		s.leaveLocked(key, 1)
	}
	s.settleQuietLocked()
}

// follow answers for a transaction id that waits: once it is on the disk.
func (k *keeping) follow(i int, id keptID) {
	v := &k.verdicts[i]
	v.Status, v.MessageID = push.StatusBuffered, id.message
	if id.write == nil {
		return
	}
	<-id.write.done
	if id.write.err != nil {
		v.Status, v.Err = push.StatusFailed, id.write.err
	}
}

// accept makes the message of an item, with its id where it has one already.
func (p *Pusher) accept(r push.Request, it *push.Item, messageID uuid.UUID) (push.Accepted, error) {
	if err := checkNames(it); err != nil {
		return push.Accepted{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	m := push.Accepted{Tenant: r.Tenant, ProducerSub: r.ProducerSub, ID: messageID, Item: *it}
	if m.ID == uuid.Nil {
		m.ID = segment.NewID()
	}
	if m.TransactionID == "" {
		m.TransactionID = m.ID.String()
	}
	if len(m.Payload) == 0 {
		m.Payload = []byte("null")
	}
	options := p.next.LastKnown(r.Tenant, it.Queue)
	switch {
	case p.sealer != nil && (options.Encrypted || !options.Known):
		m.Payload, m.Sealed = p.sealer.Seal(m.Payload), true
	case options.Encrypted:
		return push.Accepted{}, push.ErrEncryptionRequired
	}
	return m, nil
}
