package streams_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/queen/streams"
	"queenmq/test/stack"
)

// The same 100,000 events give the same windows at full speed, slowed down, by two runners at once, with three kills of the runner, and
// as a replay from the start into a fresh query: each window exactly once.
func TestTheSameEventsGiveTheSameWindows(t *testing.T) {
	t.Parallel()
	client := connect(t)
	const source, partitions, perPartition = "same.events", 8, 12_500
	random := rand.New(rand.NewPCG(7, 9))
	for p := range partitions {
		orders := make([]order, perPartition)
		at := int64(1_700_000_000_000)
		for i := range orders {
			at += random.Int64N(20)
			orders[i] = order{Shop: fmt.Sprintf("shop-%d", random.IntN(5)), At: at - random.Int64N(700), Cents: random.Int64N(100_000)}
		}
		push(t, client, source, fmt.Sprintf("p%d", p), orders...)
	}

	runner, stop := run(t, client, "same-full-speed", totals(source, "same.full", 0), streams.Workers(4))
	require.Eventually(t, func() bool { return runner.Stats().Messages == partitions*perPartition }, 2*time.Minute, 50*time.Millisecond)
	full, emitted := "", int64(0)
	require.Eventually(t, func() bool { // the last windows close because the partitions are idle
		before := emitted
		emitted = runner.Stats().Windows
		time.Sleep(time.Second)
		return emitted > 0 && before == runner.Stats().Windows
	}, time.Minute, 3*time.Second)
	stop()
	full = windows(t, collect(t, client, "same.full", int(emitted), time.Second))
	require.Greater(t, runner.Stats().LateRecords, int64(0), "some records were late, so that lateness was put to the test")
	require.Greater(t, emitted, int64(partitions*100))

	// Everything below runs at once: two slow runners of one query, and a query whose runner is killed.
	first, stopFirst := run(t, client, "same-slow", totals(source, "same.slow", 5*time.Millisecond), streams.BatchSize(300, 2), streams.Workers(3))
	second, stopSecond := run(t, client, "same-slow", totals(source, "same.slow", 5*time.Millisecond), streams.BatchSize(170, 3), streams.Workers(1))
	for kill := range 4 {
		process := exec.Command(os.Args[0])
		process.Env = append(os.Environ(), "STREAMS_TEST_RUNNER=same-killed", "STREAMS_TEST_URL="+stack.Shared().URL,
			"STREAMS_TEST_SOURCE="+source, "STREAMS_TEST_SINK=same.killed")
		require.NoError(t, process.Start())
		t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
		if kill < 3 {
			time.Sleep(time.Duration(500+random.IntN(800)) * time.Millisecond) // some way into its work
			require.NoError(t, process.Process.Kill())
			_ = process.Wait()
		}
	}
	require.Equal(t, full, windows(t, collect(t, client, "same.killed", int(emitted), 4*time.Second)))
	require.Equal(t, full, windows(t, collect(t, client, "same.slow", int(emitted), 4*time.Second)))
	stopFirst()
	stopSecond()
	require.Equal(t, int64(partitions*perPartition), first.Stats().Messages+second.Stats().Messages, "every message was counted once")
	require.Equal(t, runner.Stats().LateRecords, first.Stats().LateRecords+second.Stats().LateRecords)

	_, stopReplay := run(t, client, "same-replay", totals(source, "same.replay", 0))
	require.Equal(t, full, windows(t, collect(t, client, "same.replay", int(emitted), 4*time.Second)))
	stopReplay()
}
