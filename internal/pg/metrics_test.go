package pg_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func TestWorkerMetricsAreStoredOncePerSecond(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	sample := pg.WorkerSample{Hostname: "h", PID: 7, PushRequests: 1, PushMessages: 10, AckFailed: 2, AvgLag: 5, MaxLag: 9, LagCount: 3, DatabaseErrors: 1}
	stored := 0
	for range 5 {
		ok, err := db.InsertWorkerMetrics(t.Context(), sample)
		require.NoError(t, err)
		if ok {
			stored++
		}
	}
	require.Positive(t, stored)
	require.Less(t, stored, 5, "five samples within one second")
	var total int
	require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT total_push_messages FROM queen.worker_metrics_summary`).Scan(&total))
	require.Equal(t, 10*stored, total, "what was stored is in the totals")
	require.NoError(t, db.InsertSystemMetrics(t.Context(), "h", 6632, "worker-0", 60, []byte(`{"cpu":{"user_us":{"avg":1,"min":1,"max":1,"last":1}}}`)))
	series, err := db.SystemMetrics(t.Context(), pg.SeriesFilter{Tenant: pg.DefaultTenant})
	require.NoError(t, err)
	require.Contains(t, string(series), `"worker-0"`)
}

// Many brokers flush the same queues in the same minute, each in its own order.
func TestQueueMetricsAddUp(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	queues := []string{"a", "b", "c", "d"}
	for _, queue := range queues {
		push(t, db, segment(queue, "p", "1"))
	}
	other := segment("a", "p", "1")
	other.Tenant = uuid.New()
	push(t, db, other)
	_, err := database.Pool(t).Exec(t.Context(), `DELETE FROM queen.queue_lag_metrics`)
	require.NoError(t, err)

	const brokers, flushes = 6, 10
	var group sync.WaitGroup
	failures := make([]error, brokers)
	for broker := range brokers {
		group.Go(func() {
			for range flushes {
				var samples []pg.QueueSample
				for i := range queues {
					samples = append(samples, pg.QueueSample{
						Tenant: pg.DefaultTenant, Queue: queues[(i+broker)%len(queues)], PushMessages: 1, PopMessages: 3,
						LagSum: int64(broker) * 100 * 2, LagCount: 2, LagMax: int64(broker), Parked: 1,
					})
				}
				samples = append(samples, pg.QueueSample{Tenant: pg.DefaultTenant, Queue: "unknown", PushMessages: 9})
				if err := db.AddQueueMetrics(t.Context(), samples); err != nil {
					failures[broker] = err
				}
			}
		})
	}
	group.Wait()
	for _, err := range failures {
		require.NoError(t, err)
	}
	var rows, pushed, popped, lags, most, parked, foreign int
	var average float64
	require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT count(DISTINCT queue_id), sum(push_message_count), sum(pop_count), sum(lag_count), max(max_lag_ms), sum(parked_count),
sum(avg_lag_ms * lag_count) / sum(lag_count), count(*) FILTER (WHERE q.tenant_id <> $1) FROM queen.queue_lag_metrics m JOIN queen.queues q ON q.id = m.queue_id`, pg.DefaultTenant).
		Scan(&rows, &pushed, &popped, &lags, &most, &parked, &average, &foreign))
	const all = brokers * flushes * 4
	require.Equal(t, []int{4, all, 3 * all, 2 * all, brokers - 1, all, 0}, []int{rows, pushed, popped, lags, most, parked, foreign})
	require.InDelta(t, 250, average, 2*brokers*flushes/4, "averages are weighted; each merge rounds down")
	require.NoError(t, db.AddQueueMetrics(t.Context(), nil))
}

func TestQueueMetricsAndAQueueThatIsDeleted(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	stop := make(chan struct{})
	var group sync.WaitGroup
	failed := make(chan error, 1)
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			err := db.AddQueueMetrics(t.Context(), []pg.QueueSample{{Tenant: pg.DefaultTenant, Queue: "q", PushMessages: 1}, {Tenant: pg.DefaultTenant, Queue: "r", PushMessages: 1}})
			if err != nil {
				failed <- err
				return
			}
		}
	})
	for i := range 20 {
		for _, queue := range []string{"q", "r"} {
			push(t, db, segment(queue, "p", string(rune('a'+i))))
			_, err := db.DeleteQueue(t.Context(), pg.DefaultTenant, queue)
			require.NoError(t, err)
		}
	}
	close(stop)
	group.Wait()
	select {
	case err := <-failed:
		require.NoError(t, err)
	default:
	}
}

func TestParkedReplicasAreReplaced(t *testing.T) {
	t.Parallel()
	db, database := setup(t)
	push(t, db, segment("q", "p", "1"))
	for _, parked := range []int64{3, 5} {
		require.NoError(t, db.SetParked(t.Context(), "h", 0, []pg.QueueSample{{Tenant: pg.DefaultTenant, Queue: "q", Parked: parked}, {Tenant: pg.DefaultTenant, Queue: "gone", Parked: 1}}))
	}
	var least, most int
	require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT min(parked_count), max(parked_count) FROM queen.queue_parked_replica`).Scan(&least, &most))
	require.Equal(t, 5, most)
	require.Contains(t, []int{3, 5}, least, "3 only when the minute ended between the two")
}

// Every reader answers for an empty and for a used database.
func TestSeriesReaders(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	for range 2 {
		filter := pg.SeriesFilter{Tenant: pg.DefaultTenant, From: time.Now().Add(-48 * time.Hour), To: time.Now().Add(time.Hour), Queue: `we"ird`, Hostname: "h", WorkerID: "0"}
		for name, read := range map[string]func() ([]byte, error){
			"status":    func() ([]byte, error) { return db.Status(t.Context(), filter) },
			"overview":  func() ([]byte, error) { return db.SystemOverview(t.Context(), pg.DefaultTenant, true) },
			"lag":       func() ([]byte, error) { return db.QueueLag(t.Context(), filter) },
			"ops":       func() ([]byte, error) { return db.QueueOps(t.Context(), filter) },
			"parked":    func() ([]byte, error) { return db.ParkedReplicas(t.Context(), filter) },
			"retention": func() ([]byte, error) { return db.RetentionSeries(t.Context(), filter) },
			"workers":   func() ([]byte, error) { return db.WorkerMetrics(t.Context(), filter) },
			"postgres":  func() ([]byte, error) { return db.PostgresStats(t.Context()) },
		} {
			answer, err := read()
			require.NoError(t, err, name)
			require.NotEmpty(t, answer, name)
		}
		_, err := db.ClusterMetrics(t.Context(), false)
		require.NoError(t, err)
		push(t, db, segment(`we"ird`, "p", "1"+time.Now().String()))
		_, err = db.RefreshStats(t.Context(), time.Minute)
		require.NoError(t, err)
	}
}
