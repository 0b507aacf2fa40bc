package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// pacedRate is the low load of the latency scenario, in messages a second.
const pacedRate = 200

// latency pushes one message at a time at a low, even rate and measures from the moment a message was due until a waiting
// consumer has it. The note compares with the time of one bare commit.
func (b *bench) latency(ctx context.Context) (result, error) {
	if err := b.configure(ctx, `{"leaseTime":30}`); err != nil {
		return result{}, err
	}
	return b.paced(ctx, pacedRate, b.options.length, 8)
}

// paced runs an open loop of one-message pushes beside waiting consumers, and says how it compares with bare calls.
func (b *bench) paced(ctx context.Context, rate int, length time.Duration, consumers int) (result, error) {
	r, err := b.flow(ctx, rate, 1, length, consumers)
	if err != nil {
		return r, err
	}
	bare, err := b.bareCalls(ctx)
	calls := bare.push + bare.claim
	r.figures = figures{"p50 commits": float64(r.p50) / float64(bare.commit), "p99 commits": float64(r.p99) / float64(bare.commit), "p50 calls": float64(r.p50) / float64(calls)}
	r.note = fmt.Sprintf("end to end p50 %.2f ms, p99 %.2f ms; bare commit %.2f ms: p50 is %.1f, p99 %.1f of them; bare push call %.2f ms and claim call %.2f ms: p50 is %.1f, p99 %.1f of both",
		milliseconds(r.p50), milliseconds(r.p99), milliseconds(bare.commit), float64(r.p50)/float64(bare.commit), float64(r.p99)/float64(bare.commit),
		milliseconds(bare.push), milliseconds(bare.claim), float64(r.p50)/float64(calls), float64(r.p99)/float64(calls))
	return r, err
}

// flow runs an open loop of pushes, rate requests a second of so many messages each, beside waiting consumers and measures end to end.
func (b *bench) flow(ctx context.Context, rate, messages int, length time.Duration, consumers int) (result, error) {
	arrivals := newArrivals()
	return b.measured(ctx, func(ctx context.Context) (result, error) {
		consuming, stop := context.WithCancel(ctx)
		defer stop()
		var wait sync.WaitGroup
		failures := make([]error, consumers)
		for i := range consumers {
			wait.Go(func() { failures[i] = b.receive(consuming, arrivals) })
		}
		err := openLoop(ctx, rate, length, func(ctx context.Context, due time.Time) error { return b.pushDue(ctx, due, messages, arrivals) })
		arrivals.await(ctx, 10*time.Second)
		stop()
		wait.Wait()
		if err = errors.Join(append(failures, err)...); err != nil {
			return result{}, err
		}
		return arrivals.result(length)
	})
}

// stride spreads neighbouring messages over many partitions: it shares no factor with usual numbers of them.
func (b *bench) stride() int64 {
	if b.options.partitions > 1000 {
		return 7919
	}
	return 1
}

// pushDue pushes messages that carry the moment they were due, each to a partition of its own.
func (b *bench) pushDue(ctx context.Context, due time.Time, messages int, arrivals *arrivals) error {
	arrivals.expect(messages)
	body := []byte(`{"items":[`)
	for i := range messages {
		if i > 0 {
			body = append(body, ',')
		}
		n := b.sequence.Add(1)
		body = fmt.Appendf(body, `{"queue":%q,"partition":%q,"transactionId":"due-%d","payload":{"due":%d}}`, b.queue, lane(n*b.stride(), b.options.partitions), n, due.UnixNano())
	}
	body = append(body, "]}"...)
	answer, status, err := b.call(ctx, http.MethodPost, "/api/v1/push", body)
	if err == nil && (status != http.StatusCreated || bytes.Count(answer, []byte(`"queued"`)) != messages) {
		err = fmt.Errorf("push answered %d: %.300s", status, answer)
	}
	return err
}

// receive pops with a long poll, notes how late each message is, and acknowledges, until ctx ends.
func (b *bench) receive(ctx context.Context, arrivals *arrivals) error {
	path := "/api/v1/pop/queue/" + url.PathEscape(b.queue) + "?batch=100&partitions=10&consumerGroup=bench&subscriptionMode=all&wait=true&timeout=60000"
	seen := newLedger(-1)
	for ctx.Err() == nil {
		answer, status, err := b.call(ctx, http.MethodGet, path, nil)
		now := time.Now()
		if ctx.Err() != nil || status == http.StatusNoContent {
			continue
		}
		if err != nil || status != http.StatusOK {
			return fmt.Errorf("pop answered %d: %w: %.300s", status, err, answer)
		}
		messages := deliveries(answer)
		for text := answer; ; {
			_, rest, found := bytes.Cut(text, []byte(`{"due":`))
			if !found {
				break
			}
			nanoseconds, _ := strconv.ParseInt(string(rest[:bytes.IndexByte(rest, '}')]), 10, 64)
			arrivals.note(now.Sub(time.Unix(0, nanoseconds)))
			text = rest
		}
		if err := b.acknowledge(context.WithoutCancel(ctx), "bench", messages, seen); err != nil {
			return err
		}
	}
	return seen.verifyOnce()
}

// commitTime is the median time of a bare one-row commit on an otherwise idle database.
func (b *bench) commitTime(ctx context.Context) (time.Duration, error) {
	if _, err := b.pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS public.bench_commit (id int)`); err != nil {
		return 0, err
	}
	times := make([]time.Duration, 200)
	for i := range times {
		begin := time.Now()
		if _, err := b.pool.Exec(ctx, `INSERT INTO public.bench_commit VALUES (1)`); err != nil {
			return 0, err
		}
		times[i] = time.Since(begin)
	}
	p50, _ := percentiles(times)
	return p50, nil
}

// longPoll parks many pops of one group on one queue, pushes ten messages a second, and measures how long a parked pop
// takes to have its message. The note has what the parked pops cost while nothing happens.
func (b *bench) longPoll(ctx context.Context) (result, error) {
	const rate = 10
	arrivals := newArrivals()
	parkedCtx, release := context.WithCancel(ctx)
	defer release()
	var wait sync.WaitGroup
	var failures atomic.Value
	for range b.options.parked {
		wait.Go(func() {
			if err := b.receive(parkedCtx, arrivals); err != nil {
				failures.Store(err)
				release()
			}
		})
	}
	// Everybody is parked when the first round of looks is over; the broker's back-off grows within a second.
	if err := sleepUntil(ctx, time.Now().Add(5*time.Second)); err != nil {
		return result{}, err
	}
	idle, err := b.measured(ctx, func(ctx context.Context) (result, error) {
		return result{elapsed: b.options.length}, sleepUntil(ctx, time.Now().Add(b.options.length))
	})
	if err != nil {
		return result{}, err
	}
	r, err := b.measured(ctx, func(ctx context.Context) (result, error) {
		if err := openLoop(ctx, rate, b.options.length, func(ctx context.Context, due time.Time) error { return b.pushDue(ctx, due, 1, arrivals) }); err != nil {
			return result{}, err
		}
		arrivals.await(ctx, 10*time.Second)
		return arrivals.result(b.options.length)
	})
	release()
	wait.Wait()
	if failure, _ := failures.Load().(error); failure != nil {
		return r, failure
	}
	seconds := b.options.length.Seconds()
	r.figures = figures{"idle": idle.brokerCPU / seconds * 100}
	r.note = fmt.Sprintf("%d parked: idle %.1f%% of a core in the broker, %.1f%% in the database, %.1f commits/s; delivery p50 %.1f ms, p99 %.1f ms", b.options.parked,
		idle.brokerCPU/seconds*100, idle.databaseCPU/seconds*100, float64(idle.commits)/seconds, milliseconds(r.p50), milliseconds(r.p99))
	return r, err
}

// arrivals collects how late messages were. It is safe for concurrent use.
type arrivals struct {
	mu       sync.Mutex
	late     []time.Duration
	expected int
	changed  chan struct{}
}

func newArrivals() *arrivals { return &arrivals{changed: make(chan struct{}, 1)} }

func (a *arrivals) expect(messages int) {
	a.mu.Lock()
	a.expected += messages
	a.mu.Unlock()
}

func (a *arrivals) note(late time.Duration) {
	a.mu.Lock()
	a.late = append(a.late, late)
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *arrivals) counts() (arrived, expected int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.late), a.expected
}

// await returns when everything expected has arrived, or after limit.
func (a *arrivals) await(ctx context.Context, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		if arrived, expected := a.counts(); arrived >= expected {
			return
		}
		select {
		case <-a.changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// result fails when something did not arrive exactly once.
func (a *arrivals) result(length time.Duration) (result, error) {
	arrived, expected := a.counts()
	if arrived != expected {
		return result{}, fmt.Errorf("%d messages pushed, %d deliveries", expected, arrived)
	}
	r := result{messages: int64(arrived), calls: int64(arrived), counted: int64(arrived), elapsed: length, paced: true}
	r.p50, r.p99 = percentiles(a.late)
	return r, nil
}

// verifyOnce fails when a message came more than once.
func (l *ledger) verifyOnce() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.again != 0 {
		return fmt.Errorf("%d messages delivered again", l.again)
	}
	return nil
}
