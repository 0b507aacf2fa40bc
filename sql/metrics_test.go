package sql_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// bucket widths by range, and 6-hour buckets that start at 00, 06, 12 and 18 UTC, also in a session east of Greenwich.
func TestSeriesBuckets(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	for minutes, want := range map[int]int{1: 1, 60: 1, 61: 5, 360: 5, 361: 15, 1440: 15, 1441: 60, 10080: 60, 10081: 360} {
		require.Equal(t, want, scan[int](t, log, `SELECT queen.series_bucket_minutes_v1('2026-01-01Z', '2026-01-01Z'::timestamptz + make_interval(mins => $1))`, minutes), "%d minutes", minutes)
	}
	for at, want := range map[string]string{"2026-05-05T05:59:59Z": "2026-05-05T00:00:00Z", "2026-05-05T06:00:00Z": "2026-05-05T06:00:00Z", "2026-05-05T23:10:00Z": "2026-05-05T18:00:00Z"} {
		require.Equal(t, want, scan[string](t, log, `SELECT queen.iso_s_v1(queen.series_bucket_v1($1::timestamptz, 360))`, at))
	}
}

func (l pushLog) sample(t *testing.T, queue string, ago time.Duration, pops, lag, lags, parked int) {
	t.Helper()
	l.exec(t, `INSERT INTO queen.queue_lag_metrics (bucket_time, queue_id, pop_count, push_message_count, ack_success_count, ack_failed_count, avg_lag_ms, max_lag_ms, lag_count, parked_count)
		SELECT date_trunc('minute', now()) - $2::interval, id, $3::int, 2 * $3::int, $3::int, 1, $4::int, 2 * $4::int, $5::int, $6::int FROM queen.queues WHERE name = $1`, queue, ago, pops, lag, lags, parked)
}

func TestQueueSeries(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	log.queued(t, "orders", "a", "1")
	log.queued(t, "idle", "a", "1")
	foreign := uuid.New()
	log.push(t, parcel{tenant: foreign, queue: "foreign", partition: "a", ids: ids("1")})
	log.exec(t, `DELETE FROM queen.queue_lag_metrics`) // what the creation of the partitions counted
	log.sample(t, "orders", 2*time.Minute, 30, 100, 10, 4)
	log.sample(t, "orders", time.Minute, 60, 400, 30, 2)
	log.sample(t, "idle", time.Minute, 0, 0, 0, 1)
	log.sample(t, "foreign", time.Minute, 5, 1, 1, 1)

	t.Run("LagIsWeightedAndNullWithoutSamples", func(t *testing.T) {
		t.Parallel()
		type point struct {
			QueueName          string
			PopCount           int
			AvgLagMs, MaxLagMs *int
			BucketMinutes      int
			BucketTime         time.Time
		}
		// Two hours wide: 5-minute buckets, which may part the two minutes or not.
		points, err := callJSON[[]point](log, `SELECT queen.get_queue_lag_v1(now() - interval '6 h')`)
		require.NoError(t, err)
		weight, sum := 0, 0
		for _, p := range points {
			require.Equal(t, 5, p.BucketMinutes)
			require.Zero(t, p.BucketTime.Unix()%300)
			if p.QueueName == "idle" {
				require.Nil(t, p.AvgLagMs)
				require.Nil(t, p.MaxLagMs)
				continue
			}
			require.Equal(t, "orders", p.QueueName, "other tenants stay hidden")
			lags := map[int]int{30: 10, 60: 30, 90: 40}[p.PopCount]
			weight, sum = weight+lags, sum+lags**p.AvgLagMs
		}
		require.Equal(t, []int{40, 10*100 + 30*400}, []int{weight, sum})
	})
	t.Run("OperationsPerBucket", func(t *testing.T) {
		t.Parallel()
		ops, err := callJSON[struct {
			BucketMinutes int
			Series        []map[string]any
			Queues        []string
		}](log, `SELECT queen.get_queue_ops_v1('{"queue":"orders"}')`)
		require.NoError(t, err)
		require.Equal(t, []string{"orders"}, ops.Queues)
		require.Len(t, ops.Series, 2)
		last := ops.Series[1]
		require.InDelta(t, 120, last["pushMessages"], 0)
		require.InDelta(t, 2, last["pushPerSecond"], 0)
		require.InDelta(t, 1.02, last["ackPerSecond"], 0)
		require.InDelta(t, 2, last["parkedCount"], 0)
		require.Nil(t, last["partitionCount"])
	})
	t.Run("AnotherTenantSeesItsOwn", func(t *testing.T) {
		t.Parallel()
		filters, err := json.Marshal(map[string]any{"_tenant": foreign})
		require.NoError(t, err)
		ops, err := callJSON[struct{ Queues []string }](log, `SELECT queen.get_queue_ops_v1($1)`, string(filters))
		require.NoError(t, err)
		require.Equal(t, []string{"foreign"}, ops.Queues)
		status, err := callJSON[struct{ Throughput []map[string]any }](log, `SELECT queen.get_status_v3($1)`, string(filters))
		require.NoError(t, err)
		require.Len(t, status.Throughput, 1)
		require.InDelta(t, 10, status.Throughput[0]["ingested"], 0)
	})
}

// The totals take every inserted row once, and outlive it.
func TestWorkerTotals(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	for i := range 3 {
		log.exec(t, `INSERT INTO queen.worker_metrics (hostname, worker_id, pid, bucket_time, push_request_count, push_message_count, ack_failed_count, avg_lag_ms, lag_count, dlq_count)
			VALUES ('h', 0, 7, now() - make_interval(secs => $1), 1, 10, 2, 100 * $1, $1, 1) ON CONFLICT DO NOTHING`, i)
	}
	totals := func() map[string]any {
		m, err := callJSON[map[string]any](log, `SELECT queen.get_system_totals_v1()`)
		require.NoError(t, err)
		return m
	}
	require.InDelta(t, 30, totals()["pushMessages"], 0)
	require.InDelta(t, 6, totals()["ackFailed"], 0)
	log.exec(t, `UPDATE queen.worker_metrics SET bucket_time = bucket_time - interval '10 d'`)
	deleted, err := callJSON[map[string]int](log, `SELECT queen.cleanup_worker_metrics_v1(7, 2)`)
	require.NoError(t, err)
	require.Equal(t, 2, deleted["deletedMetrics"], "a call is bounded")
	log.exec(t, `SELECT queen.cleanup_worker_metrics_v1(7)`)
	require.Zero(t, scan[int64](t, log, `SELECT count(*) FROM queen.worker_metrics`))
	require.InDelta(t, 30, totals()["pushMessages"], 0)
	require.InDelta(t, 3, totals()["dlqCount"], 0)
}

func TestWorkerSeries(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	log.exec(t, `INSERT INTO queen.worker_metrics (hostname, worker_id, pid, bucket_time, push_message_count, pop_message_count, ack_message_count, avg_lag_ms, max_lag_ms, lag_count)
		SELECT h, 0, 1, date_trunc('minute', now()) - make_interval(mins => m), 60 * m, 30, 15, m * 100, m * 200, m FROM (VALUES ('a'), ('b')) AS x (h), generate_series(1, 3) m`)
	series, err := callJSON[struct {
		PointCount int
		TimeSeries []map[string]any
		Workers    []map[string]any
	}](log, `SELECT queen.get_worker_metrics_timeseries_v1('{"hostname":"a","workerId":"0"}')`)
	require.NoError(t, err)
	require.Equal(t, 3, series.PointCount)
	require.InDelta(t, 60, series.TimeSeries[0]["pushMessages"], 0, "newest first, one broker")
	require.InDelta(t, 1, series.TimeSeries[0]["pushPerSecond"], 0)
	require.Nil(t, series.TimeSeries[0]["backoffSize"])
	require.Len(t, series.Workers, 1)
	require.InDelta(t, 60*(1+2+3)+90, series.Workers[0]["messagesProcessed"], 0)
	throughput, err := callJSON[[]map[string]any](log, `SELECT queen.get_worker_throughput_v1()`)
	require.NoError(t, err)
	require.Len(t, throughput, 3)
	require.InDelta(t, 2, throughput[0]["pushMessagesPerSecond"], 0, "both brokers")
	require.InDelta(t, 100, throughput[0]["avgLagMs"], 0)
	health, err := callJSON[[]map[string]any](log, `SELECT queen.get_worker_health_v1()`)
	require.NoError(t, err)
	require.Len(t, health, 2)
	status, err := callJSON[struct {
		Throughput []map[string]any
		Messages   map[string]any
		Workers    []map[string]any
	}](log, `SELECT queen.get_status_v3()`)
	require.NoError(t, err)
	require.InDelta(t, 120, status.Throughput[0]["ingested"], 0)
	require.Nil(t, status.Throughput[0]["queenRssMb"], "no system sample fell into the bucket")
	require.InDelta(t, 720, status.Messages["total"], 0)
}

// Creating and removing partitions is counted in the minute of their queue, whatever order many pushes come in.
func TestPartitionCounters(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	done := make(chan error, 8)
	for worker := range cap(done) {
		go func() {
			var parcels []parcel
			for i := range 20 {
				parcels = append(parcels, parcel{queue: fmt.Sprint("q", (i*7+worker)%20), partition: fmt.Sprint("p", worker), ids: ids(fmt.Sprint(worker, i))})
			}
			_, err := push(log, parcels...)
			done <- err
		}()
	}
	for range cap(done) {
		require.NoError(t, <-done)
	}
	sums := func(column string) int64 {
		return scan[int64](t, log, `SELECT COALESCE(sum(`+column+`), 0)::bigint FROM queen.queue_lag_metrics`)
	}
	require.EqualValues(t, 160, sums("partitions_created"))
	log.exec(t, `DELETE FROM queen.log_partitions WHERE name = 'p1'`)
	require.EqualValues(t, 20, sums("partitions_deleted"))
	log.exec(t, `SELECT queen.delete_queue_v1('q3')`)
	require.EqualValues(t, 19, sums("partitions_deleted"), "the metrics of a queue go with it")
}

func TestRetentionSeries(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	mine, foreign := log.queued(t, "mine", "a", "1"), uuid.New()
	theirs := log.push(t, parcel{tenant: foreign, queue: "theirs", partition: "a", ids: ids("1")})[0].PartitionID
	for _, row := range []struct {
		partition uuid.UUID
		kind      string
		n         int
	}{
		{mine, "retention", 5},
		{mine, "completed_retention", 7},
		{mine, "__partition_deleted__", 0},
		{mine, "max_wait_time_eviction", 1},
		{mine, "purge", 3},
		{theirs, "retention", 100},
		{uuid.New(), "retention", 1000},
	} {
		log.exec(t, `INSERT INTO queen.retention_history (partition_id, messages_deleted, retention_type) VALUES ($1, $2, $3)`, row.partition, row.n, row.kind)
	}
	totals := func(filters string) map[string]int {
		s, err := callJSON[struct{ Totals map[string]int }](log, `SELECT queen.get_retention_timeseries_v1($1)`, filters)
		require.NoError(t, err)
		return s.Totals
	}
	require.Equal(t, map[string]int{"retentionMsgs": 5, "completedRetentionMsgs": 7, "evictionMsgs": 1, "purgeMsgs": 3, "totalMsgs": 16, "eventCount": 4}, totals(`{"_isolated":true}`))
	require.Equal(t, 1016, totals(`{}`)["totalMsgs"], "what nobody owns any more is shown where there is one tenant")
	require.Equal(t, 16, totals(`{"queue":"mine"}`)["totalMsgs"])
	require.Equal(t, 100, totals(`{"_tenant":"` + foreign.String() + `"}`)["totalMsgs"])
}

// Queues of several tenants that share a name are summed; an unsampled lag is null; nothing tells of tenants.
func TestPrometheusMetrics(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	log.queued(t, "same", "a", "1")
	log.queued(t, "quiet", "a", "1")
	other := uuid.New()
	log.push(t, parcel{tenant: other, queue: "same", partition: "a", ids: ids("1")})
	log.exec(t, `DELETE FROM queen.queue_lag_metrics`)
	log.sample(t, "same", time.Minute, 10, 100, 10, 1) // both queues of that name
	log.sample(t, "same", 3*time.Minute, 1000, 1, 1, 1)
	log.sample(t, "quiet", time.Minute, 0, 0, 0, 0)
	log.exec(t, `INSERT INTO queen.stats (stat_type, stat_key, queue_id, dead_letter_messages) SELECT 'queue', id::text, id, 3 FROM queen.queues WHERE name = 'same'`)
	text := scan[string](t, log, `SELECT queen.get_prometheus_metrics_v1()::text`)
	require.NotContains(t, text, other.String())
	var got struct {
		Lag []struct {
			Queue    string
			PopCount int  `json:"pop_count"`
			AvgLag   *int `json:"avg_lag_ms"`
		} `json:"per_queue_lag"`
		DLQ struct {
			Total    int
			PerQueue []map[string]any `json:"per_queue"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	require.Len(t, got.Lag, 2)
	require.Nil(t, got.Lag[0].AvgLag)
	require.Equal(t, 20, got.Lag[1].PopCount, "the newest minute of both")
	require.Equal(t, 100, *got.Lag[1].AvgLag)
	require.Equal(t, 6, got.DLQ.Total)
}

func TestPostgresStats(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	log.queued(t, "q", "a", "1")
	waiting := log.begin(t)
	_, err := waiting.Exec(context.Background(), `SELECT count(*) FROM queen.queues`)
	require.NoError(t, err)
	stats, err := callJSON[map[string]any](log, `SELECT queen.get_postgres_stats_v1()`)
	require.NoError(t, err)
	for _, list := range []string{"tableCache", "indexCache", "deadTuples", "hotUpdates", "autovacuumStatus", "tableSizes", "activeQueries", "bufferUsage", "lockWaits", "vacuumRunning"} {
		require.IsType(t, []any{}, stats[list], list)
		require.LessOrEqual(t, len(stats[list].([]any)), 20, list) //nolint:forcetypeassert // asserted in the line above
	}
	require.NotEmpty(t, stats["tableSizes"])
	require.Regexp(t, `^\d{4}-.*Z$`, stats["timestamp"])
}

func TestOverview(t *testing.T) {
	t.Parallel()
	log := newPushLog(t)
	log.queued(t, "mine", "a", "1")
	other := uuid.New()
	log.push(t, parcel{tenant: other, queue: "theirs", partition: "a", ids: ids("1")})
	log.exec(t, `INSERT INTO queen.worker_metrics (hostname, worker_id, pid, bucket_time, push_message_count) VALUES ('h', 0, 1, now(), 300)`)
	log.exec(t, `INSERT INTO queen.stats (stat_type, stat_key, queue_id, child_count, total_messages, pending_messages, processing_messages) SELECT 'queue', id::text, id, 2, 10, 7, 3 FROM queen.queues`)
	look := func(args ...any) map[string]any {
		t.Helper()
		m, err := callJSON[map[string]any](log, `SELECT queen.get_system_overview_v3($1, $2)`, args...)
		require.NoError(t, err)
		return m
	}
	whole := look(defaultTenant, false)
	require.InDelta(t, 2, whole["queues"], 0)
	require.Equal(t, map[string]any{"total": 300.0, "pending": 8.0, "processing": 6.0, "completed": 0.0, "failed": 0.0, "deadLetter": 0.0}, whole["messages"])
	require.Equal(t, map[string]any{"ingestedPerSecond": 1.0, "processedPerSecond": 0.0}, whole["throughput"])
	for _, tenant := range []uuid.UUID{defaultTenant, other} {
		one := look(tenant, true)
		require.InDelta(t, 1, one["queues"], 0)
		require.InDelta(t, 10, one["messages"].(map[string]any)["total"], 0) //nolint:forcetypeassert // JSON
	}
	require.InDelta(t, -1, look(uuid.New(), true)["statsAge"], 0)
}
