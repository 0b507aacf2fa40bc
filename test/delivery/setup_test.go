package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/ready"
	"queenmq/internal/engine/segment"
	"queenmq/internal/engine/transaction"
	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An engine is the consuming half of a broker on its own database.
type engine struct {
	t     *testing.T
	db    *pg.DB
	sql   *pgxpool.Pool
	gates *ready.Gates
	slots *admission.Controller
	pops  *pop.Server
	acks  *ack.Server
	txns  *transaction.Server

	connString string
}

// setup returns an engine whose long polls are woken by wakes only: their back-off is an hour.
func setup(t *testing.T) *engine {
	t.Helper()
	return setupWith(t, pop.Config{Backoff: pop.Backoff{Initial: time.Hour}})
}

func setupWith(t *testing.T, cfg pop.Config) *engine {
	t.Helper()
	return setupAcks(t, cfg, ack.Config{})
}

func setupAcks(t *testing.T, cfg pop.Config, ackCfg ack.Config) *engine {
	t.Helper()
	return setupGates(t, ready.New(), cfg, ackCfg)
}

func setupGates(t *testing.T, gates *ready.Gates, cfg pop.Config, ackCfg ack.Config) *engine {
	t.Helper()
	database := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 20})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	e := &engine{t: t, db: db, sql: database.Pool(t), gates: gates, slots: admission.New(admission.Config{PoolSize: 20}), connString: database.ConnString()}
	e.acks = ack.New(ackCfg, db, e.gates, e.slots)
	cfg.Delivered = func(d pop.Delivery) { e.acks.Delivered(ack.Delivery(d)) }
	e.pops = pop.New(cfg, db, e.gates, e.slots)
	e.txns = transaction.New(transaction.Config{}, db, e.acks, e.gates, e.slots)
	t.Cleanup(func() { require.Zero(t, e.slots.Stats().InFlight, "a slot was not given back") })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.acks.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return e
}

// configure sets options of queue "orders".
func (e *engine) configure(options string) {
	e.t.Helper()
	_, err := e.db.Configure(e.t.Context(), pg.DefaultTenant, "orders", "", "", pg.QueueOptions(options))
	require.NoError(e.t, err)
	e.pops.ForgetQueue(pg.DefaultTenant, "orders")
}

// push stores the messages as one segment of a partition of "orders", with the names as transaction ids and payloads.
func (e *engine) push(partition string, names ...string) {
	e.t.Helper()
	frames := make([]segment.Frame, len(names))
	for i, name := range names {
		frames[i] = segment.Frame{ID: segment.NewID(), TransactionID: name, Payload: fmt.Appendf(nil, "%q", name)}
	}
	e.store(partition, frames...)
}

func (e *engine) store(partition string, frames ...segment.Frame) {
	e.t.Helper()
	blob, hashes, err := segment.Pack(frames)
	require.NoError(e.t, err)
	verdicts, err := e.db.PushMulti(e.t.Context(), []pg.Segment{{
		Tenant: pg.DefaultTenant, Queue: "orders", Partition: partition, Count: len(frames), Hashes: hashes, Verified: -1, Blob: blob, Plain: true,
	}}, pg.PushOptions{})
	require.NoError(e.t, err)
	require.Equal(e.t, pg.PushQueued, verdicts[0].Status)
	e.gates.Wake(pg.DefaultTenant, "orders", partition)
}

// delivered is what a consumer reads of an answer.
type delivered struct {
	LeaseID  string
	Messages []struct {
		ID, TransactionID, PartitionID, Partition, LeaseID, Queue string
		Data                                                      json.RawMessage
	}
}

func (d *delivered) names() []string {
	if d == nil { // a long poll that ended without an answer
		return nil
	}
	var names []string
	for _, m := range d.Messages {
		names = append(names, m.TransactionID)
	}
	return names
}

func queuePop() pop.Request {
	return pop.Request{Tenant: pg.DefaultTenant, Queue: "orders", Group: "billing", Batch: 100, MaxPartitions: 1}
}

// pop serves the request and reads the answer; an empty one has no messages.
func (e *engine) pop(req pop.Request) *delivered {
	e.t.Helper()
	result, err := e.pops.Pop(e.t.Context(), req)
	require.NoError(e.t, err)
	if result == nil {
		return &delivered{}
	}
	defer result.Release()
	return e.read(result)
}

func (e *engine) read(result *pop.Result) *delivered {
	e.t.Helper()
	d, err := decode(result)
	require.NoError(e.t, err)
	return d
}

func decode(result *pop.Result) (*delivered, error) {
	var d delivered
	body := result.AppendJSON(nil)
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, fmt.Errorf("%w: %s", err, body)
	}
	if len(d.Messages) != result.Messages() {
		return nil, fmt.Errorf("%d messages announced: %s", result.Messages(), body)
	}
	return &d, nil
}

// popParked starts a long poll and returns when it is parked, or has its answer already; the channel gets that.
func (e *engine) popParked(req pop.Request) <-chan *delivered {
	e.t.Helper()
	req.Wait, req.Timeout = true, time.Minute
	answer := make(chan *delivered, 1)
	go func() {
		defer close(answer)
		result, err := e.pops.Pop(e.t.Context(), req)
		if err != nil || result == nil {
			return
		}
		defer result.Release()
		if d, err := decode(result); err == nil {
			answer <- d
		}
	}()
	require.Eventually(e.t, func() bool { return e.pops.Stats().Parked == 1 || len(answer) == 1 }, time.Minute, time.Millisecond)
	return answer
}

// item acknowledges message i of a batch under its lease.
func (d *delivered) item(i int, status string) ack.Item {
	m := d.Messages[i]
	return ack.Item{TransactionID: m.TransactionID, PartitionID: m.PartitionID, Status: status, LeaseID: d.LeaseID, Error: "error of " + m.TransactionID}
}

// all acknowledges the whole batch with one status.
func (d *delivered) all(status string) []ack.Item {
	var items []ack.Item
	for i := range d.Messages {
		items = append(items, d.item(i, status))
	}
	return items
}

func (e *engine) ack(items ...ack.Item) []ack.Result {
	e.t.Helper()
	return e.acks.Ack(e.t.Context(), pg.DefaultTenant, "billing", items)
}

// acked acknowledges and requires that everything was carried out.
func (e *engine) acked(items ...ack.Item) []ack.Result {
	e.t.Helper()
	results := e.ack(items...)
	for _, result := range results {
		require.True(e.t, result.Success, "%+v", result)
	}
	return results
}

// endLeases ends all leases, as time would.
const endLeases = `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE worker_id IS NOT NULL`

func (e *engine) expire() {
	e.t.Helper()
	_, err := e.sql.Exec(e.t.Context(), endLeases)
	require.NoError(e.t, err)
}

// value reads one value of the database.
func value[T any](e *engine, query string, args ...any) T {
	e.t.Helper()
	var v T
	require.NoError(e.t, e.sql.QueryRow(e.t.Context(), query, args...).Scan(&v))
	return v
}

func (e *engine) committed(partition string) int64 {
	e.t.Helper()
	return value[int64](e, `SELECT c.committed FROM queen.log_consumers c JOIN queen.log_partitions p ON p.id = c.partition_id
WHERE p.name = $1 AND c.consumer_group = 'billing'`, partition)
}

func (e *engine) deadLetters() []string {
	e.t.Helper()
	return value[[]string](e, `SELECT COALESCE(array_agg(transaction_id || ': ' || error ORDER BY failed_at, "offset"), '{}') FROM queen.log_dlq`)
}

func (e *engine) partitionID(name string) uuid.UUID {
	e.t.Helper()
	return uuid.UUID(value[[16]byte](e, `SELECT id FROM queen.log_partitions WHERE name = $1`, name))
}
