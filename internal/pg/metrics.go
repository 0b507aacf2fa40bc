package pg

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A WorkerSample is what one broker process did since its previous sample, except for the gauges. Times are milliseconds.
type WorkerSample struct {
	Hostname                                                              string
	WorkerID, PID                                                         int
	AvgLoopLag, MaxLoopLag                                                int64 // how late timers fire
	PoolIdle, PoolActive                                                  int   // connections, at this moment
	PushRequests, PushMessages, PopRequests, PopMessages                  int64
	AckRequests, AckMessages, AckOK, AckFailed, Transactions, DeadLetters int64
	DatabaseErrors                                                        int64
	AvgLag, MaxLag, LagCount                                              int64 // age of messages when they were popped
}

// InsertWorkerMetrics stores a sample under the current second of the database's clock. It returns false when this process has
// already stored one in that second: then nothing was stored.
func (db *DB) InsertWorkerMetrics(ctx context.Context, s WorkerSample) (stored bool, err error) {
	err = db.run(ctx, "store worker metrics", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, `INSERT INTO queen.worker_metrics (hostname, worker_id, pid, bucket_time, avg_event_loop_lag_ms, max_event_loop_lag_ms,
    avg_free_slots, min_free_slots, db_connections, jobs_done, push_request_count, pop_request_count, ack_request_count, transaction_count,
    push_message_count, pop_message_count, ack_message_count, ack_success_count, ack_failed_count, lag_count, avg_lag_ms, max_lag_ms, db_error_count, dlq_count)
VALUES (left($1::text, 255), $2::int, $3::int, date_trunc('second', clock_timestamp()), $4::int8, $5::int8, $6::int, $6::int, $7::int, $8::int8, $8::int8, $9::int8, $10::int8, $11::int8,
    $12::int8, $13::int8, $14::int8, $15::int8, $16::int8, $17::int8, $18::int8, $19::int8, $20::int8, $21::int8)
ON CONFLICT (hostname, worker_id, pid, bucket_time) DO NOTHING`,
			s.Hostname, s.WorkerID, s.PID, s.AvgLoopLag, s.MaxLoopLag, s.PoolIdle, s.PoolActive, s.PushRequests, s.PopRequests, s.AckRequests, s.Transactions,
			s.PushMessages, s.PopMessages, s.AckMessages, s.AckOK, s.AckFailed, s.LagCount, s.AvgLag, s.MaxLag, s.DatabaseErrors, s.DeadLetters)
		stored = tag.RowsAffected() == 1
		return err
	})
	return stored, err
}

// InsertSystemMetrics stores the figures of a broker process under the current second of the database's clock. seconds is the
// length of time they cover. A second sample in the same second is dropped: it says the same.
func (db *DB) InsertSystemMetrics(ctx context.Context, hostname string, port int, workerID string, seconds int, metrics json.RawMessage) error {
	return db.run(ctx, "store system metrics", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO queen.system_metrics (timestamp, hostname, port, worker_id, sample_count, metrics)
VALUES (date_trunc('second', clock_timestamp()), $1::text, $2::int, $3::text, $4::int, $5::jsonb) ON CONFLICT DO NOTHING`,
			hostname, port, workerID, seconds, []byte(metrics))
		return err
	})
}

// A QueueSample is what one broker did with one queue since its previous sample. Lag is in milliseconds.
type QueueSample struct {
	Tenant                                      uuid.UUID
	Queue                                       string
	PushRequests, PushMessages                  int64
	PopMessages, PopEmpty                       int64
	AckRequests, AckOK, AckFailed, Transactions int64
	LagSum, LagCount, LagMax                    int64
	// Parked is the number of long polls parked on the queue, on average.
	Parked int64
}

// AddQueueMetrics adds samples to the current minute of their queues, in one statement: sums add up over brokers, averages are
// weighted, maxima are kept. Samples of queues that do not exist are dropped.
//
// The queues' rows are locked first, in the order of their ids: a queue that is being deleted holds its row, and would
// otherwise wait for the metrics row that the statement has written, while that waits for the queue.
func (db *DB) AddQueueMetrics(ctx context.Context, samples []QueueSample) error {
	if len(samples) == 0 {
		return nil
	}
	tenants, queues := make([]pgtype.UUID, len(samples)), make([]string, len(samples))
	var columns [12][]int64
	for i, s := range samples {
		tenants[i], queues[i] = uuidArgument(s.Tenant), s.Queue
		for c, value := range [...]int64{
			s.PushRequests, s.PushMessages, s.PopMessages, s.PopEmpty, s.AckRequests, s.AckOK, s.AckFailed, s.Transactions,
			s.LagSum, s.LagCount, s.LagMax, s.Parked,
		} {
			columns[c] = append(columns[c], value)
		}
	}
	arguments := []any{tenants, queues}
	for _, column := range columns {
		arguments = append(arguments, column)
	}
	return db.run(ctx, "store queue metrics", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO queen.queue_lag_metrics AS m (bucket_time, queue_id, push_request_count, push_message_count, pop_count,
    pop_empty_count, ack_request_count, ack_success_count, ack_failed_count, transaction_count, avg_lag_ms, lag_count, max_lag_ms, parked_count, partition_count)
SELECT date_trunc('minute', now()), x.id, x.push_requests, x.push_messages, x.pops, x.empty, x.acks, x.ok, x.failed, x.transactions,
       COALESCE(x.lag_sum / NULLIF(x.lag_count, 0), 0), x.lag_count, x.lag_max, LEAST(x.parked, 2147483647),
       (SELECT s.child_count FROM queen.stats s WHERE s.stat_type = 'queue' AND s.stat_key = x.id::text)
  FROM (SELECT q.id, u.*
          FROM unnest($1::uuid[], $2::text[], $3::int8[], $4::int8[], $5::int8[], $6::int8[], $7::int8[], $8::int8[], $9::int8[], $10::int8[],
                      $11::int8[], $12::int8[], $13::int8[], $14::int8[])
               AS u (tenant, queue, push_requests, push_messages, pops, empty, acks, ok, failed, transactions, lag_sum, lag_count, lag_max, parked)
          JOIN queen.queues q ON q.tenant_id = u.tenant AND q.name = u.queue
         ORDER BY q.id
           FOR KEY SHARE OF q) x
    ON CONFLICT (bucket_time, queue_id) DO UPDATE
   SET push_request_count = m.push_request_count + EXCLUDED.push_request_count, push_message_count = m.push_message_count + EXCLUDED.push_message_count,
       pop_count = m.pop_count + EXCLUDED.pop_count, pop_empty_count = m.pop_empty_count + EXCLUDED.pop_empty_count,
       ack_request_count = m.ack_request_count + EXCLUDED.ack_request_count, ack_success_count = m.ack_success_count + EXCLUDED.ack_success_count,
       ack_failed_count = m.ack_failed_count + EXCLUDED.ack_failed_count, transaction_count = m.transaction_count + EXCLUDED.transaction_count,
       avg_lag_ms = COALESCE((m.avg_lag_ms * m.lag_count + EXCLUDED.avg_lag_ms * EXCLUDED.lag_count) / NULLIF(m.lag_count + EXCLUDED.lag_count, 0), 0),
       lag_count = m.lag_count + EXCLUDED.lag_count, max_lag_ms = GREATEST(m.max_lag_ms, EXCLUDED.max_lag_ms),
       parked_count = m.parked_count + EXCLUDED.parked_count, partition_count = COALESCE(EXCLUDED.partition_count, m.partition_count)`, arguments...)
		return err
	})
}

// SetParked stores how many long polls this broker had parked per queue in the current minute, on average. Only Tenant, Queue
// and Parked of the samples count. A second call in the same minute replaces the figures of the first.
func (db *DB) SetParked(ctx context.Context, hostname string, workerID int, samples []QueueSample) error {
	if len(samples) == 0 {
		return nil
	}
	tenants, queues, parked := make([]pgtype.UUID, len(samples)), make([]string, len(samples)), make([]int64, len(samples))
	for i, s := range samples {
		tenants[i], queues[i], parked[i] = uuidArgument(s.Tenant), s.Queue, s.Parked
	}
	return db.run(ctx, "store parked polls", repeatConflicts, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO queen.queue_parked_replica (bucket_time, queue_name, hostname, worker_id, tenant_id, parked_count)
SELECT date_trunc('minute', now()), u.queue, left($1::text, 255), $2::int, u.tenant, LEAST(u.parked, 2147483647)
  FROM unnest($3::uuid[], $4::text[], $5::int8[]) AS u (tenant, queue, parked)
  JOIN queen.queues q ON q.tenant_id = u.tenant AND q.name = u.queue
 ORDER BY u.queue, u.tenant
    ON CONFLICT (bucket_time, queue_name, hostname, worker_id, tenant_id) DO UPDATE SET parked_count = EXCLUDED.parked_count`,
			hostname, workerID, tenants, queues, parked)
		return err
	})
}

// ClusterMetrics is the database's part of the Prometheus page.
type ClusterMetrics struct {
	Totals struct {
		PushRequests int64 `json:"pushRequests"`
		PopRequests  int64 `json:"popRequests"`
		AckRequests  int64 `json:"ackRequests"`
		Transactions int64 `json:"transactions"`
		PushMessages int64 `json:"pushMessages"`
		PopMessages  int64 `json:"popMessages"`
		AckMessages  int64 `json:"ackMessages"`
		AckSuccess   int64 `json:"ackSuccess"`
		AckFailed    int64 `json:"ackFailed"`
		DBErrors     int64 `json:"dbErrors"`
		DeadLetters  int64 `json:"dlqCount"`
	} `json:"system_totals"`
	Queues      []QueueMinute `json:"per_queue_lag"`
	DeadLetters struct {
		Total    int64             `json:"total"`
		PerQueue []QueueDeadLetter `json:"per_queue"`
	} `json:"dlq"`
	Depths []QueueDepthFigures `json:"depth"`
}

// QueueDepthFigures are the messages that one queue name holds, as of the last statistics; those of one tenant's queue where Tenant
// is not empty. Pending are those that the slowest group has not consumed.
type QueueDepthFigures struct {
	Queue   string  `json:"queue"`
	Tenant  string  `json:"tenant"`
	Total   float64 `json:"total"`
	Pending float64 `json:"pending"`
}

// A QueueMinute is the newest minute of one queue name; of one tenant's queue where Tenant is not empty. The lags are nil when no pop was sampled.
type QueueMinute struct {
	Queue        string   `json:"queue"`
	Tenant       string   `json:"tenant"`
	PopMessages  float64  `json:"pop_count"`
	AvgLag       *float64 `json:"avg_lag_ms"`
	MaxLag       *float64 `json:"max_lag_ms"`
	PushRequests float64  `json:"push_request_count"`
	PushMessages float64  `json:"push_message_count"`
	PopEmpty     float64  `json:"pop_empty_count"`
	AckSuccess   float64  `json:"ack_success_count"`
	AckFailed    float64  `json:"ack_failed_count"`
	Transactions float64  `json:"transaction_count"`
	Parked       float64  `json:"parked_count"`
	Age          float64  `json:"bucket_age_seconds"`
}

// A QueueDeadLetter counts the dead letters of one queue name, as of the last statistics; of one tenant's queue where Tenant is not
// empty.
type QueueDeadLetter struct {
	Queue  string  `json:"queue"`
	Tenant string  `json:"tenant"`
	Count  float64 `json:"count"`
}

// ClusterMetrics reads what all brokers of the database reported. Queues of several tenants that share a name are summed, unless
// byTenant.
func (db *DB) ClusterMetrics(ctx context.Context, byTenant bool) (ClusterMetrics, error) {
	var m ClusterMetrics
	err := db.answer(ctx, "read cluster metrics", repeatConflicts, &m, `SELECT queen.get_prometheus_metrics_v1($1::boolean)`, byTenant)
	return m, err
}
