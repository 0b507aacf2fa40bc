package queen_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/queen"
)

// consumerOf runs consume until the test ends it, and hands its error over.
func running(t *testing.T, consume func(ctx context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- consume(ctx) }()
	stopped := sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stopped() })
	return stopped
}

func fill(t *testing.T, client *queen.Client, queue string, partitions, messages int) {
	t.Helper()
	var items []queen.Item
	for n := range messages {
		for p := range partitions {
			items = append(items, queen.Item{Queue: queue, Partition: fmt.Sprint("p", p), Payload: fmt.Append(nil, n)})
		}
	}
	_, err := client.Push(t.Context(), items...)
	require.NoError(t, err)
}

// patience is how long something may take that happens at once on a quiet machine.
const patience = 30 * time.Second

func await(t *testing.T, done <-chan struct{}, failure string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal(failure)
	}
}

func TestConsume(t *testing.T) {
	t.Parallel()

	t.Run("EveryMessageOnceAndInOrder", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		fill(t, client, "consume.order", 5, 40)
		var mu sync.Mutex
		got := map[string][]int{}
		busy := map[string]bool{}
		left := make(chan struct{})
		count := 0
		stop := running(t, func(ctx context.Context) error {
			return queen.Consume(ctx, client, "consume.order", queen.ConsumeOptions{PopOptions: queen.PopOptions{Group: "g", Batch: 7, Partitions: 2}, Concurrency: 4},
				func(_ context.Context, n int, m *queen.Message) error {
					mu.Lock()
					if busy[m.Partition] {
						t.Error("two messages of one partition at the same time")
					}
					busy[m.Partition] = true
					mu.Unlock()
					mu.Lock()
					defer mu.Unlock()
					busy[m.Partition] = false
					got[m.Partition] = append(got[m.Partition], n)
					if count++; count == 200 {
						close(left)
					}
					return nil
				})
		})
		await(t, left, "not all messages came")
		require.NoError(t, stop())
		for p, numbers := range got {
			require.Len(t, numbers, 40, p)
			require.True(t, slices.IsSorted(numbers), p)
		}
		batch, err := client.Pop(t.Context(), "consume.order", queen.PopOptions{Group: "g", Partitions: -1})
		require.NoError(t, err)
		require.Empty(t, batch.Messages, "all of them are acknowledged")
	})

	t.Run("ErrorsDecideWhatBecomesOfAMessage", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		_, err := client.Push(t.Context(), queen.Item{Queue: "consume.errors", Payload: []byte(`"no number"`)})
		require.NoError(t, err)
		fill(t, client, "consume.errors", 1, 4)
		var mu sync.Mutex
		tries := map[int]int{}
		done := make(chan struct{})
		var reported atomic.Int64
		stop := running(t, func(ctx context.Context) error {
			return queen.Consume(ctx, client, "consume.errors", queen.ConsumeOptions{PopOptions: queen.PopOptions{Group: "g", Partitions: 3}, OnError: func(error) { reported.Add(1) }},
				func(_ context.Context, n int, _ *queen.Message) error {
					mu.Lock()
					defer mu.Unlock()
					tries[n]++
					switch {
					case n == 0 && tries[n] < 3:
						return errors.New("not today")
					case n == 1 && tries[n] == 1:
						return queen.RetryIn(10 * time.Millisecond)
					case n == 2 && tries[n] == 1:
						panic("what is this?")
					case n == 3:
						close(done)
						return queen.Unprocessable(errors.New("unheard of"))
					}
					return nil
				})
		})
		await(t, done, "not all messages came")
		require.NoError(t, stop())
		require.Equal(t, map[int]int{0: 3, 1: 2, 2: 2, 3: 1}, tries)
		require.EqualValues(t, 6, reported.Load())
		response, err := client.Do(t.Context(), http.MethodGet, "/api/v1/dlq", map[string][]string{"queue": {"consume.errors"}}, nil)
		require.NoError(t, err)
		require.Contains(t, string(response.Body), "unheard of")
		require.Contains(t, string(response.Body), "cannot unmarshal")
	})

	t.Run("LeaseIsRenewedForAsLongAsItTakes", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		fill(t, client, "consume.renewed", 1, 1)
		var deliveries atomic.Int64
		done := make(chan struct{})
		stop := running(t, func(ctx context.Context) error {
			return client.Consume(ctx, "consume.renewed", queen.ConsumeOptions{PopOptions: queen.PopOptions{Group: "g", Lease: 2 * time.Second}, Concurrency: 2},
				func(ctx context.Context, _ *queen.Message) error {
					deliveries.Add(1)
					select {
					case <-time.After(5 * time.Second): // more than twice the lease
					case <-ctx.Done():
						return context.Cause(ctx)
					}
					close(done)
					return nil
				})
		})
		await(t, done, "the handler was not left in peace")
		require.NoError(t, stop())
		require.EqualValues(t, 1, deliveries.Load())
	})

	t.Run("HandlerEndsWhenTheLeaseIsLost", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		fill(t, client, "consume.lost", 1, 3)
		var handled atomic.Int64
		lost := make(chan error, 10)
		again := make(chan struct{})
		var once sync.Once
		stop := running(t, func(ctx context.Context) error {
			return client.Consume(ctx, "consume.lost", queen.ConsumeOptions{PopOptions: queen.PopOptions{Group: "g", Lease: 2 * time.Second}},
				func(ctx context.Context, m *queen.Message) error {
					if handled.Add(1) > 1 {
						if handled.Load() == 4 {
							once.Do(func() { close(again) })
						}
						return nil
					}
					body := fmt.Sprintf(`{"partitionId":%q,"consumerGroup":"g"}`, m.PartitionID)
					_, err := client.Do(ctx, http.MethodPost, "/api/v1/leases/release", nil, []byte(body))
					if err != nil {
						t.Error(err)
					}
					select {
					case <-ctx.Done():
						lost <- context.Cause(ctx)
					case <-time.After(patience):
						lost <- errors.New("never")
					}
					return nil
				})
		})
		require.ErrorIs(t, <-lost, queen.ErrLeaseLost)
		await(t, again, "the consumer does not go on")
		require.NoError(t, stop())
	})

	t.Run("ShutdownFinishesHandlersAndReleasesTheRest", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		fill(t, client, "consume.shutdown", 1, 50)
		started, finish := make(chan struct{}), make(chan struct{})
		var handled atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			ended <- client.Consume(ctx, "consume.shutdown", queen.ConsumeOptions{PopOptions: queen.PopOptions{Group: "g", Lease: time.Hour}},
				func(ctx context.Context, _ *queen.Message) error {
					if handled.Add(1) == 3 {
						close(started)
						<-finish
						return ctx.Err() // not ended by the shutdown
					}
					return nil
				})
		}()
		<-started
		cancel()
		close(finish)
		require.NoError(t, <-ended)
		require.EqualValues(t, 3, handled.Load())
		batch, err := client.Pop(t.Context(), "consume.shutdown", queen.PopOptions{Group: "g"})
		require.NoError(t, err)
		require.Len(t, batch.Messages, 47, "at once, not when the lease ends")
	})

	t.Run("HandlerThatDoesNotEndIsEnded", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		fill(t, client, "consume.stuck", 1, 2)
		started := make(chan struct{})
		var cause error
		stop := running(t, func(ctx context.Context) error {
			return client.Consume(ctx, "consume.stuck", queen.ConsumeOptions{PopOptions: queen.PopOptions{Group: "g"}, ShutdownTimeout: 50 * time.Millisecond},
				func(ctx context.Context, _ *queen.Message) error {
					close(started)
					<-ctx.Done()
					cause = context.Cause(ctx)
					return cause
				})
		})
		<-started
		require.NoError(t, stop())
		require.ErrorIs(t, cause, queen.ErrShutdown)
		batch, err := client.Pop(t.Context(), "consume.stuck", queen.PopOptions{Group: "g"})
		require.NoError(t, err)
		require.Len(t, batch.Messages, 2, "what was interrupted is given back and spends no retry")
	})

	t.Run("Batches", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		fill(t, client, "consume.batches", 3, 10)
		var seen atomic.Int64
		done := make(chan struct{})
		failed := false
		stop := running(t, func(ctx context.Context) error {
			return client.ConsumeBatches(ctx, "consume.batches", queen.ConsumeOptions{PopOptions: queen.PopOptions{Group: "g", Partitions: -1}},
				func(_ context.Context, b *queen.Batch) error {
					if !failed {
						failed = true
						return errors.New("once")
					}
					if seen.Add(int64(len(b.Messages))) == 30 {
						close(done)
					}
					return nil
				})
		})
		await(t, done, "not all messages came")
		require.NoError(t, stop())
	})

	t.Run("PointlessConsumersEnd", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.ErrorIs(t, client.Consume(ctx, "", queen.ConsumeOptions{}, nil), queen.ErrInvalid)
	})
}
