package sql_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An equalState is a random queue for the comparison of log_pop_v1 with log_pop_list_v1. Ages stay far from the limits that
// the clock moves, so that both runs see the same side of each.
type equalState struct {
	queue      popQueue
	partitions []equalPartition
	// record is the subscription record: "" is none, otherwise all, new or timestamp; since is its age.
	record string
	since  time.Duration
}

type equalPartition struct {
	name string
	runs []run
	last int64
	// staleStart leaves log_start at 0 although the first live segment is higher.
	staleStart bool
	// cursor: no row when hasRow is false.
	hasRow    bool
	committed int64
	worker    string
	expires   time.Duration
	attempt   *int64
	isolate   *int64
}

func drawEqualState(t *rapid.T) equalState {
	s := equalState{
		queue: popQueue{
			Delay:  rapid.SampledFrom([]int{0, 0, 150, 350}).Draw(t, "delay"),
			Window: rapid.SampledFrom([]int{0, 0, 150}).Draw(t, "window"),

			MaxDeliveries: rapid.SampledFrom([]int{0, 0, 3, 4}).Draw(t, "max deliveries"),
		},
		record: rapid.SampledFrom([]string{"", "", "all", "new", "timestamp"}).Draw(t, "record"),
		since:  time.Duration(rapid.IntRange(0, 8).Draw(t, "since"))*100*time.Second + 50*time.Second,
	}
	for i := range rapid.IntRange(1, 7).Draw(t, "partitions") {
		p := equalPartition{name: fmt.Sprintf("p%d", i), last: -1}
		next := int64(0)
		if rapid.Bool().Draw(t, "retained") {
			next = int64(rapid.IntRange(1, 40).Draw(t, "log start"))
			p.staleStart = rapid.IntRange(0, 4).Draw(t, "stale") == 0
		}
		p.last = next - 1
		age := rapid.IntRange(0, 8).Draw(t, "age")
		for range rapid.IntRange(0, 6).Draw(t, "segments") {
			r := run{next, int64(rapid.IntRange(1, 6).Draw(t, "count")), time.Duration(age) * 100 * time.Second}
			p.runs = append(p.runs, r)
			next += r.count
			p.last = next - 1
			if rapid.IntRange(0, 5).Draw(t, "gap") == 0 {
				next += 7
			}
			age = rapid.IntRange(0, age).Draw(t, "age")
		}
		if p.hasRow = rapid.Bool().Draw(t, "cursor"); p.hasRow {
			p.committed = int64(rapid.IntRange(-1, int(p.last)).Draw(t, "committed"))
			p.worker = rapid.SampledFrom([]string{"", "", "other", "w"}).Draw(t, "holder")
			p.expires = rapid.SampledFrom([]time.Duration{time.Hour, -time.Hour}).Draw(t, "expires")
			if rapid.Bool().Draw(t, "tried") {
				p.attempt = ptr(p.committed + 1)
			}
			if rapid.Bool().Draw(t, "isolated") {
				p.isolate = ptr(p.committed + int64(rapid.IntRange(-1, 5).Draw(t, "isolate end")))
			}
		}
		s.partitions = append(s.partitions, p)
	}
	return s
}

func (s equalState) write(t tester, l popLog, queue, group string) uuid.UUID {
	t.Helper()
	id := l.queue(t, queue, s.queue)
	for _, p := range s.partitions {
		pid := l.partition(t, id, p.name, p.runs...)
		start := p.last + 1
		if len(p.runs) > 0 {
			start = p.runs[0].base
		}
		if p.staleStart {
			start = 0
		}
		l.exec(t, `UPDATE queen.log_partitions SET last_offset = $2, log_start = $3 WHERE id = $1`, pid, p.last, start)
		if p.hasRow {
			l.cursor(t, pid, group, p.committed, p.worker, p.expires)
			l.exec(t, `UPDATE queen.log_consumers SET isolate_end = $2 WHERE partition_id = $1`, pid, p.isolate)
			if p.attempt != nil {
				l.exec(t, `UPDATE queen.log_consumers SET attempt_offset = $2, attempt_count = 3, total_consumed = 7 WHERE partition_id = $1`, pid, p.attempt)
			}
		}
	}
	if s.record != "" {
		l.exec(t, `INSERT INTO queen.consumer_groups_metadata (consumer_group, queue_id, subscription_mode, subscription_timestamp)
			VALUES ($1, $2, $3::text, CASE WHEN $3::text = 'all' THEN 'epoch'::timestamptz ELSE clock_timestamp() - $4::interval END)`, group, id, s.record, s.since)
	}
	return id
}

// seed is where a group without a cursor starts in a partition.
func (s equalState) seed(p equalPartition, c popCall, from time.Duration) int64 {
	at := func(age time.Duration) int64 {
		for _, r := range p.runs {
			if r.age <= age {
				return r.base - 1
			}
		}
		return p.last
	}
	switch {
	case c.group == queueMode:
		return -1
	case s.record == "all":
		return at(1 << 62)
	case s.record != "":
		return at(s.since)
	case from > 0:
		return at(from)
	case c.subMode == "new", c.subFrom == "now":
		return p.last
	default:
		return -1
	}
}

// An equalAnswer is what a consumer of either procedure sees, plus what it left behind.
type equalAnswer struct {
	Taken  []taken
	States []popState
	Rows   map[string]popRow
}

// loopOfPops is the definition of log_pop_list_v1: one log_pop_v1 per candidate while budget and cap last, one verdict each.
func loopOfPops(t tester, tx pgx.Tx, id uuid.UUID, queue string, s equalState, candidates []string, c popCall) (a equalAnswer, reached int) {
	left, partitionsLeft := max(c.budget.(int), 1), c.maxPartitions.(int)
	if partitionsLeft <= 0 {
		partitionsLeft = 1 << 30
	}
	for _, name := range candidates {
		if left <= 0 || partitionsLeft == 0 {
			break
		}
		reached++
		call := c
		call.budget = left
		got := popOne(t, tx, queue, name, call)
		if len(got) > 0 {
			left -= int(messages(got))
			partitionsLeft--
		}
		a.Taken = append(a.Taken, got...)
		a.States = append(a.States, verdict(t, tx, id, name, s, c, len(got) > 0))
	}
	a.Rows = popRows(t, tx, id, c.group)
	return a, reached
}

// verdict decides as the table of verdicts does; a time that only says "soon" is the zero time.
func verdict(t tester, tx pgx.Tx, id uuid.UUID, name string, s equalState, c popCall, took bool) popState {
	var last, committed int64
	var foreign, delayed, debounced *time.Time
	err := tx.QueryRow(context.Background(), `
		SELECT p.last_offset, COALESCE(c.committed, -1),
		       CASE WHEN c.worker_id <> $4 AND c.lease_expires_at > clock_timestamp() THEN c.lease_expires_at END,
		       CASE WHEN $5::int > 0 THEN (SELECT min(created_at) FROM queen.log_segments g
		          WHERE g.partition_id = p.id AND g.end_offset > COALESCE(c.committed, -1)) + $5::int * interval '1 s' END,
		       CASE WHEN $6::int > 0 THEN (SELECT max(created_at) FROM queen.log_segments g WHERE g.partition_id = p.id) + $6::int * interval '1 s' END
		  FROM queen.log_partitions p LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = $3
		 WHERE p.queue_id = $1 AND p.name = $2`, id, name, c.group, c.worker, s.queue.Delay, s.queue.Window).Scan(&last, &committed, &foreign, &delayed, &debounced)
	if err == pgx.ErrNoRows {
		return popState{P: name, S: "empty"}
	}
	require.NoError(t, err)
	switch {
	case took:
		return popState{P: name, S: "took", LastOff: &last}
	case foreign != nil:
		return popState{P: name, S: "leased", Until: ptr(foreign.UTC())}
	case last > committed:
		until := time.Time{}
		if delayed != nil && delayed.After(time.Now()) {
			until = delayed.UTC()
		}
		if !c.skipWindow && debounced != nil && debounced.After(time.Now()) && debounced.After(until) {
			until = debounced.UTC()
		}
		return popState{P: name, S: "leased", Until: &until}
	default:
		return popState{P: name, S: "empty"}
	}
}

func TestPopListEqualsALoopOfPops(t *testing.T) {
	t.Parallel()
	l := newPopLog(t)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		queue := fmt.Sprintf("q%d", n)
		s := drawEqualState(t)
		from := time.Duration(0)
		c := popCall{
			group:         rapid.SampledFrom([]string{"g", "g", queueMode}).Draw(t, "group"),
			budget:        rapid.IntRange(0, 60).Draw(t, "budget"),
			maxPartitions: rapid.IntRange(0, 4).Draw(t, "max partitions"),
			autoAck:       rapid.Bool().Draw(t, "auto ack"),
			subMode:       rapid.SampledFrom([]string{"all", "new"}).Draw(t, "sub mode"),
			subFrom:       rapid.SampledFrom([]string{"", "", "now", "nonsense", "time"}).Draw(t, "sub from"),
			skipWindow:    rapid.Bool().Draw(t, "skip window"),
		}.filled()
		if c.subFrom == "time" {
			from = 450 * time.Second
			c.subFrom = time.Now().Add(-from).Format(time.RFC3339)
		}
		candidates := []string{}
		for range rapid.IntRange(0, 12).Draw(t, "candidates") {
			i := rapid.IntRange(0, len(s.partitions)).Draw(t, "candidate")
			if i == len(s.partitions) {
				candidates = append(candidates, "unknown")
			} else {
				candidates = append(candidates, s.partitions[i].name)
			}
		}
		id := s.write(t, l, queue, c.group)

		var want, got equalAnswer
		var reached int
		rolledBack(t, l, func(tx pgx.Tx) {
			want, reached = loopOfPops(t, tx, id, queue, s, candidates, c)
		})
		rolledBack(t, l, func(tx pgx.Tx) {
			var meta popMeta
			got.Taken, meta, got.States = popList(t, tx, queue, candidates, c)
			got.Rows = popRows(t, tx, id, c.group)
			for _, p := range meta.Partitions {
				require.Equal(t, queue, p.Queue)
				if !c.autoAck {
					require.Equal(t, got.Rows[p.Partition].Attempts, p.Attempt, "attempt of %s", p.Partition)
				}
				most := s.queue.MaxDeliveries
				require.Equal(t, !c.autoAck && most > 0 && p.Attempt > most, p.Poison, "poison of %s", p.Partition)
			}
		})
		for i := range got.States {
			if u := got.States[i].Until; u != nil && time.Until(*u) > 0 && time.Until(*u) < 5*time.Second {
				got.States[i].Until = &time.Time{} // soon
			}
		}
		// A round may create the cursor of a candidate that the budget then does not reach: where it starts is what the first
		// pop that does reach it would have written.
		for _, p := range s.partitions {
			row, created := got.Rows[p.name]
			if _, wanted := want.Rows[p.name]; created && !wanted {
				require.NotContains(t, candidates[:reached], p.name)
				require.Equal(t, popRow{Committed: s.seed(p, c, from)}, row, "cursor of %s, which was not reached", p.name)
				delete(got.Rows, p.name)
			}
			if row, made := want.Rows[p.name]; made && !p.hasRow && len(p.runs) > 0 && !c.autoAck {
				require.Equal(t, s.seed(p, c, from), row.Committed, "first contact with %s", p.name)
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("a loop of log_pop_v1 (-) and log_pop_list_v1 (+) differ:\n%s\n%+v\n%+v %v", diff, s, c, candidates)
		}
		require.True(t, slices.IsSortedFunc(got.Taken, func(a, b taken) int {
			return slices.Index(candidates, a.Partition) - slices.Index(candidates, b.Partition)
		}), "partitions come in candidate order")
	})
}

// rolledBack runs f in a transaction and forgets it.
func rolledBack(t tester, l popLog, f func(pgx.Tx)) {
	t.Helper()
	tx, err := l.Begin(context.Background())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	f(tx)
}
