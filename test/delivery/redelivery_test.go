package delivery

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/pop"
	"queenmq/internal/pg"
)

func TestFailureBeyondTheRetryLimitGoesToTheDeadLetters(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{0, 1, 3} {
		t.Run(fmt.Sprintf("retryLimit %d", limit), func(t *testing.T) {
			t.Parallel()
			e := setup(t)
			e.configure(fmt.Sprintf(`{"retryLimit":%d}`, limit))
			e.push("eu", "poison", "next")
			for failure := 1; failure <= limit; failure++ {
				batch := e.pop(queuePop())
				require.Equal(t, []string{"poison", "next"}, batch.names(), "delivery %d", failure)
				result := e.acked(batch.item(0, "failed"))[0]
				require.False(t, result.DeadLetter)
				require.True(t, result.LeaseReleased)
			}
			batch := e.pop(queuePop())
			require.Equal(t, []string{"poison", "next"}, batch.names())
			result := e.acked(batch.item(0, "failed"))[0]
			require.True(t, result.DeadLetter)
			require.True(t, result.LeaseReleased)
			require.Equal(t, []string{"poison: error of poison"}, e.deadLetters())
			require.EqualValues(t, 0, e.committed("eu"), "the cursor is past the dead letter")
			require.Equal(t, []string{"next"}, e.pop(queuePop()).names())
		})
	}
}

func TestFailedBatchRedeliversAsAWholeAtOnce(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b", "c")
	batch := e.pop(queuePop())
	require.Equal(t, []string{"a", "b", "c"}, batch.names())
	parked := e.popParked(queuePop())
	e.acked(batch.all("failed")...)
	again := <-parked
	require.Equal(t, []string{"a", "b", "c"}, again.names(), "a parked pop takes the redelivery at once")
	require.NotEqual(t, batch.LeaseID, again.LeaseID)
	require.Empty(t, e.deadLetters())
}

func TestFailureInTheMiddleKeepsThePrefix(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b", "c")
	batch := e.pop(queuePop())
	e.acked(batch.item(0, "completed"), batch.item(1, "failed"), batch.item(2, "completed"))
	require.Equal(t, []string{"b", "c"}, e.pop(queuePop()).names(), "nothing explicit is skipped by a later completion")
}

func TestLeaseExpirySpendsNoBudget(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.configure(`{"retryLimit":1}`)
	e.push("eu", "a")
	for range 5 {
		require.Equal(t, []string{"a"}, e.pop(queuePop()).names())
		require.Empty(t, e.pop(queuePop()).names(), "a live lease hides the partition")
		e.expire()
	}
	require.False(t, e.acked(e.pop(queuePop()).item(0, "failed"))[0].DeadLetter, "the first failure")
	require.True(t, e.acked(e.pop(queuePop()).item(0, "failed"))[0].DeadLetter, "the second failure")
}

func TestAckWithoutALeaseWorksAfterExpiry(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b")
	batch := e.pop(queuePop())
	e.expire()
	item := batch.item(0, "completed")
	item.LeaseID = ""
	require.True(t, e.ack(item)[0].Success)
	require.Equal(t, []string{"b"}, e.pop(queuePop()).names())
}

func TestStaleLeaseChangesNothing(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"completed", "failed", "retry", "dlq"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			e := setup(t)
			e.push("eu", "a", "b")
			stale := e.pop(queuePop())
			e.expire()
			require.Equal(t, "invalid or expired lease", e.ack(stale.item(0, status))[0].Error, "expired")
			live := e.pop(queuePop())
			require.Equal(t, []string{"a", "b"}, live.names())
			result := e.ack(stale.item(0, status))[0]
			require.Equal(t, "invalid or expired lease", result.Error, "taken over")
			require.False(t, result.Success)
			require.EqualValues(t, -1, e.committed("eu"))
			require.True(t, e.acked(live.all("completed")...)[0].LeaseReleased)
			require.Empty(t, e.deadLetters())
		})
	}
}

func TestRetryNeverBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.configure(`{"retryLimit":1}`)
	e.push("eu", "a")
	for range 10 {
		batch := e.pop(queuePop())
		require.Equal(t, []string{"a"}, batch.names())
		require.False(t, e.acked(batch.item(0, "retry"))[0].DeadLetter)
	}
	require.Empty(t, e.deadLetters())
}

func TestDLQStatusFilesAtOnce(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b", "c")
	batch := e.pop(queuePop())
	results := e.acked(batch.item(0, "completed"), batch.item(1, "dlq"))
	require.Equal(t, []bool{false, true}, []bool{results[0].DeadLetter, results[1].DeadLetter})
	require.Equal(t, []string{"b: error of b"}, e.deadLetters())
	require.Equal(t, []string{"c"}, e.pop(queuePop()).names())
}

func TestDeadLetterAsksOnlyOnceForTwoInOneRequest(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b", "c")
	batch := e.pop(queuePop())
	results := e.acked(batch.all("dlq")...)
	require.True(t, results[0].DeadLetter, "the lowest one")
	require.False(t, results[1].DeadLetter)
	require.Equal(t, []string{"a: error of a"}, e.deadLetters())
	require.Equal(t, []string{"b", "c"}, e.pop(queuePop()).names(), "the others redeliver")
}

func TestDroppedWhenDeadLettersAreOff(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.configure(`{"retryLimit":0,"deadLetterQueue":false,"dlqAfterMaxRetries":false}`)
	e.push("eu", "a", "b")
	result := e.acked(e.pop(queuePop()).item(0, "failed"))[0]
	require.False(t, result.DeadLetter)
	require.True(t, result.LeaseReleased)
	require.Empty(t, e.deadLetters())
	require.Equal(t, []string{"b"}, e.pop(queuePop()).names())
}

func TestAckOfTheLastCompletesTheBatch(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b", "c")
	batch := e.pop(queuePop())
	require.True(t, e.acked(batch.item(2, "completed"))[0].LeaseReleased)
	require.EqualValues(t, 2, e.committed("eu"))
	require.Empty(t, e.pop(queuePop()).names())
}

func TestSingleAcksAddUpToTheBatch(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b", "c")
	e.push("us", "x")
	request := queuePop()
	request.Kind, request.Partition = pop.Partition, "eu"
	batch := e.pop(request)
	e.push("eu", "d")
	for i := range 2 {
		require.False(t, e.acked(batch.item(i, "completed"))[0].LeaseReleased)
		require.Empty(t, e.pop(request).names(), "the partition is leased as a whole")
	}
	require.Equal(t, []string{"x"}, e.pop(queuePop()).names(), "other partitions are not")
	require.True(t, e.acked(batch.item(2, "completed"))[0].LeaseReleased)
	require.Equal(t, []string{"d"}, e.pop(request).names())
}

func TestRepeatedAcksAreHonest(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b")
	require.Equal(t, "consumer not found", e.ack(ack.Item{TransactionID: "a", PartitionID: e.partitionID("eu").String(), Status: "completed"})[0].Error)
	batch := e.pop(queuePop())
	e.acked(batch.all("completed")...)

	without := func(item ack.Item) ack.Item { item.LeaseID = ""; return item }
	again := e.ack(without(batch.item(0, "completed")), without(batch.item(1, "completed")))
	require.Equal(t, []bool{true, true, true, true}, []bool{again[0].Success, again[0].Noop, again[1].Success, again[1].Noop})
	require.Equal(t, "already committed: the cursor moved past this message before this ack", e.ack(without(batch.item(0, "failed")))[0].Error)
	unknown := without(batch.item(0, "completed"))
	unknown.TransactionID = "never pushed"
	require.Equal(t, "unresolvable: transaction not in the ack window (hash purged or never pushed); if leased, the message redelivers", e.ack(unknown)[0].Error)

	e.push("eu", "c")
	nack := unknown
	nack.TransactionID, nack.Status = "c", "failed"
	require.Equal(t, "no leased batch", e.ack(nack)[0].Error)
	require.Equal(t, []string{"c"}, e.pop(queuePop()).names())
}

func TestForeignPartitionIsRefused(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a")
	batch := e.pop(queuePop())
	other := uuid.New()
	result := e.acks.Ack(t.Context(), other, "billing", batch.all("completed"))[0]
	require.Equal(t, ack.Result{TransactionID: "a", Error: "partition not owned by tenant"}, result)
	renewal, err := e.acks.Extend(t.Context(), other, batch.LeaseID, 60)
	require.NoError(t, err)
	require.Zero(t, renewal)
	e.acked(batch.all("completed")...)
}

func TestExtendKeepsTheBatch(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a")
	e.push("us", "b")
	request := queuePop()
	request.MaxPartitions, request.LeaseSeconds = 0, 5
	batch := e.pop(request)
	require.Len(t, batch.Messages, 2)
	renewal, err := e.acks.Extend(t.Context(), pg.DefaultTenant, batch.LeaseID, 3600)
	require.NoError(t, err)
	require.Equal(t, 2, renewal.Renewed, "one lease id, two partitions")
	require.WithinDuration(t, time.Now().Add(time.Hour), renewal.ExpiresAt, time.Minute)
	shorter, err := e.acks.Extend(t.Context(), pg.DefaultTenant, batch.LeaseID, 1)
	require.NoError(t, err)
	require.Equal(t, renewal.ExpiresAt, shorter.ExpiresAt, "never shortened")

	e.expire()
	late, err := e.acks.Extend(t.Context(), pg.DefaultTenant, batch.LeaseID, 60)
	require.NoError(t, err)
	require.Zero(t, late, "an expired lease is not revived")
}

func TestAbandonedAnswerRedeliversAtOnce(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a")
	result, err := e.pops.Pop(t.Context(), queuePop())
	require.NoError(t, err)
	parked := e.popParked(queuePop())
	result.Abandon(t.Context())
	require.Equal(t, []string{"a"}, (<-parked).names())
}

func TestAutoAckMovesTheCursorWithThePop(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b")
	request := queuePop()
	request.AutoAck, request.Batch = true, 1
	batch := e.pop(request)
	require.Equal(t, []string{"a"}, batch.names())
	require.Empty(t, batch.LeaseID)
	require.EqualValues(t, 0, e.committed("eu"))
	require.Equal(t, []string{"b"}, e.pop(request).names())
	require.Empty(t, e.pop(request).names())
}

func TestPushWakesEveryKindOfLongPoll(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]pop.Kind{"queue": pop.Queue, "partition": pop.Partition, "discovery": pop.Discovery} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := setup(t)
			_, err := e.db.Configure(t.Context(), pg.DefaultTenant, "orders", "shop", "", pg.QueueOptions(`{}`))
			require.NoError(t, err)
			request := queuePop()
			switch kind {
			case pop.Partition:
				request.Kind, request.Partition = pop.Partition, "eu"
			case pop.Discovery:
				request.Kind, request.Queue, request.Namespace = pop.Discovery, "", "shop"
			}
			parked := e.popParked(request)
			e.push("eu", "a")
			batch := <-parked
			require.Equal(t, []string{"a"}, batch.names())
			require.Equal(t, "orders", batch.Messages[0].Queue)
		})
	}
}

// The promise of the back-off: what nobody announces is found, here a message that becomes visible by the clock alone.
func TestDelayedMessageIsServedByTheBackoff(t *testing.T) {
	t.Parallel()
	for _, option := range []string{`{"delayedProcessing":1}`, `{"windowBuffer":1}`} {
		t.Run(option, func(t *testing.T) {
			t.Parallel()
			e := setupWith(t, pop.Config{})
			e.configure(option)
			pushed := time.Now()
			e.push("eu", "a")
			require.Empty(t, e.pop(queuePop()).names())
			request := queuePop()
			request.Wait, request.Timeout = true, 30*time.Second
			require.Equal(t, []string{"a"}, e.pop(request).names())
			require.GreaterOrEqual(t, time.Since(pushed), time.Second)
		})
	}
}

func TestSubscription(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, mode, from string
		want             []string
	}{
		{"nothing said", "", "", []string{"old", "young"}},
		{"from_beginning", "from_beginning", "", []string{"old", "young"}},
		{"new", "new-only", "", []string{"young"}},
		{"now", "", "now", []string{"young"}},
		{"the epoch", "", "1970-01-01T00:00:00Z", []string{"old", "young"}},
		{"a time with offset", "", "2020-01-01T00:00:00+02:00", []string{"old", "young"}},
		{"nonsense", "", "tomorrow", []string{"young"}},
	}
	e := setup(t)
	e.push("eu", "old")
	first := make([]*delivered, len(cases))
	requests := make([]pop.Request, len(cases))
	for i, c := range cases {
		requests[i] = queuePop()
		requests[i].Group = c.name
		seeding := requests[i]
		seeding.SubMode, seeding.SubFrom = c.mode, c.from
		first[i] = e.pop(seeding)
		e.acks.Ack(t.Context(), pg.DefaultTenant, c.name, first[i].all("completed"))
	}
	e.push("eu", "young")
	for i, c := range cases {
		names := append(first[i].names(), e.pop(requests[i]).names()...)
		require.Equal(t, c.want, names, "%s: the first pop decides, later ones may say nothing", c.name)
	}
}
