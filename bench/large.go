package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// activeRate is how many requests a second push in cardinality, activeItems how many partitions each gives a message: a thousand a second.
const activeRate, activeItems = 50, 20

// cardinality creates many partitions, and measures pops while a thousand of them a second get a message: once when there
// are 10,000, once when all are there, both when autovacuum has caught up with what was created, and with all of them once right behind
// their creation too. The figures are the latencies of the last; the note has the ratios and the memory.
func (b *bench) cardinality(ctx context.Context) (result, error) {
	const few = 10_000
	if err := b.fill(ctx, 0, few); err != nil {
		return result{}, err
	}
	if _, err := b.settle(ctx); err != nil {
		return result{}, err
	}
	small, err := b.active(ctx, few)
	if err != nil {
		return small, err
	}
	memoryBefore := b.residentAtRest()
	if err := b.fill(ctx, few, b.options.many); err != nil {
		return result{}, err
	}
	fresh, err := b.active(ctx, b.options.many)
	if err != nil {
		return fresh, err
	}
	waited, err := b.settle(ctx)
	if err != nil {
		return result{}, err
	}
	r, err := b.active(ctx, b.options.many)
	if err != nil {
		return r, err
	}
	memory := b.residentAtRest()
	perPartition := (memory - memoryBefore) / float64(b.options.many-few)
	r.figures = figures{"ratio": float64(r.p99) / float64(small.p99), "bytes": perPartition}
	r.note = fmt.Sprintf("end to end p99 %.1f ms with %d partitions, %.1f ms with %d: ratio %.2f; %.1f ms right behind their creation, %v earlier; broker memory at rest %.0f MB and %.0f MB, that is %.0f bytes a partition; peak %.0f MB",
		milliseconds(small.p99), few, milliseconds(r.p99), b.options.many, r.figures["ratio"], milliseconds(fresh.p99), waited.Round(time.Second),
		memoryBefore/1e6, memory/1e6, perPartition, peakMemory(b.broker.Process.Pid)/1e6)
	return r, nil
}

// settle waits until autovacuum has had nothing to do for two of its rounds (15 s each, internal/localpg), for at most five minutes, and
// returns how long that took.
func (b *bench) settle(ctx context.Context) (time.Duration, error) {
	const idle, most = 30 * time.Second, 5 * time.Minute
	begin := time.Now()
	for last := begin; time.Since(last) < idle && time.Since(begin) < most; time.Sleep(time.Second) { // sampling, not waiting
		var busy bool
		if err := b.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE backend_type = 'autovacuum worker')`).Scan(&busy); err != nil {
			return 0, err
		}
		if busy {
			last = time.Now()
		}
	}
	return time.Since(begin), nil
}

// fill creates partitions by pushing one message into each, and consumes them.
func (b *bench) fill(ctx context.Context, from, to int) error {
	const perRequest = 500
	var next atomic.Int64
	next.Store(int64(from))
	workers := make([]worker, 8)
	for i := range workers {
		p := b.newPusher(uint64(i))
		workers[i] = func(ctx context.Context) (int, error) {
			first := next.Add(perRequest) - perRequest
			if first >= int64(to) {
				return 0, errDrained
			}
			n := int(min(perRequest, int64(to)-first))
			return n, p.push(ctx, n, func(k int) string { return fmt.Sprintf("lane-%d", first+int64(k)) })
		}
	}
	if _, err := closedLoop(ctx, 0, drainLimit, workers); err != nil {
		return err
	}
	seen := newLedger(int64(to - from))
	if _, err := closedLoop(ctx, 0, drainLimit, b.consumers("bench", 1000, 1000, 8, seen)); err != nil {
		return err
	}
	return seen.verify()
}

// active pushes one message each to randomly spread partitions at the active rate.
func (b *bench) active(ctx context.Context, partitions int) (result, error) {
	spread := *b.stand
	spread.options.partitions = partitions
	paced := &bench{stand: &spread, queue: b.queue, lines: b.lines}
	paced.sequence.Store(b.sequence.Add(1_000_003)) // transaction ids of its own
	return paced.flow(ctx, activeRate, activeItems, b.options.length, 16)
}

// residentAtRest is the broker's resident memory, in bytes, the least of a few seconds without load: what the collector and the operating
// system have not been given back yet does not count for long.
func (b *bench) residentAtRest() float64 {
	least := residentMemory(b.broker.Process.Pid)
	for range 10 {
		time.Sleep(time.Second) // sampling, not waiting
		least = min(least, residentMemory(b.broker.Process.Pid))
	}
	return least
}
