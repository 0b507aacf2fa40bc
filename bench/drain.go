package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// drainLimit bounds the time a scenario may take to empty its queue.
const drainLimit = 30 * time.Minute

// drain pushes for a while and then measures how fast a group empties the queue.
func (b *bench) drain(ctx context.Context) (result, error) {
	if _, err := closedLoop(ctx, 0, b.options.length, b.pushers(100, b.options.producers)); err != nil {
		return result{}, err
	}
	return b.empty(ctx, 100, 1)
}

// drainBacklog is drain over a given, larger number of messages.
func (b *bench) drainBacklog(ctx context.Context) (result, error) {
	limited := b.pushers(1000, b.options.producers)
	for i, push := range limited {
		limited[i] = func(ctx context.Context) (int, error) {
			if b.sequence.Load()*1000 >= b.options.backlog {
				return 0, errDrained
			}
			return push(ctx)
		}
	}
	if _, err := closedLoop(ctx, 0, drainLimit, limited); err != nil {
		return result{}, err
	}
	return b.empty(ctx, 1000, 1)
}

// empty reads the queue to its end with one group and verifies that everything came exactly once.
func (b *bench) empty(ctx context.Context, batch, partitions int) (result, error) {
	stored, err := b.stored(ctx)
	if err != nil {
		return result{}, err
	}
	seen := newLedger(stored)
	r, err := b.measured(ctx, func(ctx context.Context) (result, error) {
		return closedLoop(ctx, 0, drainLimit, b.consumers("bench", batch, partitions, b.options.consumers, seen))
	})
	if err != nil {
		return r, err
	}
	return r, seen.verify()
}

// pipeline pushes and consumes at the same time with two groups; the rate is that of one group, and producers are as many
// as the consumers of a group so that neither side starves.
func (b *bench) pipeline(ctx context.Context) (result, error) {
	groups := []string{"billing", "mail"}
	ledgers := []*ledger{newLedger(-1), newLedger(-1)}
	var delivered, pushed result
	r, err := b.measured(ctx, func(ctx context.Context) (result, error) {
		var failures [2]error
		var sides sync.WaitGroup
		sides.Go(func() {
			pushed, failures[0] = closedLoop(ctx, b.options.warmUp, b.options.length, b.pushers(100, b.options.consumers))
		})
		sides.Go(func() {
			var workers []worker
			for i, group := range groups {
				workers = append(workers, b.consumers(group, 100, 1, b.options.consumers, ledgers[i])...)
			}
			delivered, failures[1] = closedLoop(ctx, b.options.warmUp, b.options.length, workers)
		})
		sides.Wait()
		delivered.messages /= int64(len(groups))
		delivered.counted /= int64(len(groups))
		return delivered, errors.Join(failures[:]...)
	})
	if err != nil {
		return r, err
	}
	r.figures = figures{"pushed": pushed.rate()}
	r.note = fmt.Sprintf("pushed %.0f messages/s, delivered %.0f messages/s to each of 2 groups", pushed.rate(), r.rate())
	stored, err := b.stored(ctx)
	if err != nil {
		return r, err
	}
	for i, group := range groups {
		ledgers[i].want.Store(stored)
		if _, err := closedLoop(ctx, 0, drainLimit, b.consumers(group, 1000, 10, b.options.consumers, ledgers[i])); err != nil {
			return r, err
		}
		if err := ledgers[i].verify(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// sparse spreads one message over each of 10,000 partitions, a hundred partitions a request, and then drains them: the
// rate is that of the drain, the note has the push.
func (b *bench) sparse(ctx context.Context) (result, error) {
	const lanes, perRequest = 10_000, 100
	var next atomic.Int64
	workers := make([]worker, b.options.producers)
	for i := range workers {
		p := b.newPusher(uint64(i))
		workers[i] = func(ctx context.Context) (int, error) {
			first := next.Add(perRequest) - perRequest
			if first >= 2*lanes {
				return 0, errDrained
			}
			return perRequest, p.push(ctx, perRequest, func(k int) string { return lane(first+int64(k), lanes) })
		}
	}
	pushed, err := b.measured(ctx, func(ctx context.Context) (result, error) { return closedLoop(ctx, 0, drainLimit, workers) })
	if err != nil {
		return result{}, err
	}
	r, err := b.empty(ctx, 100, 100)
	r.figures = figures{"pushed CPU": pushed.cpu()}
	r.note = fmt.Sprintf("pushed %.0f messages/s with %.0f CPU s per million (broker and database)", pushed.rate(), pushed.cpu()*1e6)
	return r, err
}

// consumers pop batches and acknowledge each whole; they end when the ledger is complete.
func (b *bench) consumers(group string, batch, partitions, n int, seen *ledger) []worker {
	path := b.popPath(group, batch, partitions)
	workers := make([]worker, n)
	for i := range workers {
		workers[i] = func(ctx context.Context) (int, error) {
			if seen.complete() {
				return 0, errDrained
			}
			messages, err := b.pop(ctx, path)
			if err != nil || len(messages) == 0 {
				return 0, err
			}
			return len(messages), b.acknowledge(ctx, group, messages, seen)
		}
	}
	return workers
}

// A delivery is what a consumer needs of a message.
type delivery struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId"`
}

func (b *bench) pop(ctx context.Context, path string) ([]delivery, error) {
	answer, status, err := b.call(ctx, http.MethodGet, path, nil)
	if err != nil || status == http.StatusNoContent {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("pop answered %d: %.300s", status, answer)
	}
	return deliveries(answer), nil
}

// deliveries reads the addresses out of a pop answer without decoding its payloads, which would make the load dearer than
// the broker. It relies on the order of the fields in an answer and on payloads without such keys; a miss shows as a
// failed acknowledgment.
func deliveries(answer []byte) []delivery {
	_, answer, _ = bytes.Cut(answer, []byte(`"messages":[`))
	var out []delivery
	var last delivery
	for {
		var id, partition, lease []byte
		var ok bool
		if id, answer, ok = field(answer, `"transactionId":"`); !ok {
			return out
		}
		if partition, answer, ok = field(answer, `"partitionId":"`); !ok {
			return out
		}
		if lease, answer, ok = field(answer, `"leaseId":"`); !ok {
			return out
		}
		if string(partition) != last.PartitionID {
			last.PartitionID = string(partition)
		}
		if string(lease) != last.LeaseID {
			last.LeaseID = string(lease)
		}
		last.TransactionID = string(id)
		out = append(out, last)
	}
}

func field(text []byte, marker string) (value, rest []byte, ok bool) {
	_, text, ok = bytes.Cut(text, []byte(marker))
	if !ok {
		return nil, nil, false
	}
	end := bytes.IndexByte(text, '"')
	return text[:end], text[end:], true
}

func (b *bench) acknowledge(ctx context.Context, group string, messages []delivery, seen *ledger) error {
	body := fmt.Appendf(nil, `{"consumerGroup":%q,"acknowledgments":[`, group)
	for i, m := range messages {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(append(body, `{"transactionId":"`...), m.TransactionID...)
		body = append(append(body, `","partitionId":"`...), m.PartitionID...)
		body = append(append(body, `","leaseId":"`...), m.LeaseID...)
		body = append(body, `","status":"completed"}`...)
	}
	answer, status, err := b.call(ctx, http.MethodPost, "/api/v1/ack/batch", append(body, "]}"...))
	if err != nil {
		return err
	}
	if n := bytes.Count(answer, []byte(`"success":true`)); status != http.StatusOK || n != len(messages) {
		return fmt.Errorf("ack answered %d with %d of %d successes: %.300s", status, n, len(messages), answer)
	}
	seen.note(messages)
	return nil
}

// A ledger counts deliveries by transaction id. It is safe for concurrent use.
type ledger struct {
	// want is how many messages there are, negative while that is not known.
	want  atomic.Int64
	total atomic.Int64

	mu    sync.Mutex
	times map[[36]byte]struct{} // by transaction id
	again int64
}

func newLedger(want int64) *ledger {
	l := &ledger{times: make(map[[36]byte]struct{}, max(want, 0))}
	l.want.Store(want)
	return l
}

func (l *ledger) note(messages []delivery) {
	l.mu.Lock()
	for _, m := range messages {
		var id [36]byte
		copy(id[:], m.TransactionID)
		before := len(l.times)
		l.times[id] = struct{}{}
		if len(l.times) == before {
			l.again++
		}
	}
	l.total.Store(int64(len(l.times)))
	l.mu.Unlock()
}

func (l *ledger) complete() bool { want := l.want.Load(); return want >= 0 && l.total.Load() >= want }

// verify fails when messages are missing or came more than once.
func (l *ledger) verify() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lost := l.want.Load() - int64(len(l.times)); lost != 0 || l.again != 0 {
		return fmt.Errorf("%d messages lost, %d delivered again", lost, l.again)
	}
	return nil
}
