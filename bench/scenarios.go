package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A scenario is one kind of load. It measures on a queue of its own and verifies what it did.
type scenario struct {
	name string
	run  func(ctx context.Context, b *bench) (result, error)
}

// scenarios are all kinds of load, in the order in which they are best read.
var scenarios = append([]scenario{
	{"ceiling-1", func(ctx context.Context, b *bench) (result, error) { return b.ceiling(ctx, 100, 1) }},
	{"ceiling-16", func(ctx context.Context, b *bench) (result, error) { return b.ceiling(ctx, 100, 16) }},
	{"segments-1", func(ctx context.Context, b *bench) (result, error) { return b.ceiling(ctx, 1, 1) }},
	{"segments-16", func(ctx context.Context, b *bench) (result, error) { return b.ceiling(ctx, 1, 16) }},
	{"segments-64", func(ctx context.Context, b *bench) (result, error) { return b.ceiling(ctx, 1, 64) }},
	{"segments-256", func(ctx context.Context, b *bench) (result, error) { return b.ceiling(ctx, 1, 256) }},
	{"rows", func(ctx context.Context, b *bench) (result, error) { return b.rows(ctx) }},
	{"push-100", func(ctx context.Context, b *bench) (result, error) { return b.push(ctx, 100, b.options.producers) }},
	{"push-1", func(ctx context.Context, b *bench) (result, error) { return b.push(ctx, 1, b.options.singles) }},
	{"drain", func(ctx context.Context, b *bench) (result, error) { return b.drain(ctx) }},
	{"pipeline", func(ctx context.Context, b *bench) (result, error) { return b.pipeline(ctx) }},
	{"sparse", func(ctx context.Context, b *bench) (result, error) { return b.sparse(ctx) }},
	{"cardinality", func(ctx context.Context, b *bench) (result, error) { return b.cardinality(ctx) }},
	{"longpoll", func(ctx context.Context, b *bench) (result, error) { return b.longPoll(ctx) }},
	{"latency", func(ctx context.Context, b *bench) (result, error) { return b.latency(ctx) }},
	{"backlog", func(ctx context.Context, b *bench) (result, error) { return b.drainBacklog(ctx) }},
	{"dedup", func(ctx context.Context, b *bench) (result, error) { return b.dedup(ctx) }},
	{"console", func(ctx context.Context, b *bench) (result, error) { return b.console(ctx) }},
	{"consoles", func(ctx context.Context, b *bench) (result, error) { return b.consoles(ctx) }},
	{"soak", func(ctx context.Context, b *bench) (result, error) { return b.soak(ctx) }},
}, cellScenarios()...)

func scenarioNames() []string {
	names := make([]string, len(scenarios))
	for i, s := range scenarios {
		names[i] = s.name
	}
	return names
}

func scenarioOf(name string) *scenario {
	for i := range scenarios {
		if scenarios[i].name == name {
			return &scenarios[i]
		}
	}
	return nil
}

// A bench is one run of one scenario: a queue of its own on the stand.
type bench struct {
	*stand
	queue    string
	lines    *client
	sequence atomic.Int64
}

// run makes one run of a scenario.
func (s *stand) run(ctx context.Context, sc *scenario, queue string) (result, error) {
	b := &bench{stand: s, queue: queue, lines: newClient(strings.TrimPrefix(s.base, "http://"))}
	defer b.lines.close()
	resetPeak(s.broker.Process.Pid)
	return sc.run(ctx, b)
}

// measured runs part and sets the counters of the machine around it.
func (b *bench) measured(ctx context.Context, part func(ctx context.Context) (result, error)) (result, error) {
	before, err := b.counters(ctx)
	if err != nil {
		return result{}, err
	}
	r, err := b.profiled(ctx, part)
	if err != nil {
		return result{}, err
	}
	after, err := b.counters(ctx)
	r.add(before, after)
	return r, err
}

// lane spreads work over the given number of partitions.
func lane(i int64, partitions int) string {
	return "lane-" + strconv.FormatInt(i%int64(partitions), 10)
}

// stored is the number of messages that the database holds of the queue.
func (b *bench) stored(ctx context.Context) (int64, error) {
	rows, err := b.pool.Query(ctx, `SELECT COALESCE(sum(p.last_offset - p.log_start + 1), 0)::bigint
		FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1`, b.queue)
	if err != nil {
		return 0, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
}

// verifyStored fails when less is stored than was answered "queued".
func (b *bench) verifyStored(ctx context.Context, answered int64) error {
	stored, err := b.stored(ctx)
	if err == nil && stored < answered {
		err = fmt.Errorf("%d messages were answered queued, only %d are stored", answered, stored)
	}
	return err
}

// connection returns a function that hands out one pooled connection per worker, given back when the run ends.
func (b *bench) connection() func(ctx context.Context) (*pgxpool.Conn, error) {
	var conn *pgxpool.Conn
	return func(ctx context.Context) (*pgxpool.Conn, error) {
		if conn != nil {
			return conn, nil
		}
		var err error
		if conn, err = b.pool.Acquire(ctx); err == nil {
			context.AfterFunc(ctx, conn.Release)
		}
		return conn, err
	}
}
