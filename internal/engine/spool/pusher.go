package spool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/push"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

const (
	// holdTime is how long a push waits for the records before it to be stored, instead of joining them on the disk.
	holdTime = time.Second
	// holdPending is how many records may wait for a push to do that. With more the wait would be in vain, and without it a partition that
	// is always pushed to would never leave the disk.
	holdPending = 20_000
)

// Next is where pushes go when nothing keeps them; *push.Pusher is one.
type Next interface {
	Push(ctx context.Context, r push.Request) ([]push.Verdict, error)
	LastKnown(tenant uuid.UUID, queue string) (encrypted, known bool)
}

// A Pusher stores pushes through Next and keeps on disk what cannot be stored now. Its methods are safe for concurrent use.
type Pusher struct {
	spool  *Spool
	next   Next
	paused func() bool
	sealer push.Sealer
}

// NewPusher puts the spool in front of next. paused tells whether maintenance keeps pushes out of the database. sealer encrypts the payloads
// of queues that demand it, or that nothing is known of; nil cannot.
func (s *Spool) NewPusher(next Next, paused func() bool, sealer push.Sealer) *Pusher {
	return &Pusher{s, next, paused, sealer}
}

// Push stores or keeps the items and returns one verdict for each, in order; see [push.Pusher.Push].
func (p *Pusher) Push(ctx context.Context, r push.Request) ([]push.Verdict, error) {
	if !p.spool.quiet.Load() || p.paused() {
		return p.pushBehind(ctx, r)
	}
	verdicts, err := p.next.Push(ctx, r)
	if err == nil {
		p.rescue(r, verdicts, nil)
	}
	return verdicts, err
}

// pushBehind keeps what must not reach the database now, or not before what waits on the disk, and stores the rest.
func (p *Pusher) pushBehind(ctx context.Context, r push.Request) ([]push.Verdict, error) {
	paused := p.paused()
	if !paused {
		p.hold(ctx, r)
	}
	verdicts := make([]push.Verdict, len(r.Items))
	kept, direct := p.split(r, paused)
	p.keep(r, verdicts, kept)
	if len(direct) == 0 {
		return verdicts, nil
	}
	rest := push.Request{Tenant: r.Tenant, ProducerSub: r.ProducerSub, Items: make([]push.Item, len(direct))}
	for i, item := range direct {
		rest.Items[i] = r.Items[item]
	}
	stored, err := p.next.Push(ctx, rest)
	if err != nil {
		return nil, err
	}
	for i, item := range direct {
		verdicts[item] = stored[i]
	}
	p.rescue(r, verdicts, direct)
	return verdicts, nil
}

// hold waits a moment for what waits of the request's partitions while it is being stored.
func (p *Pusher) hold(ctx context.Context, r push.Request) {
	s := p.spool
	deadline := time.NewTimer(holdTime)
	defer deadline.Stop()
	s.mu.Lock()
	trouble := s.trouble
	s.mu.Unlock()
	await := func(event <-chan struct{}) bool {
		select {
		case <-event:
			return true
		case <-trouble:
		case <-deadline.C:
		case <-ctx.Done():
		}
		return false
	}
	if !await(s.scanned) {
		return
	}
	for i := range r.Items {
		s.mu.Lock()
		l, few := s.lanes[laneKey{r.Tenant, r.Items[i].Queue, r.Items[i].Partition}], s.pending <= holdPending
		s.mu.Unlock()
		if l == nil {
			continue
		}
		if !few || !await(l.drained) {
			return
		}
	}
}

// split decides for each item whether it is kept, and enters those that are into the account, so that none of their partitions is taken for
// drained meanwhile.
func (p *Pusher) split(r push.Request, paused bool) (kept, direct []int) {
	s := p.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	all := paused || !s.counted || !s.healthy.Load()
	for i := range r.Items {
		key := laneKey{r.Tenant, r.Items[i].Queue, r.Items[i].Partition}
		if all || s.lanes[key] != nil {
			kept = append(kept, i)
			s.enterLocked(key, 1)
		} else {
			direct = append(direct, i)
		}
	}
	s.settleQuietLocked()
	return kept, direct
}

// rescue keeps the items that failed because the database could not take them. among are the items that were tried, nil for all.
func (p *Pusher) rescue(r push.Request, verdicts []push.Verdict, among []int) {
	var failed []int
	look := func(i int) {
		v := &verdicts[i]
		if v.Status != push.StatusFailed || !isPassing(v.Err) {
			return
		}
		if errors.Is(v.Err, pg.ErrUnavailable) {
			p.spool.Unhealthy()
		}
		failed = append(failed, i)
	}
	if among == nil {
		for i := range verdicts {
			look(i)
		}
	} else {
		for _, i := range among {
			look(i)
		}
	}
	if len(failed) == 0 {
		return
	}
	s := p.spool
	s.mu.Lock()
	for _, i := range failed {
		s.enterLocked(laneKey{r.Tenant, r.Items[i].Queue, r.Items[i].Partition}, 1)
	}
	s.settleQuietLocked()
	s.mu.Unlock()
	p.keep(r, verdicts, failed)
}

// isPassing says that the same message may well be stored later.
func isPassing(err error) bool {
	for _, passing := range []error{pg.ErrUnavailable, pg.ErrPoolTimeout, pg.ErrTimeout, pg.ErrLockTimeout, pg.ErrSerialization} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// keep writes items, which are in the account, to the disk and gives them their verdicts. Repeats of a transaction id in one partition are
// not written: the first one leads.
func (p *Pusher) keep(r push.Request, verdicts []push.Verdict, items []int) {
	if len(items) == 0 {
		return
	}
	type id struct{ queue, partition, transaction string }
	leaders := make(map[id]int, len(items))
	followers := make(map[int]int)
	messages := make([]push.Accepted, 0, len(items))
	written := make([]int, 0, len(items))
	out := make([]laneKey, 0) // of items that are not written
	leave := func(i int) { out = append(out, laneKey{r.Tenant, r.Items[i].Queue, r.Items[i].Partition}) }
	for _, i := range items {
		it, v := &r.Items[i], &verdicts[i]
		if it.TransactionID != "" {
			at := id{it.Queue, it.Partition, it.TransactionID}
			if leader, repeated := leaders[at]; repeated {
				followers[i] = leader
				leave(i)
				continue
			}
			leaders[at] = i
		}
		m, err := p.accept(r, it, v.MessageID)
		if err != nil {
			*v = push.Verdict{Status: push.StatusFailed, MessageID: v.MessageID, TransactionID: it.TransactionID, Err: err}
			leave(i)
			continue
		}
		*v = push.Verdict{Status: push.StatusBuffered, MessageID: m.ID, TransactionID: m.TransactionID}
		messages, written = append(messages, m), append(written, i)
	}
	if len(messages) > 0 {
		if err := p.spool.append(messages); err != nil {
			for _, i := range written {
				verdicts[i].Status, verdicts[i].Err = push.StatusFailed, err
				leave(i)
			}
		}
	}
	for i, leader := range followers {
		verdicts[i] = verdicts[leader]
		verdicts[i].TransactionID = r.Items[i].TransactionID
		if verdicts[leader].Status == push.StatusBuffered {
			verdicts[i].Status = push.StatusDuplicate
		}
	}
	s := p.spool
	s.mu.Lock()
	for _, key := range out {
		s.leaveLocked(key, 1)
	}
	s.settleQuietLocked()
	s.mu.Unlock()
	s.kick()
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
	encrypted, known := p.next.LastKnown(r.Tenant, it.Queue)
	switch {
	case p.sealer != nil && (encrypted || !known):
		m.Payload, m.Sealed = p.sealer.Seal(m.Payload), true
	case encrypted:
		return push.Accepted{}, push.ErrEncryptionRequired
	}
	return m, nil
}
