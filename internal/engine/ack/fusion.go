package ack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"queenmq/internal/engine/admission"
	"queenmq/internal/pg"
)

const (
	// maxFlushRows is the most acks in one commit. What is beyond it waits for the next.
	maxFlushRows = 2000
	// DefaultShards is the number of shards unless configured otherwise. Each has one commit under way, so that acks gather exactly
	// while the database is busy; with one shard all of them share it. At 13 microseconds an ack that is far more than clients can ask.
	DefaultShards = 1
)

// errFlush is what every ack of a failed commit is told. Nobody knows whether it happened: what did not redelivers.
var errFlush = errors.New("ack flush failed; lease will expire and redeliver")

// An advance is one whole batch on its way to a shared commit. Its outcome may be read when finished says so.
type advance struct {
	pg.PositionalAck
	finished *sync.WaitGroup

	// accepted says that the commit completed the batch. When it is false and err is nil, the database refused: the lease is over,
	// or the batch is another one by now.
	accepted bool
	err      error
}

// A fuser commits the whole batches of many requests together. Its loops run while Run does; outside of that it takes nothing.
type fuser struct {
	db      Store
	slots   *admission.Controller
	timeout time.Duration
	log     *slog.Logger
	shards  []*fusionShard

	flushes, rows, failures atomic.Uint64
	// trips are the calls that move cursors, also those that one ack makes by itself.
	trips pg.RoundTrips
}

// A fusionShard owns the partitions whose id falls to it, so that two commits never wait for each other's rows. Its loop commits
// what has come, one commit at a time: the longer a commit takes, the more share the next.
type fusionShard struct {
	mu      sync.Mutex
	open    bool
	pending []*advance
	// arrived holds one token when there may be something pending.
	arrived chan struct{}
}

func newFuser(shards int, db Store, slots *admission.Controller, timeout time.Duration, log *slog.Logger) *fuser {
	f := &fuser{db: db, slots: slots, timeout: timeout, log: log, shards: make([]*fusionShard, shards)}
	for i := range f.shards {
		f.shards[i] = &fusionShard{arrived: make(chan struct{}, 1)}
	}
	return f
}

// submit hands a over and returns at once; a.finished, which the caller has added one to, tells when it is decided. False means that
// the fuser does not run: the caller goes another way.
func (f *fuser) submit(a *advance) bool {
	if len(f.shards) == 0 {
		return false
	}
	// The last bytes of a version 7 id are its random ones, and those of any other version are no worse.
	id := a.PartitionID
	shard := f.shards[(int(id[14])<<8|int(id[15]))%len(f.shards)]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if !shard.open {
		return false
	}
	shard.pending = append(shard.pending, a)
	select {
	case shard.arrived <- struct{}{}:
	default: // the loop has not looked since the last one
	}
	return true
}

// run owns the loops until ctx ends. What was taken until then is committed before it returns.
func (f *fuser) run(ctx context.Context) {
	var loops sync.WaitGroup
	for _, shard := range f.shards {
		loops.Go(func() { f.loop(ctx, shard) })
	}
	loops.Wait()
}

func (f *fuser) loop(ctx context.Context, shard *fusionShard) {
	shard.setOpen(true)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-shard.arrived:
			for f.flush(ctx, shard) {
			}
		}
	}
	shard.setOpen(false)
	for f.flush(ctx, shard) {
	}
}

func (s *fusionShard) setOpen(open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = open
}

// empty says whether nothing is pending.
func (s *fusionShard) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending) == 0
}

// take removes what has come first, at most maxFlushRows.
func (s *fusionShard) take() []*advance {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.pending), maxFlushRows)
	taken := s.pending[:n:n]
	if s.pending = s.pending[n:]; len(s.pending) == 0 {
		s.pending = nil
	}
	return taken
}

// flush commits what is pending, at most maxFlushRows of it, and says whether there was anything. It is not cut off by a stop: what
// was taken is committed.
func (f *fuser) flush(ctx context.Context, shard *fusionShard) bool {
	if shard.empty() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.timeout)
	defer cancel()
	slot, err := f.slots.Acquire(ctx, admission.Ack)
	taken := shard.take() // after the wait for the slot: what came meanwhile takes part
	if err == nil {
		err = f.commit(ctx, taken)
		slot.Release() // before the callers go on: their next call may need one
	}
	if err != nil {
		f.failures.Add(1)
		f.log.WarnContext(ctx, "ack flush failed; the batches redeliver when their leases expire",
			slog.Int("batches", len(taken)), slog.Any("error", err))
	}
	for _, a := range taken {
		if err != nil {
			a.accepted, a.err = false, errFlush
		}
		a.finished.Done()
	}
	return true
}

// commit makes one call of the database and notes the outcome of every ack. A panic is an error: the callers must hear something.
func (f *fuser) commit(ctx context.Context, taken []*advance) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			f.log.ErrorContext(ctx, "panic in an ack flush", slog.Any("panic", cause), slog.String("stack", string(debug.Stack())))
			err = errors.New("panic")
		}
	}()
	rows, rowOf := fold(taken)
	began := time.Now()
	results, err := f.db.AckMulti(ctx, rows)
	f.timed(began)
	switch {
	case err != nil:
		return err
	case len(results) != len(rows):
		return fmt.Errorf("%d results for %d acks", len(results), len(rows))
	}
	f.flushes.Add(1)
	f.rows.Add(uint64(len(rows))) //nolint:gosec // a count
	for i, a := range taken {
		a.accepted = results[rowOf[i]].OK
	}
	return nil
}

// timed counts a call of the database that began then.
func (f *fuser) timed(began time.Time) { f.trips.Add(time.Since(began)) }

// fold turns acks of one partition, group and worker into one row that reaches as far as the farthest; rowOf is parallel to taken.
// Different workers are never put together: one's stale ack must not complete the other's batch.
func fold(taken []*advance) (rows []pg.PositionalAck, rowOf []int) {
	type address struct {
		batchKey
		worker string
	}
	rows, rowOf = make([]pg.PositionalAck, 0, len(taken)), make([]int, len(taken))
	byAddress := make(map[address]int, len(taken))
	for i, a := range taken {
		at := address{batchKey{a.PartitionID, a.Group}, a.Worker}
		row, known := byAddress[at]
		if !known {
			row = len(rows)
			byAddress[at] = row
			rows = append(rows, a.PositionalAck)
		} else {
			rows[row].End = max(rows[row].End, a.End)
			rows[row].Count += a.Count
		}
		rowOf[i] = row
	}
	return rows, rowOf
}
