package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// A cell is one combination of producers and batch size, measured end to end: pushed, popped and acknowledged, until nothing is left. Every
// cell has a raw counterpart, the same work as direct calls of the procedures with nothing in front of them: its ceiling.
type cell struct {
	name             string
	batch, producers int
}

var cells = []cell{{"100x8", 100, 8}, {"100x32", 100, 32}, {"1x32", 1, 32}, {"1x256", 1, 256}}

const (
	// cellClaims is the most partitions of one pop in the cells, cellFetch the most messages.
	cellClaims, cellFetch = 10, 100
	// keysLanes and keysMessages are the size of the keyed cells: every producer's batch is spread over as many keys as it has messages.
	keysLanes, keysMessages, keysBatch, keysProducers = 10_000, 100_000, 100, 16
)

// cellScenarios are all cells, each behind its ceiling.
func cellScenarios() []scenario {
	var all []scenario
	for _, c := range cells {
		all = append(all,
			scenario{"raw-" + c.name, func(ctx context.Context, b *bench) (result, error) { return b.rawCell(ctx, c) }},
			scenario{"cell-" + c.name, func(ctx context.Context, b *bench) (result, error) { return b.cell(ctx, c) }})
	}
	return append(all,
		scenario{"raw-keys-push", func(ctx context.Context, b *bench) (result, error) { return b.rawKeys(ctx, false) }},
		scenario{"cell-keys-push", func(ctx context.Context, b *bench) (result, error) { return b.keys(ctx, false) }},
		scenario{"raw-keys-drain", func(ctx context.Context, b *bench) (result, error) { return b.rawKeys(ctx, true) }},
		scenario{"cell-keys-drain", func(ctx context.Context, b *bench) (result, error) { return b.keys(ctx, true) }})
}

// expand replaces the word cells by all of them.
func expand(names []string) []string {
	var out []string
	for _, name := range names {
		if name != "cells" {
			out = append(out, name)
			continue
		}
		for _, s := range cellScenarios() {
			out = append(out, s.name)
		}
	}
	return out
}

// cell lets producers push for a while and consumers empty the queue beside them. The clock stops with the last acknowledgment; an uncounted
// round goes before. Latencies are those of the pushes.
func (b *bench) cell(ctx context.Context, c cell) (result, error) {
	if _, err := b.round(ctx, c, b.options.warmUp); err != nil {
		return result{}, err
	}
	return b.measured(ctx, func(ctx context.Context) (result, error) { return b.round(ctx, c, b.options.length) })
}

func (b *bench) round(ctx context.Context, c cell, length time.Duration) (result, error) {
	before, err := b.stored(ctx)
	if err != nil {
		return result{}, err
	}
	seen := newLedger(-1)
	var pushed, popped result
	var failures [2]error
	var sides sync.WaitGroup
	begin := time.Now()
	sides.Go(func() { popped, failures[1] = closedLoop(ctx, 0, drainLimit, b.fetchers(seen)) })
	pushed, failures[0] = closedLoop(ctx, 0, length, b.pushers(c.batch, c.producers))
	after, err := b.stored(ctx)
	seen.want.Store(after - before)
	sides.Wait()
	if err = errors.Join(failures[0], failures[1], err); err != nil {
		return result{}, err
	}
	pushed.messages, pushed.counted = popped.counted, popped.counted
	pushed.elapsed = popped.begin.Add(popped.elapsed).Sub(begin)
	return pushed, seen.verify()
}

// fetchers are the consumers of the cells.
func (b *bench) fetchers(seen *ledger) []worker {
	return b.consumers("bench", cellFetch, cellClaims, b.options.consumers, seen)
}

// keys spreads messages over many partitions, and measures storing or draining them.
func (b *bench) keys(ctx context.Context, drain bool) (result, error) {
	workers := make([]worker, keysProducers)
	for i := range workers {
		p := b.newPusher(uint64(i))
		workers[i] = func(ctx context.Context) (int, error) {
			first := b.sequence.Add(keysBatch) - keysBatch
			if first >= keysMessages {
				return 0, errDrained
			}
			return keysBatch, p.push(ctx, keysBatch, func(k int) string { return lane(first+int64(k), keysLanes) })
		}
	}
	pushed, err := b.measured(ctx, func(ctx context.Context) (result, error) { return closedLoop(ctx, 0, drainLimit, workers) })
	if err != nil || !drain {
		return pushed, errors.Join(err, b.verifyStored(ctx, pushed.counted))
	}
	return b.empty(ctx, cellFetch, cellFetch)
}

// rawConnections is how many connections each side of a raw cell has: more of them only wait for each other's commits on few processors.
const rawConnections = 2

// rawCell is cell without HTTP and without waiting: bundles as large as the broker could make of half of the producers' messages, claims of
// what has been stored, and one acknowledgment for everything claimed.
func (b *bench) rawCell(ctx context.Context, c cell) (result, error) {
	if err := b.configure(ctx, `{"dedupWindowSeconds":0}`); err != nil {
		return result{}, err
	}
	bundle := min(max(c.producers/2, 1), b.options.partitions/rawConnections)
	messages := max(c.producers*c.batch/2/bundle, 1)
	pushing, stop := context.WithTimeout(ctx, b.options.length)
	defer stop()
	return b.measured(ctx, func(ctx context.Context) (result, error) {
		begin := time.Now()
		r, err := b.rawSides(ctx, func(side int, stored chan<- string) error {
			return b.rawPush(ctx, func(n int) []string {
				if pushing.Err() != nil {
					return nil
				}
				lanes := make([]string, bundle)
				for i := range lanes {
					lanes[i] = lane(int64((n*bundle+i)*rawConnections+side), b.options.partitions)
				}
				return lanes
			}, messages, stored)
		})
		r.elapsed = time.Since(begin)
		return r, err
	})
}

// rawKeys is keys without HTTP: as many segments a call as the broker bundles at most.
func (b *bench) rawKeys(ctx context.Context, drain bool) (result, error) {
	if err := b.configure(ctx, `{"dedupWindowSeconds":0}`); err != nil {
		return result{}, err
	}
	const bundle = 250
	stored := make([]chan string, rawConnections)
	var pushes sync.WaitGroup
	failures := make([]error, rawConnections)
	pushed, err := b.measured(ctx, func(context.Context) (result, error) {
		begin := time.Now()
		for side := range stored {
			stored[side] = make(chan string, keysMessages)
			pushes.Go(func() {
				failures[side] = b.rawPush(ctx, func(n int) []string {
					first := (n*rawConnections + side) * bundle
					if first >= keysMessages {
						return nil
					}
					lanes := make([]string, bundle)
					for i := range lanes {
						lanes[i] = lane(int64(first+i), keysLanes)
					}
					return lanes
				}, 1, stored[side])
				close(stored[side])
			})
		}
		pushes.Wait()
		return result{messages: keysMessages, counted: keysMessages, elapsed: time.Since(begin)}, errors.Join(failures...)
	})
	if err != nil || !drain {
		return pushed, err
	}
	return b.measured(ctx, func(context.Context) (result, error) {
		begin := time.Now()
		r, err := b.rawSides(ctx, func(side int, out chan<- string) error {
			known := map[string]bool{}
			for name := range stored[side] {
				if !known[name] {
					out <- name
				}
				known[name] = true
			}
			return nil
		})
		r.elapsed = time.Since(begin)
		if err == nil && r.counted != keysMessages {
			err = fmt.Errorf("%d of %d messages drained", r.counted, keysMessages)
		}
		return r, err
	})
}

// rawSides runs produce on every side, which tells the partitions that have messages, and claims and acknowledges them beside it.
func (b *bench) rawSides(ctx context.Context, produce func(side int, stored chan<- string) error) (result, error) {
	failures := make([]error, 2*rawConnections)
	counts := make([]int64, rawConnections)
	var sides sync.WaitGroup
	for side := range rawConnections {
		stored := make(chan string, keysLanes)
		sides.Go(func() {
			defer close(stored)
			failures[side] = produce(side, stored)
		})
		sides.Go(func() {
			counts[side], failures[rawConnections+side] = b.rawConsume(ctx, stored)
			for range stored { // the producer must not wait for somebody who gave up
			}
		})
	}
	sides.Wait()
	var r result
	for _, n := range counts {
		r.messages += n
	}
	r.counted = r.messages
	return r, errors.Join(failures...)
}

// rawPush stores a segment of the given size in each of the partitions that next names for the n-th call, until it names none.
func (b *bench) rawPush(ctx context.Context, next func(n int) []string, messages int, stored chan<- string) error {
	blobs, err := b.readyMade(1, messages)
	if err != nil {
		return err
	}
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	hashes := segmentHashes(messages)
	for n := 0; ; n++ {
		lanes := next(n)
		if len(lanes) == 0 {
			return nil
		}
		bundle := len(lanes)
		queues, tenants := slices.Repeat([]string{b.queue}, bundle), slices.Repeat([]string{"00000000-0000-0000-0000-000000000001"}, bundle)
		counts, verified := slices.Repeat([]int32{int32(messages)}, bundle), slices.Repeat([]int64{-1}, bundle)
		all, chosen := make([][]byte, bundle), make([][]byte, bundle)
		for i := range lanes {
			all[i], chosen[i] = hashes(), blobs[(n+i)%len(blobs)]
		}
		var order []int32
		if err := conn.QueryRow(ctx, `SELECT o_ord FROM queen.log_push_core_v1($1, $2, $3, $4, $5, $6, $7::text[]::uuid[], NULL, FALSE, NULL, NULL, NULL, NULL, NULL)`,
			queues, lanes, counts, all, verified, chosen, tenants).Scan(&order); err != nil {
			return err
		}
		for _, name := range lanes {
			stored <- name
		}
	}
}

// rawConsume claims what the named partitions have, up to 64 of them a call, and acknowledges all of it in one.
func (b *bench) rawConsume(ctx context.Context, stored <-chan string) (messages int64, err error) {
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	const most = 64
	for name := range stored {
		names := []string{name}
	more:
		for len(names) < most {
			select {
			case next, open := <-stored:
				if !open {
					break more
				}
				if !slices.Contains(names, next) {
					names = append(names, next)
				}
			default:
				break more
			}
		}
		rows, err := conn.Query(ctx, `SELECT r_ord, r_verdict, r_partition::text, r_base, r_start, r_take, r_blob
			FROM queen.log_pop_ready_v1($1, 'bench', $2, 10000000, 60, 'bench', FALSE, 0)`, b.queue, names)
		if err != nil {
			return messages, err
		}
		var ids []string
		var ends []int64
		var counts []int32
		var ord, start, take int32
		var verdict string
		var id *string
		var base *int64
		var blob []byte
		var starts, takes *int32
		for rows.Next() {
			if err := rows.Scan(&ord, &verdict, &id, &base, &starts, &takes, &blob); err != nil {
				return messages, err
			}
			if verdict != "took" {
				continue
			}
			start, take = *starts, *takes
			if n := len(ids); n == 0 || ids[n-1] != *id {
				ids, ends, counts = append(ids, *id), append(ends, 0), append(counts, 0)
			}
			ends[len(ids)-1] = *base + int64(start+take) - 1
			counts[len(ids)-1] += take
		}
		if err := rows.Err(); err != nil {
			return messages, err
		}
		if len(ids) == 0 {
			continue // an earlier claim had it too
		}
		var ok string
		if err := conn.QueryRow(ctx, `SELECT queen.log_ack_multi_v1($1, $2, $3, $4, $5)::text`, ids, slices.Repeat([]string{"bench"}, len(ids)), ends,
			slices.Repeat([]string{"bench"}, len(ids)), counts).Scan(&ok); err != nil {
			return messages, err
		}
		if strings.Contains(ok, "false") {
			return messages, fmt.Errorf("an acknowledgment was refused: %.300s", ok)
		}
		for _, n := range counts {
			messages += int64(n)
		}
	}
	return messages, nil
}

// compare lists every cell as a share of its ceiling.
func compare(results map[string][]result) []string {
	var lines []string
	for _, s := range cellScenarios() {
		name, isCell := strings.CutPrefix(s.name, "cell-")
		if !isCell || len(results[s.name]) == 0 || len(results["raw-"+name]) == 0 {
			continue
		}
		whole, raw := median(results[s.name]), median(results["raw-"+name])
		cost := func(r result) float64 {
			return (r.loadCPU + r.brokerCPU + r.databaseCPU) * 1e6 / float64(max(r.counted, 1))
		}
		lines = append(lines, fmt.Sprintf("%s: %.2f of the rate of raw-%s; processor time of everything %.1f s/M against %.1f", s.name, whole.rate()/raw.rate(), name, cost(whole), cost(raw)))
	}
	return lines
}

// popPath is the request of a consumer.
func (b *bench) popPath(group string, batch, partitions int) string {
	return fmt.Sprintf("/api/v1/pop/queue/%s?batch=%d&partitions=%d&consumerGroup=%s&subscriptionMode=all&wait=true&timeout=200",
		url.PathEscape(b.queue), batch, partitions, group)
}
