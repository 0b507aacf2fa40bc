package sql_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

// newCrowdedLog makes 5,000 queues with 100,000 partitions, half of them in the queue "big", one per cent of them lagging, half of
// them with a dead letter; and one partition, "deep", with 50,000 segments of which its group has read half.
func newCrowdedLog(t testing.TB) (*testdb.Database, popLog, uuid.UUID) {
	t.Helper()
	db := testdb.New(t, testdb.TimeZone("Asia/Kolkata"))
	l := popLog{db.Pool(t)}
	big := l.queue(t, "big", popQueue{})
	l.exec(t, `INSERT INTO queen.queues (name, namespace, max_queue_size) SELECT 'q' || g, 'ns' || g % 50, 100 * (g % 2) FROM generate_series(1, 4999) g`)
	l.exec(t, `INSERT INTO queen.log_partitions (queue_id, name, last_offset, last_write_at, oldest_live_at)
		SELECT q.id, 'p' || g, 1, clock_timestamp() - make_interval(secs => g % 3600), clock_timestamp() FROM generate_series(1, 100000) g
		  JOIN queen.queues q ON q.name = CASE WHEN g <= 50000 THEN 'big' ELSE 'q' || 1 + g % 4999 END`)
	for _, table := range []string{"log_segments", "log_txns"} {
		l.exec(t, `INSERT INTO queen.`+table+` SELECT id, 0, 1, last_write_at, decode(md5(id::text), 'hex') || decode(md5(name), 'hex') FROM queen.log_partitions`)
	}
	l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed) SELECT id, 'g', CASE WHEN substr(name, 2)::int % 100 = 0 THEN 0 ELSE 1 END FROM queen.log_partitions`)
	l.exec(t, `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", transaction_id, error, failed_at)
		SELECT id, 'g', 0, 't', 'order ' || name || ' failed', last_write_at FROM queen.log_partitions WHERE substr(name, 2)::int % 2 = 0`)
	l.exec(t, `INSERT INTO queen.tasks (kind, state, finished_at, created_at)
		SELECT CASE g % 2 WHEN 0 THEN 'purge' ELSE 'redrive' END, 'done', now(), now() - make_interval(secs => g) FROM generate_series(1, 5000) g`)
	deep := l.partition(t, l.queue(t, "deep", popQueue{}), "deep")
	for _, table := range []string{"log_segments", "log_txns"} {
		l.exec(t, `INSERT INTO queen.`+table+` SELECT $1, s * 2, s * 2 + 1, clock_timestamp() - make_interval(secs => 50000 - s), decode(md5(s::text), 'hex') || decode(md5(s::text || 'b'), 'hex')
			FROM generate_series(0, 49999) s`, deep)
	}
	l.exec(t, `UPDATE queen.log_partitions SET last_offset = 99999, last_write_at = clock_timestamp() WHERE id = $1`, deep)
	l.cursor(t, deep, "g", 49_999, "", 0)
	l.exec(t, `VACUUM (ANALYZE) queen.queues, queen.log_partitions, queen.log_segments, queen.log_txns, queen.log_consumers, queen.log_dlq, queen.tasks`)
	_, err := callJSON[map[string]any](l, `SELECT queen.log_refresh_all_stats_v1()`)
	require.NoError(t, err)
	l.exec(t, `VACUUM (ANALYZE) queen.stats`)
	return db, l, big
}

// Pages and single objects touch what they show and not what there is; readers of everything read every table at most about once.
func TestManagementPlans(t *testing.T) {
	t.Parallel()
	db, l, _ := newCrowdedLog(t)
	r := newPlanReader(t, db)
	deep := scalar[uuid.UUID](t, l, `SELECT id FROM queen.log_partitions WHERE name = 'deep'`)
	const halfAnHourAgo = `queen.iso_us_v1(now() - interval '30 min') || '|00000000-0000-0000-0000-000000000000|0'`

	// The bounds are about twice what was measured.
	for _, tc := range []struct {
		name    string
		blocks  int
		indexed bool
		sql     string
		args    []any
	}{
		{"QueueDetailOfASmallQueue", 400, true, `SELECT queen.get_queue_detail_v2('q77')`, nil},
		{"QueueDetailOfADeepPartition", 200, true, `SELECT queen.get_queue_detail_v2('deep')`, nil},
		{"PartitionsByName", 4000, true, `SELECT queen.log_partition_list_v1('big')`, nil},
		{"PartitionsByNameInTheMiddle", 2500, true, `SELECT queen.log_partition_list_v1('big', '{"after":"0|p30","limit":50}')`, nil},
		{"MessagesOfASmallQueue", 1500, true, `SELECT queen.list_messages_v1('{"queue":"q77"}')`, nil},
		{"NewestMessagesOfADeepPartition", 7000, true, `SELECT queen.list_messages_v1('{"queue":"deep"}')`, nil},
		{"MessagesInTheMiddleOfADeepPartition", 7000, true, `SELECT queen.list_messages_v1(jsonb_build_object('queue', 'deep', 'from', '2020-01-01', 'after', ` + halfAnHourAgo + `))`, nil},
		{"MessageOfADeepPartitionByOffset", 100, true, `SELECT queen.get_message_detail_v1($1, NULL, 500)`, []any{deep}},
		{"MessageOfAnotherTenantLikeNone", 40, true, `SELECT queen.get_message_detail_v1($1, '\x00112233445566778899aabbccddeeff', NULL, '00000000-0000-0000-0000-00000000000f')`, []any{deep}},
		{"DeadLettersOfEverybody", 3000, true, `SELECT queen.get_dlq_messages_v1('{}')`, nil},
		{"DeadLettersBehindACursor", 3000, true, `SELECT queen.get_dlq_messages_v1(jsonb_build_object('after', queen.iso_us_v1(now() - interval '30 min') || '|00000000-0000-0000-0000-000000000000'))`, nil},
		{"SeekInADeepPartition", 200, true, `SELECT queen.log_seek_partition_v1('g', 'deep', 'deep', false, now() - interval '30 min')`, nil},
		{"DepthOfASmallQueue", 150, true, `SELECT queen.log_queue_depth_v1('q77', '')`, nil},
		// A queue of 50,000 partitions: every table once for the totals, a page of the partitions.
		{"QueueDetailOfABigQueue", 30000, false, `SELECT queen.get_queue_detail_v2('big')`, nil},
		{"QueueOfABigQueue", 40000, false, `SELECT queen.get_queue_v2('big')`, nil},
		// Everybody's: bounded by the sizes of the tables, plus a few steps for each of the thousand that lag.
		{"Groups", 20000, false, `SELECT queen.get_consumer_groups_v4()`, nil},
		{"GroupsPageByName", 20000, false, `SELECT queen.group_list_v1('{"sort":"name"}')`, nil},
		{"GroupsPageByAge", 20000, false, `SELECT queen.group_list_v1('{"sort":"-age","behind":true}')`, nil},
		{"GroupsOfASmallQueue", 300, false, `SELECT queen.group_list_v1('{"queue":"q77"}')`, nil},
		{"PartitionsOfAGroup", 20000, false, `SELECT queen.group_partition_list_v1('g', '{"sort":"-age"}')`, nil},
		{"PartitionsOfAGroupInASmallQueue", 300, false, `SELECT queen.group_partition_list_v1('g', '{"queue":"q77"}')`, nil},
		{"QueuePage", 1200, false, `SELECT queen.queue_page_v1('{"sort":"-pending"}')`, nil},
		{"PartitionsByNameWithLeases", 6000, true, `SELECT queen.log_partition_list_v1('big', '{"leases":true}')`, nil},
		{"ErrorShapesPage", 12000, false, `SELECT queen.dlq_shapes_v1('{"after":"5|x"}', 50)`, nil},
		{"TasksOfAKind", 200, true, `SELECT queen.task_page_v1('{"kind":"purge","state":"done"}')`, nil},
		{"BrokersPage", 50, false, `SELECT queen.brokers_page_v1('{"contains":"b","limit":10}', NULL)`, nil},
		{"StreamsPage", 500, false, `SELECT queen.stream_list_v1('{"sort":"-updated","limit":10}')`, nil},
		{"Lagging", 60000, false, `SELECT queen.get_lagging_partitions_v1(0)`, nil},
		{"CachedQueueList", 1200, false, `SELECT queen.log_queue_list_v1('{"cached":true}')`, nil},
		{"Status", 1200, false, `SELECT queen.get_status_queues_v2()`, nil},
		{"Leases", 300, false, `SELECT queen.lease_list_v1()`, nil},
		{"MessagesOfEverybody", 60000, false, `SELECT queen.list_messages_v1('{}')`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plans := r.call(t, tc.sql, tc.args...)
			blocks := 0
			if tc.indexed {
				blocks, _ = requireIndexed(t, plans)
			}
			for _, p := range plans {
				blocks = max(blocks, p.Root.Hit+p.Root.Read)
			}
			t.Logf("%d blocks", blocks)
			require.LessOrEqual(t, blocks, tc.blocks)
		})
	}
}
