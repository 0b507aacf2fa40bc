package sql_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

// original are the procedures of the original that people and scripts call by name, one a line: the arguments that must be given, behind
// a bar those that may be left out, and the result. What is ours may follow as arguments with a default.
const original = `
log_unnest_hashes(p bytea) TABLE(idx integer, h bytea)
log_push_one_v1(p_queue text, p_partition text, p_msg_count integer, p_hashes bytea, p_verified bigint, p_blob bytea | p_pid uuid, p_window integer, p_tenant uuid) jsonb
log_push_multi_v1(p_queues text[], p_partitions text[], p_msg_counts integer[], p_hashes bytea[], p_verified bigint[], p_blobs bytea[] | p_tenants uuid[]) jsonb
log_segment_at_v1(p_pid uuid, p_off bigint) TABLE(r_base bigint, r_end bigint, r_created timestamp with time zone, r_blob bytea)
log_pop_v1(p_queue text, p_partition text, p_group text, p_budget integer, p_lease_seconds integer, p_worker text | p_auto_ack boolean, p_sub_mode text, p_sub_from text, p_skip_window_debounce boolean, p_tenant uuid) TABLE(r_base bigint, r_start_idx integer, r_take integer, r_msg_count integer, r_created_at timestamp with time zone, r_blob bytea)
log_pop_specific_v1(p_queue text, p_partition text, p_group text, p_budget integer, p_lease_seconds integer, p_worker text, p_auto_ack boolean, p_sub_mode text, p_sub_from text, p_tenant uuid) jsonb
log_pop_wildcard_wire_v1(p_queue text, p_group text, p_budget integer, p_lease_seconds integer, p_worker text, p_auto_ack boolean, p_max_partitions integer | p_sub_mode text, p_sub_from text, p_tenant uuid) jsonb
log_pop_wildcard_bin_v1(p_queue text, p_group text, p_budget integer, p_lease_seconds integer, p_worker text, p_auto_ack boolean, p_max_partitions integer | p_sub_mode text, p_sub_from text, p_tenant uuid) TABLE(meta jsonb, blobs bytea[])
log_pop_discover_wire_v1(p_namespace text, p_task text, p_group text, p_budget integer, p_lease_seconds integer, p_worker text, p_auto_ack boolean, p_max_partitions integer | p_sub_mode text, p_sub_from text, p_tenant uuid) jsonb
log_has_pending_v1(p_queue text, p_group text | p_tenant uuid) boolean
log_pop_list_v1(p_queue text, p_group text, p_partitions text[], p_budget integer, p_lease_seconds integer, p_worker text, p_auto_ack boolean, p_max_partitions integer | p_sub_mode text, p_sub_from text, p_skip_window boolean, p_tenant uuid) TABLE(meta jsonb, blobs bytea[], states jsonb)
log_hotlist_reseed_v1(p_queue text, p_group text, p_after_id uuid, p_limit integer | p_tenant uuid) TABLE(r_id uuid, r_name text)
log_ack_v1(p_queue text, p_partition text, p_group text, p_worker text, p_upto bigint | p_ok boolean, p_acked_count integer, p_tenant uuid) jsonb
log_ack_at_v1(p_partition_id uuid, p_group text, p_worker text, p_upto bigint | p_ok boolean, p_acked_count integer) jsonb
log_ack_multi_v1(p_pids text[], p_groups text[], p_ends bigint[], p_workers text[], p_counts integer[]) jsonb
log_ack_by_hash_v1(p_partition_id uuid, p_group text, p_worker text, p_hashes bytea[], p_statuses text[]) jsonb
log_renew_lease_v1(p_worker text, p_seconds integer) jsonb
log_dlq_head_v1(p_partition_id uuid, p_group text, p_worker text, p_off bigint, p_message_id uuid, p_txn text, p_payload jsonb, p_error text) jsonb
log_transaction_wire_v1(p jsonb) jsonb
log_retention_boundary_v1(p_partition_id uuid, p_from bigint, p_cutoff timestamp with time zone) bigint
log_retention_step_v1(p_pid uuid, p_all_cutoff timestamp with time zone, p_completed_cutoff timestamp with time zone, p_max_rows integer | p_history_type text) jsonb
log_txns_purge_step_v1(p_pid uuid, p_cutoff timestamp with time zone, p_max_rows integer) jsonb
log_evict_max_wait_step_v1(p_pid uuid, p_cutoff timestamp with time zone, p_max_rows integer) jsonb
log_partition_dead_v1(p_pid uuid, p_cutoff timestamp with time zone) boolean
log_partition_cleanup_step_v1(p_cutoff timestamp with time zone, p_max_rows integer) jsonb
log_streams_cycle_v1(p_requests jsonb) jsonb
log_delete_consumer_group_v1(p_group text | p_delete_metadata boolean, p_tenant uuid) jsonb
log_seek_one_v1(p_partition_id uuid, p_last_offset bigint, p_log_start bigint, p_group text, p_to_end boolean, p_timestamp timestamp with time zone) void
log_seek_consumer_group_v1(p_group text, p_queue text | p_to_end boolean, p_timestamp timestamp with time zone, p_tenant uuid) jsonb
log_seek_partition_v1(p_group text, p_queue text, p_partition text | p_to_end boolean, p_timestamp timestamp with time zone, p_tenant uuid) jsonb
get_consumer_groups_v4(| p_tenant uuid) jsonb
list_messages_v1(| p_filters jsonb) jsonb
get_dlq_messages_v1(| p_filters jsonb) jsonb
record_trace_v1(p_data jsonb) jsonb
get_lagging_partitions_v1(| p_min_lag_seconds integer, p_tenant uuid) jsonb
get_consumer_group_details_v1(p_consumer_group text | p_tenant uuid) jsonb
log_oldest_pending_at_v1(p_pid uuid, p_wanted bigint) timestamp with time zone
log_refresh_all_stats_v1() jsonb
get_queue_detail_v2(p_queue_name text | p_tenant uuid) jsonb
get_queue_v2(p_queue_name text | p_tenant uuid) jsonb
get_analytics_v1(| p_filters jsonb) jsonb
log_queue_message_stats_v1(p_queue text | p_tenant uuid) TABLE(segments bigint, messages bigint)
log_queue_stats_all_v1(| p_tenant uuid) TABLE(queue_name text, partitions bigint, segments bigint, messages bigint)
configure_queue_v1(p_queue_name text | p_options jsonb, p_tenant uuid) jsonb
delete_queue_v1(p_queue_name text | p_tenant uuid) jsonb
delete_consumer_group_v1(p_consumer_group text | p_delete_metadata boolean, p_tenant uuid) jsonb
update_consumer_group_subscription_v1(p_consumer_group text, p_new_timestamp text | p_tenant uuid) jsonb
delete_consumer_group_for_queue_v1(p_consumer_group text, p_queue_name text | p_delete_metadata boolean, p_tenant uuid) jsonb
aggregate_namespace_stats_v1() jsonb
aggregate_task_stats_v1() jsonb
aggregate_system_stats_v2() jsonb
get_queues_v2(| p_tenant uuid) jsonb
get_namespaces_v2(| p_tenant uuid) jsonb
get_tasks_v2(| p_tenant uuid) jsonb
get_status_queues_v2(p_filters jsonb | p_limit integer, p_offset integer) jsonb
get_system_metrics_v1(p_filters jsonb) jsonb
delete_message_v1(p_partition_id uuid, p_transaction_id text) jsonb
get_message_traces_v1(p_partition_id uuid, p_transaction_id text) jsonb
get_traces_by_name_v1(p_trace_name text | p_limit integer, p_offset integer, p_tenant uuid) jsonb
get_available_trace_names_v1(| p_limit integer, p_offset integer, p_tenant uuid) jsonb
get_worker_throughput_v1(p_from timestamp with time zone, p_to timestamp with time zone, p_bucket_minutes integer) jsonb
get_queue_lag_v1(p_from timestamp with time zone, p_to timestamp with time zone | p_queue_name text, p_tenant uuid) jsonb
get_worker_health_v1(| p_from timestamp with time zone, p_to timestamp with time zone) jsonb
get_system_totals_v1() jsonb
cleanup_worker_metrics_v1(| p_retention_days integer) jsonb
get_system_overview_v3(| p_tenant uuid) jsonb
get_status_v3(p_filters jsonb) jsonb
get_worker_metrics_timeseries_v1(p_filters jsonb) jsonb
get_queue_ops_v1(p_filters jsonb) jsonb
get_queue_parked_per_replica_v1(p_filters jsonb) jsonb
get_postgres_stats_v1() jsonb
get_retention_timeseries_v1(p_filters jsonb) jsonb
get_prometheus_metrics_v1() jsonb
streams_register_query_v1(p_requests jsonb) jsonb
streams_state_get_v1(p_requests jsonb) jsonb
`

// A golden file follows the schema when it is updated; this list does not.
func TestProceduresOfTheOriginalCanBeCalledAsTheyWere(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t).Pool(t)
	form := regexp.MustCompile(`^(\w+)\((.*)\) ([\w ]+|TABLE\(.*\))$`)
	lines := strings.Split(strings.TrimSpace(original), "\n")
	require.Greater(t, len(lines), 70)
	for _, line := range lines {
		parts := form.FindStringSubmatch(line)
		require.NotNil(t, parts, line)
		needed, optional, _ := strings.Cut(parts[2], "|")
		needed, optional = strings.TrimSpace(needed), strings.TrimSpace(optional)
		want := strings.Trim(needed+", "+optional, ", ")
		required := 0
		if needed != "" {
			required = strings.Count(needed, ", ") + 1
		}
		// Two functions of one name would make calls that leave arguments out ambiguous: Scan fails when there is not exactly one row.
		var arguments, result string
		var least int
		err := pool.QueryRow(t.Context(), `
			SELECT min(pg_get_function_identity_arguments(oid)), min(pg_get_function_result(oid)), min(pronargs - pronargdefaults)
			  FROM pg_proc WHERE pronamespace = 'queen'::regnamespace AND proname = $1 HAVING count(*) = 1`, parts[1]).Scan(&arguments, &result, &least)
		require.NoError(t, err, parts[1])
		require.True(t, arguments == want || want == "" || strings.HasPrefix(arguments, want+", "), "%s has (%s), the original (%s)", parts[1], arguments, want)
		require.LessOrEqual(t, least, required, "%s wants more arguments than the original", parts[1])
		require.Equal(t, parts[3], result, parts[1])
	}
}

// originalColumns are the tables of the original that its users read with statements of their own: column, type and default.
const originalColumns = `
queues: id uuid gen_random_uuid(), name character varying(255), tenant_id uuid '00000000-0000-0000-0000-000000000001', namespace character varying(255), task character varying(255), priority integer 0, lease_time integer 60, retry_limit integer 3, retry_delay integer 1000, ttl integer 3600, dead_letter_queue boolean true, dlq_after_max_retries boolean true, delayed_processing integer 0, window_buffer integer 0, retention_seconds integer 0, completed_retention_seconds integer 0, retention_enabled boolean false, encryption_enabled boolean false, max_wait_time_seconds integer 0, max_queue_size integer 0, min_pop_wait_time integer 0, dedup_window_seconds integer 3600, created_at timestamp with time zone now()
log_partitions: id uuid gen_random_uuid(), queue_id uuid, name text 'Default', last_offset bigint '-1', log_start bigint 0, txns_start bigint 0, last_write_at timestamp with time zone now(), created_at timestamp with time zone now()
log_segments: partition_id uuid, base_offset bigint, end_offset bigint, created_at timestamp with time zone, blob bytea
log_txns: partition_id uuid, base_offset bigint, end_offset bigint, created_at timestamp with time zone, hashes bytea
log_consumers: partition_id uuid, consumer_group text '__QUEUE_MODE__', committed bigint '-1', batch_end bigint, worker_id text, lease_expires_at timestamp with time zone, lease_acquired_at timestamp with time zone, batch_retry_count integer 0, attempt_offset bigint, attempt_count integer 0, total_consumed bigint 0, created_at timestamp with time zone now()
log_dlq: id uuid gen_random_uuid(), partition_id uuid, consumer_group text, offset bigint, message_id uuid, transaction_id text, payload jsonb, error text, retry_count integer 0, failed_at timestamp with time zone now()
consumer_groups_metadata: id uuid gen_random_uuid(), tenant_id uuid '00000000-0000-0000-0000-000000000001', consumer_group text, queue_id uuid, partition_name text '', namespace text '', task text '', subscription_mode text, subscription_timestamp timestamp with time zone, created_at timestamp with time zone now()
consumer_watermarks: queue_id uuid, consumer_group character varying(255) '__QUEUE_MODE__', last_empty_scan_at timestamp with time zone, updated_at timestamp with time zone now()
retention_history: id uuid gen_random_uuid(), partition_id uuid, messages_deleted integer 0, retention_type character varying(50), executed_at timestamp with time zone now()
message_traces: id uuid gen_random_uuid(), message_id uuid, partition_id uuid, transaction_id character varying(255), consumer_group character varying(255), event_type character varying(100), data jsonb, created_at timestamp with time zone now(), worker_id character varying(255)
message_trace_names: trace_id uuid, trace_name text
system_state: key text, value jsonb, updated_at timestamp with time zone now()
`

func TestTablesOfTheOriginalHaveTheirColumns(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t).Pool(t)
	for line := range strings.Lines(strings.TrimSpace(originalColumns)) {
		table, columns, _ := strings.Cut(strings.TrimSpace(line), ": ")
		for column := range strings.SplitSeq(columns, ", ") {
			name, want, _ := strings.Cut(column, " ")
			var got string
			err := pool.QueryRow(t.Context(), `
				SELECT format_type(a.atttypid, a.atttypmod) || COALESCE(' ' || regexp_replace(pg_get_expr(d.adbin, d.adrelid), '::[a-z ]+$', ''), '')
				  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
				 WHERE a.attrelid = to_regclass('queen.' || $1) AND a.attname = $2 AND NOT a.attisdropped`, table, name).Scan(&got)
			require.NoError(t, err, "%s.%s", table, name)
			require.True(t, got == want || strings.HasPrefix(got, want+" "), "%s.%s is %s, not %s", table, name, got, want)
		}
	}
}
