package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// soakParts is how many parts of it are compared.
	soakParts = 5
	// soakOptions let everything that is stored grow old within the run, so that tables can level off.
	soakOptions = `{"retentionEnabled":true,"completedRetentionSeconds":30,"dedupWindowSeconds":60}`
)

// soak measures the peak of one-message pushes that consumers keep up with, holds a share of it (0.7) for a long time, and compares its fifths: p99,
// memory and the sizes of all tables with their indexes must level off, which the note judges.
func (b *bench) soak(ctx context.Context) (result, error) {
	if err := b.configure(ctx, soakOptions); err != nil {
		return result{}, err
	}
	peak, err := b.peak(ctx)
	if err != nil {
		return result{}, err
	}
	rate := int(b.options.soakShare * peak)
	var parts []soakPart
	for range soakParts {
		resetPeak(b.broker.Process.Pid)
		r, err := b.flow(ctx, rate, 1, b.options.soak/soakParts, b.options.consumers)
		if err != nil {
			return r, err
		}
		part := soakPart{result: r}
		if part.tables, err = b.tables(ctx); err != nil {
			return r, err
		}
		parts = append(parts, part)
	}
	last := parts[soakParts-1].result
	last.note = soakNote(peak, rate, b.options.soak, parts)
	return last, nil
}

// peak is how many one-message pushes a second the broker takes while consumers keep up, in messages a second of the slower side.
func (b *bench) peak(ctx context.Context) (float64, error) {
	ledger := newLedger(-1)
	var pushed, delivered result
	var failures [2]error
	var sides sync.WaitGroup
	length := 2 * b.options.length
	sides.Go(func() {
		pushed, failures[0] = closedLoop(ctx, b.options.warmUp, length, b.pushers(1, b.options.singles))
	})
	sides.Go(func() {
		delivered, failures[1] = closedLoop(ctx, b.options.warmUp, length, b.consumers("bench", 100, 10, b.options.consumers, ledger))
	})
	sides.Wait()
	if err := errors.Join(failures[:]...); err != nil {
		return 0, err
	}
	stored, err := b.stored(ctx)
	if err != nil {
		return 0, err
	}
	ledger.want.Store(stored)
	if _, err := closedLoop(ctx, 0, drainLimit, b.consumers("bench", 1000, 10, b.options.consumers, ledger)); err != nil {
		return 0, err
	}
	return min(pushed.rate(), delivered.rate()), ledger.verify()
}

// A soakPart is a fifth of a soak.
type soakPart struct {
	result
	tables map[string]tableState
}

// A tableState is one table of the data path at one moment; its size is that of heap, indexes and what lies out of line.
type tableState struct {
	bytes, indexBytes, dead int64
	updates, hot            int64
}

// soakTables are the tables that pushes, pops and acknowledgments write.
const soakTables = "'log_partitions', 'log_consumers', 'log_segments', 'log_txns'"

// tables reads their sizes and the counts of their updates.
func (b *bench) tables(ctx context.Context) (map[string]tableState, error) {
	rows, err := b.pool.Query(ctx, `SELECT s.relname, pg_total_relation_size(s.relid), pg_indexes_size(s.relid), s.n_dead_tup, s.n_tup_upd, s.n_tup_hot_upd
		FROM pg_stat_user_tables s WHERE s.schemaname = 'queen' AND s.relname IN (`+soakTables+`)`)
	if err != nil {
		return nil, err
	}
	states := map[string]tableState{}
	var name string
	var t tableState
	_, err = pgx.ForEachRow(rows, []any{&name, &t.bytes, &t.indexBytes, &t.dead, &t.updates, &t.hot}, func() error {
		states[name] = t
		return nil
	})
	return states, err
}

// levelledWithin is by how much the last part may be larger than the one in the middle and still count as levelled off.
const levelledWithin = 1.25

func soakNote(peak float64, rate int, length time.Duration, parts []soakPart) string {
	var note strings.Builder
	fmt.Fprintf(&note, "peak %.0f messages/s, %d/s for %s; by fifths:", peak, rate, length)
	column := func(name string, mayGrow bool, value func(soakPart) float64) {
		fmt.Fprintf(&note, "\n  %-28s", name)
		for _, part := range parts {
			fmt.Fprintf(&note, " %9.1f", value(part))
		}
		if middle, last := value(parts[len(parts)/2]), value(parts[len(parts)-1]); last > levelledWithin*middle {
			note.WriteString(map[bool]string{false: "  GROWS", true: "  (kept for 15 minutes at least)"}[mayGrow])
		}
	}
	column("p50 ms", false, func(p soakPart) float64 { return milliseconds(p.p50) })
	column("p99 ms", false, func(p soakPart) float64 { return milliseconds(p.p99) })
	column("broker RSS MB", false, func(p soakPart) float64 { return p.rss / 1e6 })
	for _, table := range []string{"log_partitions", "log_consumers", "log_segments", "log_txns"} {
		column(table+" MB", table == "log_txns" && length < 40*time.Minute, func(p soakPart) float64 { return float64(p.tables[table].bytes) / 1e6 })
	}
	for _, table := range []string{"log_partitions", "log_consumers"} {
		t := parts[len(parts)-1].tables[table]
		fmt.Fprintf(&note, "\n  %s: %d updates, %.0f %% of them HOT", table, t.updates, 100*float64(t.hot)/float64(max(t.updates, 1)))
	}
	return note.String()
}
