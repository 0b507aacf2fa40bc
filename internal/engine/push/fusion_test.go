package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

const commitTime = 2 * time.Millisecond

func slow(f *fixture) { f.store.latency = commitTime }

func TestFusion_LonePushIsOneCommitAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{}, slow)
		start := time.Now()
		verdicts := f.push(t, item("p", "", `{"n":1}`))
		require.Equal(t, commitTime, time.Since(start), "an idle broker adds no time to the commit")
		require.Equal(t, StatusQueued, verdicts[0].Status)
		require.Equal(t, verdicts[0].MessageID.String(), verdicts[0].TransactionID, "an item without an id takes the message's")
		require.NotEqual(t, uuid.Nil, verdicts[0].PartitionID)
		require.Equal(t, 1, f.store.callCount())

		frames := f.store.stored("orders", "p")
		require.Len(t, frames, 1)
		require.Equal(t, verdicts[0].MessageID, frames[0].ID)
		require.Equal(t, `{"n":1}`, string(frames[0].Payload))
	})
}

func TestFusion_WhatArrivesDuringACommitSharesTheNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{}, slow)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				<-time.After(time.Duration(i) * time.Microsecond)
				f.push(t, item("p", fmt.Sprintf("t-%d", i), "1"))
			})
		}
		wg.Wait()
		require.Equal(t, 2, f.store.callCount(), "the first alone, the 99 others together")
		frames := f.store.stored("orders", "p")
		require.Len(t, frames, 100)
		for i := range frames {
			require.Equal(t, fmt.Sprintf("t-%d", i), frames[i].TransactionID, "offsets follow arrival")
			if i > 0 {
				require.Negative(t, bytes.Compare(frames[i-1].ID[:], frames[i].ID[:]), "ids follow offsets")
			}
		}
	})
}

func TestFusion_BurstOverManyPartitionsTakesFewCommits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{}, slow)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() { f.push(t, item(fmt.Sprintf("p-%d", i), "", "1")) })
		}
		wg.Wait()
		s := f.Stats()
		require.EqualValues(t, 1000, s.Segments)
		require.EqualValues(t, 1000, s.Frames)
		require.Less(t, s.Commits, uint64(10), "256 partitions a commit, but for the first ones")
		require.EqualValues(t, s.Calls, f.store.callCount())
	})
}

func TestFusion_OneFlushPerPartitionAndAtMostBundleMaxPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		busy := map[string]bool{}
		f := setup(t, Config{BundleMax: 4, Shards: 2, MaxInFlight: 3})
		check := &busyStore{Store: f.store, enter: func(segments []pg.Segment) {
			mu.Lock()
			defer mu.Unlock()
			require.LessOrEqual(t, len(segments), 4)
			for _, s := range segments {
				require.False(t, busy[s.Partition], "two flushes of %s", s.Partition)
				busy[s.Partition] = true
			}
			require.LessOrEqual(t, len(busy), 2*3*4)
		}, leave: func(segments []pg.Segment) {
			mu.Lock()
			defer mu.Unlock()
			for _, s := range segments {
				delete(busy, s.Partition)
			}
		}}
		f.db = check
		var wg sync.WaitGroup
		for i := range 600 {
			wg.Go(func() { f.push(t, item(fmt.Sprintf("p-%d", i%50), "", "1")) })
		}
		wg.Wait()
		require.EqualValues(t, 600, f.Stats().Frames)
	})
}

// busyStore watches which calls overlap.
type busyStore struct {
	Store
	enter, leave func([]pg.Segment)
}

func (s *busyStore) PushMulti(ctx context.Context, segments []pg.Segment, o pg.PushOptions) ([]pg.PushVerdict, error) {
	s.enter(segments)
	defer s.leave(segments)
	<-time.After(commitTime)
	return s.Store.PushMulti(ctx, segments, o)
}

func TestFusion_WaitsForASlotAndStartsWhenItIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{Shards: 1, Hold: time.Hour}, slow, func(f *fixture) {
			f.slots = admission.New(admission.Config{PoolSize: 8}) // two push slots
		})
		a, ok := f.slots.TryAcquire(admission.Push)
		require.True(t, ok)
		b, ok := f.slots.TryAcquire(admission.Push)
		require.True(t, ok)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { f.push(t, item("p", fmt.Sprint(i), "1")) })
		}
		synctest.Wait()
		require.Zero(t, f.store.callCount())
		start := time.Now()
		a.Release()
		wg.Wait()
		require.Equal(t, commitTime, time.Since(start), "the freed slot is used at once, without the backstop")
		require.Equal(t, 1, f.store.callCount(), "what waited went together")
		b.Release()
	})
}

func TestFusion_CallerFindsTheSlotAndThePartitionFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{Shards: 1}, slow, func(f *fixture) {
			f.slots = admission.New(admission.Config{PoolSize: 2})
		})
		for i := range 20 {
			start := time.Now()
			f.push(t, item("p", fmt.Sprint(i), "1"))
			require.Equal(t, commitTime, time.Since(start))
			require.Zero(t, f.slots.Stats().InFlight)
		}
	})
}

func TestFusion_SegmentCapSplitsOnePartOverSeveralFlushes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{})
		items := make([]Item, 2*MaxSegmentMessages+5)
		for i := range items {
			items[i] = item("p", fmt.Sprint(i), "1")
		}
		for _, v := range f.push(t, items...) {
			require.Equal(t, StatusQueued, v.Status)
		}
		require.Equal(t, 3, f.store.callCount())
		frames := f.store.stored("orders", "p")
		require.Len(t, frames, len(items))
		for i := range frames {
			require.Equal(t, items[i].TransactionID, frames[i].TransactionID)
		}

		big := bytes.Repeat([]byte("7"), MaxSegmentBytes/2)
		large := []Item{item("q", "a", string(big)), item("q", "b", string(big)), item("q", "c", "1")}
		f.push(t, large...)
		require.Equal(t, 5, f.store.callCount(), "two halves and their headers pass 16 MiB")
		require.Len(t, f.store.stored("orders", "q"), 3)
	})
}

func TestPush_EmptyRequest(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{})
	verdicts, err := f.Push(t.Context(), request())
	require.NoError(t, err)
	require.NotNil(t, verdicts)
	require.Empty(t, verdicts)
}

func TestPush_KeepsInputOrderAndAllFields(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{})
	trace := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	items := []Item{item("b", "1", "1"), item("a", "2", "2"), item("b", "3", "3"), item("a", "", "4"), item("", "5", "")}
	items[2].TraceID = trace
	verdicts, err := f.Push(t.Context(), Request{Tenant: testTenant, ProducerSub: "alice", Items: items})
	require.NoError(t, err)
	for i, v := range verdicts {
		require.Equal(t, StatusQueued, v.Status)
		if items[i].TransactionID != "" {
			require.Equal(t, items[i].TransactionID, v.TransactionID)
		}
	}
	b := f.store.stored("orders", "b")
	require.Len(t, b, 2)
	require.Equal(t, segment.Frame{ID: verdicts[0].MessageID, TransactionID: "1", ProducerSub: "alice", Payload: []byte("1")}, b[0])
	require.Equal(t, segment.Frame{ID: verdicts[2].MessageID, TraceID: trace, TransactionID: "3", ProducerSub: "alice", Payload: []byte("3")}, b[1])
	require.Len(t, f.store.stored("orders", "a"), 2)
	require.Len(t, f.store.stored("orders", ""), 1, "an empty partition name is a name")

	f.store.mu.Lock()
	defer f.store.mu.Unlock()
	for _, call := range f.store.calls {
		for _, s := range call {
			require.EqualValues(t, -1, s.Verified)
			require.True(t, s.Plain)
			if s.Partition == "b" {
				require.Equal(t, []pg.FrameTrace{{Frame: 1, ID: trace.UUID}}, s.Traces)
			} else {
				require.Empty(t, s.Traces)
			}
		}
	}
}

func TestPush_OversizedItemFailsAlone(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{})
	long := string(bytes.Repeat([]byte("x"), segment.MaxTransactionIDBytes+1))
	verdicts := f.push(t, item("p", "a", "1"), item("p", long, "2"), item("p", "b", "3"))
	require.Equal(t, []Status{StatusQueued, StatusFailed, StatusQueued}, statuses(verdicts))
	require.ErrorIs(t, verdicts[1].Err, segment.ErrTooLarge)
	require.Len(t, f.store.stored("orders", "p"), 2)
}

func TestPush_CancelledCallerDoesNotCancelItsNeighbours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{Shards: 1}, slow)
		go f.push(t, item("p", "first", "1")) // keeps the partition busy, so that the next two share a flush
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := f.Push(ctx, request(item("p", "left", "1")))
			left <- err
		}()
		stayed := make(chan []Verdict, 1)
		go func() { stayed <- f.push(t, item("p", "stayed", "1")) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-left, context.Canceled)
		require.Equal(t, StatusQueued, (<-stayed)[0].Status)
		require.Len(t, f.store.stored("orders", "p"), 3, "what was taken is stored, also without its caller")
	})
}

func TestPush_CallerMayLeaveWhileTheShardIsBusy(t *testing.T) {
	t.Parallel()
	p := New(Config{}, newMemoryStore(), admission.New(admission.Config{PoolSize: 8}), nil) // not running
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 3 * inboxSize * DefaultShards {
		wg.Go(func() {
			_, err := p.Push(ctx, request(item("p", "", "1")))
			if !errors.Is(err, context.Canceled) {
				t.Errorf("unexpected answer: %v", err)
			}
		})
	}
	cancel()
	wg.Wait()
}

func TestPusher_StopCommitsWhatWasTakenAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{Shards: 2}, slow)
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				require.Equal(t, StatusQueued, f.push(t, item(fmt.Sprintf("p-%d", i%3), "", "1"))[0].Status)
			})
		}
		synctest.Wait()
		f.stop()
		wg.Wait()
		_, err := f.Push(t.Context(), request(item("p", "", "1")))
		require.ErrorIs(t, err, ErrStopped)
		require.EqualValues(t, 200, f.Stats().Frames)
		require.Error(t, f.Run(t.Context()), "a pusher runs once")
	})
}

// Every push during a stop is either refused as a whole or committed; nothing hangs.
func TestPusher_StopUnderLoad(t *testing.T) {
	t.Parallel()
	for range 20 {
		f := setup(t, Config{Shards: 3}, func(f *fixture) { f.slots = admission.New(admission.Config{PoolSize: 4}) })
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := 0; ; i++ {
					verdicts, err := f.Push(context.Background(), request(item(fmt.Sprint(i%7), fmt.Sprintf("%d-%d", w, i), "1")))
					if errors.Is(err, ErrStopped) {
						return
					}
					if err != nil || verdicts[0].Status != StatusQueued {
						t.Errorf("push during the stop: %v %v", verdicts, err)
						return
					}
				}
			})
		}
		require.Eventually(t, func() bool { return f.Stats().Frames > 50 }, 10*time.Second, time.Millisecond)
		f.stop()
		wg.Wait()
	}
}

func TestPusher_OnStoredComesBeforeTheAnswerAndWithoutTheCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{}, slow)
		type event struct {
			queue, partition string
			n                int
		}
		var events []event
		var ids []uuid.UUID
		f.onStored = func(tenant uuid.UUID, queue, partition string, id uuid.UUID, n int) {
			require.Equal(t, testTenant, tenant)
			events, ids = append(events, event{queue, partition, n}), append(ids, id)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-time.After(commitTime / 2)
			cancel()
		}()
		_, err := f.Push(ctx, request(item("p", "a", "1"), item("p", "b", "1"), item("p", "a", "1")))
		require.ErrorIs(t, err, context.Canceled)
		<-time.After(commitTime)
		synctest.Wait()
		require.Equal(t, []event{{"orders", "p", 2}}, events)
		verdicts := f.push(t, item("p", "a", "1"), item("p", "c", "1"))
		require.Equal(t, []event{{"orders", "p", 2}, {"orders", "p", 1}}, events)
		require.Equal(t, verdicts[1].PartitionID, ids[1])
	})
}
