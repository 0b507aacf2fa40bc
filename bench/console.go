package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The cell that console looks at: consoleQueues queues, of which one has half of the partitions.
const (
	consoleQueues     = 5000
	consolePartitions = 100_000
)

// Console pollers, and how often each asks for every page.
const (
	consolePollers = 20
	consolePeriod  = 30 * time.Second
	// consoleRounds is how often each page is measured.
	consoleRounds = 5
)

// consoleLimit is how long a page may take.
const consoleLimit = 2 * time.Second

// A measuredPage is one page of the console, as the request behind it.
type measuredPage struct {
	name, path string
	// once pages are opened by a person and not polled.
	once bool
}

// measuredPages are the pages measured: of a cell of queues named after queue, one of which is small.
func measuredPages(queue, small string) []measuredPage {
	return []measuredPage{
		{name: "queue list", path: "/api/v1/resources/queues?stats=cached"},
		{name: "queue list, live", path: "/api/v1/resources/queues", once: true},
		{name: "queue list, first 100", path: "/api/v1/resources/queues?stats=cached&limit=100"},
		{name: "queue statuses", path: "/api/v1/status/queues"},
		{name: "queue status, 10 partitions", path: "/api/v1/status/queues/" + small},
		{name: "queue status, 50,000 partitions", path: "/api/v1/status/queues/" + queue + ".big", once: true},
		{name: "queue, 10 partitions", path: "/api/v1/resources/queues/" + small},
		{name: "queue, 50,000 partitions", path: "/api/v1/resources/queues/" + queue + ".big", once: true},
		{name: "partitions, first 100 of 50,000", path: "/api/v1/resources/queues/" + queue + ".big/partitions"},
		{name: "status", path: "/api/v1/status"},
		{name: "overview", path: "/api/v1/resources/overview"},
		{name: "consumer groups", path: "/api/v1/consumer-groups"},
		{name: "lagging partitions", path: "/api/v1/consumer-groups/lagging?minLagSeconds=60"},
		{name: "messages", path: "/api/v1/messages", once: true},
		{name: "dead letters", path: "/api/v1/dlq"},
		{name: "metrics/prometheus", path: "/metrics/prometheus"},
	}
}

// console measures the pages that an operator's console polls, on a cell with many queues and partitions of which one in a hundred
// lags. A call is one round through all pages; messages are pages. The note has the time of each page and what 20 consoles that ask
// for every polled page each 30 seconds would take of the database's processors.
func (b *bench) console(ctx context.Context) (result, error) {
	if err := b.furnishCell(ctx); err != nil {
		return result{}, fmt.Errorf("fill the cell: %w", err)
	}
	small := fmt.Sprintf("%s.q%d", b.queue, consoleQueues/2)
	pages := measuredPages(b.queue, small)
	times := make([][]time.Duration, len(pages))
	costs, sizes := make([]float64, len(pages)), make([]int, len(pages))
	round := func(keep bool) error {
		for i, page := range pages {
			before := b.databaseSeconds()
			took, size, err := b.page(ctx, page.path)
			if err != nil {
				return fmt.Errorf("%s: %w", page.name, err)
			}
			if keep {
				times[i], sizes[i] = append(times[i], took), size
				costs[i] += b.databaseSeconds() - before
			}
		}
		return nil
	}
	if err := round(false); err != nil { // fills caches
		return result{}, err
	}
	r, err := b.measured(ctx, func(ctx context.Context) (result, error) {
		begin := time.Now()
		var each []time.Duration
		for range consoleRounds {
			asked := time.Now()
			if err := round(true); err != nil {
				return result{}, err
			}
			each = append(each, time.Since(asked))
		}
		n := int64(consoleRounds * len(pages))
		out := result{messages: n, counted: n, calls: consoleRounds, elapsed: time.Since(begin)}
		out.p50, out.p99 = percentiles(each)
		return out, nil
	})
	if err != nil {
		return r, err
	}
	r.note = consoleNote(pages, times, costs, sizes, r.brokerCPU)
	return r, nil
}

// consoleNote says what each page took, and what many consoles would.
func consoleNote(pages []measuredPage, times [][]time.Duration, costs []float64, sizes []int, brokerCPU float64) string {
	var note strings.Builder
	polled := 0.0
	for i, page := range pages {
		if !page.once {
			polled += costs[i] / consoleRounds
		}
	}
	fmt.Fprintf(&note, "%d queues, %d partitions; database CPU %.2f s a round of the polled pages; %d consoles, one round each %s: %.2f of a processor of the database; broker CPU %.2f s a round of all pages",
		consoleQueues, consolePartitions, polled, consolePollers, consolePeriod, polled*consolePollers/consolePeriod.Seconds(), brokerCPU/consoleRounds)
	for i, page := range pages {
		slices.Sort(times[i])
		middle := times[i][len(times[i])/2]
		fmt.Fprintf(&note, "\n  %-32s %7.1f ms, slowest %7.1f ms, %8d bytes, %4.0f ms database CPU", page.name, milliseconds(middle), milliseconds(times[i][len(times[i])-1]), sizes[i], 1000*costs[i]/consoleRounds)
		if page.once {
			note.WriteString(", not polled")
		}
		if middle > consoleLimit {
			fmt.Fprintf(&note, " TOO SLOW")
		}
	}
	return note.String()
}

// databaseSeconds is the processor time of the database so far, 0 when it runs elsewhere.
func (b *bench) databaseSeconds() float64 {
	if b.postmaster == 0 {
		return 0
	}
	return treeSeconds(b.postmaster)
}

// page asks for one page and reads it to its end.
func (b *bench) page(ctx context.Context, path string) (took time.Duration, size int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+path, nil)
	if err != nil {
		return 0, 0, err
	}
	asked := time.Now()
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	n, err := io.Copy(io.Discard, answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", path, answer.Status)
	}
	return time.Since(asked), int(n), err
}

// furnishCell makes the queues and partitions, a segment and a cursor in each, by SQL: what is measured are reads. The segments hold a
// real message, copied from one that the broker stored.
func (b *bench) furnishCell(ctx context.Context) error {
	source := &bench{stand: b.stand, queue: b.queue + ".source", lines: b.lines}
	if err := source.newPusher(1).push(ctx, 1, func(int) string { return "p" }); err != nil {
		return err
	}
	for _, step := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO queen.queues (name, namespace) SELECT $1 || '.q' || g, 'ns' || g % 50 FROM generate_series(1, $2::int - 1) g`, []any{b.queue, consoleQueues}},
		{`INSERT INTO queen.queues (name, namespace) VALUES ($1 || '.big', 'ns0')`, []any{b.queue}},
		{`INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at, oldest_live_at)
			SELECT q.id, 'p' || g, 0, clock_timestamp() - make_interval(secs => g % 3600), clock_timestamp() - make_interval(secs => g % 3600) FROM generate_series(1, $2::int) g
			  JOIN queen.queues q ON q.name = $1 || CASE WHEN g <= $2::int / 2 THEN '.big' ELSE '.q' || 1 + g % ($3::int - 1) END`, []any{b.queue, consolePartitions, consoleQueues}},
		{`INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob)
			SELECT p.id, 0, 0, p.last_write_at, s.blob FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id,
			       (SELECT s.blob FROM queen.log_segments s JOIN queen.log_partitions x ON x.id = s.partition_id JOIN queen.queues y ON y.id = x.queue_id WHERE y.name = $1 || '.source' LIMIT 1) s
			 WHERE q.name LIKE $1 || '.q%' OR q.name = $1 || '.big'`, []any{b.queue}},
		{`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed)
			SELECT p.id, 'g', CASE WHEN substr(p.name, 2)::int % 100 = 0 THEN -1 ELSE 0 END FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
			 WHERE q.name LIKE $1 || '.q%' OR q.name = $1 || '.big'`, []any{b.queue}},
		{`INSERT INTO queen.queue_lag_metrics (bucket_time, queue_id, push_message_count, pop_count)
			SELECT date_trunc('minute', now()) - interval '1 min', id, 10, 10 FROM queen.queues WHERE name LIKE $1 || '.q%'
				ON CONFLICT (bucket_time, queue_id) DO UPDATE SET push_message_count = 10, pop_count = 10`, []any{b.queue}},
		{`VACUUM (ANALYZE) queen.queues, queen.log_partitions, queen.log_segments, queen.log_consumers, queen.queue_lag_metrics`, nil},
	} {
		if _, err := b.pool.Exec(ctx, step.sql, step.args...); err != nil {
			return fmt.Errorf("%w: %s", err, step.sql)
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, b.base+"/api/v1/stats/refresh", nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}
