package sql_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A storedMessage is one message that lies in a segment, found by taking the segments apart.
type storedMessage struct {
	partition string
	offset    int64
}

// A storedCursor is what one group knows of one partition.
type storedCursor struct {
	committed, batchEnd int64
	live                bool
}

// A census is what there is in a queue, counted message by message and cursor by cursor.
type census struct {
	messages map[storedMessage]bool
	dead     map[storedMessage]int
	cursors  map[string]map[string]storedCursor // partition -> group -> cursor
}

func takeCensus(t tester, l pushLog, queue string) census {
	t.Helper()
	c := census{map[storedMessage]bool{}, map[storedMessage]int{}, map[string]map[string]storedCursor{}}
	var partition, group string
	var a, b int64
	var live bool
	each := func(into []any, f func() error, sql string) {
		t.Helper()
		rows, err := l.Query(context.Background(), sql, queue)
		require.NoError(t, err)
		_, err = pgx.ForEachRow(rows, into, f)
		require.NoError(t, err)
	}
	const from = ` FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id `
	each([]any{&partition}, func() error { c.cursors[partition] = map[string]storedCursor{}; return nil }, `SELECT p.name`+from+`WHERE q.name = $1`)
	each([]any{&partition, &a, &b}, func() error {
		for o := a; o <= b; o++ {
			c.messages[storedMessage{partition, o}] = true
		}
		return nil
	}, `SELECT p.name, s.base_offset, s.end_offset`+from+`JOIN queen.log_segments s ON s.partition_id = p.id WHERE q.name = $1`)
	each([]any{&partition, &group, &a, &b, &live}, func() error {
		c.cursors[partition][group] = storedCursor{a, b, live}
		return nil
	}, `SELECT p.name, c.consumer_group, c.committed, COALESCE(c.batch_end, -1), COALESCE(c.worker_id IS NOT NULL AND c.lease_expires_at > now(), false)`+
		from+`JOIN queen.log_consumers c ON c.partition_id = p.id WHERE q.name = $1`)
	each([]any{&partition, &a}, func() error { c.dead[storedMessage{partition, a}]++; return nil },
		`SELECT p.name, d."offset"`+from+`JOIN queen.log_dlq d ON d.partition_id = p.id WHERE q.name = $1`)
	return c
}

// counting are the groups that decide about a partition: the named ones, or queue mode where there are none.
func (c census) counting(partition string) map[string]storedCursor {
	named := maps.Clone(c.cursors[partition])
	delete(named, queueMode)
	if len(named) > 0 {
		return named
	}
	return c.cursors[partition]
}

func (c census) status(m storedMessage) string {
	groups := c.counting(m.partition)
	passed, held := 0, false
	for _, g := range groups {
		if g.committed >= m.offset {
			passed++
		} else if g.live && m.offset <= g.batchEnd {
			held = true
		}
	}
	switch {
	case c.dead[m] > 0:
		return "dead_letter"
	case len(groups) > 0 && passed == len(groups):
		return "completed"
	case held:
		return "processing"
	}
	return "pending"
}

// A figures object as the procedures write it.
type figures struct {
	Total, Pending, Processing, Completed, DeadLetter int64
}

// figures counts a partition.
func (c census) figures(partition string) (f figures) {
	for m := range c.messages {
		if m.partition != partition {
			continue
		}
		f.Total++
		groups := c.counting(partition)
		waiting := len(groups) == 0
		for _, g := range groups {
			waiting = waiting || g.committed < m.offset
		}
		if waiting {
			f.Pending++
		}
	}
	for m, n := range c.dead {
		if m.partition == partition {
			f.DeadLetter += int64(n)
		}
	}
	for _, g := range c.counting(partition) {
		if g.live {
			f.Processing += max(g.batchEnd-g.committed, 0)
		}
	}
	f.Processing = min(f.Processing, f.Pending)
	f.Completed = max(f.Total-f.Pending-f.DeadLetter, 0)
	return f
}

func (f *figures) add(g figures) {
	f.Total += g.Total
	f.Pending += g.Pending
	f.Processing += g.Processing
	f.Completed += g.Completed
	f.DeadLetter += g.DeadLetter
}

// After any workload the figures of every reader are those of a count, message by message, and lag is what can really be popped.
func TestStatisticsAgreeWithCounting(t *testing.T) {
	t.Parallel()
	l := newPushLog(t)
	rapid.Check(t, func(t *rapid.T) {
		queue := uuid.NewString()
		partitions, groups := []string{"a", "b", "c"}, []string{"g", "h", queueMode}
		n := 0
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			p := rapid.SampledFrom(partitions).Draw(t, "partition")
			g := rapid.SampledFrom(groups).Draw(t, "group")
			worker := g + rapid.SampledFrom([]string{"1", "2"}).Draw(t, "worker")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2:
				names := make([]string, rapid.IntRange(1, 5).Draw(t, "messages"))
				for i := range names {
					names[i] = fmt.Sprint(n)
					n++
				}
				l.queued(t, queue, p, names...)
			case 3, 4:
				popOne(t, l, queue, p, popCall{group: g, budget: rapid.IntRange(1, 6).Draw(t, "budget"), worker: worker, autoAck: rapid.Bool().Draw(t, "auto")})
			case 5: // a partial or a full ack
				l.exec(t, `SELECT queen.log_ack_at_v1(c.partition_id, c.consumer_group, c.worker_id, c.committed + $3, true, 1)
					FROM queen.log_consumers c JOIN queen.log_partitions p ON p.id = c.partition_id JOIN queen.queues q ON q.id = p.queue_id
					WHERE q.name = $1 AND p.name = $2 AND c.worker_id IS NOT NULL ORDER BY c.consumer_group LIMIT 1`, queue, p, rapid.Int64Range(1, 4).Draw(t, "acked"))
			case 6: // a poison message
				l.exec(t, `SELECT queen.log_dlq_head_v1(c.partition_id, c.consumer_group, c.worker_id, c.committed + 1, gen_random_uuid(), 'x', '{}', 'e')
					FROM queen.log_consumers c JOIN queen.log_partitions p ON p.id = c.partition_id JOIN queen.queues q ON q.id = p.queue_id
					WHERE q.name = $1 AND p.name = $2 AND c.worker_id IS NOT NULL ORDER BY c.consumer_group LIMIT 1`, queue, p)
			case 7:
				switch rapid.IntRange(0, 3).Draw(t, "where") {
				case 0: // to the end, one partition or all
					l.exec(t, `SELECT queen.log_seek_consumer_group_v1($1, $2, true)`, g, queue)
				case 1: // to the time of one of the segments, which may be gone by now
					l.exec(t, `SELECT queen.log_seek_partition_v1($1, $2, $3, false, (SELECT min(s.created_at) FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id
						JOIN queen.log_segments s ON s.partition_id = p.id WHERE q.name = $2 AND s.base_offset >= $4))`, g, queue, p, rapid.Int64Range(0, 20).Draw(t, "segment"))
				default:
					l.exec(t, `SELECT queen.log_seek_offset_v1($1, $2, $3, $4)`, g, queue, p, rapid.Int64Range(0, 20).Draw(t, "offset"))
				}
			case 8: // retention takes a part, or the batch of a group runs out
				l.exec(t, `SELECT queen.log_retention_step_v1(p.id, now() + interval '1 day', NULL, $3) FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id
					WHERE q.name = $1 AND p.name = $2`, queue, p, rapid.IntRange(1, 2).Draw(t, "rows"))
				l.exec(t, `UPDATE queen.log_consumers c SET lease_expires_at = now() - interval '1 s' FROM queen.log_partitions p, queen.queues q
					WHERE p.id = c.partition_id AND q.id = p.queue_id AND q.name = $1 AND c.worker_id = $2`, queue, worker)
			case 9:
				switch rapid.IntRange(0, 3).Draw(t, "rarely") {
				case 1: // consumed messages go, by hand
					l.exec(t, `SELECT queen.log_purge_v1($1, '', 'consumed', false, 100)`, queue)
				case 0:
					l.exec(t, `SELECT queen.log_delete_consumer_group_for_queue_v1($1, $2)`, g, queue)
				}
			}
		}
		if scan[int64](t, l, `SELECT count(*) FROM queen.queues WHERE name = $1`, queue) == 0 {
			return
		}
		requireCensus(t, l, queue)
	})
}

func requireCensus(t *rapid.T, l pushLog, queue string) {
	c := takeCensus(t, l, queue)
	type partition struct {
		Name          string
		Messages      figures
		OldestMessage *string
	}
	detail, err := callJSON[struct {
		Partitions []partition
		Totals     struct{ Messages figures }
	}](l, `SELECT queen.get_queue_detail_v2($1)`, queue)
	require.NoError(t, err)
	require.Len(t, detail.Partitions, len(c.cursors))
	var total figures
	for _, p := range detail.Partitions {
		want := c.figures(p.Name)
		require.Equal(t, want, p.Messages, "partition %s", p.Name)
		require.Equal(t, want.Pending > 0, p.OldestMessage != nil, "partition %s has a first pending message", p.Name)
		total.add(want)
	}
	require.Equal(t, total, detail.Totals.Messages)
	if len(c.cursors) > 1 {
		narrow, err := callJSON[struct {
			Partitions     []partition
			PartitionCount int
			Totals         struct{ Messages figures }
		}](l, `SELECT queen.log_queue_detail_v1($1, '{"limit":1}')`, queue)
		require.NoError(t, err)
		require.Equal(t, detail.Partitions[:1], narrow.Partitions)
		require.Equal(t, len(c.cursors), narrow.PartitionCount)
		require.Equal(t, total, narrow.Totals.Messages, "totals are of the whole queue, whatever is listed")
	}
	depth, err := callJSON[struct{ Depth int64 }](l, `SELECT queen.log_queue_depth_v1($1, '')`, queue)
	require.NoError(t, err)
	require.Equal(t, total.Pending, depth.Depth)

	_, err = callJSON[map[string]any](l, `SELECT queen.log_refresh_all_stats_v1()`)
	require.NoError(t, err)
	status, err := callJSON[struct {
		Queues []struct {
			Partitions int
			Messages   figures
		}
	}](l, `SELECT queen.get_status_queues_v2(jsonb_build_object('queue', $1::text))`, queue)
	require.NoError(t, err)
	require.Len(t, status.Queues, 1)
	require.Equal(t, len(c.cursors), status.Queues[0].Partitions)
	// completed is floored once per queue there, once per partition in the detail.
	total.Completed = max(total.Total-total.Pending-total.DeadLetter, 0)
	require.Equal(t, total, status.Queues[0].Messages)

	// The list names every message once, newest first in its partition, with the status that a count of the cursors gives.
	listed, err := callJSON[struct {
		Messages []struct {
			Partition, Status string
			Offset            int64
			Stored            bool
		}
	}](l, `SELECT queen.list_messages_v1(jsonb_build_object('queue', $1::text, 'limit', 1000))`, queue)
	require.NoError(t, err)
	found := map[storedMessage]string{}
	byStatus := map[string]int{}
	last := map[string]int64{}
	for _, m := range listed.Messages {
		key := storedMessage{m.Partition, m.Offset}
		require.Equal(t, c.messages[key], m.Stored)
		require.NotContains(t, found, key)
		found[key] = m.Status
		require.Equal(t, c.status(key), m.Status, "%v", key)
		byStatus[m.Status]++
		if before, ok := last[m.Partition]; ok {
			require.Less(t, m.Offset, before)
		}
		last[m.Partition] = m.Offset
	}
	for m := range c.messages {
		require.Contains(t, found, m)
	}
	for _, word := range []string{"pending", "processing", "completed", "dead_letter"} {
		seen, after := 0, ""
		for {
			page, err := callJSON[struct {
				Messages []struct{ Status string }
				Next     *string
			}](l, `SELECT queen.list_messages_v1(jsonb_build_object('queue', $1::text, 'limit', 3, 'status', $2::text, 'after', $3::text))`, queue, word, after)
			require.NoError(t, err)
			for _, m := range page.Messages {
				require.Equal(t, word, m.Status)
			}
			seen += len(page.Messages)
			if page.Next == nil {
				break
			}
			after = *page.Next
		}
		require.Equal(t, byStatus[word], seen, word)
	}

	// What a group lags is what it can pop, once its batches are free.
	lags, err := callJSON[[]struct {
		Name, QueueName string
		TotalLag        int64
	}](l, `SELECT queen.get_consumer_groups_v4()`)
	require.NoError(t, err)
	l.exec(t, `UPDATE queen.log_consumers c SET lease_expires_at = now() - interval '1 s' FROM queen.log_partitions p, queen.queues q
		WHERE p.id = c.partition_id AND q.id = p.queue_id AND q.name = $1 AND c.worker_id IS NOT NULL`, queue)
	groups := map[string]int64{}
	for _, g := range lags {
		if g.QueueName == queue {
			groups[g.Name] = g.TotalLag
		}
	}
	names := map[string]int64{}
	for p, cursors := range c.cursors {
		for g := range cursors {
			names[g] += messages(popOne(t, l, queue, p, popCall{group: g, budget: 10_000, autoAck: true}))
		}
	}
	require.Equal(t, slices.SortedFunc(maps.Keys(names), cmp.Compare), slices.SortedFunc(maps.Keys(groups), cmp.Compare))
	require.Equal(t, names, groups)
}
