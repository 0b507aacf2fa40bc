// Package workload drives a broker with many producers and consumers, records what each of them saw, and judges the
// record: whatever happened to brokers and databases meanwhile, the promises of the broker must have held for its clients.
//
// A call that failed may still have happened. The judgement therefore uses only what is certain: a push counts once it was
// answered "queued" or "duplicate", an acknowledgment once its answer said success.
package workload

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"queenmq/test/wire"
)

// A Config shapes one run. Every partition has one producer, so that the order of its messages is known.
type Config struct {
	Queue      string
	Partitions int
	// Messages is how many messages each partition gets.
	Messages int
	// Consumers is the number of workers per group.
	Consumers int
	Groups    []string
	// Lease is the lease of every pop, in whole seconds.
	Lease int
	// Misbehave is the share (0..1) of batches that are not simply completed: failed, retried, partly acked or abandoned.
	Misbehave float64
	// Seed makes the choices of a run repeatable.
	Seed uint64
}

// A delivery is one batch of one partition handed to one worker.
type delivery struct {
	partition, group string
	sequences        []int
	// asked and got bracket the claim; settled is when the worker began to end its lease (or let go of it).
	asked, got, settled, leaseEnd time.Time
	askedAt                       int64
}

// A History is what the clients of one run saw. It is complete when Run returns.
type History struct {
	cfg       Config
	mu        sync.Mutex
	pushed    map[string]int
	acked     map[string]map[int]int64
	delivered []delivery
	clock     atomic.Int64
	failures  atomic.Int64
}

// Deliveries returns the number of batches handed out.
func (h *History) Deliveries() int { return len(h.delivered) }

// Failures returns the number of calls that failed and were repeated.
func (h *History) Failures() int64 { return h.failures.Load() }

type payload struct {
	Partition string `json:"p"`
	Sequence  int    `json:"seq"`
}

// Run pushes everything, consumes until settled reports that each group has nothing left, and returns the record. The
// client is asked for before every call, so that a test may move brokers around. Run fails only when ctx ends first.
func Run(ctx context.Context, cfg Config, client func() *wire.Client, settled func(context.Context) (bool, error)) (*History, error) {
	h := &History{cfg: cfg, pushed: map[string]int{}, acked: map[string]map[int]int64{}}
	producing, stopConsumers := context.WithCancel(ctx)
	defer stopConsumers()
	var producers, consumers sync.WaitGroup
	for i := range cfg.Partitions {
		producers.Go(func() { h.produce(ctx, client, fmt.Sprintf("lane-%d", i), rand.New(rand.NewPCG(cfg.Seed, uint64(i)))) })
	}
	for g, group := range cfg.Groups {
		for i := range cfg.Consumers {
			random := rand.New(rand.NewPCG(cfg.Seed+1, uint64(g*1000+i)))
			consumers.Go(func() { h.consume(producing, client, group, random) })
		}
	}
	producers.Wait()
	for ctx.Err() == nil {
		done, err := settled(ctx)
		if err == nil && done {
			break
		}
		pause(ctx, 50*time.Millisecond)
	}
	err := ctx.Err()
	stopConsumers()
	consumers.Wait()
	return h, err
}

// produce pushes the partition's messages in order, repeating each request with the same transaction ids until it is answered.
func (h *History) produce(ctx context.Context, client func() *wire.Client, partition string, random *rand.Rand) {
	for next := 0; next < h.cfg.Messages && ctx.Err() == nil; {
		n := min(1+random.IntN(5), h.cfg.Messages-next)
		items := make([]wire.PushItem, n)
		for i := range items {
			body, _ := json.Marshal(payload{partition, next + i})
			items[i] = wire.PushItem{Queue: h.cfg.Queue, Partition: partition, TransactionID: fmt.Sprintf("%s/%d", partition, next+i), Payload: body}
		}
		verdicts, err := client().Push(ctx, items)
		if err != nil || !allStored(verdicts) {
			h.failed(ctx)
			pause(ctx, 20*time.Millisecond)
			continue
		}
		next += n
		h.mu.Lock()
		h.pushed[partition] = next
		h.mu.Unlock()
	}
}

// failed counts a failed call, unless it failed because the run is over.
func (h *History) failed(ctx context.Context) {
	if ctx.Err() == nil {
		h.failures.Add(1)
	}
}

func allStored(verdicts []wire.PushVerdict) bool {
	for _, v := range verdicts {
		if v.Status != "queued" && v.Status != "duplicate" && v.Status != "buffered" {
			return false
		}
	}
	return len(verdicts) > 0
}

func (h *History) consume(ctx context.Context, client func() *wire.Client, group string, random *rand.Rand) {
	for ctx.Err() == nil {
		asked, askedAt := time.Now(), h.clock.Add(1)
		answer, err := client().Pop(ctx, wire.PopRequest{
			Queue: h.cfg.Queue, AnyPartition: true, Group: group, Batch: 1 + random.IntN(20), Partitions: 1 + random.IntN(3),
			Wait: true, Timeout: 500 * time.Millisecond, LeaseSeconds: h.cfg.Lease, Mode: "all",
		})
		if err != nil {
			h.failed(ctx)
			pause(ctx, 20*time.Millisecond)
			continue
		}
		if answer == nil {
			continue
		}
		got := time.Now()
		for _, messages := range byPartition(answer.Messages) {
			h.settle(ctx, client(), group, messages, delivery{
				partition: messages[0].Partition, group: group, sequences: sequences(messages), asked: asked, got: got,
				leaseEnd: asked.Add(time.Duration(h.cfg.Lease) * time.Second), askedAt: askedAt,
			}, random)
		}
	}
}

// settle ends one delivered batch in one of the ways that real consumers do, and records it.
func (h *History) settle(ctx context.Context, client *wire.Client, group string, messages []wire.Message, d delivery, random *rand.Rand) {
	d.settled = time.Now()
	defer func() {
		h.mu.Lock()
		h.delivered = append(h.delivered, d)
		h.mu.Unlock()
	}()
	upTo, status := len(messages), "completed"
	if random.Float64() < h.cfg.Misbehave {
		switch random.IntN(4) {
		case 0: // the consumer dies: nobody acknowledges
			return
		case 1: // part of the batch, then the consumer dies
			upTo = random.IntN(len(messages) + 1)
		case 2:
			status = "failed"
		case 3:
			status = "retry"
		}
	}
	items := make([]wire.AckItem, 0, upTo)
	failing := random.IntN(len(messages))
	for i, m := range messages[:upTo] {
		item := wire.AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Status: "completed"}
		if status != "completed" && i == failing {
			item.Status = status
		}
		items = append(items, item)
	}
	results, err := client.Ack(ctx, group, items)
	if err != nil || len(results) != len(items) {
		h.failed(ctx)
		return
	}
	at := h.clock.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, r := range results {
		// A completion above an explicit failure of the same request is not final: the tail comes again.
		if status != "completed" && i >= failing && !r.DLQ {
			break
		}
		if r.Success {
			h.markAcked(group, d.partition, d.sequences[i], at)
		}
		if r.DLQ {
			break
		}
	}
}

func (h *History) markAcked(group, partition string, sequence int, at int64) {
	key := group + "\x00" + partition
	if h.acked[key] == nil {
		h.acked[key] = map[int]int64{}
	}
	if _, known := h.acked[key][sequence]; !known {
		h.acked[key][sequence] = at
	}
}

func byPartition(messages []wire.Message) [][]wire.Message {
	var out [][]wire.Message
	for i, m := range messages {
		if i == 0 || messages[i-1].PartitionID != m.PartitionID {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], m)
	}
	return out
}

func sequences(messages []wire.Message) []int {
	out := make([]int, len(messages))
	for i, m := range messages {
		var p payload
		if json.Unmarshal(m.Data, &p) != nil || p.Partition != m.Partition {
			p.Sequence = -1
		}
		out[i] = p.Sequence
	}
	return out
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
