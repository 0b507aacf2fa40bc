package queen_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/queen"
	"queenmq/test/stack"
)

// door stands between a client and the shared broker; while it is closed it breaks connections, half of them after the broker has
// answered.
type door struct {
	*httptest.Server
	closed atomic.Bool
	broken atomic.Int64
}

func newDoor(t *testing.T) *door {
	t.Helper()
	behind, err := url.Parse(stack.Shared().URL)
	require.NoError(t, err)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(behind) }, Transport: transport}
	d := &door{}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.closed.Load() {
			if d.broken.Add(1)%2 == 0 {
				proxy.ServeHTTP(httptest.NewRecorder(), r)
			}
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(d.Close)
	return d
}

func TestProducer(t *testing.T) {
	t.Parallel()

	t.Run("KeepsOrderOverAnOutageAndStoresOnce", func(t *testing.T) {
		t.Parallel()
		d := newDoor(t)
		client, err := queen.Connect(d.URL, queen.WithRetryBudget(0))
		require.NoError(t, err)
		defer client.Close()
		var results atomic.Int64
		producer := client.NewProducer(queen.ProducerOptions{Buffer: 100, Batch: 30, OnResult: func(_ queen.Item, r queen.PushResult) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			results.Add(1)
		}})
		const messages = 1000
		for n := range messages {
			switch n {
			case 200:
				require.NoError(t, producer.Flush(t.Context()))
				d.closed.Store(true)
			case 250:
				// The buffer fills up and Send waits for room, which does not come before the door opens.
				short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				var err error
				for err == nil {
					err = producer.Send(short, queen.Item{Queue: "producer.filler", Payload: []byte("0")})
				}
				cancel()
				require.ErrorIs(t, err, context.DeadlineExceeded)
				// One request that never came through and one whose answer was lost, however long that takes.
				require.Eventually(t, func() bool { return d.broken.Load() >= 2 }, time.Minute, time.Millisecond)
				d.closed.Store(false)
			}
			require.NoError(t, producer.Send(t.Context(), queen.Item{Queue: "producer.order", Partition: "p", Payload: fmt.Append(nil, n)}))
		}
		require.NoError(t, producer.Flush(t.Context()))
		unsent, err := producer.Close(t.Context())
		require.NoError(t, err)
		require.Empty(t, unsent)
		require.GreaterOrEqual(t, results.Load(), int64(messages))

		reader := connect(t)
		for next := 0; next < messages; {
			batch, err := reader.Pop(t.Context(), "producer.order", queen.PopOptions{Batch: 10_000, Wait: 30 * time.Second})
			require.NoError(t, err)
			require.NotEmpty(t, batch.Messages)
			for _, m := range batch.Messages {
				require.Equal(t, fmt.Sprint(next), string(m.Payload))
				next++
			}
			_, err = reader.Ack(t.Context(), batch.Completed()...)
			require.NoError(t, err)
		}
		rest, err := reader.Pop(t.Context(), "producer.order", queen.PopOptions{})
		require.NoError(t, err)
		require.Empty(t, rest.Messages)
	})

	t.Run("CloseSaysWhatIsUnsent", func(t *testing.T) {
		t.Parallel()
		client, err := queen.Connect("http://127.0.0.1:1")
		require.NoError(t, err)
		producer := client.NewProducer(queen.ProducerOptions{})
		for n := range 10 {
			require.NoError(t, producer.Send(t.Context(), queen.Item{Queue: "q", Payload: fmt.Append(nil, n)}))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		unsent, err := producer.Close(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, unsent, 10)
		for n, item := range unsent {
			require.Equal(t, fmt.Sprint(n), string(item.Payload))
			require.NotEmpty(t, item.TransactionID, "so that it can be sent again")
		}
		require.ErrorIs(t, producer.Send(t.Context(), queen.Item{Queue: "q", Payload: []byte("1")}), queen.ErrProducerClosed)
	})

	t.Run("WhatIsRefusedForGoodDoesNotHoldUpTheRest", func(t *testing.T) {
		t.Parallel()
		client := connect(t)
		producer := client.NewProducer(queen.ProducerOptions{Linger: 50 * time.Millisecond})
		require.ErrorIs(t, producer.Send(t.Context(), queen.Item{Queue: "q", Payload: []byte("{")}), queen.ErrInvalid)
		for _, queue := range []string{"producer.good", "bad\nname", "producer.good"} {
			require.NoError(t, producer.Send(t.Context(), queen.Item{Queue: queue, Payload: []byte("1")}))
		}
		unsent, err := producer.Close(t.Context())
		require.ErrorIs(t, err, queen.ErrInvalid)
		require.Len(t, unsent, 1)
		require.Equal(t, "bad\nname", unsent[0].Queue)
		batch, err := client.Pop(t.Context(), "producer.good", queen.PopOptions{})
		require.NoError(t, err)
		require.Len(t, batch.Messages, 2)
	})

	t.Run("FullQueueHoldsTheProducerBack", func(t *testing.T) {
		t.Parallel()
		client := connect(t, queen.WithRetryBudget(0))
		_, err := client.Do(t.Context(), http.MethodPost, "/api/v1/configure", nil, []byte(`{"queue":"producer.full","options":{"maxSize":3}}`))
		require.NoError(t, err)
		producer := client.NewProducer(queen.ProducerOptions{Batch: 1})
		for n := range 6 {
			require.NoError(t, producer.Send(t.Context(), queen.Item{Queue: "producer.full", Payload: fmt.Append(nil, n)}))
		}
		for next := 0; next < 6; {
			batch, err := client.Pop(t.Context(), "producer.full", queen.PopOptions{Wait: 5 * time.Second})
			require.NoError(t, err)
			for _, m := range batch.Messages {
				require.Equal(t, fmt.Sprint(next), string(m.Payload))
				next++
			}
			_, err = client.Ack(t.Context(), batch.Completed()...)
			require.NoError(t, err)
		}
		unsent, err := producer.Close(t.Context())
		require.NoError(t, err)
		require.Empty(t, unsent)
	})
}
