package sql_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestAckAtDecision(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "q")
	const w = "worker-1"
	leased := cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: w, Lease: "live", Retries: 2, AttemptOffset: new(int64(2)), Attempts: 3, Consumed: 10}
	change := func(c cursor, f func(*cursor)) cursor { f(&c); return c }
	released := func(c *cursor) { c.BatchEnd, c.Worker, c.Lease = nil, "", "" }
	expired := change(leased, func(c *cursor) { c.Lease = "expired" })
	free := change(leased, released)
	full := change(free, func(c *cursor) {
		c.Committed, c.Consumed, c.Retries, c.AttemptOffset, c.Attempts = 8, 17, 0, nil, 0
	})

	for _, tc := range []struct {
		name   string
		before cursor
		worker any
		upto   any
		ok     any
		count  any
		want   ackAnswer
		after  cursor
	}{
		{"FullAckCompletesAndResets", leased, w, 8, true, 7, ackAnswer{OK: true, Acked: 7}, full},
		{"FullAckWithoutWorker", leased, "", 8, true, 7, ackAnswer{OK: true, Acked: 7}, full},
		{"FullAckWithNullWorkerOnAnExpiredLease", expired, nil, 8, true, 7, ackAnswer{OK: true, Acked: 7}, full},
		{"ForeignWorker", leased, "worker-2", 8, true, 7, ackAnswer{Error: "invalid or expired lease"}, leased},
		{"ExpiredLease", expired, w, 8, true, 7, ackAnswer{Error: "invalid or expired lease"}, expired},
		{"WorkerOnAFreeRow", free, w, 8, true, 7, ackAnswer{Error: "invalid or expired lease"}, free},
		{"NoLeasedBatch", free, "", 8, true, 7, ackAnswer{Error: "no leased batch"}, free},
		{"BeyondTheBatch", leased, w, 9, true, 7, ackAnswer{Error: "position beyond leased batch"}, leased},
		{
			"BelowTheEndReleasesAndKeepsTheCounters", leased, w, 4, true, 3,
			ackAnswer{OK: true, Acked: 3},
			change(free, func(c *cursor) { c.Committed, c.Consumed, c.AttemptOffset = 4, 13, new(int64(5)) }),
		},
		{
			"NeverMovesBackwards", change(leased, func(c *cursor) { c.Committed, c.AttemptOffset = 5, new(int64(6)) }), w, 3, true, 1,
			ackAnswer{OK: true, Acked: 1},
			change(free, func(c *cursor) { c.Committed, c.AttemptOffset, c.Consumed = 5, new(int64(6)), 11 }),
		},
		{"NegativeCountIsZero", leased, w, 8, true, -4, ackAnswer{OK: true}, change(full, func(c *cursor) { c.Consumed = 10 })},
		{"NullCountIsZero", leased, w, 8, true, nil, ackAnswer{OK: true}, change(full, func(c *cursor) { c.Consumed = 10 })},
		{"NotOkReleasesTheBatch", leased, w, 8, false, 7, ackAnswer{OK: true}, free},
		{"NullOkReleasesTheBatch", leased, w, 8, nil, 7, ackAnswer{OK: true}, free},
		{"NullPositionReleasesTheBatch", leased, w, nil, true, 7, ackAnswer{OK: true}, free},
		{"NotOkByAStrangerIsRefused", leased, "worker-2", 8, false, 7, ackAnswer{Error: "invalid or expired lease"}, leased},
		{"NotOkOnAFreeRowChangesNothing", free, "", 8, false, 7, ackAnswer{OK: true}, free},
	} {
		t.Run(tc.name, func(t *testing.T) {
			partition := log.partition(t, queue, decisionSegments()...)
			log.setCursor(t, partition, "g", tc.before)
			got, err := callJSON[ackAnswer](log, `SELECT queen.log_ack_at_v1($1, 'g', $2, $3, $4, $5)`, partition, tc.worker, tc.upto, tc.ok, tc.count)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(tc.want, got))
			require.Empty(t, cmp.Diff(tc.after, log.cursor(t, partition, "g")))
		})
	}

	t.Run("UnknownConsumer", func(t *testing.T) {
		got, err := callJSON[ackAnswer](log, `SELECT queen.log_ack_at_v1($1, 'g', '', 0)`, uuid.New())
		require.NoError(t, err)
		require.Equal(t, ackAnswer{Error: "consumer not found"}, got)
	})
}

func TestAckByNames(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	stranger := uuid.New()
	partition := log.partition(t, log.queue(t, defaultTenant, "q"), decisionSegments()...)
	log.queue(t, stranger, "q")
	log.setCursor(t, partition, "g", cursor{Committed: -1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"})
	name := "p-" + partition.String()

	for _, tc := range []struct {
		name, queue, partition string
		tenant                 uuid.UUID
		want                   ackAnswer
	}{
		{"UnknownQueue", "nope", name, defaultTenant, ackAnswer{Error: "partition not found"}},
		{"UnknownPartition", "q", "nope", defaultTenant, ackAnswer{Error: "partition not found"}},
		{"ForeignTenant", "q", name, stranger, ackAnswer{Error: "partition not found"}},
		{"Known", "q", name, defaultTenant, ackAnswer{OK: true, Acked: 9}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := callJSON[ackAnswer](log, `SELECT queen.log_ack_v1($1, $2, 'g', 'w', 8, TRUE, 9, $3)`, tc.queue, tc.partition, tc.tenant)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

type ackRow struct {
	OK    bool    `json:"ok"`
	Acked int64   `json:"acked"`
	Error *string `json:"error"`
}

type ackRows struct {
	OK      bool     `json:"ok"`
	Results []ackRow `json:"results"`
}

func TestAckMulti(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "q")
	const call = `SELECT queen.log_ack_multi_v1($1, $2, $3, $4, $5)`
	live := cursor{Committed: -1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"}
	lost, none, gone := "invalid or expired lease", "no leased batch", "consumer not found"

	t.Run("VerdictsStandAtTheirInputPlace", func(t *testing.T) {
		var ids []string
		var groups, workers []string
		var ends []*int64
		var counts []int
		for i := range 6 {
			partition := log.partition(t, queue, decisionSegments()...)
			if i != 3 {
				log.setCursor(t, partition, "g", live)
			}
			ids, groups, workers = append(ids, partition.String()), append(groups, "g"), append(workers, "w")
			ends, counts = append(ends, new(int64(8))), append(counts, i)
		}
		workers[1] = "stranger"
		ends[4] = nil // releases
		got, err := callJSON[ackRows](log, call, ids, groups, ends, workers, counts)
		require.NoError(t, err)
		require.Equal(t, ackRows{OK: true, Results: []ackRow{
			{OK: true}, {Error: &lost}, {OK: true, Acked: 2}, {Error: &gone}, {OK: true}, {OK: true, Acked: 5},
		}}, got)
		require.Equal(t, live, log.cursor(t, uuid.MustParse(ids[1]), "g"))
		require.Equal(t, cursor{Committed: -1}, log.cursor(t, uuid.MustParse(ids[4]), "g"))
		require.Equal(t, cursor{Committed: 8, Consumed: 5}, log.cursor(t, uuid.MustParse(ids[5]), "g"))
	})
	t.Run("RowsOfOneConsumerActInInputOrder", func(t *testing.T) {
		partition := log.partition(t, queue, decisionSegments()...)
		log.setCursor(t, partition, "g", live)
		id := partition.String()
		got, err := callJSON[ackRows](log, call, []string{id, id, id, id, id}, []string{"g", "g", "g", "g", "g"},
			[]*int64{new(int64(8)), new(int64(4)), new(int64(8)), new(int64(99)), nil}, []string{"stranger", "w", "w", "", ""}, []int{9, 5, 9, 1, 1})
		require.NoError(t, err)
		require.Equal(t, []ackRow{{Error: &lost}, {OK: true, Acked: 5}, {Error: &lost}, {Error: &none}, {OK: true}}, got.Results)
		require.Equal(t, int64(4), log.cursor(t, partition, "g").Committed)
	})
	t.Run("GroupsOfOnePartitionAreIndependent", func(t *testing.T) {
		partition := log.partition(t, queue, decisionSegments()...)
		log.setCursor(t, partition, "g1", live)
		log.setCursor(t, partition, "g2", live)
		id := partition.String()
		got, err := callJSON[ackRows](log, call, []string{id, id}, []string{"g2", "g1"}, []int64{8, 7}, []string{"w", "w"}, []int{1, 2})
		require.NoError(t, err)
		require.Equal(t, []ackRow{{OK: true, Acked: 1}, {OK: true, Acked: 2}}, got.Results)
		require.Equal(t, int64(7), log.cursor(t, partition, "g1").Committed)
	})
	t.Run("EmptyAndNullArraysAreNoWork", func(t *testing.T) {
		for _, array := range []any{[]string{}, nil} {
			got, err := callJSON[ackRows](log, call, array, array, nil, array, nil)
			require.NoError(t, err)
			require.Equal(t, ackRows{OK: true, Results: []ackRow{}}, got)
		}
	})
	t.Run("MisalignedArraysAreRaised", func(t *testing.T) {
		id := uuid.NewString()
		for i := range 5 {
			args := []any{[]string{id}, []string{"g"}, []int64{1}, []string{"w"}, []int{1}}
			args[i] = nil
			_, err := log.Exec(context.Background(), call, args...)
			requireSQLState(t, err, "QU003", "QACKM misaligned arrays")
		}
	})
	t.Run("MalformedPartitionFailsTheCall", func(t *testing.T) {
		partition := log.partition(t, queue, decisionSegments()...)
		log.setCursor(t, partition, "g", live)
		_, err := log.Exec(context.Background(), call, []string{partition.String(), "no-uuid"}, []string{"g", "g"}, []int64{8, 8}, []string{"w", "w"}, []int{1, 1})
		requireSQLState(t, err, "22P02", "no-uuid")
		require.Equal(t, live, log.cursor(t, partition, "g"))
	})
}

type renewal struct {
	Renewed   int        `json:"renewed"`
	ExpiresAt *time.Time `json:"expiresAt"`
}

func TestRenewLease(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "q")
	lease := func(worker string, left time.Duration) uuid.UUID {
		partition := log.partition(t, queue, decisionSegments()...)
		log.setCursor(t, partition, "g", cursor{Committed: -1, BatchEnd: new(int64(8)), Worker: worker, Lease: "live", Retries: 2})
		_, err := log.Exec(context.Background(), `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() + $2 WHERE partition_id = $1`, partition, left)
		require.NoError(t, err)
		return partition
	}
	expiry := func(partition uuid.UUID) (at time.Time) {
		require.NoError(t, log.QueryRow(context.Background(), `SELECT lease_expires_at FROM queen.log_consumers WHERE partition_id = $1`, partition).Scan(&at))
		return at
	}
	const call = `SELECT queen.log_renew_lease_v1($1, $2)`

	t.Run("LengthensEveryLiveLeaseAndReportsTheSmallest", func(t *testing.T) {
		short, long, foreign, dead := lease("a", time.Minute), lease("a", time.Hour), lease("b", time.Minute), lease("a", -time.Second)
		before := map[uuid.UUID]time.Time{long: expiry(long), foreign: expiry(foreign), dead: expiry(dead)}
		got, err := callJSON[renewal](log, call, "a", 600)
		require.NoError(t, err)
		require.Equal(t, 2, got.Renewed)
		require.WithinDuration(t, time.Now().Add(600*time.Second), expiry(short), 30*time.Second)
		require.True(t, got.ExpiresAt.Equal(expiry(short)), "reported %v, stored %v", got.ExpiresAt, expiry(short))
		for partition, at := range before {
			require.Equal(t, at, expiry(partition))
		}
		require.Equal(t, 2, log.cursor(t, short, "g").Retries)
	})
	t.Run("LessThanASecondCountsAsOne", func(t *testing.T) {
		for _, seconds := range []any{0, -5, nil} {
			var before time.Time
			var got renewal
			for try := 0; got.Renewed == 0 && (try == 0 || time.Since(before) > 500*time.Millisecond); try++ { // what runs out before the call is no answer
				before = time.Now()
				worker := uuid.NewString()
				lease(worker, 500*time.Millisecond)
				var err error
				got, err = callJSON[renewal](log, call, worker, seconds)
				require.NoError(t, err)
			}
			require.Equal(t, 1, got.Renewed)
			require.WithinRange(t, *got.ExpiresAt, before, time.Now().Add(2*time.Second))
		}
	})
	t.Run("NothingLiveIsNoError", func(t *testing.T) {
		lease("e", -time.Second)
		for _, worker := range []any{"e", "nobody", "", nil} {
			got, err := callJSON[renewal](log, call, worker, 60)
			require.NoError(t, err)
			require.Equal(t, renewal{}, got)
		}
	})
	t.Run("ExpiryIsUTCWithMicroseconds", func(t *testing.T) {
		lease("f", time.Minute)
		var text string
		require.NoError(t, log.QueryRow(context.Background(), `SELECT queen.log_renew_lease_v1('f', 60) ->> 'expiresAt'`).Scan(&text))
		require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, text)
	})
}

func TestDeadLetterHead(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "q")
	leased := cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live", Retries: 2, AttemptOffset: new(int64(2)), Attempts: 3, Consumed: 10}
	const call = `SELECT queen.log_dlq_head_v1($1, 'g', $2, $3, $4, 'txn', '{"a":1}', 'boom', $5, $6)`
	filed := func(t *testing.T, partition uuid.UUID) (n int) {
		require.NoError(t, log.QueryRow(context.Background(), `SELECT count(*) FROM queen.log_dlq WHERE partition_id = $1`, partition).Scan(&n))
		return n
	}
	messageID, traceID := uuid.New(), uuid.New()

	t.Run("FilesTheMessageAndMovesTheCursorTogether", func(t *testing.T) {
		partition := log.partition(t, queue, decisionSegments()...)
		log.setCursor(t, partition, "g", leased)
		got, err := callJSON[struct {
			OK bool
			ID uuid.UUID
		}](log, call, partition, "w", 4, messageID, []byte(`{"a":1.0}`), traceID)
		require.NoError(t, err)
		require.True(t, got.OK)
		require.Empty(t, cmp.Diff(cursor{Committed: 4, Consumed: 11}, log.cursor(t, partition, "g")))

		var same bool
		require.NoError(t, log.QueryRow(context.Background(), `SELECT (partition_id, consumer_group, "offset", message_id, transaction_id, payload, error, retry_count,
				payload_raw, trace_id) = ($2::uuid, 'g', 4::bigint, $3::uuid, 'txn', '{"a":1}'::jsonb, 'boom', 2, '{"a":1.0}'::bytea, $4::uuid)
				AND clock_timestamp() - failed_at BETWEEN '0 s' AND '1 min'
			FROM queen.log_dlq WHERE id = $1`, got.ID, partition, messageID, traceID).Scan(&same))
		require.True(t, same, "the stored row differs")

		again, err := callJSON[ackAnswer](log, call, partition, "w", 4, messageID, []byte("{}"), traceID)
		require.NoError(t, err)
		require.Equal(t, ackAnswer{Error: "invalid or expired lease"}, again)
		require.Equal(t, 1, filed(t, partition))
		require.Equal(t, int64(4), log.cursor(t, partition, "g").Committed)
	})
	t.Run("TheCursorNeverMovesBack", func(t *testing.T) {
		partition := log.partition(t, queue, decisionSegments()...)
		log.setCursor(t, partition, "g", leased)
		_, err := log.Exec(context.Background(), call, partition, "w", 0, nil, nil, nil)
		require.NoError(t, err)
		require.Equal(t, int64(1), log.cursor(t, partition, "g").Committed)
	})
	t.Run("WithoutRawBytesAndTrace", func(t *testing.T) {
		partition := log.partition(t, queue, decisionSegments()...)
		log.setCursor(t, partition, "g", leased)
		_, err := log.Exec(context.Background(), `SELECT queen.log_dlq_head_v1($1, 'g', 'w', 4, NULL, NULL, NULL, NULL)`, partition)
		require.NoError(t, err)
		require.Equal(t, 1, filed(t, partition))
	})
	for _, tc := range []struct {
		name   string
		before cursor
		worker any
		off    any
		want   string
	}{
		{"EmptyWorkerIsRefused", leased, "", 4, "worker is required"},
		{"NullWorkerIsRefused", leased, nil, 4, "worker is required"},
		{"ForeignWorkerIsRefused", leased, "stranger", 4, "invalid or expired lease"},
		{"ExpiredLeaseIsRefused", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "expired"}, "w", 4, "invalid or expired lease"},
		{"BeyondTheBatchIsRefused", leased, "w", 9, "position beyond leased batch"},
		{"NoOffsetIsRefused", leased, "w", nil, "position beyond leased batch"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			partition := log.partition(t, queue, decisionSegments()...)
			log.setCursor(t, partition, "g", tc.before)
			got, err := callJSON[ackAnswer](log, call, partition, tc.worker, tc.off, nil, nil, nil)
			require.NoError(t, err)
			require.Equal(t, ackAnswer{Error: tc.want}, got)
			require.Zero(t, filed(t, partition))
			require.Empty(t, cmp.Diff(tc.before, log.cursor(t, partition, "g")))
		})
	}
	t.Run("UnknownConsumerIsRefused", func(t *testing.T) {
		got, err := callJSON[ackAnswer](log, call, uuid.New(), "w", 4, nil, nil, nil)
		require.NoError(t, err)
		require.Equal(t, ackAnswer{Error: "consumer not found"}, got)
	})
	t.Run("APayloadThatJSONBRefusesLeavesNothing", func(t *testing.T) {
		partition := log.partition(t, queue, decisionSegments()...)
		log.setCursor(t, partition, "g", leased)
		_, err := log.Exec(context.Background(), `SELECT queen.log_dlq_head_v1($1, 'g', 'w', 4, NULL, NULL, $2::text::jsonb, NULL)`, partition, `"\u0000"`)
		requireSQLState(t, err, "22P05", "")
		require.Zero(t, filed(t, partition))
		require.Empty(t, cmp.Diff(leased, log.cursor(t, partition, "g")))
	})
}

// The whole life of a poison message with the default limit: delivered four times, then filed, then the tail goes on.
func TestPoisonMessageIsFiledAfterTheBudget(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	partition := log.partition(t, log.queue(t, defaultTenant, "q"), decisionSegments()...)
	row := cursor{Committed: -1}
	for delivery := 1; ; delivery++ {
		row.BatchEnd, row.Worker, row.Lease = new(int64(9)), "w", "live"
		log.setCursor(t, partition, "g", row)
		got := log.ackByHash(t, partition, "g", "w", item{"m0", "completed"}, item{"m1", "failed"})
		row = log.cursor(t, partition, "g")
		if !got.DLQ {
			require.Less(t, delivery, 4)
			continue
		}
		require.Equal(t, 4, delivery)
		break
	}
	_, err := log.Exec(context.Background(), `SELECT queen.log_dlq_head_v1($1, 'g', 'w', 1, NULL, 'm1', NULL, NULL)`, partition)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(cursor{Committed: 1, Consumed: 2}, log.cursor(t, partition, "g")))
}
