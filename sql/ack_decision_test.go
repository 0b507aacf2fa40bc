package sql_test

import (
	"context"
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// decisionLog is the partition of the decision table: m0 to m9 in three segments, then "late" once more beyond the batch.
// In the span of the usual lease (1, 8] the id "twin" lies at 3 and 6 as on a queue without deduplication.
//
//	offset  0  1  | 2  3    4  5  | 6    7  8  9
//	id      m0 m1 | m2 twin m4 m5 | twin m7 m8 m9
func decisionSegments() []stretch {
	return []stretch{{0, []string{"m0", "m1"}}, {2, []string{"m2", "twin", "m4", "m5"}}, {6, []string{"twin", "m7", "m8", "m9"}}}
}

func TestAckByHashDecision(t *testing.T) {
	t.Parallel()
	log := newAckLog(t) // every row of the table has a queue and a partition of its own in it
	const w = "worker-1"
	// leased is the row before the ack: m0 and m1 are committed, m2 to m8 are leased.
	leased := cursor{Committed: 1, BatchEnd: new(int64(8)), Worker: w, Lease: "live", Retries: 1, AttemptOffset: new(int64(2)), Attempts: 2, Consumed: 10}
	change := func(c cursor, f func(*cursor)) cursor { f(&c); return c }
	released := func(c *cursor) { c.BatchEnd, c.Worker, c.Lease = nil, "", "" }
	reset := func(c *cursor) { c.Retries, c.AttemptOffset, c.Attempts = 0, nil, 0 }
	moved := func(c *cursor, to int64) {
		c.Consumed += to - c.Committed
		c.Committed, c.AttemptOffset = to, new(to+1)
	}
	free := change(leased, func(c *cursor) { released(c); c.Retries = 0 })
	expired := change(leased, func(c *cursor) { c.Lease = "expired" })
	ok := func(off, acked int64, released bool) ackAnswer {
		return ackAnswer{
			OK: true, Off: new(off), Acked: acked, LeaseReleased: new(released), SignalIgnored: new(false),
			Noop: []string{}, Stale: []string{}, Unresolved: []string{},
		}
	}
	with := func(a ackAnswer, f func(*ackAnswer)) ackAnswer { f(&a); return a }
	refused := func(text string) ackAnswer { return ackAnswer{Error: text} }
	dead := func(off, acked int64) ackAnswer {
		return with(ok(off, acked, false), func(a *ackAnswer) { a.DLQ, a.Group, a.Worker = true, "g", w })
	}

	for _, tc := range []struct {
		name    string
		options string // assignments to the queue row
		before  cursor
		worker  string
		items   []item
		want    ackAnswer
		after   cursor
	}{
		// The lease.
		{"LiveLeaseOfWorkerIsAccepted", "", leased, w, []item{{"m2", "completed"}}, ok(2, 1, false), change(leased, func(c *cursor) { moved(c, 2) })},
		{"OtherWorkerIsRefused", "", leased, "worker-2", []item{{"m8", "completed"}}, refused("invalid or expired lease"), leased},
		{"ExpiredLeaseIsRefused", "", expired, w, []item{{"m8", "completed"}}, refused("invalid or expired lease"), expired},
		{"WorkerOnAFreeRowIsRefused", "", free, w, []item{{"m8", "completed"}}, refused("invalid or expired lease"), free},
		{
			"WithoutWorkerALiveLeaseOfAnotherIsCompleted", "", leased, "",
			[]item{{"m8", "completed"}},
			ok(8, 7, true),
			change(leased, func(c *cursor) { moved(c, 8); released(c); reset(c) }),
		},
		{
			"WithoutWorkerAnExpiredBatchIsCompleted", "", expired, "",
			[]item{{"m8", "completed"}},
			ok(8, 7, true),
			change(expired, func(c *cursor) { moved(c, 8); released(c); reset(c) }),
		},

		// Case 1: dlq.
		{"DlqKeepsTheLeaseAndNamesTheHolder", "", leased, w, []item{{"m4", "dlq"}}, dead(4, 0), leased},
		{"DlqCommitsTheCompletedPrefix", "", leased, w, []item{{"m2", "completed"}, {"m4", "dlq"}}, dead(4, 1), change(leased, func(c *cursor) { moved(c, 2) })},
		{"DlqWithoutWorkerNamesTheHolder", "", leased, "", []item{{"m4", "dlq"}}, dead(4, 0), leased},
		{"DlqOnAnExpiredLeaseStillNamesItsHolder", "", expired, "", []item{{"m4", "dlq"}}, dead(4, 0), expired},
		{"DlqIgnoresTheBudgetAndTheFlags", "retry_limit = 9, dead_letter_queue = FALSE, dlq_after_max_retries = FALSE", leased, w, []item{{"m4", "dlq"}}, dead(4, 0), leased},

		// Case 2: failed with budget left.
		{
			"FailedChargesTheBudgetAndReleases", "", leased, w,
			[]item{{"m2", "completed"}, {"m4", "failed"}},
			ok(2, 1, true),
			change(leased, func(c *cursor) { moved(c, 2); released(c); c.Retries = 2 }),
		},
		{
			"FailedOnTheFirstMessageKeepsTheAttemptCount", "", leased, w,
			[]item{{"m2", "failed"}},
			ok(1, 0, true),
			change(leased, func(c *cursor) { released(c); c.Retries = 2 }),
		},
		{
			"FailedUsesTheDefaultLimitOfThree", "retry_limit = NULL", change(leased, func(c *cursor) { c.Retries = 2 }), w,
			[]item{{"m2", "failed"}},
			ok(1, 0, true),
			change(leased, func(c *cursor) { released(c); c.Retries = 3 }),
		},
		// Case 3: budget spent, dead letters on.
		{"FailedWithSpentBudgetIsADeadLetter", "retry_limit = 1", leased, w, []item{{"m2", "failed"}}, dead(2, 0), leased},
		{"FailedWithLimitZeroIsADeadLetterAtOnce", "retry_limit = 0", change(leased, func(c *cursor) { c.Retries = 0 }), w, []item{{"m2", "failed"}}, dead(2, 0), change(leased, func(c *cursor) { c.Retries = 0 })},
		{"OneFlagTurnsDeadLettersOn", "retry_limit = 1, dead_letter_queue = FALSE, dlq_after_max_retries = TRUE", leased, w, []item{{"m2", "failed"}}, dead(2, 0), leased},
		{"TheOtherFlagTurnsDeadLettersOn", "retry_limit = 1, dead_letter_queue = TRUE, dlq_after_max_retries = FALSE", leased, w, []item{{"m2", "failed"}}, dead(2, 0), leased},
		{"NullFlagsTurnDeadLettersOn", "retry_limit = 1, dead_letter_queue = NULL, dlq_after_max_retries = NULL", leased, w, []item{{"m2", "failed"}}, dead(2, 0), leased},
		// Case 4: budget spent, dead letters off.
		{
			"FailedWithSpentBudgetAndNoDeadLettersIsDropped", "retry_limit = 1, dead_letter_queue = FALSE, dlq_after_max_retries = FALSE",
			leased, w,
			[]item{{"m2", "completed"}, {"m4", "failed"}},
			with(ok(4, 1, true), func(a *ackAnswer) { a.Dropped = true }),
			change(leased, func(c *cursor) { released(c); reset(c); c.Committed = 4; c.Consumed += 2 }),
		},
		// Case 5: retry.
		{
			"RetryReleasesWithoutCharge", "retry_limit = 0", leased, w,
			[]item{{"m2", "completed"}, {"m4", "retry"}},
			ok(2, 1, true),
			change(leased, func(c *cursor) { moved(c, 2); released(c) }),
		},
		// Case 6: complete.
		{"LastMessageCompletesTheBatch", "", leased, w, []item{{"m8", "completed"}}, ok(8, 7, true), change(leased, func(c *cursor) { moved(c, 8); released(c); reset(c) })},
		{"EveryWordForSuccessCompletes", "", leased, w, []item{{"m2", "success"}, {"twin", "acked"}, {"m7", "ok"}, {"m8", ""}}, ok(8, 7, true), change(leased, func(c *cursor) { moved(c, 8); released(c); reset(c) })},
		// Case 7: partial.
		{"PartialAckKeepsTheLease", "", leased, w, []item{{"m4", "completed"}, {"m2", "completed"}}, ok(4, 3, false), change(leased, func(c *cursor) { moved(c, 4) })},
		{
			"PartialAckLeavesALaterAttemptOffset", "", change(leased, func(c *cursor) { c.AttemptOffset = new(int64(7)) }), w,
			[]item{{"m4", "completed"}},
			ok(4, 3, false), change(leased, func(c *cursor) { moved(c, 4); c.AttemptOffset = new(int64(7)) }),
		},
		{"NothingAtAllChangesNothing", "", leased, w, nil, ok(1, 0, false), leased},
		{"UnknownWordsChangeNothing", "", leased, w, []item{{"m8", "Completed"}, {"m2", "nack"}}, ok(1, 0, false), leased},

		// Head signal and clamping.
		{
			"LowestSignalIsTheHead", "", leased, w,
			[]item{{"m7", "dlq"}, {"m5", "failed"}, {"m4", "retry"}, {"m2", "completed"}},
			ok(2, 1, true),
			change(leased, func(c *cursor) { moved(c, 2); released(c) }),
		},
		{"CompletedAboveTheHeadRedelivers", "", leased, w, []item{{"m8", "completed"}, {"m4", "retry"}}, ok(1, 0, true), change(leased, released)},
		{"DlqBeatsFailedOnOneMessage", "", leased, w, []item{{"m4", "retry"}, {"m4", "failed"}, {"m4", "dlq"}}, dead(4, 0), leased},
		{
			"FailedBeatsRetryOnOneMessage", "", leased, w,
			[]item{{"m4", "retry"}, {"m4", "failed"}},
			ok(1, 0, true),
			change(leased, func(c *cursor) { released(c); c.Retries = 2 }),
		},
		{"ASignalBeatsACompletionOfTheSameMessage", "", leased, w, []item{{"m4", "completed"}, {"m4", "retry"}}, ok(1, 0, true), change(leased, released)},
		{
			"UnmentionedMessagesBelowAreCompleted", "", leased, w,
			[]item{{"m5", "completed"}, {"m7", "failed"}},
			ok(5, 4, true),
			change(leased, func(c *cursor) { moved(c, 5); released(c); c.Retries = 2 }),
		},

		// Repeated hashes.
		{"OneItemOfARepeatedIdTakesTheFirstOccurrence", "", leased, w, []item{{"twin", "completed"}}, ok(3, 2, false), change(leased, func(c *cursor) { moved(c, 3) })},
		{"TheSecondItemTakesTheSecondOccurrence", "", leased, w, []item{{"twin", "completed"}, {"twin", "completed"}}, ok(6, 5, false), change(leased, func(c *cursor) { moved(c, 6) })},
		{"TheSecondOccurrenceCarriesTheSecondStatus", "", leased, w, []item{{"twin", "completed"}, {"twin", "retry"}}, ok(3, 2, true), change(leased, func(c *cursor) { moved(c, 3); released(c) })},
		{"SurplusItemsActOnTheLastOccurrence", "", leased, w, []item{{"m4", "completed"}, {"m4", "completed"}}, ok(4, 3, false), change(leased, func(c *cursor) { moved(c, 4) })},
		{
			"AfterAPartialAckTheNextOccurrenceIsMeant", "", change(leased, func(c *cursor) { c.Committed = 4; c.AttemptOffset = new(int64(5)) }), w,
			[]item{{"twin", "completed"}},
			ok(6, 2, false), change(leased, func(c *cursor) { c.Committed = 4; moved(c, 6) }),
		},

		// Honesty.
		{
			"CompletionBelowTheCursorIsANoop", "", leased, w, []item{{"m1", "completed"}, {"m0", "ok"}}, with(ok(1, 0, false), func(a *ackAnswer) { a.Noop = []string{"m1", "m0"} }), leased,
		},
		{
			"SignalBelowTheCursorIsStale", "", leased, w,
			[]item{{"m0", "failed"}, {"m1", "dlq"}, {"m0", "retry"}},
			with(ok(1, 0, false), func(a *ackAnswer) { a.Stale = []string{"m0", "m1", "m0"} }), leased,
		},
		{
			"UnknownIdIsUnresolvedWhateverItsStatus", "", leased, w,
			[]item{{"nobody", "completed"}, {"m1", "completed"}, {"noone", "dlq"}, {"none", "nack"}},
			with(ok(1, 0, false), func(a *ackAnswer) {
				a.Unresolved, a.Noop = []string{"nobody", "noone", "none"}, []string{"m1"}
			}), leased,
		},
		{
			"MessageBeyondTheBatchIsUnresolved", "", leased, w,
			[]item{{"m9", "completed"}},
			with(ok(1, 0, false), func(a *ackAnswer) { a.Unresolved = []string{"m9"} }), leased,
		},
		{
			"HonestItemsDoNotHoldUpTheOthers", "", leased, w,
			[]item{{"nobody", "failed"}, {"m0", "failed"}, {"m8", "completed"}},
			with(ok(8, 7, true), func(a *ackAnswer) { a.Unresolved, a.Stale = []string{"nobody"}, []string{"m0"} }),
			change(leased, func(c *cursor) { moved(c, 8); released(c); reset(c) }),
		},

		// Without a leased batch.
		{"WithoutABatchACompletionMovesTheCursor", "", free, "", []item{{"m9", "completed"}}, ok(9, 8, false), change(free, func(c *cursor) { moved(c, 9) })},
		{
			"WithoutABatchASignalOnlyClamps", "", free, "",
			[]item{{"m9", "completed"}, {"m4", "failed"}, {"m2", "completed"}},
			with(ok(2, 1, false), func(a *ackAnswer) { a.SignalIgnored = new(true) }), change(free, func(c *cursor) { moved(c, 2) }),
		},
		{
			"WithoutABatchADlqDoesNothing", "retry_limit = 0", free, "",
			[]item{{"m4", "dlq"}},
			with(ok(1, 0, false), func(a *ackAnswer) { a.SignalIgnored = new(true) }), free,
		},
		{"WithoutABatchRepeatsAreFoundInOrder", "", free, "", []item{{"twin", "completed"}, {"twin", "completed"}}, ok(6, 5, false), change(free, func(c *cursor) { moved(c, 6) })},
		{
			"WithoutABatchAStaleSignalIsStaleAndNotIgnored", "", free, "",
			[]item{{"m0", "failed"}},
			with(ok(1, 0, false), func(a *ackAnswer) { a.Stale = []string{"m0"} }), free,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			queue := log.queue(t, defaultTenant, t.Name())
			if tc.options != "" {
				_, err := log.Exec(context.Background(), `UPDATE queen.queues SET `+tc.options+` WHERE id = $1`, queue)
				require.NoError(t, err)
			}
			partition := log.partition(t, queue, decisionSegments()...)
			log.setCursor(t, partition, "g", tc.before)
			if tc.want.DLQ {
				tc.want.PartitionID = partition.String()
			}

			got := log.ackByHash(t, partition, "g", tc.worker, tc.items...)

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.after, log.cursor(t, partition, "g")); diff != "" {
				t.Errorf("row (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAckByHashArguments(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	partition := log.partition(t, log.queue(t, defaultTenant, "q"), decisionSegments()...)

	t.Run("UnknownConsumerIsRefused", func(t *testing.T) {
		require.Equal(t, ackAnswer{Error: "consumer not found"}, log.ackByHash(t, partition, "nobody", "", item{"m0", ""}))
		require.Equal(t, ackAnswer{Error: "consumer not found"}, log.ackByHash(t, uuid.New(), "g", "w", item{"m0", ""}))
	})
	t.Run("MisalignedArraysAreRaised", func(t *testing.T) {
		_, err := log.Exec(context.Background(), `SELECT queen.log_ack_by_hash_v1($1, 'g', '', $2, $3)`, partition, [][]byte{hashOf("m0")}, []string{})
		requireSQLState(t, err, "QU003", "QACK misaligned arrays: 1 hashes, 0 statuses")
	})
	t.Run("NoStatusesMeansAllCompleted", func(t *testing.T) {
		log.setCursor(t, partition, "g", cursor{Committed: -1, BatchEnd: new(int64(9)), Worker: "w", Lease: "live"})
		got, err := callJSON[ackAnswer](log, `SELECT queen.log_ack_by_hash_v1($1, 'g', 'w', $2, NULL)`, partition, [][]byte{hashOf("m1"), hashOf("m0")})
		require.NoError(t, err)
		require.Equal(t, int64(2), got.Acked)
	})
	t.Run("NullHashesAndShortHashesAreUnresolved", func(t *testing.T) {
		log.setCursor(t, partition, "g2", cursor{Committed: -1, BatchEnd: new(int64(9)), Worker: "w", Lease: "live"})
		got, err := callJSON[ackAnswer](log, `SELECT queen.log_ack_by_hash_v1($1, 'g2', 'w', $2, NULL)`, partition, [][]byte{nil, hashOf("m1")[:8]})
		require.NoError(t, err)
		require.Equal(t, int64(0), got.Acked)
		require.Equal(t, []string{"", hex.EncodeToString(hashOf("m1")[:8])}, got.Unresolved)
	})
}

func TestAckByHashSkipsRetentionGaps(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	// Retention took 0 to 99 while the cursor stood at 4.
	partition := log.partition(t, log.queue(t, defaultTenant, "q"), stretch{100, []string{"a", "b", "c"}})
	log.setCursor(t, partition, "g", cursor{Committed: 4, BatchEnd: new(int64(102)), Worker: "w", Lease: "live"})

	got := log.ackByHash(t, partition, "g", "w", item{"a", "completed"}, item{"gone", "completed"})
	require.Equal(t, int64(96), got.Acked)
	require.Equal(t, []string{"gone"}, got.Unresolved)
	got = log.ackByHash(t, partition, "g", "w", item{"c", "completed"})
	require.True(t, *got.LeaseReleased)
	require.Equal(t, int64(102), log.cursor(t, partition, "g").Committed)
}

func TestAckByHashNeverResolvesBelowThePurgeWatermark(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	partition := log.partition(t, log.queue(t, defaultTenant, "q"), stretch{0, []string{"a", "b"}}, stretch{2, []string{"c"}})
	_, err := log.Exec(context.Background(), `UPDATE queen.log_partitions SET txns_start = 2 WHERE id = $1`, partition)
	require.NoError(t, err)
	log.setCursor(t, partition, "g", cursor{Committed: -1, BatchEnd: new(int64(2)), Worker: "w", Lease: "live"})

	got := log.ackByHash(t, partition, "g", "w", item{"b", "completed"})
	require.Equal(t, []string{"b"}, got.Unresolved)
	require.Equal(t, int64(-1), log.cursor(t, partition, "g").Committed)
}

// A long sidecar is read in windows; every window boundary must be crossed in both directions.
func TestAckByHashFindsHashesAcrossWindows(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	const rows = 3000
	segments := make([]stretch, rows)
	for i := range segments {
		segments[i] = stretch{int64(i), []string{idOf(i)}}
	}
	partition := log.partition(t, log.queue(t, defaultTenant, "q"), segments...)

	log.setCursor(t, partition, "up", cursor{Committed: -1})
	got := log.ackByHash(t, partition, "up", "", item{idOf(0), ""}, item{idOf(15), ""}, item{idOf(16), ""}, item{idOf(47), ""}, item{idOf(rows - 1), ""})
	require.Equal(t, int64(rows), got.Acked)
	require.Empty(t, got.Unresolved)

	log.setCursor(t, partition, "down", cursor{Committed: rows - 1})
	got = log.ackByHash(t, partition, "down", "", item{idOf(0), ""}, item{idOf(rows - 17), ""}, item{"unknown", ""}, item{idOf(rows - 16), ""}, item{idOf(1), "failed"})
	require.Equal(t, []string{idOf(0), idOf(rows - 17), idOf(rows - 16)}, got.Noop)
	require.Equal(t, []string{idOf(1)}, got.Stale)
	require.Equal(t, []string{"unknown"}, got.Unresolved)
}

func TestAckCompletedFindsWhatLiesAtOrBelowTheCursor(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	const rows = 3000
	segments := make([]stretch, rows)
	for i := range segments {
		segments[i] = stretch{int64(2 * i), []string{idOf(i), "second of " + idOf(i)}}
	}
	partition := log.partition(t, log.queue(t, defaultTenant, "q"), segments...)
	log.setCursor(t, partition, "g", cursor{Committed: 2*(rows-1) - 2}) // inside the last but one segment
	completed := func(ids ...string) (found [][]byte) {
		hashes := make([][]byte, len(ids))
		for i, id := range ids {
			hashes[i] = hashOf(id)
		}
		require.NoError(t, log.QueryRow(context.Background(), `SELECT queen.log_ack_completed_v1($1, 'g', $2)`, partition, hashes).Scan(&found))
		return found
	}
	near, far := idOf(rows-2), idOf(rows-1000)
	require.ElementsMatch(t, [][]byte{hashOf(near), hashOf(far)}, completed(near, far, near, "never pushed"))
	require.Empty(t, completed("second of "+near, idOf(rows-1)), "above the cursor")
	require.Empty(t, completed(idOf(0)), "further back than an ack is repeated")
	require.Empty(t, completed())
}
