package management

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// families are those that dashboards and alerts of the older line read: name, kind, and the label sets that must be there.
var families = []struct {
	name, kind string
	series     []string
}{
	{"queen_uptime_seconds", "gauge", []string{""}},
	{"queen_process_resident_memory_bytes", "gauge", []string{""}},
	{"queen_process_push_requests_total", "counter", []string{""}},
	{"queen_process_pop_requests_total", "counter", []string{""}},
	{"queen_process_ack_requests_total", "counter", []string{""}},
	{"queen_process_push_messages_total", "counter", []string{""}},
	{"queen_process_pop_messages_total", "counter", []string{""}},
	{"queen_process_ack_messages_total", "counter", []string{""}},
	{"queen_pop_targeted_total", "counter", []string{""}},
	{"queen_pop_wildcard_total", "counter", []string{""}},
	{"queen_pop_fill_wait_total", "counter", []string{""}},
	{"queen_pop_fill_wait_microseconds_total", "counter", []string{""}},
	{"queen_parked_long_polls", "gauge", []string{`queue="parked"`}},
	{"queen_event_loop_lag_avg_milliseconds", "gauge", []string{""}},
	{"queen_batches_fired_total", "counter", []string{`op="push"`, `op="pop"`, `op="ack"`}},
	{"queen_batch_items_fired_total", "counter", []string{`op="push"`, `op="pop"`, `op="ack"`}},
	{"queen_fusion_items_per_batch", "gauge", []string{`op="push"`, `op="pop"`, `op="ack"`}},
	{"queen_batch_rtt_milliseconds", "gauge", []string{
		`op="push",quantile="0.5"`, `op="push",quantile="0.99"`, `op="pop",quantile="0.5"`, `op="pop",quantile="0.99"`, `op="ack",quantile="0.5"`, `op="ack",quantile="0.99"`,
	}},
	{"queen_admission_budget", "gauge", []string{""}},
	{"queen_admission_inflight", "gauge", []string{`lane="push"`, `lane="pop"`, `lane="ack"`, `lane="maint"`}},
	{"queen_admission_waiting", "gauge", []string{`lane="push"`, `lane="pop"`, `lane="ack"`, `lane="maint"`}},
	{"queen_admission_trains_per_s", "gauge", []string{""}},
	{"queen_admission_txn_per_train", "gauge", []string{""}},
	{"queen_admission_cycle_ms", "gauge", []string{""}},
	{"queen_db_pool_size", "gauge", []string{""}},
	{"queen_db_pool_idle", "gauge", []string{""}},
	{"queen_db_pool_active", "gauge", []string{""}},
	{"queen_maintenance_mode_enabled", "gauge", []string{""}},
	{"queen_file_buffer_pending", "gauge", []string{""}},
	{"queen_file_buffer_failed", "gauge", []string{""}},
	{"queen_file_buffer_db_healthy", "gauge", []string{""}},

	{"queen_cluster_push_requests_total", "counter", []string{`scope="cluster"`}},
	{"queen_cluster_pop_requests_total", "counter", []string{`scope="cluster"`}},
	{"queen_cluster_ack_requests_total", "counter", []string{`scope="cluster"`}},
	{"queen_cluster_transactions_total", "counter", []string{`scope="cluster"`}},
	{"queen_cluster_push_messages_total", "counter", []string{`scope="cluster"`}},
	{"queen_cluster_pop_messages_total", "counter", []string{`scope="cluster"`}},
	{"queen_cluster_ack_messages_total", "counter", []string{`scope="cluster"`}},
	{"queen_cluster_ack_total", "counter", []string{`result="success",scope="cluster"`, `result="failed",scope="cluster"`}},
	{"queen_cluster_db_errors_total", "counter", []string{`scope="cluster"`}},
	{"queen_cluster_dlq_total", "counter", []string{`scope="cluster"`}},
	{"queen_queue_pop_messages_per_minute", "gauge", []string{`queue="q"`}},
	{"queen_queue_push_requests_per_minute", "gauge", []string{`queue="q"`}},
	{"queen_queue_push_messages_per_minute", "gauge", []string{`queue="q"`}},
	{"queen_queue_pop_empty_per_minute", "gauge", []string{`queue="q"`}},
	{"queen_queue_transactions_per_minute", "gauge", []string{`queue="q"`}},
	{"queen_queue_ack_per_minute", "gauge", []string{`queue="q",result="success"`, `queue="q",result="failed"`}},
	{"queen_queue_parked_consumers", "gauge", []string{`queue="q"`}},
	{"queen_queue_metrics_age_seconds", "gauge", []string{`queue="q"`}},
	{"queen_queue_pop_lag_milliseconds", "gauge", []string{`queue="q",stat="avg"`, `queue="q",stat="max"`}},
	{"queen_dlq_depth", "gauge", []string{`scope="cluster"`}},
	{"queen_dlq_depth_by_queue", "gauge", []string{`queue="q"`}},
	{"queen_queue_depth_total", "gauge", []string{`queue="q",storage="segments"`}},
	{"queen_queue_depth_pending", "gauge", []string{`queue="q",storage="segments"`}},

	// Ours, of the runtime.
	{"go_goroutines", "gauge", []string{""}},
	{"go_memstats_heap_alloc_bytes", "gauge", []string{""}},
}

// A scrape is a read of the Prometheus page: kinds by family, values by series as they are written.
type scrape struct {
	kinds  map[string]string
	helped map[string]bool
	values map[string]float64
}

var sampleLine = regexp.MustCompile(`^([a-z_0-9]+)(?:\{(.*)\})? (\S+)$`)

func scraped(t *testing.T, url string) scrape {
	t.Helper()
	answer, err := http.Get(url + "/metrics/prometheus")
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	s := scrape{map[string]string{}, map[string]bool{}, map[string]float64{}}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "# TYPE "):
			s.kinds[words[2]] = words[3]
		case strings.HasPrefix(line, "# HELP "):
			s.helped[words[2]] = len(words) > 3
		default:
			parts := sampleLine.FindStringSubmatch(strings.TrimSpace(line))
			require.NotNil(t, parts, line)
			value, err := strconv.ParseFloat(parts[3], 64)
			require.NoError(t, err, line)
			s.values[parts[1]+"{"+parts[2]+"}"] = value
		}
	}
	return s
}

// missing are the rows of the table that the page does not have.
func (s scrape) missing() (faults []string) {
	for _, family := range families {
		if s.kinds[family.name] != family.kind || !s.helped[family.name] {
			faults = append(faults, fmt.Sprintf("%s is a %q with help %t", family.name, s.kinds[family.name], s.helped[family.name]))
			continue
		}
		for _, labels := range family.series {
			if value, found := s.values[family.name+"{"+labels+"}"]; !found || value < 0 {
				faults = append(faults, fmt.Sprintf("%s{%s}: %v", family.name, labels, value))
			}
		}
	}
	return faults
}

// Every family of the contract is on the page of a broker that does a little of everything, with its kind and its labels, and
// no series tells of partitions, messages or tenants.
func TestEveryMetricFamilyHasASource(t *testing.T) {
	t.Parallel()
	p := newPair(t, map[string]string{"METRICS_FLUSH_MS": "1000", "STATS_INTERVAL_MS": "1000"})
	url := p.urls[0]
	p.must(0, "POST", "/api/v1/configure", `{"queue":"q","options":{"minPopWaitTime":100,"retryLimit":0}}`)
	parked := make(chan error, 1)
	go func() {
		answer, err := p.http.Get(url + "/api/v1/pop/queue/parked?wait=true&timeout=15000&consumerGroup=g")
		if err == nil {
			err = answer.Body.Close()
		}
		parked <- err
	}()

	var page scrape
	n := 0
	holds := func() bool {
		// Each round pushes, delivers, completes, fails for good, commits a transaction and finds nothing.
		n++
		p.must(0, "POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":"q","transactionId":"a%[1]d","payload":1},{"queue":"q","transactionId":"b%[1]d","payload":1},{"queue":"q","transactionId":"c%[1]d","payload":1}]}`, n))
		popped := p.must(0, "GET", "/api/v1/pop/queue/q?consumerGroup=g&batch=100&wait=true&timeout=5000", "")
		for i, m := range popped["messages"].([]any) {
			status := []string{"completed", "failed", "completed"}[i%3]
			p.must(0, "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"consumerGroup":"g","status":%q}`,
				m.(map[string]any)["transactionId"], popped["partitionId"], popped["leaseId"], status))
		}
		p.must(0, "POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"q","payload":1}]}]}`)
		_, _ = p.do(0, "GET", "/api/v1/pop/queue/q/partition/none?consumerGroup=g", "")
		page = scraped(t, url)
		return len(page.missing()) == 0
	}
	deadline := time.Now().Add(60 * time.Second)
	for !holds() && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond) // poll of a page that a loop fills, bounded by the deadline
	}
	require.Empty(t, page.missing())
	for series := range page.values {
		require.NotRegexp(t, `[{,](partition|partition_id|transaction_id|message_id|tenant)=|[0-9a-f]{8}-[0-9a-f]{4}`, series, "a series for each of many")
	}
	require.Positive(t, page.values[`queen_pop_fill_wait_total{}`])
	require.Positive(t, page.values[`queen_batch_items_fired_total{op="pop"}`])
	p.must(0, "POST", "/api/v1/push", `{"items":[{"queue":"parked","payload":1}]}`)
	require.NoError(t, <-parked)
}
