package sql_test

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

var defaultTenant = uuid.MustParse("00000000-0000-0000-0000-000000000001")

// A querier is a pool, a connection or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// A tester is *testing.T or *rapid.T.
type tester interface {
	require.TestingT
	Helper()
}

// An ackLog is a database in which ack tests write partitions by hand, so that a rule of an ack is tested against rows that this
// file shows and not against what a push made of them. Its sessions live at +05:30: no answer may depend on it.
type ackLog struct {
	*pgxpool.Pool
}

func newAckLog(t *testing.T) ackLog {
	t.Helper()
	return ackLog{testdb.New(t, testdb.TimeZone("Asia/Kolkata")).Pool(t)}
}

// queue inserts a queue with default options and returns its id.
func (l ackLog) queue(t tester, tenant uuid.UUID, name string) uuid.UUID {
	t.Helper()
	var id uuid.UUID
	require.NoError(t, l.QueryRow(context.Background(),
		`INSERT INTO queen.queues (tenant_id, name) VALUES ($1, $2) RETURNING id`, tenant, name).Scan(&id))
	return id
}

// A stretch is one stored segment: the transaction ids of its messages, from offset base on.
type stretch struct {
	base int64
	ids  []string
}

// partition inserts a partition that holds the given segments, ascending. Offsets between them are a retention gap.
func (l ackLog) partition(t tester, queue uuid.UUID, segments ...stretch) uuid.UUID {
	t.Helper()
	id := uuid.New()
	first, next := int64(0), int64(0)
	batch := &pgx.Batch{}
	for i, s := range segments {
		if i == 0 {
			first = s.base
		}
		next = s.base + int64(len(s.ids))
		batch.Queue(`INSERT INTO queen.log_segments VALUES ($1, $2, $3, clock_timestamp(), 'x')`, id, s.base, next-1)
		batch.Queue(`INSERT INTO queen.log_txns VALUES ($1, $2, $3, clock_timestamp(), $4)`, id, s.base, next-1, joinHashes(s.ids))
	}
	_, err := l.Exec(context.Background(), `INSERT INTO queen.log_partitions (id, queue_id, name, last_offset, log_start, txns_start)
		VALUES ($1, $2, $3, $4, $5, $5)`, id, queue, "p-"+id.String(), next-1, first)
	require.NoError(t, err)
	require.NoError(t, l.SendBatch(context.Background(), batch).Close())
	return id
}

// A cursor is what the tests look at of a log_consumers row. Lease is "live", "expired" or "" (no worker and no expiry).
type cursor struct {
	Committed     int64
	BatchEnd      *int64
	Worker        string
	Lease         string
	Retries       int
	AttemptOffset *int64
	Attempts      int
	Consumed      int64
}

// setCursor writes the row of (partition, group).
func (l ackLog) setCursor(t tester, partition uuid.UUID, group string, c cursor) {
	t.Helper()
	_, err := l.Exec(context.Background(), `
		INSERT INTO queen.log_consumers (partition_id, consumer_group, committed, batch_end, worker_id, lease_expires_at,
			lease_acquired_at, batch_retry_count, attempt_offset, attempt_count, total_consumed)
		VALUES ($1, $2, $3, $4, NULLIF($5, ''), CASE $6 WHEN 'live' THEN now() + interval '1 h' WHEN 'expired' THEN now() - interval '1 s' END,
			'2026-01-02 03:04:05Z', $7, $8, $9, $10)
		ON CONFLICT (partition_id, consumer_group) DO UPDATE SET (committed, batch_end, worker_id, lease_expires_at,
			lease_acquired_at, batch_retry_count, attempt_offset, attempt_count, total_consumed) =
			(EXCLUDED.committed, EXCLUDED.batch_end, EXCLUDED.worker_id, EXCLUDED.lease_expires_at, EXCLUDED.lease_acquired_at,
			 EXCLUDED.batch_retry_count, EXCLUDED.attempt_offset, EXCLUDED.attempt_count, EXCLUDED.total_consumed)`,
		partition, group, c.Committed, c.BatchEnd, c.Worker, c.Lease, c.Retries, c.AttemptOffset, c.Attempts, c.Consumed)
	require.NoError(t, err)
}

// cursor reads the row of (partition, group). The time of the last pop must have survived whatever happened.
func (l ackLog) cursor(t tester, partition uuid.UUID, group string) cursor {
	t.Helper()
	return readCursor(t, l, partition, group)
}

func readCursor(t tester, q querier, partition uuid.UUID, group string) cursor {
	t.Helper()
	var c cursor
	var acquired bool
	require.NoError(t, q.QueryRow(context.Background(), `
		SELECT committed, batch_end, COALESCE(worker_id, ''),
		       CASE WHEN lease_expires_at IS NULL THEN '' WHEN lease_expires_at > clock_timestamp() THEN 'live' ELSE 'expired' END,
		       batch_retry_count, attempt_offset, attempt_count, total_consumed, lease_acquired_at IS NOT NULL
		  FROM queen.log_consumers WHERE partition_id = $1 AND consumer_group = $2`, partition, group).
		Scan(&c.Committed, &c.BatchEnd, &c.Worker, &c.Lease, &c.Retries, &c.AttemptOffset, &c.Attempts, &c.Consumed, &acquired))
	require.True(t, acquired, "lease_acquired_at was lost")
	return c
}

// An ackAnswer is any answer of the ack procedures. Hash lists are given as transaction ids.
type ackAnswer struct {
	OK            bool     `json:"ok"`
	Error         string   `json:"error"`
	Acked         int64    `json:"acked"`
	Off           *int64   `json:"off"`
	DLQ           bool     `json:"dlq"`
	Dropped       bool     `json:"dropped"`
	PartitionID   string   `json:"partitionId"`
	Group         string   `json:"group"`
	Worker        string   `json:"worker"`
	LeaseReleased *bool    `json:"leaseReleased"`
	SignalIgnored *bool    `json:"signalIgnored"`
	Noop          []string `json:"noopHashes"`
	Stale         []string `json:"staleHashes"`
	Unresolved    []string `json:"unresolvedHashes"`
}

// An item is one message of an ack.
type item struct{ id, status string }

// ackByHash calls log_ack_by_hash_v1.
func (l ackLog) ackByHash(t tester, partition uuid.UUID, group, worker string, items ...item) ackAnswer {
	t.Helper()
	answer, err := ackByHash(l, partition, group, worker, items)
	require.NoError(t, err)
	return answer
}

func ackByHash(q querier, partition uuid.UUID, group, worker string, items []item) (ackAnswer, error) {
	hashes, statuses := make([][]byte, len(items)), make([]string, len(items))
	names := make(map[string]string, len(items))
	for i, it := range items {
		hashes[i], statuses[i] = hashOf(it.id), it.status
		names[hex.EncodeToString(hashes[i])] = it.id
	}
	answer, err := callJSON[ackAnswer](q, `SELECT queen.log_ack_by_hash_v1($1, $2, $3, $4, $5)`, partition, group, worker, hashes, statuses)
	for _, list := range [][]string{answer.Noop, answer.Stale, answer.Unresolved} {
		for i := range list {
			list[i] = names[list[i]]
		}
	}
	return answer, err
}

// callJSON runs a statement that returns one JSON value.
func callJSON[T any](q querier, sql string, args ...any) (value T, err error) {
	var text []byte
	if err := q.QueryRow(context.Background(), sql, args...).Scan(&text); err != nil {
		return value, err
	}
	return value, json.Unmarshal(text, &value)
}

// hashOf stands in for the broker's hash; SQL never computes one.
func hashOf(id string) []byte {
	sum := md5.Sum([]byte(id))
	return sum[:]
}

func joinHashes(ids []string) []byte {
	joined := make([]byte, 0, 16*len(ids))
	for _, id := range ids {
		joined = append(joined, hashOf(id)...)
	}
	return joined
}

// requireSQLState asserts the SQLSTATE of a server error and a part of its text.
func requireSQLState(t tester, err error, state, text string) {
	t.Helper()
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, state, pgErr.Code, pgErr.Message)
	require.Contains(t, pgErr.Message, text)
}

// idOf is the transaction id of the i-th message of a generated partition.
func idOf(i int) string { return "id-" + strconv.Itoa(i) }
