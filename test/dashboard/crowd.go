package dashboard

import (
	"testing"

	"queenmq/test/stack"
)

// What the crowded broker has.
const (
	crowdQueues     = 5000
	crowdPartitions = 100_000
)

// crowd fills a broker with 5,000 queues and 100,000 partitions of one message each, half of them in the queue cell.big; the group many
// has read them all but for one in a hundred, the group few a tenth of the queues.
func crowd(t *testing.T, s *stack.Stack) {
	t.Helper()
	h := &house{t, t.Context(), s}
	h.sql(`INSERT INTO queen.queues (name, namespace) SELECT CASE g WHEN 0 THEN 'cell.big' ELSE 'cell.queue-' || lpad(g::text, 4, '0') END, 'ns' || g % 50 FROM generate_series(0, $1::int - 1) g`, crowdQueues)
	h.sql(`INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at, oldest_live_at)
	       SELECT q.id, 'lane-' || lpad(g::text, 6, '0'), 0, now() - make_interval(secs => g % 3600), now() - make_interval(secs => g % 3600)
	         FROM generate_series(1, $2::int) g
	         JOIN queen.queues q ON q.name = CASE WHEN g <= $2::int / 2 THEN 'cell.big' ELSE 'cell.queue-' || lpad((1 + g % ($1::int - 1))::text, 4, '0') END`, crowdQueues, crowdPartitions)
	h.sql(`INSERT INTO queen.log_segments (partition_id, base_offset, end_offset, created_at, blob) SELECT id, 0, 0, last_write_at, decode(md5(name), 'hex') FROM queen.log_partitions`)
	h.sql(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, total_consumed) SELECT id, 'many', CASE WHEN substr(name, 6)::int % 100 = 0 THEN -1 ELSE 0 END, 1 FROM queen.log_partitions`)
	h.sql(`INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, total_consumed)
	       SELECT p.id, 'few', 0, 1 FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name LIKE 'cell.queue-___7'`)
	h.sql(`ANALYZE queen.queues, queen.log_partitions, queen.log_segments, queen.log_consumers`)
	h.refresh()
}
