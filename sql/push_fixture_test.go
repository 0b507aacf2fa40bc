package sql_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

// A pushLog is a database for tests of pushes and of what happens to stored segments later. Its sessions live at +05:30: no
// answer may depend on it.
type pushLog struct {
	*pgxpool.Pool
}

func newPushLog(t *testing.T) pushLog {
	t.Helper()
	return pushLog{testdb.New(t, testdb.TimeZone("Asia/Kolkata")).Pool(t)}
}

// A parcel is one segment to be pushed. The zero tenant is the default one; a nil verified offset is -1.
type parcel struct {
	tenant           uuid.UUID
	queue, partition string
	ids              []string
	verified         *int64
	plain            bool
}

func ids(names ...string) []string { return names }

// A duplicate is one frame that is stored already.
type duplicate struct {
	Frame  int   `json:"i"`
	Offset int64 `json:"off"`
}

// A pushVerdict is any answer to one segment.
type pushVerdict struct {
	Status      string      `json:"status"`
	PartitionID uuid.UUID   `json:"partitionId"`
	BaseOffset  *int64      `json:"baseOffset"`
	CreatedAt   string      `json:"createdAt"`
	Dups        []duplicate `json:"dups"`
	Depth       *int64      `json:"depth"`
	Limit       *int64      `json:"limit"`
	Remaining   *int64      `json:"remaining"`
}

const pushMulti = `SELECT queen.log_push_multi_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// pushArguments are the arguments of pushMulti.
func pushArguments(skipCapacity bool, traces *string, parcels []parcel) []any {
	n := len(parcels)
	queues, partitions, counts := make([]string, n), make([]string, n), make([]int32, n)
	hashes, verified, blobs := make([][]byte, n), make([]int64, n), make([][]byte, n)
	tenants, plain := make([]uuid.UUID, n), make([]bool, n)
	for i, p := range parcels {
		queues[i], partitions[i], counts[i] = p.queue, p.partition, int32(len(p.ids))
		hashes[i], verified[i], blobs[i] = joinHashes(p.ids), -1, []byte("blob of "+p.ids[0])
		tenants[i], plain[i] = p.tenant, p.plain
		if p.tenant == uuid.Nil {
			tenants[i] = defaultTenant
		}
		if p.verified != nil {
			verified[i] = *p.verified
		}
	}
	return []any{queues, partitions, counts, hashes, verified, blobs, tenants, plain, skipCapacity, traces}
}

func push(q querier, parcels ...parcel) ([]pushVerdict, error) {
	return callJSON[[]pushVerdict](q, pushMulti, pushArguments(false, nil, parcels)...)
}

// push stores the parcels in one call.
func (l pushLog) push(t tester, parcels ...parcel) []pushVerdict {
	t.Helper()
	verdicts, err := push(l, parcels...)
	require.NoError(t, err)
	require.Len(t, verdicts, len(parcels))
	return verdicts
}

// queued pushes one parcel that must be stored and returns its partition.
func (l pushLog) queued(t tester, queue, partition string, names ...string) uuid.UUID {
	t.Helper()
	v := l.push(t, parcel{queue: queue, partition: partition, ids: names})[0]
	require.Equal(t, "queued", v.Status)
	return v.PartitionID
}

func (l pushLog) exec(t tester, sql string, args ...any) {
	t.Helper()
	_, err := l.Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

// scan reads one row of one column.
func scan[T any](t tester, q querier, sql string, args ...any) (value T) {
	t.Helper()
	require.NoError(t, q.QueryRow(context.Background(), sql, args...).Scan(&value))
	return value
}

// A head is what the tests look at of a log_partitions row.
type head struct {
	LastOffset, LogStart, TxnsStart int64
	OldestLive, OldestTxn           *time.Time
}

func (l pushLog) head(t tester, partition uuid.UUID) (h head) {
	t.Helper()
	require.NoError(t, l.QueryRow(context.Background(), `SELECT last_offset, log_start, txns_start, oldest_live_at, oldest_txn_at
		FROM queen.log_partitions WHERE id = $1`, partition).Scan(&h.LastOffset, &h.LogStart, &h.TxnsStart, &h.OldestLive, &h.OldestTxn))
	return h
}

// age moves everything stored in the partition into the past.
func (l pushLog) age(t tester, partition uuid.UUID, by time.Duration) {
	t.Helper()
	for _, sql := range []string{
		`UPDATE queen.log_segments SET created_at = created_at - $2::interval WHERE partition_id = $1`,
		`UPDATE queen.log_txns SET created_at = created_at - $2::interval WHERE partition_id = $1`,
		`UPDATE queen.log_partitions SET created_at = created_at - $2::interval, last_write_at = last_write_at - $2::interval,
			oldest_live_at = oldest_live_at - $2::interval, oldest_txn_at = oldest_txn_at - $2::interval WHERE id = $1`,
		`UPDATE queen.log_consumers SET created_at = created_at - $2::interval WHERE partition_id = $1`,
	} {
		l.exec(t, sql, partition, by)
	}
}
