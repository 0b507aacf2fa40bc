package sql_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// ackDelayed is ackByHash with a delay for each item.
func (l ackLog) ackDelayed(t tester, partition uuid.UUID, worker string, delays []int32, items ...item) (answer struct {
	ackAnswer
	DelayMs *int64 `json:"delayMs"`
},
) {
	t.Helper()
	hashes, statuses := make([][]byte, len(items)), make([]string, len(items))
	for i, it := range items {
		hashes[i], statuses[i] = hashOf(it.id), it.status
	}
	var text []byte
	require.NoError(t, l.QueryRow(context.Background(), `SELECT queen.log_ack_by_hash_v1($1, 'g', $2, $3, $4, $5)`,
		partition, worker, hashes, statuses, delays).Scan(&text))
	require.NoError(t, json.Unmarshal(text, &answer))
	return answer
}

func TestAckDelaysTheRedelivery(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	for _, tc := range []struct {
		name    string
		options string
		delays  []int32
		items   []item
		want    int64 // milliseconds; 0 is no delay
	}{
		{"Off", "", nil, []item{{"m2", "failed"}}, 0},
		{"OptionOfTheQueue", "redelivery_delay_ms = 5000", nil, []item{{"m2", "failed"}}, 5000},
		{"OptionWithASilentItem", "redelivery_delay_ms = 5000", []int32{-1}, []item{{"m2", "failed"}}, 5000},
		{"ItemWins", "redelivery_delay_ms = 5000", []int32{60_000}, []item{{"m2", "failed"}}, 60_000},
		{"ItemTurnsItOff", "redelivery_delay_ms = 5000", []int32{0}, []item{{"m2", "failed"}}, 0},
		{"ItemWithoutOption", "", []int32{7000}, []item{{"m2", "failed"}}, 7000},
		{"RetryIgnoresTheOption", "redelivery_delay_ms = 5000", nil, []item{{"m2", "retry"}}, 0},
		{"RetryWithItsOwn", "redelivery_delay_ms = 5000", []int32{9000}, []item{{"m2", "retry"}}, 9000},
		{"HeadDecides", "", []int32{-1, 3000, 90_000}, []item{{"m2", "completed"}, {"m4", "failed"}, {"m7", "failed"}}, 3000},
		{"SilentHeadDecides", "", []int32{-1, 90_000}, []item{{"m4", "failed"}, {"m7", "failed"}}, 0},
		{"LongestOfTheHead", "", []int32{3000, -1, 8000}, []item{{"m4", "failed"}, {"m4", "failed"}, {"m4", "failed"}}, 8000},
		{"CompletedIgnoresIt", "redelivery_delay_ms = 5000", []int32{4000}, []item{{"m8", "completed"}}, 0},
		{"DeadLetterIsNotDelayed", "redelivery_delay_ms = 5000, retry_limit = 1", []int32{4000}, []item{{"m2", "failed"}}, 0},
		{"DlqIsNotDelayed", "redelivery_delay_ms = 5000", []int32{4000}, []item{{"m2", "dlq"}}, 0},
		{"DroppedIsNotDelayed", "redelivery_delay_ms = 5000, retry_limit = 0, dead_letter_queue = FALSE, dlq_after_max_retries = FALSE", nil, []item{{"m2", "failed"}}, 0},
		{"AtMostADay", "", []int32{2_000_000_000}, []item{{"m2", "failed"}}, 86_400_000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			queue := log.queue(t, defaultTenant, tc.name)
			if tc.options != "" {
				_, err := log.Exec(t.Context(), `UPDATE queen.queues SET `+tc.options+` WHERE id = $1`, queue)
				require.NoError(t, err)
			}
			partition := log.partition(t, queue, decisionSegments()...)
			log.setCursor(t, partition, "g", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live", Retries: 1, AttemptOffset: new(int64(2)), Attempts: 2})

			before := time.Now()
			answer := log.ackDelayed(t, partition, "w", tc.delays, tc.items...)

			require.True(t, answer.OK)
			row := log.cursor(t, partition, "g")
			if tc.want == 0 {
				require.Nil(t, answer.DelayMs)
				require.NotEqual(t, "__retry__", row.Worker)
				return
			}
			require.Equal(t, tc.want, *answer.DelayMs)
			require.True(t, *answer.LeaseReleased)
			require.Nil(t, row.BatchEnd)
			require.Equal(t, "__retry__", row.Worker)
			var left float64
			require.NoError(t, log.QueryRow(t.Context(), `SELECT 1000 * extract(epoch FROM lease_expires_at - clock_timestamp())::float8 FROM queen.log_consumers WHERE partition_id = $1`, partition).Scan(&left))
			require.LessOrEqual(t, left, float64(tc.want))
			require.Greater(t, left, float64(tc.want)-1000-float64(time.Since(before).Milliseconds()))
		})
	}
}

// While a redelivery waits nobody holds a lease, and no name gets hold of it.
func TestWaitingRedeliveryIsNobodysLease(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	const tenant = "00000000-0000-0000-0000-000000000001"
	queue := log.queue(t, defaultTenant, "q")
	partition := log.partition(t, queue, decisionSegments()...)
	// alone is a partition whose messages are gone; only the delay speaks for it.
	alone := uuid.New()
	_, err := log.Exec(t.Context(), `INSERT INTO queen.log_partitions (id, queue_id, name, created_at, last_write_at) VALUES ($1, $2, 'alone', now() - interval '9 d', now() - interval '9 d')`, alone, queue)
	require.NoError(t, err)
	waiting := cursor{Committed: 1, Worker: "__retry__", Lease: "live", Retries: 2, AttemptOffset: new(int64(2)), Attempts: 2}
	log.setCursor(t, partition, "g", waiting)
	log.setCursor(t, alone, "g", waiting)
	ask := func(query string, args ...any) string {
		t.Helper()
		var text string
		require.NoError(t, log.QueryRow(t.Context(), query, args...).Scan(&text), query)
		return text
	}

	const lost = "invalid or expired lease"
	require.Equal(t, lost, log.ackDelayed(t, partition, "w", nil, item{"m2", "completed"}).Error, "the former holder")
	require.Equal(t, lost, log.ackDelayed(t, partition, "__retry__", nil, item{"m2", "completed"}).Error)
	require.Equal(t, lost, ask(`SELECT queen.log_ack_at_v1($1, 'g', '__retry__', NULL, FALSE) ->> 'error'`, partition))
	require.Equal(t, lost, ask(`SELECT queen.log_ack_multi_v1(ARRAY[$1], ARRAY['g'], ARRAY[8::bigint], ARRAY['__retry__'], ARRAY[1]) #>> '{results,0,error}'`, partition.String()))
	require.Equal(t, lost, ask(`SELECT queen.log_dlq_head_v1($1, 'g', '__retry__', 2, NULL, 'm2', NULL, 'e') ->> 'error'`, partition))
	_, err = log.Exec(t.Context(), `SELECT queen.log_streams_ack_v1($1, 'g', '__retry__', FALSE, FALSE, 0)`, partition)
	require.ErrorContains(t, err, lost)
	require.JSONEq(t, `{"renewed":0,"expiresAt":null}`, ask(`SELECT queen.log_renew_lease_v1('__retry__', 3600)`))
	require.True(t, *log.ackDelayed(t, partition, "", nil, item{"m2", "failed"}).SignalIgnored, "there is no batch to fail")
	require.Equal(t, waiting, log.cursor(t, partition, "g"))

	require.Equal(t, "0 0", ask(`SELECT (l ->> 'total') || ' ' || (l ->> 'abandoned') FROM queen.lease_list_v1(jsonb_build_object('_tenant', $1::text)) l`, tenant))
	require.Equal(t, "0", ask(`SELECT queen.lease_utilization_v1('q', '') #>> '{queues,0,leasedPartitions}'`))
	require.Equal(t, "0", ask(`SELECT sum(r_processing)::text FROM queen.log_partition_figures_v1($1)`, queue))
	require.Equal(t, "no one", ask(`SELECT COALESCE(min(r_worker), CASE WHEN bool_or(r_leased) THEN 'leased' ELSE 'no one' END) FROM queen.log_group_lag_v1('g', NULL, $1)`, tenant))
	require.Equal(t, "pending", ask(`SELECT r_status FROM queen.log_message_state_v1($1, 2, NULL)`, partition))
	require.Equal(t, "false", ask(`SELECT queen.log_partition_dead_v1($1, now() - interval '1 d')::text`, alone), "its cursor is in use")

	require.Equal(t, "deferred", ask(`SELECT r_verdict || CASE WHEN r_wait_ms BETWEEN 3590000 AND 3600000 THEN '' ELSE ' for ' || r_wait_ms END
		FROM queen.log_pop_ready_v1('q', 'g', (SELECT array_agg(name) FROM queen.log_partitions WHERE id = $1), 10, 60, 'w2', FALSE, 1, 'all', '', FALSE, $2)`, partition, tenant))

	// An ack without a lease works and leaves the delay; an operator ends it.
	require.EqualValues(t, 1, log.ackDelayed(t, partition, "", nil, item{"m2", "completed"}).Acked)
	require.Equal(t, "__retry__", log.cursor(t, partition, "g").Worker)
	require.Equal(t, "false", ask(`SELECT queen.lease_release_v1($1, 'g', '__retry__') ->> 'released'`, partition), "no name of a lease")
	require.JSONEq(t, `{"released":true,"leaseId":null}`, ask(`SELECT jsonb_build_object('released', r -> 'released', 'leaseId', r -> 'leaseId') FROM queen.lease_release_v1($1, 'g', '') r`, partition))
	require.Empty(t, log.cursor(t, partition, "g").Worker)

	// Time ends it, and spends nothing.
	waiting.Lease = "expired"
	log.setCursor(t, partition, "g", waiting)
	require.Equal(t, "took", ask(`SELECT DISTINCT r_verdict
		FROM queen.log_pop_ready_v1('q', 'g', (SELECT array_agg(name) FROM queen.log_partitions WHERE id = $1), 10, 60, 'w2', FALSE, 1, 'all', '', FALSE, $2)`, partition, tenant))
	require.Equal(t, 2, log.cursor(t, partition, "g").Retries)
}

func TestAckRefusesDelaysThatDoNotFit(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := log.Exec(ctx, `SELECT queen.log_ack_by_hash_v1($1, 'g', '', $2, NULL, ARRAY[1, 2])`, uuid.New(), [][]byte{hashOf("m0")})
	require.ErrorContains(t, err, "QACK misaligned arrays: 1 hashes, 2 delays")
}
