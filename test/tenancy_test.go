package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The reasons for which something may touch tables of tenants without naming one.
const (
	byPartition = "a partition id belongs to one tenant; callers that take it from a client prove ownership first"
	byLease     = "a lease id is a random name that only its holder knows; the caller joins the tenant in the same statement"
	internal    = "called by procedures only, with rows that were found under a tenant"
	everybody   = "maintenance over all tenants that no client reaches and whose answer carries nothing of one"
	byTask      = "a task carries its tenant; its holder proves itself by its lease"
	cluster     = "figures of the whole cluster, which routes that are not scoped show to operators"
	process     = "about the connection or the process, not about anybody's rows"
	inRequest   = "the tenant is a field of the request"
)

// functionsWithoutTenant are the SQL functions that read or write tables of tenants and have no tenant anywhere. A new one needs a
// line, which is the moment to ask whose rows it can reach.
var functionsWithoutTenant = map[string]string{
	"log_txns_window_start_v1": byPartition, "log_txns_window_v1": byPartition, "log_segment_at_v1": byPartition,
	"log_ack_positions_v1": byPartition, "log_ack_multi_v1": byPartition, "log_ack_batches_v1": byPartition, "log_find_hashes_v1": byPartition,
	"log_ack_by_hash_v1": byPartition, "log_ack_completed_v1": byPartition, "log_dlq_head_v1": byPartition,
	"log_renew_lease_v1":        byLease,
	"log_retention_boundary_v1": everybody, "log_retention_boundary_windowed_v1": everybody, "log_retention_step_v1": everybody,
	"log_txns_purge_step_v1": everybody, "log_partition_dead_v1": everybody,
	"log_partition_cleanup_step_v1": everybody, "log_retention_due_v1": everybody, "log_retention_repair_step_v1": everybody,
	"log_dlq_purge_step_v1": everybody, "log_refresh_retained_bytes_v1": everybody, "log_stats_step_v1": everybody, "log_stats_store_v1": everybody,
	"cleanup_worker_metrics_v1": everybody, "aggregate_label_stats_v1": everybody, "aggregate_system_stats_v2": cluster,
	"update_worker_metrics_summary_trigger": cluster, "get_worker_throughput_v1": cluster, "get_worker_health_v1": cluster, "get_system_totals_v1": cluster, "log_settled_at_v1": cluster,
	"log_streams_state_v1": internal, "log_streams_expect_v1": internal, "log_streams_ack_v1": internal, "log_oldest_pending_at_v1": internal, "log_segment_since_v1": internal,
	"log_seek_one_v1": internal, "log_partition_progress_v1": internal, "log_partition_figures_v1": internal, "log_queue_totals_v1": internal, "log_newest_at_v1": internal, "queue_options_v1": internal,
	"bump_partitions_created_trigger": internal, "bump_partitions_deleted_trigger": internal, "log_pop_seed_at_v1": internal, "log_segments_follow_v1": internal,
	"log_pop_claim_v1": internal, "log_pop_shorten_v1": byPartition, "dlq_row_v1": internal,
	"record_trace_v1": byPartition, "delete_message_v1": byPartition, "get_message_traces_v1": byPartition, "log_message_state_v1": byPartition,
	"log_txns_range_v1": byPartition, "log_message_scan_v1": byPartition, "log_message_frames_v1": byPartition,
	"encryption_key_used_v1": cluster, "encryption_key_retire_v1": cluster, "rekey_segments_v1": everybody, "rekey_store_segments_v1": everybody,
	"task_claim_v1": byTask, "task_held_v1": byTask, "task_batch_v1": byTask, "task_purge_step_v1": byTask,
}

// methodsWithoutTenant are the methods of the database door that take no tenant.
var methodsWithoutTenant = map[string]string{
	"AckByHash": byPartition, "CompletedBefore": byPartition, "AckMulti": byPartition, "ReleaseLease": byPartition, "ShortenLeases": byPartition, "FileDeadLetter": byPartition,
	"SegmentsOf": byPartition, "SegmentAt": byPartition, "WindowHashes": byPartition, "PartitionLeaseHolder": byPartition,
	"UseEncryptionKey": cluster, "RetireEncryptionKey": cluster, "EncryptionKeys": cluster,
	"RotationOf": everybody, "SealedRows": everybody, "StoreRotation": everybody, "StoredRows": everybody,
	"PartitionOwner": "it tells the tenant",
	"PopWildcard":    inRequest, "PopSpecific": inRequest, "PopDiscover": inRequest, "PopList": inRequest, "PopReady": inRequest, "Pending": inRequest,
	"PushMulti": inRequest, "StreamsCycle": inRequest, "Transact": inRequest, "QueueLag": inRequest, "QueueOps": inRequest, "ParkedReplicas": inRequest, "RetentionSeries": inRequest,
	"InsertWorkerMetrics": process, "InsertSystemMetrics": process, "AddQueueMetrics": inRequest, "SetParked": inRequest,
	"Status": cluster, "WorkerMetrics": cluster, "SystemMetrics": cluster, "PostgresStats": cluster, "ClusterMetrics": cluster, "SystemFlags": cluster, "Identity": cluster,
	"SetSystemFlag":  cluster,
	"HotListRepairs": everybody, "RetentionDue": everybody, "RetentionStep": everybody, "PurgeSidecar": everybody, "EvictMaxWait": everybody,
	"CleanupPartitions": everybody, "PurgeDeadLetters": everybody, "RepairWatermarks": everybody, "PurgeMetrics": everybody, "RefreshStats": everybody,
	"RefreshRetainedBytes": everybody,
	"ClaimTask":            byTask, "TaskBatch": byTask, "RedriveStep": byTask, "PurgeStep": byTask,
	"ApplySchema": process, "Inspect": process, "StoreSessionSettings": process, "Abort": process, "NewLeader": process, "Close": process, "Ping": process, "Stats": process,
	"WaitReady": process, "DatabaseTime": process, "BrokerSeen": process, "BrokerLeft": process, "Brokers": cluster, "Listen": process, "NewNotifier": process,
}

var (
	sqlFunction = regexp.MustCompile(`(?is)CREATE OR REPLACE FUNCTION\s+queen(?:_streams)?\.(\w+)\s*\((.*?)\)\s*RETURNS(?:.*?)AS\s+\$(\w*)\$(.*?)\$(\w*)\$;?`)
	sqlComment  = regexp.MustCompile(`--[^\n]*`)
	// tenantTable matches every table of the schema except those of the program itself.
	tenantTable  = regexp.MustCompile(`\bqueen(?:_streams)?\.(\w+)\b(?:\s|;|,|\)|$)`)
	programTable = map[string]bool{"system_state": true, "system_metrics": true, "schema_version": true, "schema_files": true, "brokers": true}
	createTable  = regexp.MustCompile(`(?i)CREATE TABLE IF NOT EXISTS\s+queen(?:_streams)?\.(\w+)`)
)

// sqlTexts returns the SQL files without comments.
func sqlTexts(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	require.NoError(t, filepath.WalkDir("../sql", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".sql") {
			texts[path] = sqlComment.ReplaceAllString(readText(t, path), "")
		}
		return err
	}))
	require.Greater(t, len(texts), 10)
	return texts
}

// Every function that touches a table of tenants names a tenant or has a reason.
func TestSQLFunctionsNameTheirTenant(t *testing.T) {
	t.Parallel()
	texts := sqlTexts(t)
	tables := map[string]bool{}
	for _, text := range texts {
		for _, match := range createTable.FindAllStringSubmatch(text, -1) {
			tables[match[1]] = !programTable[match[1]]
		}
	}
	require.Greater(t, len(tables), 15)
	excused := map[string]bool{}
	functions := 0
	for path, text := range texts {
		for _, match := range sqlFunction.FindAllStringSubmatch(text, -1) {
			name, arguments, body := match[1], match[2], match[4]
			functions++
			if strings.Contains(strings.ToLower(arguments+body), "tenant") {
				continue
			}
			for _, used := range tenantTable.FindAllStringSubmatch(body, -1) {
				if !tables[used[1]] {
					continue
				}
				excused[name] = true
				if functionsWithoutTenant[name] == "" {
					t.Errorf("%s: %s uses queen.%s and names no tenant: give it one, or a reason in functionsWithoutTenant", path, name, used[1])
				}
				break
			}
		}
	}
	require.Greater(t, functions, 100)
	for name := range functionsWithoutTenant {
		if !excused[name] {
			t.Errorf("functionsWithoutTenant excuses %s, which needs no excuse", name)
		}
	}
}

// Every method of the database door takes a tenant or has a reason.
func TestDatabaseMethodsTakeATenant(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../internal/pg/*.go")
	require.NoError(t, err)
	excused := map[string]bool{}
	methods := 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		for _, declaration := range parsed.Decls {
			method, ok := declaration.(*ast.FuncDecl)
			if !ok || method.Recv == nil || !method.Name.IsExported() {
				continue
			}
			star, ok := method.Recv.List[0].Type.(*ast.StarExpr)
			if !ok {
				continue
			}
			if receiver, ok := star.X.(*ast.Ident); !ok || receiver.Name != "DB" {
				continue
			}
			methods++
			if takesTenant(method) {
				continue
			}
			excused[method.Name.Name] = true
			if methodsWithoutTenant[method.Name.Name] == "" {
				t.Errorf("%s: (*DB).%s takes no tenant: give it one, or a reason in methodsWithoutTenant", path, method.Name.Name)
			}
		}
	}
	require.Greater(t, methods, 50)
	for name := range methodsWithoutTenant {
		if !excused[name] && name != "SetSystemFlag" {
			t.Errorf("methodsWithoutTenant excuses %s, which needs no excuse", name)
		}
	}
}

func takesTenant(method *ast.FuncDecl) bool {
	for _, parameter := range method.Type.Params.List {
		for _, name := range parameter.Names {
			if name.Name == "tenant" {
				return true
			}
		}
	}
	return false
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}
