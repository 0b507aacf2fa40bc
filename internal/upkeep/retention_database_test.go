package upkeep_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/admission"
	"queenmq/internal/pg"
	"queenmq/internal/testdb"
	"queenmq/internal/upkeep"
)

// A cell is a database with retention on it. Its sessions live at +05:30.
type cell struct {
	*pg.DB
	sql       *pgxpool.Pool
	slots     *admission.Controller
	retention *upkeep.Retention
}

func newCell(t *testing.T, change ...func(*upkeep.RetentionConfig)) *cell {
	t.Helper()
	database := testdb.New(t, testdb.TimeZone("Asia/Kolkata"))
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 12})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	c := &cell{DB: db, sql: database.Pool(t), slots: admission.New(admission.Config{PoolSize: 12})}
	c.retention = c.competitor(t, change...)
	return c
}

// competitor is retention as one more broker runs it.
func (c *cell) competitor(t *testing.T, change ...func(*upkeep.RetentionConfig)) *upkeep.Retention {
	t.Helper()
	cfg := upkeep.RetentionConfig{
		Interval: time.Second, BatchSize: 10, Parallelism: 2, SafetyWalk: time.Hour, Cleanup: true, CleanupDays: 1, MetricsDays: 7,
	}
	for _, f := range change {
		f(&cfg)
	}
	leader := c.NewLeader(pg.RetentionLock)
	t.Cleanup(leader.Close)
	return upkeep.NewRetention(cfg, c, leader, c.slots, discard)
}

func (c *cell) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := c.sql.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func (c *cell) number(t *testing.T, sql string, args ...any) (n int64) {
	t.Helper()
	require.NoError(t, c.sql.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

func (c *cell) configure(t *testing.T, queue, options string) {
	t.Helper()
	_, err := c.Configure(t.Context(), pg.DefaultTenant, queue, "", "", []byte(options))
	require.NoError(t, err)
}

func hash(id string) []byte {
	sum := sha256.Sum256([]byte(id))
	return sum[:16]
}

// push stores n messages, each in a segment of its own, and moves them into the past.
func (c *cell) push(t *testing.T, queue string, n int, age time.Duration) uuid.UUID {
	t.Helper()
	var id uuid.UUID
	for i := range n {
		name := fmt.Sprint(queue, i, age)
		verdicts, err := c.PushMulti(t.Context(), []pg.Segment{{Tenant: pg.DefaultTenant, Queue: queue, Partition: "p", Count: 1, Hashes: hash(name), Verified: -1, Plain: true, Blob: []byte(name)}}, pg.PushOptions{})
		require.NoError(t, err)
		id = verdicts[0].PartitionID
	}
	for _, table := range []string{"log_segments", "log_txns"} {
		c.exec(t, `UPDATE queen.`+table+` SET created_at = created_at - $2::interval WHERE partition_id = $1`, id, age)
	}
	c.exec(t, `UPDATE queen.log_partitions SET oldest_live_at = oldest_live_at - $2::interval, oldest_txn_at = oldest_txn_at - $2::interval WHERE id = $1`, id, age)
	return id
}

func (c *cell) pop(t *testing.T, queue, group string, budget int) pg.Claim {
	t.Helper()
	claim, err := c.PopWildcard(t.Context(), pg.PopRequest{Tenant: pg.DefaultTenant, Queue: queue, Group: group, Budget: budget, LeaseSeconds: 600, Worker: group + "-worker", SubMode: "all"})
	require.NoError(t, err)
	return claim
}

func (c *cell) ack(t *testing.T, partition uuid.UUID, group string, ids ...string) pg.HashAckResult {
	t.Helper()
	hashes, statuses := make([][]byte, len(ids)), make([]string, len(ids))
	for i, id := range ids {
		hashes[i], statuses[i] = hash(id), "completed"
	}
	result, err := c.AckByHash(t.Context(), pg.HashAck{PartitionID: partition, Group: group, Worker: group + "-worker", Hashes: hashes, Statuses: statuses})
	require.NoError(t, err)
	return result
}

func (c *cell) cycle(t *testing.T) {
	t.Helper()
	led, err := c.retention.Step(t.Context())
	require.NoError(t, err)
	require.True(t, led)
}

func (c *cell) live(t *testing.T, partition uuid.UUID) int64 {
	t.Helper()
	return c.number(t, `SELECT count(*) FROM queen.log_segments WHERE partition_id = $1`, partition)
}

// idsIn are the transaction ids of push.
func idsIn(queue string, age time.Duration, from, to int) (ids []string) {
	for i := from; i < to; i++ {
		ids = append(ids, fmt.Sprint(queue, i, age))
	}
	return ids
}

// The rule about completed messages deletes nothing that any group has still to read, be it late, in the middle of a batch, or
// nobody at all, and what it keeps can be acknowledged, however old it is.
func TestCompletedRetentionLosesNothingUnread(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	const age, n = 3 * time.Hour, 20
	for _, queue := range []string{"late", "leased", "nobody", "read"} {
		c.configure(t, queue, `{"retentionEnabled":true,"completedRetentionSeconds":60,"dedupWindowSeconds":60}`)
	}
	late, leased, nobody, read := c.push(t, "late", n, age), c.push(t, "leased", n, age), c.push(t, "nobody", n, age), c.push(t, "read", n, age)

	c.pop(t, "late", "fast", n)
	require.True(t, c.ack(t, late, "fast", idsIn("late", age, 0, n)...).OK)
	c.pop(t, "late", "slow", 7)
	require.True(t, c.ack(t, late, "slow", idsIn("late", age, 0, 7)...).OK)
	c.pop(t, "leased", "g", n) // and no acknowledgment
	c.pop(t, "read", "g", n)
	require.True(t, c.ack(t, read, "g", idsIn("read", age, 0, n)...).OK)

	for range 5 {
		c.cycle(t)
	}
	require.Equal(t, []int64{n - 7, n, n, 0}, []int64{c.live(t, late), c.live(t, leased), c.live(t, nobody), c.live(t, read)})
	stats := c.retention.Stats()
	require.Equal(t, []int64{7 + n, 0}, []int64{stats.Messages, stats.Unread})

	// The hashes of what is not yet acknowledged were kept too.
	require.Equal(t, []int64{n - 7, n, n, 0}, []int64{
		c.number(t, `SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, late), c.number(t, `SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, leased),
		c.number(t, `SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, nobody), c.number(t, `SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, read),
	})
	require.True(t, c.ack(t, leased, "g", idsIn("leased", age, 0, n)...).OK)
	rest := c.pop(t, "late", "slow", n)
	require.Len(t, rest.Partitions, 1)
	require.True(t, c.ack(t, late, "slow", idsIn("late", age, 7, n)...).OK)
	for range 70 { // partitions that gave nothing are left alone for a while
		c.cycle(t)
	}
	require.Zero(t, c.live(t, late)+c.live(t, leased))
	require.EqualValues(t, n, c.live(t, nobody))
	require.EqualValues(t, 3*n, c.number(t, `SELECT sum(messages_deleted) FROM queen.retention_history WHERE retention_type = 'completed_retention'`))
}

// The two options that say so delete unread messages, whoever holds them, and the broker counts them.
func TestTheOptionsThatDeleteUnreadMessages(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	const age, n = 2 * time.Hour, 15
	c.configure(t, "timed", `{"retentionEnabled":true,"retentionSeconds":3600}`)
	c.configure(t, "waited", `{"maxWaitTimeSeconds":3600}`)
	c.configure(t, "kept", `{"retentionEnabled":false,"retentionSeconds":1}`)
	timed, waited, kept := c.push(t, "timed", n, age), c.push(t, "waited", n, age), c.push(t, "kept", n, age)
	c.pop(t, "timed", "g", 5)
	require.True(t, c.ack(t, timed, "g", idsIn("timed", age, 0, 5)...).OK)
	c.pop(t, "waited", "g", 5) // leased

	c.cycle(t)
	require.Equal(t, []int64{0, 0, n}, []int64{c.live(t, timed), c.live(t, waited), c.live(t, kept)})
	require.EqualValues(t, 2*n-5, c.retention.Stats().Unread)
	require.EqualValues(t, n, c.number(t, `SELECT sum(messages_deleted) FROM queen.retention_history WHERE retention_type = 'max_wait_time_eviction'`))

	// Whoever was in the middle goes on with what comes next.
	require.NoError(t, c.ReleaseLease(t.Context(), waited, "g", "g-worker"))
	c.push(t, "waited", 1, 0)
	claim := c.pop(t, "waited", "g", 5)
	require.Len(t, claim.Partitions, 1)
}

func TestHousework(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.configure(t, "q", `{"retentionEnabled":true,"retentionSeconds":1,"dlqRetentionSeconds":3600,"dedupWindowSeconds":0}`)
	dead := c.push(t, "q", 3, 100*time.Hour)
	c.exec(t, `UPDATE queen.log_partitions SET created_at = now() - interval '9 d', last_write_at = now() - interval '9 d'`)
	holder := c.push(t, "other", 1, 0)
	c.exec(t, `UPDATE queen.log_partitions SET queue_id = (SELECT id FROM queen.queues WHERE name = 'q'), name = 'letters' WHERE id = $1`, holder)
	c.exec(t, `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", failed_at) VALUES ($1, 'g', 0, now() - interval '2 h'), ($1, 'g', 1, now())`, holder)
	c.exec(t, `INSERT INTO queen.message_traces (transaction_id, data, created_at) VALUES ('old', '{}', now() - interval '8 d'), ('new', '{}', now())`)
	c.exec(t, `INSERT INTO queen.hotlist_repairs (tenant_id, created_at) VALUES ($1, now() - interval '2 h'), ($1, now())`, pg.DefaultTenant)
	c.cycle(t)
	require.EqualValues(t, 1, c.number(t, `SELECT count(*) FROM queen.hotlist_repairs`))
	require.Zero(t, c.number(t, `SELECT count(*) FROM queen.log_partitions WHERE id = $1`, dead), "emptied, unused and removed in one cycle")
	require.Zero(t, c.number(t, `SELECT count(*) FROM queen.log_txns WHERE partition_id = $1`, dead))
	require.EqualValues(t, 1, c.number(t, `SELECT count(*) FROM queen.log_dlq`))
	require.EqualValues(t, 1, c.number(t, `SELECT count(*) FROM queen.message_traces`))
	stats := c.retention.Stats()
	require.Equal(t, []int64{1, 1}, []int64{stats.Partitions, stats.DeadLetters})
	require.EqualValues(t, 2, stats.MetricRows)
}

// A database whose writers did not know the watermarks is healed by the walk, and what was hidden is deleted.
func TestTheSafetyWalkFindsWhatWritersForgot(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.configure(t, "q", `{"retentionEnabled":true,"retentionSeconds":60}`)
	id := c.push(t, "q", 5, time.Hour)
	c.exec(t, `UPDATE queen.log_partitions SET oldest_live_at = NULL, oldest_txn_at = NULL`)
	c.cycle(t)
	require.EqualValues(t, 5, c.live(t, id), "the walk comes after the lists")
	c.cycle(t)
	require.Zero(t, c.live(t, id))
	require.EqualValues(t, 1, c.retention.Stats().Repaired)
}

// A leader that dies in the middle of a cycle is replaced at once, and nothing is deleted twice or forgotten.
func TestALeaderThatDiesIsReplaced(t *testing.T) {
	t.Parallel()
	c := newCell(t, func(cfg *upkeep.RetentionConfig) { cfg.BatchSize, cfg.Parallelism = 1, 1 })
	c.configure(t, "q", `{"retentionEnabled":true,"retentionSeconds":60}`)
	id := c.push(t, "q", 60, time.Hour)
	successor := c.competitor(t)

	// A session that holds the partition stops the leader in its first step.
	blocker, err := c.sql.Begin(t.Context())
	require.NoError(t, err)
	_, err = blocker.Exec(t.Context(), `SELECT 1 FROM queen.log_partitions WHERE id = $1 FOR UPDATE`, id)
	require.NoError(t, err)
	result := make(chan error, 1)
	go func() {
		_, err := c.retention.Step(context.WithoutCancel(t.Context()))
		result <- err
	}()
	require.Eventually(t, func() bool {
		return c.number(t, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%log_retention_step_v1%'`) == 1
	}, 20*time.Second, 5*time.Millisecond)
	led, err := successor.Step(t.Context())
	require.NoError(t, err)
	require.False(t, led)

	began := time.Now()
	c.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 737001 AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	require.ErrorIs(t, <-result, pg.ErrLeadershipLost)
	require.NoError(t, blocker.Rollback(t.Context()))
	led, err = successor.Step(t.Context())
	require.NoError(t, err)
	require.True(t, led)
	require.Less(t, time.Since(began), 15*time.Second)
	require.Zero(t, c.live(t, id))
	require.EqualValues(t, 60, c.number(t, `SELECT sum(messages_deleted) FROM queen.retention_history`))
	require.False(t, c.retention.Stats().Leading)
	require.True(t, successor.Stats().Leading)
}

// Loops on a real database, started and stopped over and over while it works, end when they are told to and leave no lock.
func TestLoopsStartAndStopUnderLoad(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.configure(t, "q", `{"retentionEnabled":true,"retentionSeconds":1}`)
	c.push(t, "q", 20, time.Hour)
	for i := range 15 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 3)
		retention := c.competitor(t, func(cfg *upkeep.RetentionConfig) { cfg.Interval = time.Millisecond })
		stats := upkeep.NewStats(c, 10*time.Millisecond, discard)
		reconcile := upkeep.NewReconcile(time.Millisecond, func() {}, discard)
		go func() { ended <- retention.Run(ctx) }()
		go func() { ended <- stats.Run(ctx) }()
		go func() { ended <- reconcile.Run(ctx) }()
		if i%3 == 0 {
			require.Eventually(t, func() bool { return retention.Status().Passes > 1 && stats.Status().Passes > 0 }, 20*time.Second, time.Millisecond)
		}
		cancel()
		for range cap(ended) {
			require.NoError(t, <-ended)
		}
	}
	require.Eventually(t, func() bool {
		return c.number(t, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 0
	}, 10*time.Second, 10*time.Millisecond)
}

func TestRefreshWaitsForAnotherBroker(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	c.push(t, "q", 4, 0)
	stats := upkeep.NewStats(c, 10*time.Second, discard)
	other, err := c.sql.Begin(t.Context())
	require.NoError(t, err)
	_, err = other.Exec(t.Context(), `SELECT pg_advisory_xact_lock(737002)`)
	require.NoError(t, err)
	done, err := stats.Step(t.Context())
	require.NoError(t, err)
	require.False(t, done)
	type result struct {
		text string
		err  error
	}
	answered := make(chan result, 1)
	go func() {
		text, err := stats.Refresh(t.Context())
		answered <- result{string(text), err}
	}()
	require.NoError(t, other.Rollback(t.Context()))
	got := <-answered
	require.NoError(t, got.err)
	require.Contains(t, got.text, `"engine": "segments"`)
	require.EqualValues(t, 4, c.number(t, `SELECT total_messages FROM queen.stats WHERE stat_type = 'queue'`))
	done, err = upkeep.NewRetainedBytes(c, time.Minute, discard).Step(t.Context())
	require.NoError(t, err)
	require.True(t, done)
	require.Positive(t, c.number(t, `SELECT retained_bytes FROM queen.stats WHERE stat_type = 'queue'`))
}
