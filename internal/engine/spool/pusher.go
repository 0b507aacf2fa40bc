package spool

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/engine/push"
	"queenmq/internal/pg"
)

const (
	// holdTime is how long a push waits for the records before it to be stored, instead of joining them on the disk.
	holdTime = time.Second
	// holdPending is how many records may wait for a push to do that. With more the wait would be in vain: pushes then keep a pace, and wait
	// until pacing times as many messages are stored as they bring. Without the two a partition that is always pushed to would never leave
	// the disk, and what is pushed faster than it is stored would fill it.
	holdPending = 20_000
	pacing      = 2
	// scanTime is how long a push with transaction ids of its own waits until the files of an earlier run are counted, so that it is known
	// which ids wait. Reading a gigabyte takes a few seconds.
	scanTime = 5 * time.Second
)

// Next is where pushes go when nothing keeps them; *push.Pusher is one.
type Next interface {
	Push(ctx context.Context, r push.Request) ([]push.Verdict, error)
	LastKnown(tenant uuid.UUID, queue string) push.Options
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
	p.awaitScan(ctx, r)
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

// awaitScan waits until it is known which transaction ids wait on the disk, if that matters to the request.
func (p *Pusher) awaitScan(ctx context.Context, r push.Request) {
	if !slices.ContainsFunc(r.Items, func(it push.Item) bool { return it.TransactionID != "" }) {
		return
	}
	select {
	case <-p.spool.scanned:
		return
	default:
	}
	deadline := time.NewTimer(scanTime)
	defer deadline.Stop()
	select {
	case <-p.spool.scanned:
	case <-p.spool.stopped:
	case <-deadline.C:
	case <-ctx.Done():
	}
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
	waits := 0
	var first *lane
	for i := range r.Items {
		s.mu.Lock()
		l, few := s.lanes[laneKey{r.Tenant, r.Items[i].Queue, r.Items[i].Partition}], s.pending <= holdPending
		readable := s.lost == 0
		s.mu.Unlock()
		switch {
		case l == nil:
		case !readable: // its end will not come before the next start
			return
		case !few:
			waits, first = waits+1, l
		case !await(l.drained):
			return
		}
	}
	if waits == 0 {
		return
	}
	for reached := s.pace(waits); ; {
		s.mu.Lock()
		more, done := s.storedMore, s.stored >= reached
		s.mu.Unlock()
		if done || !await(more) {
			return
		}
		select {
		case <-first.drained:
			return
		default:
		}
	}
}

// pace returns how much must be stored before a push of n messages joins what waits. All pushes together join half as fast as messages are
// stored.
func (s *Spool) pace(n int) (reached int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paced = max(s.paced, s.stored) + int64(pacing*n)
	return s.paced
}

// storedSome tells pushes that keep the pace.
func (s *Spool) storedSome(n int) {
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored += int64(n)
	close(s.storedMore)
	s.storedMore = make(chan struct{})
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
