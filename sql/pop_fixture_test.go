package sql_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

const queueMode = "__QUEUE_MODE__"

// A popLog is a database in which pop tests write segments by hand. Its sessions live at +05:30: no answer may depend on it.
type popLog struct {
	*pgxpool.Pool
}

func newPopLog(t testing.TB) popLog {
	t.Helper()
	return popLog{testdb.New(t, testdb.TimeZone("Asia/Kolkata")).Pool(t)}
}

// exec runs a statement that must succeed.
func (l popLog) exec(t tester, sql string, args ...any) {
	t.Helper()
	_, err := l.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

// scalar runs a statement that returns one value.
func scalar[T any](t tester, q querier, sql string, args ...any) (value T) {
	t.Helper()
	require.NoError(t, q.QueryRow(context.Background(), sql, args...).Scan(&value))
	return value
}

// A popQueue is a queue of the default tenant with the options the pops read; times are seconds.
type popQueue struct {
	Delay, Window, Lease int
	// MaxDeliveries is a number of messages.
	MaxDeliveries   int
	Namespace, Task string
}

func (l popLog) queue(t tester, name string, q popQueue) uuid.UUID {
	t.Helper()
	return scalar[uuid.UUID](t, l, `INSERT INTO queen.queues (name, delayed_processing, window_buffer, lease_time, namespace, task, max_deliveries)
		VALUES ($1, $2, $3, COALESCE(NULLIF($4::int, 0), 60), $5, $6, $7) RETURNING id`, name, q.Delay, q.Window, q.Lease, q.Namespace, q.Task, q.MaxDeliveries)
}

// A run is one stored segment: count messages from offset base on, stored age ago.
type run struct {
	base, count int64
	age         time.Duration
}

// partition writes a partition whose live segments are runs, ascending; log_start is the first base.
func (l popLog) partition(t tester, queue uuid.UUID, name string, runs ...run) uuid.UUID {
	t.Helper()
	id := uuid.New()
	batch := &pgx.Batch{}
	start, last := int64(0), int64(-1)
	for i, r := range runs {
		if i == 0 {
			start = r.base
		}
		last = r.base + r.count - 1
		batch.Queue(`INSERT INTO queen.log_segments VALUES ($1, $2, $3, clock_timestamp() - $4::interval, convert_to($5, 'utf8'))`,
			id, r.base, last, r.age, blobOf(name, r.base))
	}
	_, err := l.Exec(context.Background(), `INSERT INTO queen.log_partitions (id, queue_id, name, last_offset, log_start, last_write_at)
		VALUES ($1, $2, $3, $4, $5, clock_timestamp())`, id, queue, name, last, start)
	require.NoError(t, err)
	require.NoError(t, l.SendBatch(context.Background(), batch).Close())
	return id
}

// blobOf is what stands for the blob of a segment.
func blobOf(partition string, base int64) string {
	return partition + "/" + string(rune('a'+base%26)) + strings.Repeat("x", int(base%7))
}

// cursor writes the cursor of (partition, group); worker "" is no lease, expires counts from now.
func (l popLog) cursor(t tester, partition uuid.UUID, group string, committed int64, worker string, expires time.Duration) {
	t.Helper()
	l.exec(t, `INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, worker_id, lease_expires_at, lease_acquired_at, batch_end)
		SELECT $1, $2, $3::bigint, NULLIF($4::text, ''), l.at, l.at, CASE WHEN l.at IS NOT NULL THEN $3::bigint + 1 END
		  FROM (SELECT CASE WHEN $4::text <> '' THEN clock_timestamp() + $5::interval END AS at) l
		ON CONFLICT (partition_id, consumer_group) DO UPDATE SET (committed, worker_id, lease_expires_at, lease_acquired_at, batch_end) =
			(EXCLUDED.committed, EXCLUDED.worker_id, EXCLUDED.lease_expires_at, EXCLUDED.lease_acquired_at, EXCLUDED.batch_end)`,
		partition, group, committed, worker, expires)
}

// A popRow is a log_consumers row; lease times are seconds from now, rounded, so that two runs a moment apart compare equal.
type popRow struct {
	Committed     int64
	BatchEnd      *int64
	Worker        *string
	Expires       *int64
	Acquired      *int64
	AttemptOffset *int64
	Attempts      int
	Consumed      int64
	IsolateEnd    *int64
}

// rows reads the cursors of a group, by partition name; a partition without one is absent.
func popRows(t tester, q pgxQuerier, queue uuid.UUID, group string) map[string]popRow {
	t.Helper()
	result, err := q.Query(context.Background(), `
		SELECT p.name, c.committed, c.batch_end, c.worker_id,
		       round(extract(epoch FROM c.lease_expires_at - clock_timestamp()) / 10)::bigint * 10,
		       round(extract(epoch FROM c.lease_acquired_at - clock_timestamp()) / 10)::bigint * 10,
		       c.attempt_offset, c.attempt_count, c.total_consumed, c.isolate_end
		  FROM queen.log_consumers c JOIN queen.log_partitions p ON p.id = c.partition_id
		 WHERE p.queue_id = $1 AND c.consumer_group = $2`, queue, group)
	require.NoError(t, err)
	rows := map[string]popRow{}
	var name string
	var r popRow
	_, err = pgx.ForEachRow(result, []any{&name, &r.Committed, &r.BatchEnd, &r.Worker, &r.Expires, &r.Acquired, &r.AttemptOffset, &r.Attempts, &r.Consumed, &r.IsolateEnd},
		func() error { rows[name] = r; return nil })
	require.NoError(t, err)
	return rows
}

// A pgxQuerier is a querier that can also return rows.
type pgxQuerier interface {
	querier
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// A taken is one delivered piece of a segment.
type taken struct {
	Partition         string
	Base, Start, Take int64
	Blob              string
}

// A popCall holds the arguments of a pop; zero values are the ones most tests want.
type popCall struct {
	group                        string
	budget, lease, maxPartitions any
	worker                       string
	autoAck                      bool
	subMode, subFrom             string
	skipWindow                   bool
}

func (c popCall) filled() popCall {
	if c.group == "" {
		c.group = "g"
	}
	if c.budget == nil {
		c.budget = 1000
	}
	if c.lease == nil {
		c.lease = 60
	}
	if c.maxPartitions == nil {
		c.maxPartitions = 0
	}
	if c.worker == "" {
		c.worker = "w"
	}
	if c.subMode == "" {
		c.subMode = "all"
	}
	return c
}

// popOne calls log_pop_v1.
func popOne(t tester, q pgxQuerier, queue, partition string, c popCall) []taken {
	t.Helper()
	c = c.filled()
	rows, err := q.Query(context.Background(), `SELECT r_base, r_start_idx, r_take, r_blob FROM queen.log_pop_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		queue, partition, c.group, c.budget, c.lease, c.worker, c.autoAck, c.subMode, c.subFrom, c.skipWindow)
	require.NoError(t, err)
	var result []taken
	var s taken
	var blob []byte
	_, err = pgx.ForEachRow(rows, []any{&s.Base, &s.Start, &s.Take, &blob}, func() error {
		s.Partition, s.Blob = partition, string(blob)
		result = append(result, s)
		return nil
	})
	require.NoError(t, err)
	return result
}

// A popMeta is the JSON of a pop; the binary forms leave MsgCount and Blob out.
type popMeta struct {
	Partitions []popMetaPartition `json:"partitions"`
}

type popMetaPartition struct {
	Queue       string           `json:"queue"`
	Partition   string           `json:"partition"`
	PartitionID uuid.UUID        `json:"partitionId"`
	Attempt     int              `json:"attempt"`
	Poison      bool             `json:"poison"`
	Segments    []popMetaSegment `json:"segments"`
}

type popMetaSegment struct {
	Seq       int64  `json:"seq"`
	StartOff  int64  `json:"startOff"`
	Take      int64  `json:"take"`
	MsgCount  int64  `json:"msgCount"`
	CreatedAt string `json:"createdAt"`
	Blob      string `json:"blob"`
}

// A popState is one verdict of log_pop_list_v1.
type popState struct {
	P       string     `json:"p"`
	S       string     `json:"s"`
	LastOff *int64     `json:"lastOff"`
	Until   *time.Time `json:"until"`
}

// popList calls log_pop_list_v1.
func popList(t tester, q querier, queue string, partitions []string, c popCall) ([]taken, popMeta, []popState) {
	t.Helper()
	c = c.filled()
	var metaJSON, statesJSON []byte
	var blobs [][]byte
	require.NoError(t, q.QueryRow(context.Background(), `SELECT meta, blobs, states FROM queen.log_pop_list_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		queue, c.group, partitions, c.budget, c.lease, c.worker, c.autoAck, c.maxPartitions, c.subMode, c.subFrom, c.skipWindow).
		Scan(&metaJSON, &blobs, &statesJSON))
	var states []popState
	require.NoError(t, json.Unmarshal(statesJSON, &states))
	meta := decodeMeta(t, metaJSON)
	return takenOf(t, meta, blobs), meta, states
}

// popBin calls a binary pop given as a statement that returns meta and blobs.
func popBin(t tester, q querier, sql string, args ...any) ([]taken, popMeta) {
	t.Helper()
	var metaJSON []byte
	var blobs [][]byte
	require.NoError(t, q.QueryRow(context.Background(), sql, args...).Scan(&metaJSON, &blobs))
	meta := decodeMeta(t, metaJSON)
	return takenOf(t, meta, blobs), meta
}

// popWildcard calls log_pop_wildcard_bin_v1.
func popWildcard(t tester, q querier, queue string, c popCall) ([]taken, popMeta) {
	t.Helper()
	c = c.filled()
	return popBin(t, q, `SELECT meta, blobs FROM queen.log_pop_wildcard_bin_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		queue, c.group, c.budget, c.lease, c.worker, c.autoAck, c.maxPartitions, c.subMode, c.subFrom)
}

// popDiscover calls log_pop_discover_bin_v1.
func popDiscover(t tester, q querier, namespace, task string, c popCall) ([]taken, popMeta) {
	t.Helper()
	c = c.filled()
	return popBin(t, q, `SELECT meta, blobs FROM queen.log_pop_discover_bin_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		namespace, task, c.group, c.budget, c.lease, c.worker, c.autoAck, c.maxPartitions, c.subMode, c.subFrom)
}

// popSpecific calls log_pop_specific_bin_v1.
func popSpecific(t tester, q querier, queue, partition string, c popCall) ([]taken, popMeta) {
	t.Helper()
	c = c.filled()
	return popBin(t, q, `SELECT meta, blobs FROM queen.log_pop_specific_bin_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		queue, partition, c.group, c.budget, c.lease, c.worker, c.autoAck, c.subMode, c.subFrom)
}

func decodeMeta(t tester, text []byte) popMeta {
	t.Helper()
	var meta popMeta
	require.NoError(t, json.Unmarshal(text, &meta))
	require.NotNil(t, meta.Partitions, "meta always has an array: %s", text)
	return meta
}

// takenOf joins meta with its blobs; their numbers must agree.
func takenOf(t tester, meta popMeta, blobs [][]byte) []taken {
	t.Helper()
	var result []taken
	n := 0
	for _, p := range meta.Partitions {
		for _, s := range p.Segments {
			require.Less(t, n, len(blobs))
			result = append(result, taken{p.Partition, s.Seq, s.StartOff, s.Take, string(blobs[n])})
			n++
		}
	}
	require.Len(t, blobs, n)
	return result
}

// messages counts what was delivered.
func messages(segments []taken) (n int64) {
	for _, s := range segments {
		n += s.Take
	}
	return n
}

func ptr[T any](v T) *T { return &v }
