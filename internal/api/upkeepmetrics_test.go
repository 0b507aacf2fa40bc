package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func minute(queue string, pops float64, avg, most *float64) pg.QueueMinute {
	return pg.QueueMinute{Queue: queue, PopMessages: pops, PushMessages: 1, AvgLag: avg, MaxLag: most}
}

func TestClusterMetrics(t *testing.T) {
	t.Parallel()
	var metrics pg.ClusterMetrics
	metrics.Totals.PushMessages, metrics.Totals.AckFailed = 7, 2
	metrics.Queues = []pg.QueueMinute{minute("a\"\\\n", 5, new(-3.0), new(9.0)), minute("silent", 0, nil, nil)}
	metrics.DeadLetters.PerQueue = []pg.QueueDeadLetter{{Queue: "d", Count: 4}}
	metrics.DeadLetters.Total = 4
	metrics.Depths = []pg.QueueDepthFigures{{Queue: "d", Total: 9, Pending: 5}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(&clusterCollector{read: func(context.Context) (pg.ClusterMetrics, error) { return metrics, nil }})
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP queen_cluster_push_messages_total Messages stored by all brokers, ever.
# TYPE queen_cluster_push_messages_total counter
queen_cluster_push_messages_total{scope="cluster"} 7
# HELP queen_cluster_ack_total Acknowledgments of all brokers, ever, by what the consumer reported.
# TYPE queen_cluster_ack_total counter
queen_cluster_ack_total{result="failed",scope="cluster"} 2
queen_cluster_ack_total{result="success",scope="cluster"} 0
# HELP queen_queue_pop_lag_milliseconds Age of the messages that were delivered in the newest minute of a queue; absent when there were none.
# TYPE queen_queue_pop_lag_milliseconds gauge
queen_queue_pop_lag_milliseconds{queue="a\"\\\n",stat="avg"} 0
queen_queue_pop_lag_milliseconds{queue="a\"\\\n",stat="max"} 9
# HELP queen_dlq_depth_by_queue Dead letters that are kept of a queue, as of the last statistics; the queues beyond 1000 are summed up as other.
# TYPE queen_dlq_depth_by_queue gauge
queen_dlq_depth_by_queue{queue="d"} 4
# HELP queen_queue_depth_pending Messages of a queue that its slowest group has not consumed, as of the last statistics; absent for an empty queue; the queues beyond 1000 are summed up as other.
# TYPE queen_queue_depth_pending gauge
queen_queue_depth_pending{queue="d",storage="segments"} 5
# HELP queen_queue_depth_total Messages that a queue holds, as of the last statistics; absent for an empty queue; the queues beyond 1000 are summed up as other.
# TYPE queen_queue_depth_total gauge
queen_queue_depth_total{queue="d",storage="segments"} 9
`), "queen_queue_depth_pending", "queen_queue_depth_total", "queen_cluster_push_messages_total", "queen_cluster_ack_total", "queen_queue_pop_lag_milliseconds", "queen_dlq_depth_by_queue"))
}

func TestTenantsOfQueueMetrics(t *testing.T) {
	t.Parallel()
	one, other := minute("q", 5, nil, nil), minute("q", 6, nil, nil)
	one.Tenant, other.Tenant = "t1", "t2"
	metrics := pg.ClusterMetrics{Queues: []pg.QueueMinute{one, other}}
	metrics.DeadLetters.PerQueue = []pg.QueueDeadLetter{{Queue: "q", Tenant: "t2", Count: 4}}
	id := uuid.New()
	deps := Deps{LongPolls: func(each func(uuid.UUID, string, int)) { each(id, "q", 3) }}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(&clusterCollector{read: func(context.Context) (pg.ClusterMetrics, error) { return metrics, nil }, tenants: true}, engineCollector{&deps, true})
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP queen_queue_pop_messages_per_minute Messages delivered in the newest minute of a queue; the queues beyond 1000 are summed up as other.
# TYPE queen_queue_pop_messages_per_minute gauge
queen_queue_pop_messages_per_minute{queue="q",tenant="t1"} 5
queen_queue_pop_messages_per_minute{queue="q",tenant="t2"} 6
# HELP queen_dlq_depth_by_queue Dead letters that are kept of a queue, as of the last statistics; the queues beyond 1000 are summed up as other.
# TYPE queen_dlq_depth_by_queue gauge
queen_dlq_depth_by_queue{queue="q",tenant="t2"} 4
# HELP queen_parked_long_polls Long polls that wait for a queue; the queues beyond 1000 are summed up as other.
# TYPE queen_parked_long_polls gauge
queen_parked_long_polls{queue="q",tenant="`+id.String()+`"} 3
`), "queen_queue_pop_messages_per_minute", "queen_dlq_depth_by_queue", "queen_parked_long_polls"))
}

func TestClusterMetricsAreReadOnceInAWhileAndAbsentWithoutADatabase(t *testing.T) {
	t.Parallel()
	reads, fault := 0, errors.New("away")
	collector := &clusterCollector{read: func(ctx context.Context) (pg.ClusterMetrics, error) {
		reads++
		deadline, bounded := ctx.Deadline()
		require.True(t, bounded)
		require.LessOrEqual(t, time.Until(deadline), clusterTimeout)
		return pg.ClusterMetrics{}, fault
	}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	families := func() int {
		t.Helper()
		gathered, err := registry.Gather()
		require.NoError(t, err)
		return len(gathered)
	}
	require.Zero(t, families())
	require.Zero(t, families())
	require.Equal(t, 1, reads, "a scraper that finds the database away is not kept waiting twice")
	fault, collector.fresh = nil, time.Now().Add(-clusterTTL)
	require.Positive(t, families())
	require.Positive(t, families())
	require.Equal(t, 2, reads)
}

func TestQueueSeriesAreCapped(t *testing.T) {
	t.Parallel()
	var queues []pg.QueueMinute
	total := 0.0
	for i := range maxQueueSeries + 500 {
		queues = append(queues, minute(fmt.Sprint("q", i), float64(i), new(10.0), new(float64(i))))
		total += float64(i)
	}
	queues = append(queues, minute(otherQueues, 1e6, nil, nil))
	total += 1e6
	capped := capQueues(queues)
	require.LessOrEqual(t, len(capped), maxQueueSeries+1)
	sum, names := 0.0, map[string]bool{}
	for _, queue := range capped {
		sum += queue.PopMessages
		require.False(t, names[queue.Queue], "%s twice", queue.Queue)
		names[queue.Queue] = true
	}
	require.InDelta(t, total, sum, 0)
	last := capped[len(capped)-1]
	require.Equal(t, otherQueues, last.Queue)
	require.LessOrEqual(t, *last.AvgLag, 10.0)
	require.InDelta(t, 500, *last.MaxLag, 1)
	require.Len(t, capQueues(queues[:maxQueueSeries]), maxQueueSeries)

	polls := map[queueLabels]int{}
	for i := range maxQueueSeries * 2 {
		polls[queueLabels{queue: fmt.Sprint(i)}] = 1
	}
	capped2 := capPolls(polls)
	require.Len(t, capped2, maxQueueSeries+1)
	require.Equal(t, maxQueueSeries, capped2[queueLabels{queue: otherQueues}])
}

func TestUpkeepMetricsPassTheLinter(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(upkeepCollector{func() UpkeepFigures {
		return UpkeepFigures{
			LoopLag: 1500 * time.Microsecond, Maintenance: true,
			Loops:     []LoopFigures{{Name: "retention", Passes: 3, LastSuccess: time.Now()}, {Name: "metrics", Failures: 2}},
			Retention: RetentionFigures{Leading: true, Lag: 2 * time.Second, Unread: 5, Due: map[string]int64{"rules": 1}, Blocked: map[string]int64{"rules": 2}},
		}
	}}, &clusterCollector{read: func(context.Context) (pg.ClusterMetrics, error) {
		return pg.ClusterMetrics{Queues: []pg.QueueMinute{minute("q", 1, new(1.0), new(1.0))}}, nil
	}})
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	for _, problem := range problems {
		// These names are the wire's, which dashboards know.
		require.Contains(t, []string{"queen_event_loop_lag_avg_milliseconds", "queen_queue_pop_lag_milliseconds"}, problem.Metric, problem.Text)
	}
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP queen_event_loop_lag_avg_milliseconds How late timers of this process fire, on average since the last flush of metrics.
# TYPE queen_event_loop_lag_avg_milliseconds gauge
queen_event_loop_lag_avg_milliseconds 1.5
# HELP queen_retention_deleted_unread_messages_total Messages deleted by retention before every group (or any) had read them, because retentionSeconds or maxWaitTimeSeconds said so.
# TYPE queen_retention_deleted_unread_messages_total counter
queen_retention_deleted_unread_messages_total 5
# HELP queen_retention_lag_seconds How far the oldest partition that retention can empty is past its cutoff; seen by the leader, 0 elsewhere.
# TYPE queen_retention_lag_seconds gauge
queen_retention_lag_seconds 2
`), "queen_event_loop_lag_avg_milliseconds", "queen_retention_deleted_unread_messages_total", "queen_retention_lag_seconds"))
	count, err := testutil.GatherAndCount(registry, "queen_loop_last_success_age_seconds")
	require.NoError(t, err)
	require.Equal(t, 1, count, "a loop that never succeeded has no age")
}
