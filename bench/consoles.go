package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// openConsoles is how many people look, each at one page, which refreshes every consoleEvery as it does unless told otherwise.
	openConsoles = 20
	consoleEvery = 15 * time.Second
	// consolesFor is how long they look while it is measured.
	consolesFor = 2 * time.Minute
)

// A read is what a page of the console asks for: with every so many refreshes, and content with an answer that is a little younger than
// that (dashboard/src/lib/ticker.svelte.ts). fresh ones are never shared.
type read struct {
	path  string
	beats int
	fresh bool
}

// consolePages are the reads of the pages that people leave open, as dashboard/src/pages has them.
func consolePages(queue string) [][]read {
	overview := []read{
		{path: "/api/v1/resources/overview"},
		{path: "/api/v1/analytics/worker-metrics"},
		{path: "/api/v1/resources/consumer-groups?behind=true&sort=-age&limit=100", beats: 2},
		{path: "/readyz"},
		{path: "/api/v1/leases?abandoned=true&limit=1", beats: 2},
		{path: "/api/v1/resources/capacity", beats: 2},
		{path: "/api/v1/dlq/shapes?limit=5", beats: 2},
		{path: "/api/v1/analytics/postgres-stats", beats: 4},
		{path: "/api/v1/analytics/retention", beats: 4},
		{path: "/api/v1/system/brokers", beats: 2},
		{path: "/api/v1/system/maintenance"},
	}
	return [][]read{
		overview, overview, overview,
		{{path: "/api/v1/resources/queues?sort=name&limit=100"}, {path: "/api/v1/resources/namespaces", beats: 4}, {path: "/api/v1/resources/tasks", beats: 4}, {path: "/api/v1/analytics/queue-ops", beats: 4}},
		{{path: "/api/v1/resources/queues?queue=" + queue}, {path: "/api/v1/analytics/queue-ops?queue=" + queue}, {path: "/api/v1/dlq/count?queue=" + queue, beats: 2}},
		{{path: "/api/v1/resources/queues?queue=" + queue}, {path: "/api/v1/resources/queues/" + queue + "/partitions?sort=depth&leases=true&limit=500"}, {path: "/api/v1/resources/queues/" + queue + "/options", beats: 4}},
		{{path: "/api/v1/messages?queue=" + queue + "&limit=100"}},
		{{path: "/api/v1/dlq/shapes?limit=50"}, {path: "/api/v1/dlq/count"}, {path: "/api/v1/dlq?limit=100"}},
		{{path: "/api/v1/resources/consumer-groups?sort=-age&limit=100"}},
		{{path: "/readyz"}, {path: "/api/v1/system/brokers"}, {path: "/api/v1/system/maintenance", fresh: true}, {path: "/api/v1/status/buffers"}},
	}
}

// consoles measures what 20 open consoles take of the database: on the cell of console, twice each page of consolePages, refreshing every
// 15 seconds. A call is one refresh of one page; messages are reads. The database is idle but for them.
func (b *bench) consoles(ctx context.Context) (result, error) {
	if err := b.furnishCell(ctx); err != nil {
		return result{}, fmt.Errorf("fill the cell: %w", err)
	}
	idleBegin, idleFrom := b.databaseSeconds(), time.Now()
	select {
	case <-time.After(30 * time.Second):
	case <-ctx.Done():
		return result{}, ctx.Err()
	}
	idle := (b.databaseSeconds() - idleBegin) / time.Since(idleFrom).Seconds()

	pages := consolePages(fmt.Sprintf("%s.q%d", b.queue, consoleQueues/2))
	var reads, refreshes atomic.Int64
	var taken float64
	r, err := b.measured(ctx, func(ctx context.Context) (result, error) {
		ctx, cancel := context.WithTimeout(ctx, consolesFor)
		defer cancel()
		begin, from := b.databaseSeconds(), time.Now()
		var people sync.WaitGroup
		faults := make(chan error, openConsoles)
		for person := range openConsoles {
			people.Go(func() {
				if err := b.look(ctx, pages[person%len(pages)], time.Duration(person)*consoleEvery/openConsoles, &reads, &refreshes); err != nil && ctx.Err() == nil {
					faults <- err
					cancel()
				}
			})
		}
		people.Wait()
		taken = (b.databaseSeconds() - begin) / time.Since(from).Seconds()
		select {
		case err := <-faults:
			return result{}, err
		default:
		}
		return result{messages: reads.Load(), counted: reads.Load(), calls: refreshes.Load(), elapsed: time.Since(from)}, nil
	})
	added := taken - idle
	r.note = fmt.Sprintf("%d queues, %d partitions; %d consoles, a refresh each %s for %s: %.3f of a processor of the database, %.3f without them, %.3f added: %.1f %% of one processor, %.1f %% of this machine's %d",
		consoleQueues, consolePartitions, openConsoles, consoleEvery, consolesFor, taken, idle, added, 100*added, 100*added/float64(runtime.NumCPU()), runtime.NumCPU())
	return r, err
}

// look is one person with one page open, until ctx ends.
func (b *bench) look(ctx context.Context, page []read, after time.Duration, reads, refreshes *atomic.Int64) error {
	wait := time.NewTimer(after)
	defer wait.Stop()
	for beat := 0; ; beat++ {
		select {
		case <-ctx.Done():
			return nil
		case <-wait.C:
		}
		wait.Reset(consoleEvery)
		for _, one := range page {
			beats := max(1, one.beats)
			if beat%beats != 0 {
				continue
			}
			age := min(60, int(consoleEvery.Seconds())*beats-1)
			if one.fresh {
				age = 0
			}
			if err := b.pageOfAge(ctx, one.path, age); err != nil {
				return fmt.Errorf("%s: %w", one.path, err)
			}
			reads.Add(1)
		}
		refreshes.Add(1)
	}
}

// pageOfAge asks for an answer that may be some seconds old, and reads it.
func (b *bench) pageOfAge(ctx context.Context, path string, age int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+path, nil)
	if err != nil {
		return err
	}
	if age > 0 {
		request.Header.Set("Cache-Control", fmt.Sprintf("max-age=%d", age))
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	_, err = io.Copy(io.Discard, answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", answer.Status)
	}
	return err
}
