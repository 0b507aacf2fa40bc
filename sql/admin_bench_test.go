package sql_test

import "testing"

// BenchmarkManagementReads is the table of docs/statistics.md: what people's reads cost in a crowded database.
//
//	go test ./sql -run '^$' -bench ManagementReads -benchtime 5x
func BenchmarkManagementReads(b *testing.B) {
	_, l, _ := newCrowdedLog(b)
	for _, read := range []struct{ name, sql string }{
		{"QueueListLive", `SELECT queen.log_queue_list_v1('{}')`},
		{"QueueListCached", `SELECT queen.log_queue_list_v1('{"cached":true}')`},
		{"QueueStatusList", `SELECT queen.get_status_queues_v2()`},
		{"QueueDetailSmall", `SELECT queen.get_queue_detail_v2('q77')`},
		{"QueueDetailBig", `SELECT queen.get_queue_detail_v2('big')`},
		{"QueueSmall", `SELECT queen.get_queue_v2('q77')`},
		{"QueueBig", `SELECT queen.get_queue_v2('big')`},
		{"PartitionsByName", `SELECT queen.log_partition_list_v1('big')`},
		{"PartitionsByDepth", `SELECT queen.log_partition_list_v1('big', '{"sort":"depth"}')`},
		{"Groups", `SELECT queen.get_consumer_groups_v4()`},
		{"Lagging", `SELECT queen.get_lagging_partitions_v1(0)`},
		{"MessagesOfEverybody", `SELECT queen.list_messages_v1('{}')`},
		{"MessagesOfOneQueue", `SELECT queen.list_messages_v1('{"queue":"q77"}')`},
		{"DeadLetters", `SELECT queen.get_dlq_messages_v1('{}')`},
		{"Leases", `SELECT queen.lease_list_v1()`},
		{"Refresh", `SELECT queen.log_refresh_all_stats_v1()`},
		{"SeekToATime", `SELECT queen.log_seek_consumer_group_v1('g', 'big', false, now() - interval '30 min')`},
		{"SeekToTheEnd", `SELECT queen.log_seek_consumer_group_v1('g', 'big', true)`},
	} {
		b.Run(read.name, func(b *testing.B) {
			for b.Loop() {
				l.exec(b, read.sql)
			}
		})
	}
}
