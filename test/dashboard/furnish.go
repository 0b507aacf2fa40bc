package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"queenmq/queen"
	"queenmq/queen/streams"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

// hostile is markup and control characters in every place where a client may put a text of its own.
const hostile = `<img src=x onerror=alert(1)><script>alert(2)</script>"'` + "`${alert(3)}\u202e"

// pipelineID is a trace that runs through four queues.
const pipelineID = "0199b0c4-7be2-4c04-a1d9-5e2c8f0b6731"

// A house is a broker with the data of a small shop in it.
type house struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // of the test
	*stack.Stack
}

// furnish fills a broker with what the pages are to show: queues at rest and in trouble, groups that keep up and one that does not,
// dead letters of three kinds, a trace, a streaming query and a day of figures.
func furnish(t *testing.T, s *stack.Stack) {
	t.Helper()
	h := &house{t, t.Context(), s}
	for queue, options := range map[string]map[string]any{
		"shop.orders":      {"leaseTime": 120, "retryLimit": 0},
		"shop.payments":    {"leaseTime": 30, "retryLimit": 0, "maxSize": 128},
		"shop.invoices":    {"retentionEnabled": true, "completedRetentionSeconds": 86400},
		"shop.mail":        {"delayedProcessing": 5},
		"warehouse.picks":  {"leaseTime": 600},
		"warehouse.labels": {},
		"billing.ledger":   {"encryptionEnabled": false},
	} {
		namespace, task, _ := strings.Cut(queue, ".")
		options["namespace"], options["task"] = namespace, task
		h.configure(queue, options)
	}
	h.orders()
	h.others()
	h.trace()
	h.figures()
	h.refresh()
}

// attack fills a broker with hostile text in every place where a client may put a text of its own.
func attack(t *testing.T, s *stack.Stack) {
	t.Helper()
	h := &house{t, t.Context(), s}
	payload, err := json.Marshal(map[string]any{hostile: hostile})
	require.NoError(t, err)
	h.configure(hostile, map[string]any{"namespace": hostile, "task": hostile, "options": map[string]any{"retryLimit": 0, "maxSize": 2}})
	h.push(
		wire.PushItem{Queue: hostile, Partition: hostile, TransactionID: hostile, TraceID: pipelineID, Payload: payload},
		wire.PushItem{Queue: hostile, Partition: hostile, TransactionID: hostile + "2", Payload: payload},
	)
	batch := h.pop(wire.PopRequest{Queue: hostile, AnyPartition: true, Group: hostile, Batch: 1}, func(wire.Message) (string, string) { return "dlq", hostile })
	h.note(hostile, batch.Messages[0].PartitionID, hostile, hostile)
	h.pop(wire.PopRequest{Queue: hostile, AnyPartition: true, Group: hostile, Batch: 1}, nil)
	h.query(hostile, hostile, batch.Messages[0].PartitionID)
	h.sql(`INSERT INTO queen.worker_metrics (hostname, worker_id, pid, bucket_time, push_message_count, dlq_count) VALUES ($1, 0, 1, date_trunc('minute', now()) - INTERVAL '2 minutes', 5, 1)`, hostile)
	h.sql(`INSERT INTO queen.brokers (id, instance, version, address, started_at, last_seen) VALUES ($1, gen_random_uuid(), $1, $1, now() - INTERVAL '2 hours', now() - INTERVAL '1 hour')`, hostile)
	// A task that finds nothing to do leaves the dead letter where it is.
	task, err := json.Marshal(map[string]any{"kind": "redrive", "filter": map[string]any{"queue": hostile, "error": hostile + "nothing"}, "destination": map[string]any{"queue": hostile}})
	require.NoError(h.t, err)
	status, err := h.Client.Do(h.ctx, "POST", "/api/v1/dlq/tasks", task, nil)
	require.NoError(h.t, err)
	require.Contains(h.t, []int{200, 201, 202}, status)
	h.refresh()
}

// linger keeps a transaction open whose session and statement carry hostile text, until the test ends.
func linger(t *testing.T, s *stack.Stack) {
	t.Helper()
	tx, err := s.DB.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	_, err = tx.Exec(t.Context(), `SELECT set_config('application_name', $1, false)`, hostile)
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT $hostile$"+hostile+"$hostile$, count(*) FROM queen.queues")
	require.NoError(t, err)
}

func (h *house) configure(queue string, options map[string]any) {
	h.t.Helper()
	body := map[string]any{"queue": queue}
	for name, value := range options {
		body[name] = value
	}
	text, err := json.Marshal(body)
	require.NoError(h.t, err)
	status, err := h.Client.Do(h.ctx, "POST", "/api/v1/configure", text, nil)
	require.NoError(h.t, err)
	require.Equal(h.t, 200, status)
}

func (h *house) refresh() {
	h.t.Helper()
	status, err := h.Client.Do(h.ctx, "POST", "/api/v1/stats/refresh", nil, nil)
	require.NoError(h.t, err)
	require.Equal(h.t, 200, status)
	h.sql(`SELECT queen.log_refresh_retained_bytes_v1()`)
}

// note records an event about a message.
func (h *house) note(transactionID, partition, event, name string) {
	h.t.Helper()
	body, err := json.Marshal(map[string]any{
		"transactionId": transactionID, "partitionId": partition, "consumerGroup": "worker", "eventType": string([]rune(event)[:min(100, len([]rune(event)))]),
		"traceNames": []string{name}, "data": map[string]any{"text": event, "weight": json.Number("1.50")},
	})
	require.NoError(h.t, err)
	status, err := h.Client.Do(h.ctx, "POST", "/api/v1/traces", body, nil)
	require.NoError(h.t, err)
	require.Equal(h.t, 201, status)
}

// query registers a streaming query of another make, with some state that says nothing of watermarks.
func (h *house) query(name, source, partition string) {
	h.t.Helper()
	var registered struct {
		ID string `json:"query_id"`
	}
	body, err := json.Marshal(map[string]any{"name": name, "source_queue": source, "sink_queue": "billing.ledger", "config_hash": "c0ffee"})
	require.NoError(h.t, err)
	_, err = h.Client.Do(h.ctx, "POST", "/streams/v1/queries", body, &registered)
	require.NoError(h.t, err)
	for key := range 5 {
		h.sql(`INSERT INTO queen_streams.state (query_id, partition_id, key, value, updated_at) VALUES ($1, $2, $3, '{"count":3}', now() - make_interval(secs => $4))`,
			uuid.MustParse(registered.ID), uuid.MustParse(partition), fmt.Sprintf("%s-%d", name, key), float64(key*60))
	}
}

// reading is what the sensors of the warehouse send.
type reading struct {
	Sensor string    `json:"sensor"`
	At     time.Time `json:"at"`
}

// stream runs a query over event time until it has read everything: in one partition nothing came for a quarter of an hour, in the other
// two readings came after their window was closed.
func (h *house) stream() {
	h.t.Helper()
	now := time.Now()
	var items []wire.PushItem
	for partition, ages := range map[string][]time.Duration{"dock": {30 * time.Minute, 25 * time.Minute, 15 * time.Minute}, "gate": {20 * time.Minute, time.Minute, 18 * time.Minute, 19 * time.Minute}} {
		for n, age := range ages {
			payload, err := json.Marshal(reading{partition, now.Add(-age)})
			require.NoError(h.t, err)
			items = append(items, wire.PushItem{Queue: "warehouse.readings", Partition: partition, TransactionID: fmt.Sprintf("%s-%d", partition, n), Payload: payload})
		}
	}
	h.push(items...)
	client, err := queen.Connect(h.URL)
	require.NoError(h.t, err)
	defer client.Close()
	windows := streams.From[reading]("warehouse.readings").EventTime(func(r reading) time.Time { return r.At }).KeyBy(func(r reading) string { return r.Sensor }).Window(streams.Tumbling(time.Minute))
	runner, err := streams.NewRunner(client, "readings-per-minute", streams.Count(windows).To("warehouse.rates"))
	require.NoError(h.t, err)
	ctx, stop := context.WithCancel(h.ctx)
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	require.Eventually(h.t, func() bool {
		var late int
		err := h.DB.QueryRow(h.ctx, `SELECT COALESCE(sum((t.value ->> 'late')::int), 0) FROM queen_streams.state t JOIN queen_streams.queries q ON q.id = t.query_id
			WHERE q.name = 'readings-per-minute' AND t.key = 'control' HAVING count(*) = 2`).Scan(&late)
		return err == nil && late == 2
	}, 30*time.Second, 50*time.Millisecond, "the query has not read everything")
	stop()
	<-done
}

func (h *house) push(items ...wire.PushItem) {
	h.t.Helper()
	verdicts, err := h.Client.Push(h.ctx, items)
	require.NoError(h.t, err)
	for _, verdict := range verdicts {
		require.Equal(h.t, "queued", verdict.Status)
	}
}

// pop claims a batch and answers for each message with a status.
func (h *house) pop(r wire.PopRequest, answer func(m wire.Message) (status, fault string)) *wire.Batch {
	h.t.Helper()
	batch, err := h.Client.Pop(h.ctx, r)
	require.NoError(h.t, err)
	require.NotNil(h.t, batch, "nothing to pop in %s", r.Queue)
	if answer == nil {
		return batch // the lease is kept
	}
	var items []wire.AckItem
	for _, m := range batch.Messages {
		status, fault := answer(m)
		items = append(items, wire.AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Status: status, Error: fault})
	}
	_, err = h.Client.Ack(h.ctx, r.Group, items)
	require.NoError(h.t, err)
	return batch
}

func done(wire.Message) (string, string) { return "completed", "" }

func (h *house) sql(statement string, args ...any) {
	h.t.Helper()
	_, err := h.DB.Exec(h.ctx, statement, args...)
	require.NoError(h.t, err)
}

// orders: 48 partitions; billing keeps up but for what failed, audit is an hour behind, search holds leases.
func (h *house) orders() {
	var items []wire.PushItem
	for customer := range 48 {
		for n := range 2 + customer%7*3 {
			items = append(items, wire.PushItem{
				Queue: "shop.orders", Partition: fmt.Sprintf("customer-%02d", customer), TransactionID: fmt.Sprintf("order-%d-%d", customer, n),
				Payload: json.RawMessage(fmt.Sprintf(`{"order": {"id": "%d-%d", "total": %d.50, "reference": 1234567890123456789%d, "lines": [{"sku": "tea-%d", "count": %d}]}, "currency": "EUR", "customer": {"name": "Customer %d", "vip": %t}}`,
					customer, n, 12+n, n, n%5, 1+n%3, customer, customer%9 == 0)),
			})
		}
	}
	h.push(items...)
	// As if they had been pushed over the last two hours.
	h.sql(`UPDATE queen.log_segments s SET created_at = s.created_at - make_interval(mins => 5 + (hashtext(p.name) % 60 + 60))
	         FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = s.partition_id AND q.name = 'shop.orders'`)
	h.sql(`UPDATE queen.log_partitions p SET oldest_live_at = p.oldest_live_at - INTERVAL '3 hours' FROM queen.queues q WHERE q.id = p.queue_id AND q.name = 'shop.orders'`)
	faults := []string{"printer offline: tray 2", "card 4711 declined", "card 4812 declined", "timeout after 30000 ms calling ledger", "card 4913 declined"}
	for n := range 90 {
		first := true
		h.pop(wire.PopRequest{Queue: "shop.orders", AnyPartition: true, Group: "billing", Batch: 9}, func(wire.Message) (string, string) {
			if first && n < 34 { // one of a batch: what comes behind it waits for it
				first = false
				return "dlq", faults[n%len(faults)]
			}
			return "completed", ""
		})
	}
	for customer := range 12 {
		h.pop(wire.PopRequest{Queue: "shop.orders", Partition: fmt.Sprintf("customer-%02d", customer), Group: "audit", Batch: 2}, done)
	}
	for customer := range 9 {
		h.pop(wire.PopRequest{Queue: "shop.orders", Partition: fmt.Sprintf("customer-%02d", customer*5), Group: "search", Batch: 4, LeaseSeconds: 900}, nil)
	}
	// One worker died: its lease ran out and nobody took the batch.
	h.sql(`UPDATE queen.log_consumers c SET lease_expires_at = clock_timestamp() - INTERVAL '4 minutes' FROM queen.log_partitions p
	        WHERE p.id = c.partition_id AND c.consumer_group = 'search' AND p.name = 'customer-40'`)
	// Another hangs and renews its lease; a third dies of the same message again and again.
	h.sql(`UPDATE queen.log_consumers c SET lease_acquired_at = clock_timestamp() - INTERVAL '50 minutes' FROM queen.log_partitions p
	        WHERE p.id = c.partition_id AND c.consumer_group = 'search' AND p.name = 'customer-20'`)
	h.sql(`UPDATE queen.log_consumers c SET attempt_count = 7 FROM queen.log_partitions p
	        WHERE p.id = c.partition_id AND c.consumer_group = 'search' AND p.name = 'customer-15'`)
}

func (h *house) others() {
	var items []wire.PushItem
	for _, queue := range []struct {
		name       string
		partitions int
		each       int
	}{{"shop.payments", 6, 21}, {"shop.invoices", 4, 12}, {"shop.mail", 3, 30}, {"warehouse.picks", 10, 8}, {"warehouse.labels", 2, 5}, {"billing.ledger", 1, 40}} {
		for partition := range queue.partitions {
			for n := range queue.each {
				items = append(items, wire.PushItem{
					Queue: queue.name, Partition: fmt.Sprintf("lane-%d", partition), TransactionID: fmt.Sprintf("%s-%d-%d", queue.name, partition, n),
					Payload: json.RawMessage(fmt.Sprintf(`{"kind":%q,"n":%d,"amount":%d.%02d}`, queue.name, n, n*7, n%100)),
				})
			}
		}
	}
	h.push(items...)
	for range 4 {
		h.pop(wire.PopRequest{Queue: "shop.invoices", AnyPartition: true, Group: "printing", Batch: 50}, done)
	}
	for range 2 {
		h.pop(wire.PopRequest{Queue: "warehouse.picks", AnyPartition: true, Group: "robots", Batch: 5}, done)
	}
	h.pop(wire.PopRequest{Queue: "billing.ledger", AnyPartition: true, Batch: 25}, done)
	h.pop(wire.PopRequest{Queue: "shop.payments", AnyPartition: true, Group: "fraud", Batch: 10}, done)
}

// trace: one order through four queues, with what its workers noted, and two streaming queries.
func (h *house) trace() {
	partition := ""
	for i, queue := range []string{"shop.orders", "shop.payments", "warehouse.picks", "shop.mail"} {
		id := fmt.Sprintf("pipeline-%d", i)
		h.push(wire.PushItem{Queue: queue, Partition: "pipeline", TransactionID: id, TraceID: pipelineID, Payload: json.RawMessage(fmt.Sprintf(`{"step":%d,"of":"order 4711"}`, i))})
		if i < 3 {
			partition = h.pop(wire.PopRequest{Queue: queue, Partition: "pipeline", Group: "worker"}, done).Messages[0].PartitionID
		}
		for _, table := range []string{"log_segments", "log_txns", "log_traced"} {
			h.sql(`UPDATE queen.`+table+` s SET created_at = clock_timestamp() - make_interval(secs => $2)
			         FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE p.id = s.partition_id AND q.name = $1 AND p.name = 'pipeline'`, queue, float64([]int{310, 262, 190, 24}[i]))
		}
	}
	for _, event := range []string{"picked", "packed", "handed over"} {
		h.note("pipeline-2", partition, event, "order-4711")
	}
	h.query("orders-per-minute", "shop.orders", partition)
	h.stream()
}

// figures is a day of what the metrics loop would have stored.
func (h *house) figures() {
	h.sql(`INSERT INTO queen.worker_metrics (hostname, worker_id, pid, bucket_time, push_request_count, push_message_count, pop_request_count, pop_message_count,
	              ack_request_count, ack_message_count, ack_success_count, ack_failed_count, lag_count, avg_lag_ms, max_lag_ms, db_connections, dlq_count)
	       SELECT 'broker-a', 0, 1, date_trunc('minute', now()) - make_interval(mins => g), x.n / 10, x.n, x.n / 12, x.n * 0.97, x.n / 12, x.n * 0.96, x.n * 0.955, x.n * 0.005,
	              x.n, 18 + x.n / 900, 90 + x.n / 200, 9, CASE WHEN g % 97 = 5 THEN 3 ELSE 0 END
	         FROM generate_series(1, 1500) g, LATERAL (SELECT (42000 + 26000 * sin(g / 230.0) + 5000 * sin(g / 11.0) + 2500 * sin(g * 1.7))::BIGINT AS n) x`)
	h.sql(`INSERT INTO queen.queue_lag_metrics (bucket_time, queue_id, pop_count, avg_lag_ms, max_lag_ms, push_request_count, push_message_count, ack_request_count, ack_success_count, ack_failed_count, lag_count, parked_count)
	       SELECT date_trunc('minute', now()) - make_interval(mins => g), q.id, x.n * 0.95, 20, 130, x.n / 10, x.n, x.n / 10, x.n * 0.94, x.n * 0.004, x.n, 3
	         FROM queen.queues q, generate_series(1, 1500) g,
	              LATERAL (SELECT GREATEST(0, (300 + hashtext(q.name) % 250) * (10 + 5 * sin(g / 90.0 + hashtext(q.name) % 7) + 2 * sin(g / 4.0)))::BIGINT AS n) x
	       ON CONFLICT DO NOTHING`)
	h.sql(`INSERT INTO queen.retention_history (partition_id, messages_deleted, retention_type, executed_at)
	       SELECT (SELECT id FROM queen.log_partitions LIMIT 1), 800 + (g * 37) % 500, CASE WHEN g % 3 = 0 THEN 'retention' ELSE 'completed_retention' END, now() - make_interval(mins => g * 9)
	         FROM generate_series(1, 150) g`)
}
