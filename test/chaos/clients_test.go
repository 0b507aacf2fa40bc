package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"queenmq/test/wire"
)

const (
	sourceQueue = "chaos.source"
	sinkQueue   = "chaos.sink"
	// leaseSeconds is short, so that the longer faults outlast it.
	leaseSeconds = 3
	// patience is how long a client waits for an answer. Faults are shorter, most of the time.
	patience = 8 * time.Second
	// popWait is how long pops park.
	popWait = 700 * time.Millisecond
)

// A workload is the clients of one run.
type workload struct {
	*history
	brokers []*wire.Client
	seed    uint64
}

// body is what messages carry: enough to know whether they are what was pushed.
type body struct {
	Partition string `json:"p"`
	Sequence  int    `json:"s"`
	Filler    string `json:"f"`
}

func newBody(partition string, sequence int) body {
	return body{partition, sequence, strings.Repeat(fmt.Sprintf("%s/%d ", partition, sequence), 1+sequence%7)}
}

func (w *workload) random(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, stream)) }

// any picks a broker.
func (w *workload) any(random *rand.Rand) int { return random.IntN(len(w.brokers)) }

// start runs the clients until the returned functions are called: the first ends the producers when their last push is answered or ctx
// ends, the second ends the consumers.
func (w *workload) start(ctx context.Context) (endProducers, endConsumers func()) {
	producing, stopProducing := context.WithCancel(ctx)
	consuming, stopConsuming := context.WithCancel(ctx)
	var producers, consumers sync.WaitGroup
	stream := uint64(0)
	next := func() *rand.Rand { stream++; return w.random(stream) }
	w.Groups[sourceQueue] = []string{"plain", "pipe"}
	w.Groups[sinkQueue] = []string{"sink"}
	for i := range 6 {
		l := lane{sourceQueue, fmt.Sprintf("sticky-%d", i)}
		w.Sticky[l] = true
		w.Moved[l] = lane{sinkQueue, l.Partition}
		random := next()
		producers.Go(func() { w.produce(producing, ctx, l, func() int { return i % len(w.brokers) }, random) })
	}
	for i := range 3 {
		l := lane{sourceQueue, fmt.Sprintf("roaming-%d", i)}
		w.Moved[l] = lane{sinkQueue, l.Partition}
		random, where := next(), next()
		producers.Go(func() { w.produce(producing, ctx, l, func() int { return w.any(where) }, random) })
	}
	for range 4 {
		random := next()
		consumers.Go(func() { w.consume(consuming, sourceQueue, "plain", random, w.acknowledge) })
	}
	for i := range 3 {
		random := next()
		consumers.Go(func() { w.consume(consuming, sourceQueue, "pipe", random, w.mover(i)) })
	}
	for range 2 {
		random := next()
		consumers.Go(func() { w.consume(consuming, sinkQueue, "sink", random, w.acknowledge) })
	}
	return func() { stopProducing(); producers.Wait() }, func() { stopConsuming(); consumers.Wait() }
}

// produce pushes numbered messages to one lane, repeating each push until it is answered for, until producing ends; then it sees the last one
// through, until ctx ends.
func (w *workload) produce(producing, ctx context.Context, l lane, where func() int, random *rand.Rand) {
	for next := 0; producing.Err() == nil; {
		n := 1 + random.IntN(5)
		items := make([]wire.PushItem, n)
		for i := range items {
			text, _ := json.Marshal(newBody(l.Partition, next+i))
			items[i] = wire.PushItem{Queue: l.Queue, Partition: l.Partition, TransactionID: fmt.Sprintf("%s/%d", l.Partition, next+i), Payload: text}
		}
		w.pushing(l, next+n)
		for first := next; len(items) > 0; {
			broker := where()
			answering, cancel := context.WithTimeout(ctx, patience)
			verdicts, err := w.brokers[broker].Push(answering, items)
			cancel()
			w.failed("push", err)
			done := 0
			if err == nil && len(verdicts) != len(items) {
				w.strange("push of %d items answered by %d verdicts", len(items), len(verdicts))
			}
			for i, v := range verdicts {
				switch v.Status {
				case "queued", "duplicate", "buffered":
					w.pushed(l, first+i, accepted{v.Status, broker})
					w.answered("push " + v.Status)
					done = i + 1
				case "failed":
					w.answered("push failed " + v.Code)
				default:
					w.strange("push verdict %+v", v)
				}
				if done != i+1 {
					break
				}
			}
			if items, first = items[done:], first+done; len(items) == 0 {
				break
			}
			if ctx.Err() != nil {
				return
			}
			pause(ctx, time.Duration(10+random.IntN(40))*time.Millisecond)
		}
		next += n
		pause(producing, time.Duration(20+random.IntN(130))*time.Millisecond)
	}
}

// settler ends the lease of one batch of one lane, and says until when nobody else may have had it.
type settler func(ctx context.Context, v view, messages []wire.Message, got time.Time, random *rand.Rand) (held time.Time)

// consume pops from any broker until ctx ends.
func (w *workload) consume(ctx context.Context, queue, group string, random *rand.Rand, settle settler) {
	for ctx.Err() == nil {
		limit := patience
		if random.IntN(20) == 0 { // a client that leaves, perhaps while its answer is on the way
			limit = time.Duration(random.IntN(60)) * time.Millisecond
		}
		asking, cancel := context.WithTimeout(ctx, limit)
		asked, order := time.Now(), w.moment()
		batch, err := w.brokers[w.any(random)].Pop(asking, wire.PopRequest{
			Queue: queue, AnyPartition: true, Group: group, Batch: 1 + random.IntN(40), Partitions: 1 + random.IntN(3), Wait: true, Timeout: popWait,
			LeaseSeconds: leaseSeconds, Mode: "all",
		})
		got := time.Now()
		cancel()
		if limit == patience {
			w.failed("pop", err)
		}
		if err != nil {
			pause(ctx, time.Duration(10+random.IntN(40))*time.Millisecond)
			continue
		}
		if batch == nil {
			continue
		}
		for _, messages := range byPartition(batch.Messages) {
			d := delivery{view: view{lane{queue, messages[0].Partition}, group}, Asked: asked, Got: got, Order: order}
			for _, m := range messages {
				d.Sequences = append(d.Sequences, w.sequence(m))
			}
			// What is never given back stays held until its lease ends.
			end := asked.Add(leaseSeconds*time.Second - clockMargin)
			if d.Held = settle(ctx, d.view, messages, got, random); d.Held.IsZero() || d.Held.After(end) {
				d.Held = end
			}
			w.delivered(d)
		}
	}
}

// sequence reads the number of a message and looks whether its contents are what was pushed.
func (w *workload) sequence(m wire.Message) int {
	var got body
	if err := json.Unmarshal(m.Data, &got); err != nil {
		w.strange("%s/%s was delivered with the contents %q", m.Queue, m.Partition, m.Data)
		return -1
	}
	if got != newBody(m.Partition, got.Sequence) {
		w.strange("%s/%s was delivered with the contents %q", m.Queue, m.Partition, m.Data)
	}
	return got.Sequence
}

// acknowledge ends a batch in one of the ways that real consumers do.
func (w *workload) acknowledge(ctx context.Context, v view, messages []wire.Message, got time.Time, random *rand.Rand) time.Time {
	upTo, status := len(messages), "completed"
	switch random.IntN(60) {
	case 0: // the consumer dies
		return time.Time{}
	case 1: // part of the batch, then it dies
		upTo = random.IntN(len(messages) + 1)
	case 2:
		status = "failed"
	case 3:
		status = "retry"
	case 4, 5, 6, 7, 8, 9: // slow work
		pause(ctx, time.Duration(random.IntN(300))*time.Millisecond)
	}
	failing := random.IntN(len(messages))
	items := make([]wire.AckItem, 0, upTo)
	for i, m := range messages[:upTo] {
		item := wire.AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Status: "completed"}
		if status != "completed" && i == failing {
			item.Status = status
		}
		items = append(items, item)
	}
	if len(items) == 0 {
		return time.Time{}
	}
	held := time.Now()
	for range 1 + random.IntN(2) { // an acknowledgment may be repeated, here or at another broker
		asking, cancel := context.WithTimeout(ctx, patience)
		results, err := w.brokers[w.any(random)].Ack(asking, v.Group, items)
		cancel()
		w.failed("ack", err)
		if err != nil {
			continue
		}
		if len(results) != len(items) {
			w.strange("ack of %d items answered by %d results", len(items), len(results))
			break
		}
		order := w.moment()
		for i, r := range results {
			// A completion above an explicit failure of the same request is not final: the tail comes again.
			if status != "completed" && i >= failing && !r.DLQ {
				break
			}
			if r.Success {
				w.settled(v, w.sequence(messages[i]), order)
			}
			if r.DLQ {
				break
			}
		}
		if status != "completed" {
			break // a repeated failure would count once more
		}
	}
	if upTo < len(messages) {
		return time.Time{} // the rest stays leased
	}
	return held
}

// mover settles batches by transactions that push a copy of each message to the sink. Every attempt has ids of its own, so that nothing but
// atomicity keeps a message from being there twice.
func (w *workload) mover(worker int) settler {
	attempt := 0
	return func(ctx context.Context, v view, messages []wire.Message, got time.Time, random *rand.Rand) time.Time {
		if random.IntN(60) == 0 {
			return time.Time{}
		}
		attempt++
		var operations []wire.Operation
		for _, m := range messages {
			operations = append(operations,
				wire.Operation{Type: "ack", TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, ConsumerGroup: v.Group, Status: "completed"},
				wire.Operation{Type: "push", Items: []wire.PushItem{{
					Queue: sinkQueue, Partition: v.Partition, TransactionID: fmt.Sprintf("%s@%d.%d", m.TransactionID, worker, attempt), Payload: m.Data,
				}}})
		}
		held := time.Now()
		asking, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		answer, err := w.brokers[w.any(random)].Transaction(asking, operations)
		w.failed("transaction", err)
		switch {
		case err != nil:
		case answer.Success:
			order := w.moment()
			for _, m := range messages {
				w.settled(v, w.sequence(m), order)
			}
		default:
			w.answered("transaction rolled back: " + answer.Error)
			return time.Time{}
		}
		return held
	}
}

// failed notes how a call failed. Only some answers are good ones while something is broken.
func (w *workload) failed(call string, err error) {
	var status *wire.StatusError
	switch {
	case err == nil || errors.Is(err, context.Canceled):
	case errors.As(err, &status):
		var said struct{ Code string }
		if json.Unmarshal([]byte(status.Body), &said) != nil || said.Code == "" || status.Status != 503 {
			w.strange("%s answered %d %s", call, status.Status, status.Body)
			return
		}
		w.answered(call + " " + said.Code)
	case errors.Is(err, context.DeadlineExceeded):
		w.answered(call + " without an answer in time")
	default:
		w.answered(call + " without an answer")
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

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
