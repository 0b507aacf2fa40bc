package delivery

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
)

// setupHot is setup with a hot list that finds the partitions.
func setupHot(t *testing.T) *engine {
	t.Helper()
	list := ready.NewHotList(ready.HotConfig{})
	e := setupGates(t, ready.NewHot(list), pop.Config{Backoff: pop.Backoff{Initial: time.Hour}}, ack.Config{})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- list.Run(ctx) }()
	go func() { ended <- e.pops.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		for range 2 {
			require.NoError(t, <-ended)
		}
	})
	return e
}

// delayed is an item with a delay of its own.
func delayed(item ack.Item, milliseconds int) ack.Item {
	item.DelayMs = &milliseconds
	return item
}

// The long polls look by wakes alone, so that a redelivery comes from the end of its delay and from nothing else.
func TestNackWaitsForItsDelay(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(*testing.T) *engine{"hot list": setupHot, "search": setup} {
		for name, c := range map[string]struct {
			options string // $ is the delay
			nack    func(b *delivered, delay int) ack.Item
		}{
			"option of the queue": {`{"redeliveryDelayMs":$}`, func(b *delivered, _ int) ack.Item { return b.item(0, "failed") }},
			"own delay wins":      {`{"redeliveryDelayMs":3600000}`, func(b *delivered, delay int) ack.Item { return delayed(b.item(0, "failed"), delay) }},
			"retry with a delay":  {`{}`, func(b *delivered, delay int) ack.Item { return delayed(b.item(0, "retry"), delay) }},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				delay := 1500
				for !waitsForItsDelay(start(t), strings.ReplaceAll(c.options, "$", strconv.Itoa(delay)), delay, c.nack) {
					delay *= 4
				}
			})
		}
	}
}

// waitsForItsDelay gives a batch back and looks before and after the end of the delay, in milliseconds. False says that the machine was too slow
// for a look before it.
func waitsForItsDelay(e *engine, options string, delay int, nack func(b *delivered, delay int) ack.Item) bool {
	t := e.t
	t.Helper()
	least := time.Duration(delay-50) * time.Millisecond
	e.configure(options)
	e.push("eu", "a", "b")
	batch := e.pop(queuePop())
	require.Equal(t, []string{"a", "b"}, batch.names())
	nacked := time.Now()
	result := e.acked(nack(batch, delay))[0]
	require.True(t, result.LeaseReleased)
	atOnce := e.pop(queuePop()).names()
	e.push("eu", "c")
	e.push("us", "x")
	others := e.pop(queuePop()).names()
	if time.Since(nacked) >= least {
		return false
	}
	require.Empty(t, atOnce)
	require.Equal(t, []string{"x"}, others, "other partitions do not wait")
	require.Equal(t, []string{"a", "b", "c"}, (<-e.popParked(queuePop())).names())
	took := time.Since(nacked)
	require.GreaterOrEqual(t, took, least)
	require.Less(t, took, least+20*time.Second, "before anything else than the end of the delay makes the pop look")
	require.Empty(t, e.deadLetters())
	return true
}

func TestPartitionAndDiscoveryPollsHearOfTheEndOfADelay(t *testing.T) {
	t.Parallel()
	e := setup(t)
	_, err := e.db.Configure(t.Context(), pg.DefaultTenant, "orders", "shop", "", pg.QueueOptions(`{"redeliveryDelayMs":300}`))
	require.NoError(t, err)
	e.push("eu", "a")
	onePartition, discovery := queuePop(), queuePop()
	onePartition.Kind, onePartition.Partition = pop.Partition, "eu"
	discovery.Kind, discovery.Queue, discovery.Namespace = pop.Discovery, "", "shop"
	for _, request := range []pop.Request{onePartition, discovery} {
		batch := e.pop(request)
		require.Equal(t, []string{"a"}, batch.names())
		e.acked(batch.item(0, "failed"))
		again := <-e.popParked(request)
		require.Equal(t, []string{"a"}, again.names())
		e.acked(delayed(again.item(0, "failed"), 0))
	}
}

func TestWhatDoesNotWait(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *engine{"hot list": setupHot, "search": setup} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t)
			e.configure(`{"redeliveryDelayMs":3600000,"retryLimit":1}`)
			e.push("eu", "a", "b", "c")
			e.acked(e.pop(queuePop()).item(0, "retry"))
			e.acked(delayed(e.pop(queuePop()).item(0, "failed"), 0))
			require.True(t, e.acked(e.pop(queuePop()).item(0, "failed"))[0].DeadLetter, "the budget is spent")
			batch := e.pop(queuePop())
			require.Equal(t, []string{"b", "c"}, batch.names())
			require.True(t, e.acked(delayed(batch.item(0, "dlq"), 60_000))[0].DeadLetter)
			batch = e.pop(queuePop())
			require.Equal(t, []string{"c"}, batch.names())
			e.acked(delayed(batch.item(0, "completed"), -7))
			e.push("eu", "d")
			require.Equal(t, []string{"d"}, e.pop(queuePop()).names(), "a completion ignores its delay")
		})
	}
}

func TestEndOfADelaySpendsNoBudget(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.configure(`{"redeliveryDelayMs":3600000,"retryLimit":1}`)
	e.push("eu", "a")
	for range 4 {
		e.acked(delayed(e.pop(queuePop()).item(0, "retry"), 3_600_000))
		require.Empty(t, e.pop(queuePop()).names())
		e.expire()
	}
	require.False(t, e.acked(e.pop(queuePop()).item(0, "failed"))[0].DeadLetter, "the first failure")
	require.Empty(t, e.pop(queuePop()).names())
	renewal, err := e.acks.Extend(t.Context(), pg.DefaultTenant, "__retry__", 60)
	require.NoError(t, err)
	require.Zero(t, renewal, "nobody lengthens a delay")
	e.expire()
	require.True(t, e.acked(e.pop(queuePop()).item(0, "failed"))[0].DeadLetter, "the second failure")
}

func TestDelayBeyondItsBoundsFailsTheItemAlone(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b")
	batch := e.pop(queuePop())
	for _, bad := range []int{-1, 86_400_001} {
		results := e.ack(batch.item(0, "completed"), delayed(batch.item(1, "failed"), bad))
		require.Equal(t, ack.TextDelay, results[1].Error)
		require.Equal(t, "orders", results[1].Queue)
		require.False(t, results[1].Success)
		require.True(t, results[0].Success)
		_, err := e.transact([]string{batch.LeaseID}, pushOf("labels", "x"), batch.delayedAckOf(1, "retry", bad))
		require.ErrorContains(t, err, ack.TextDelay)
	}
	require.Empty(t, e.outputs("labels"), "nothing was committed")
	require.Empty(t, e.pop(queuePop()).names(), "the lease is as it was")
	require.True(t, e.acked(delayed(batch.item(1, "failed"), 86_400_000))[0].LeaseReleased)
}

func TestTransactionDelaysTheRedelivery(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.push("eu", "a", "b")
	batch := e.pop(queuePop())
	nacked := time.Now()
	_, err := e.transact([]string{batch.LeaseID}, batch.ackOf(0, "completed"), batch.delayedAckOf(1, "failed", 1000), pushOf("labels", "x"))
	require.NoError(t, err)
	require.Empty(t, e.pop(queuePop()).names())
	require.Equal(t, []string{"b"}, (<-e.popParked(queuePop())).names())
	require.GreaterOrEqual(t, time.Since(nacked), 950*time.Millisecond)
}
