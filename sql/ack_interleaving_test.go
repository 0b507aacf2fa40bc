package sql_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

const ackLastOfBatch = `SELECT queen.log_ack_by_hash_v1($1, 'g', 'w', ARRAY[$2::bytea], NULL)`

func TestAcksOfOneConsumerTakeTurns(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "q")
	for _, tc := range []struct{ name, end, want string }{
		{"SecondFindsTheLeaseGone", "COMMIT", `"error": "invalid or expired lease"`},
		{"SecondDoesTheWorkAfterARollback", "ROLLBACK", `"ok": true`},
	} {
		for _, second := range []struct{ name, sql string }{
			{"ByHash", ackLastOfBatch},
			{"ByPosition", `SELECT queen.log_ack_at_v1($1, 'g', 'w', 8, TRUE, length($2::bytea))`},
		} {
			t.Run(tc.name+"/"+second.name, func(t *testing.T) {
				partition := log.partition(t, queue, decisionSegments()...)
				log.setCursor(t, partition, "g", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"})
				s1, s2 := log.session(t), log.session(t)
				s1.do(t, "BEGIN")
				s1.do(t, ackLastOfBatch, partition, hashOf("m8"))
				waiting := s2.start(t, second.sql, partition, hashOf("m8"))
				waiting.requireBlocked(t, s1)
				s1.do(t, tc.end)
				require.Contains(t, waiting.wait(t), tc.want)
				require.Equal(t, int64(8), log.cursor(t, partition, "g").Committed)
			})
		}
	}
}

func TestAcksOfOtherGroupsAndPushesDoNotWait(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	partition := log.partition(t, log.queue(t, defaultTenant, "q"), decisionSegments()...)
	log.setCursor(t, partition, "g", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"})
	log.setCursor(t, partition, "other", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"})
	s1, s2 := log.session(t), log.session(t)

	s1.do(t, "BEGIN")
	s1.do(t, `SELECT queen.log_push_one_v1('q', $1, 1, $2, -1, 'blob')`, "p-"+partition.String(), hashOf("new"))
	s1.do(t, `SELECT queen.log_ack_at_v1($1, 'other', 'w', 8)`, partition)
	s2.do(t, `SET statement_timeout = '10s'`)
	s2.do(t, ackLastOfBatch, partition, hashOf("m8"))
	s1.do(t, "COMMIT")
	require.Equal(t, int64(8), log.cursor(t, partition, "g").Committed)
}

// A lease is judged by the clock after the lock was obtained: one that ran out during the wait is gone.
func TestLeaseThatExpiresWhileWaitingIsGone(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, sql, want string }{
		{"AckByHash", `SELECT queen.log_ack_by_hash_v1($1, 'g', 'w', ARRAY[$2::bytea], NULL) ->> 'error'`, "invalid or expired lease"},
		{"AckByPosition", `SELECT queen.log_ack_at_v1($1, 'g', 'w', 8, TRUE, length($2::bytea)) ->> 'error'`, "invalid or expired lease"},
		{"DeadLetter", `SELECT queen.log_dlq_head_v1($1, 'g', 'w', 8, NULL, NULL, NULL, NULL, $2) ->> 'error'`, "invalid or expired lease"},
		{"Renewal", `SELECT queen.log_renew_lease_v1('w', 60 + 0 * length($1::uuid::text || $2::bytea::text)) ->> 'renewed'`, "0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			log := newAckLog(t)
			queue := log.queue(t, defaultTenant, "q")
			partition := log.partition(t, queue, decisionSegments()...)
			log.setCursor(t, partition, "g", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"})
			_, err := log.Exec(t.Context(), `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() + interval '3 s' WHERE partition_id = $1`, partition)
			require.NoError(t, err)
			before := log.cursor(t, partition, "g")
			s1, s2 := log.session(t), log.session(t)
			s1.do(t, "BEGIN")
			s1.do(t, `SELECT 1 FROM queen.log_consumers WHERE partition_id = $1 FOR UPDATE`, partition)
			waiting := s2.start(t, tc.sql, partition, hashOf("m8"))
			waiting.requireBlocked(t, s1)
			require.Eventually(t, func() bool { return log.cursor(t, partition, "g").Lease == "expired" }, patience, 10*time.Millisecond)
			s1.do(t, "COMMIT")
			require.Equal(t, tc.want, waiting.wait(t))
			before.Lease = "expired"
			require.Equal(t, before, log.cursor(t, partition, "g"))
		})
	}
}

func TestTwoHandOffsFileOneDeadLetter(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	partition := log.partition(t, log.queue(t, defaultTenant, "q"), decisionSegments()...)
	log.setCursor(t, partition, "g", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"})
	const file = `SELECT queen.log_dlq_head_v1($1, 'g', 'w', 2, NULL, 'm2', NULL, NULL) ->> 'ok'`
	s1, s2 := log.session(t), log.session(t)
	s1.do(t, "BEGIN")
	s1.do(t, file, partition)
	waiting := s2.start(t, file, partition)
	waiting.requireBlocked(t, s1)
	s1.do(t, "COMMIT")
	require.Equal(t, "false", waiting.wait(t))
	require.Equal(t, 1, log.count(t, `SELECT count(*) FROM queen.log_dlq`))
}

func TestTransactionLocksPartitionsLikeAPush(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	_, err := transact(log, wireTransaction{Pushes: []wirePush{pushOf("q", "a", "1"), pushOf("q", "b", "1")}})
	require.NoError(t, err)
	const push = `SELECT queen.log_push_multi_v1(ARRAY['q','q'], ARRAY[$1,$2], ARRAY[1,1], ARRAY[$3::bytea,$3::bytea], ARRAY[-1,-1], ARRAY['x','x']::bytea[])::text`
	s1, s2, s3 := log.session(t), log.session(t), log.session(t)
	s1.do(t, "BEGIN")
	_, err = transact(s1, wireTransaction{Pushes: []wirePush{pushOf("q", "b", "2"), pushOf("q", "a", "2")}})
	require.NoError(t, err)
	first := s2.start(t, push, "a", "b", hashOf("3"))
	first.requireBlocked(t, s1)
	second := s3.start(t, push, "b", "a", hashOf("4"))
	second.requireBlocked(t, s2)
	s1.do(t, "COMMIT")
	require.Contains(t, first.wait(t), `"baseOffset": 2`)
	require.Contains(t, second.wait(t), `"baseOffset": 3`)
}

// Waiting for the first consumer row of its list, a transaction holds none of the later ones.
func TestConsumerRowsAreLockedInOrder(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "q")
	for _, form := range []string{"Transaction", "Renewal"} {
		t.Run(form, func(t *testing.T) {
			first, second := log.partition(t, queue, decisionSegments()...), log.partition(t, queue, decisionSegments()...)
			if first.String() > second.String() {
				first, second = second, first
			}
			for _, partition := range []uuid.UUID{first, second} {
				log.setCursor(t, partition, "g", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w-" + form, Lease: "live"})
			}
			s1, s2 := log.session(t), log.session(t)
			s1.do(t, "BEGIN")
			s1.do(t, `SELECT 1 FROM queen.log_consumers WHERE partition_id = $1 FOR UPDATE`, first)
			var waiting *step
			switch form {
			case "Transaction":
				waiting = s2.start(t, `SELECT queen.log_transaction_wire_v1(jsonb_build_object('acks', jsonb_build_array(
					jsonb_build_object('partitionId', $1::text, 'group', 'g', 'ok', false), jsonb_build_object('partitionId', $2::text, 'group', 'g', 'ok', false)))) ->> 'ok'`,
					second.String(), first.String())
			case "Renewal":
				waiting = s2.start(t, `SELECT (queen.log_renew_lease_v1('w-Renewal', 60) ->> 'renewed' = '2')::text`)
			}
			waiting.requireBlocked(t, s1)
			_, err := log.Exec(t.Context(), `SELECT 1 FROM queen.log_consumers WHERE partition_id = $1 FOR UPDATE NOWAIT`, second)
			require.NoError(t, err)
			s1.do(t, "COMMIT")
			require.Equal(t, "true", waiting.wait(t))
		})
	}
}

// Acks of many callers travel together: one of them whose row is held by somebody must not keep the others.
func TestAckMultiDoesNotWaitForABusyConsumer(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queue := log.queue(t, defaultTenant, "q")
	var ids []string
	for range 4 {
		partition := log.partition(t, queue, decisionSegments()...)
		log.setCursor(t, partition, "g", cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: "w", Lease: "live"})
		ids = append(ids, partition.String())
	}
	busy, unknown := ids[1], uuid.NewString()
	holder := log.session(t)
	holder.do(t, "BEGIN")
	holder.do(t, `SELECT 1 FROM queen.log_consumers WHERE partition_id = $1 FOR UPDATE`, uuid.MustParse(busy))

	ack := func(lists ...string) []ackRow {
		n := len(lists)
		groups, workers, ends, counts := make([]string, n), make([]string, n), make([]int64, n), make([]int, n)
		for i := range lists {
			groups[i], workers[i], ends[i], counts[i] = "g", "w", 8, i
		}
		got, err := callJSON[ackRows](log, `SELECT queen.log_ack_multi_v1($1, $2, $3, $4, $5)`, lists, groups, ends, workers, counts)
		require.NoError(t, err)
		return got.Results
	}
	isBusy, gone, lost := "consumer is busy", "consumer not found", "invalid or expired lease"
	require.Equal(t, []ackRow{{OK: true}, {Error: &isBusy}, {Error: &gone}, {Error: &isBusy}, {OK: true, Acked: 4}, {Error: &lost}},
		ack(ids[3], busy, unknown, busy, ids[0], ids[3]))
	require.Equal(t, []ackRow{{Error: &isBusy}}, ack(busy))
	require.Equal(t, int64(8), log.cursor(t, uuid.MustParse(ids[0]), "g").Committed)
	require.Equal(t, int64(1), log.cursor(t, uuid.MustParse(busy), "g").Committed)
	holder.do(t, "COMMIT")
	require.Equal(t, []ackRow{{OK: true}, {OK: true, Acked: 1}}, ack(busy, ids[2]))
}

// The foreign key check of a consumer row that a first pop inserts does not wait for a transaction that pushes to its partition:
// waiting there, while holding consumer rows that the transaction acks next, was a deadlock.
func TestFirstPopDoesNotWaitForAPushingTransaction(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	_, err := transact(log, wireTransaction{Pushes: []wirePush{pushOf("q", "a", "1")}})
	require.NoError(t, err)
	s1, s2 := log.session(t), log.session(t)
	s1.do(t, "BEGIN")
	_, err = transact(s1, wireTransaction{Pushes: []wirePush{pushOf("q", "a", "2")}})
	require.NoError(t, err)
	s2.do(t, `SET statement_timeout = '10s'`)
	s2.do(t, `SELECT * FROM queen.log_pop_v1('q', 'a', 'g', 10, 60, 'w')`)
	s1.do(t, "ROLLBACK")
	require.Equal(t, 1, log.count(t, `SELECT count(*) FROM queen.log_consumers WHERE batch_end = 0`))
}
