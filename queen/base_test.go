package queen_test

import (
	"errors"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/queen"
)

func TestPushPopAck(t *testing.T) {
	t.Parallel()
	client := connect(t)
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	const queue = "base.round/trip %?#"
	payloads := []string{`{"big":99999999999999999999, "b":1,"a":2}`, `null`, `"\u0000 \ud800"`, `[1 ,2]`}
	items := make([]queen.Item, len(payloads))
	for i, payload := range payloads {
		items[i] = queen.Item{Queue: queue, Partition: "a/b", Payload: []byte(payload), TraceID: "0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731", Traceparent: traceparent}
	}
	results, err := client.Push(t.Context(), items...)
	require.NoError(t, err)
	require.Len(t, results, len(items))
	for _, r := range results {
		require.Equal(t, queen.Queued, r.Status)
		require.NotEmpty(t, r.MessageID)
		require.NotEmpty(t, r.TransactionID)
		require.NotEmpty(t, r.PartitionID)
	}

	batch, err := client.Pop(t.Context(), queue, queen.PopOptions{Group: "readers", Partition: "a/b", Batch: 10, Lease: 30 * time.Second})
	require.NoError(t, err)
	require.Len(t, batch.Messages, len(payloads))
	for i, m := range batch.Messages {
		require.Equal(t, payloads[i], string(m.Payload), "payloads come back byte for byte")
		require.Equal(t, results[i].MessageID, m.ID)
		require.Equal(t, results[i].TransactionID, m.TransactionID)
		require.Equal(t, queue, m.Queue)
		require.Equal(t, "a/b", m.Partition)
		require.Equal(t, "readers", m.Group)
		require.Equal(t, "0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731", m.TraceID)
		require.Equal(t, traceparent, m.Traceparent)
		require.WithinDuration(t, time.Now(), m.CreatedAt, time.Minute)
	}
	ends, err := client.Extend(t.Context(), batch.LeaseID, time.Hour)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Hour), ends, time.Minute)

	acked, err := client.Ack(t.Context(), batch.Completed()...)
	require.NoError(t, err)
	require.Len(t, acked, len(payloads))
	require.True(t, acked[len(acked)-1].LeaseReleased)
	_, err = client.Extend(t.Context(), batch.LeaseID, time.Hour)
	require.ErrorIs(t, err, queen.ErrLeaseLost)

	batch, err = client.Pop(t.Context(), queue, queen.PopOptions{Group: "readers"})
	require.NoError(t, err)
	require.Empty(t, batch.Messages)
}

func TestPush(t *testing.T) {
	t.Parallel()
	client := connect(t)

	t.Run("RepeatedTransactionIDIsADuplicate", func(t *testing.T) {
		t.Parallel()
		item := queen.Item{Queue: "base.duplicates", TransactionID: "one", Payload: []byte("1")}
		first, err := client.Push(t.Context(), item)
		require.NoError(t, err)
		again, err := client.Push(t.Context(), item)
		require.NoError(t, err)
		require.Equal(t, queen.Duplicate, again[0].Status)
		require.Equal(t, first[0].MessageID, again[0].MessageID)
	})

	t.Run("NonsenseNeverLeaves", func(t *testing.T) {
		t.Parallel()
		for name, item := range map[string]queen.Item{
			"no queue":        {Payload: []byte("1")},
			"no payload":      {Queue: "q"},
			"not JSON":        {Queue: "q", Payload: []byte(`1},{"queue":"other","payload":1`)},
			"not UTF-8":       {Queue: "q\xff", Payload: []byte("1")},
			"bad transaction": {Queue: "q", TransactionID: "\xff", Payload: []byte("1")},
		} {
			_, err := client.Push(t.Context(), item)
			require.ErrorIs(t, err, queen.ErrInvalid, name)
		}
	})

	t.Run("FullQueueIsATypedError", func(t *testing.T) {
		t.Parallel()
		hasty := connect(t, queen.WithRetryBudget(0))
		_, err := client.Do(t.Context(), http.MethodPost, "/api/v1/configure", nil, []byte(`{"queue":"base.full","options":{"maxSize":2}}`))
		require.NoError(t, err)
		item := queen.Item{Queue: "base.full", Payload: []byte("1")}
		results, err := hasty.Push(t.Context(), item, item)
		require.NoError(t, err)
		require.True(t, results[1].Bounded)
		other := queen.Item{Queue: "base.roomy", Payload: []byte("1")}
		results, err = hasty.Push(t.Context(), other, item)
		require.ErrorIs(t, err, queen.ErrQueueFull)
		require.Equal(t, queen.Queued, results[0].Status, "items stand or fall by partition")
		require.Equal(t, queen.Failed, results[1].Status)
		require.ErrorIs(t, results[1].Err, queen.ErrQueueFull)
	})
}

func TestAck(t *testing.T) {
	t.Parallel()
	client := connect(t)
	pop := func(t *testing.T, queue string) *queen.Batch {
		batch, err := client.Pop(t.Context(), queue, queen.PopOptions{Group: "g", Wait: 5 * time.Second})
		require.NoError(t, err)
		return batch
	}
	push := func(t *testing.T, queue string) {
		_, err := client.Push(t.Context(), queen.Item{Queue: queue, Payload: []byte("1")}, queen.Item{Queue: queue, Payload: []byte("2")})
		require.NoError(t, err)
	}

	t.Run("LostLeaseIsATypedError", func(t *testing.T) {
		t.Parallel()
		push(t, "base.lost")
		batch := pop(t, "base.lost")
		_, err := client.Ack(t.Context(), batch.Released()...)
		require.NoError(t, err)
		again := pop(t, "base.lost")
		require.Len(t, again.Messages, 2, "what was released is delivered again at once")
		results, err := client.Ack(t.Context(), batch.Completed()...)
		require.ErrorIs(t, err, queen.ErrLeaseLost)
		require.ErrorIs(t, results[0].Err, queen.ErrLeaseLost)
		_, err = client.Ack(t.Context(), again.Completed()...)
		require.NoError(t, err)
	})

	t.Run("DeadLetterIsFiledWithItsReason", func(t *testing.T) {
		t.Parallel()
		push(t, "base.dead")
		batch := pop(t, "base.dead")
		results, err := client.Ack(t.Context(), batch.Messages[0].DeadLettered(errors.New("no such account")))
		require.NoError(t, err)
		require.True(t, results[0].DeadLettered)
		response, err := client.Do(t.Context(), http.MethodGet, "/api/v1/dlq", url.Values{"queue": {"base.dead"}}, nil)
		require.NoError(t, err)
		require.Contains(t, string(response.Body), "no such account")
	})

	t.Run("DelayedRetryStaysAway", func(t *testing.T) {
		t.Parallel()
		push(t, "base.delayed")
		batch := pop(t, "base.delayed")
		_, err := client.Ack(t.Context(), batch.Messages[0].Retried(time.Hour))
		require.NoError(t, err)
		batch, err = client.Pop(t.Context(), "base.delayed", queen.PopOptions{Group: "g"})
		require.NoError(t, err)
		require.Empty(t, batch.Messages)
	})
}

func TestTransaction(t *testing.T) {
	t.Parallel()
	client := connect(t)
	_, err := client.Push(t.Context(), queen.Item{Queue: "base.source", Payload: []byte("1")})
	require.NoError(t, err)
	batch, err := client.Pop(t.Context(), "base.source", queen.PopOptions{Group: "g"})
	require.NoError(t, err)

	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	next := queen.Item{Queue: "base.sink", Traceparent: traceparent, TransactionID: "next", Payload: []byte(`"next"`)}
	done, err := client.Transaction().Ack(batch.Completed()...).Push(next).Commit(t.Context())
	require.NoError(t, err)
	require.Len(t, done.Acked, 1)
	require.Equal(t, queen.Queued, done.Pushed[0].Status)

	_, err = client.Transaction().Push(queen.Item{Queue: "base.other", Payload: []byte("1")}, next).Commit(t.Context())
	require.ErrorIs(t, err, queen.ErrDuplicate)
	require.ErrorIs(t, err, queen.ErrRolledBack)
	_, err = client.Transaction().Ack(batch.Messages[0].Rejected(nil)).Push(queen.Item{Queue: "base.other", Payload: []byte("1")}).Commit(t.Context())
	require.ErrorIs(t, err, queen.ErrRolledBack)
	nothing, err := client.Pop(t.Context(), "base.other", queen.PopOptions{})
	require.NoError(t, err)
	require.Empty(t, nothing.Messages, "all or nothing")
	got, err := client.Pop(t.Context(), "base.sink", queen.PopOptions{})
	require.NoError(t, err)
	require.Len(t, got.Messages, 1)
	require.Equal(t, traceparent, got.Messages[0].Traceparent)
}

func TestDo(t *testing.T) {
	t.Parallel()
	client := connect(t)
	response, err := client.Do(t.Context(), http.MethodGet, "/health", nil, nil)
	require.NoError(t, err)
	health, err := queen.Decode[struct{ Status string }](response.Body)
	require.NoError(t, err)
	require.Equal(t, "healthy", health.Status)

	_, err = client.Do(t.Context(), http.MethodGet, "/api/v1/no/such/route", nil, nil)
	require.ErrorIs(t, err, queen.ErrRouteMissing)
	require.NotErrorIs(t, err, queen.ErrNotFound)
	_, err = client.Do(t.Context(), http.MethodGet, "/no/such/page", nil, nil)
	require.ErrorIs(t, err, queen.ErrRouteMissing)
	_, err = client.Do(t.Context(), http.MethodDelete, "/health", nil, nil)
	require.ErrorIs(t, err, queen.ErrRouteMissing)
	_, err = client.Do(t.Context(), http.MethodGet, queen.Path("api", "v1", "resources", "queues", "no/such."), nil, nil)
	require.ErrorIs(t, err, queen.ErrNotFound)
	refused := new(queen.Error)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, http.StatusNotFound, refused.Status)
	require.Equal(t, "not_found", refused.Code)
	_, err = client.Do(t.Context(), http.MethodGet, queen.Path("api", "v1", "resources", "queues", ".."), nil, nil)
	require.ErrorIs(t, err, queen.ErrNotFound, "names that are dots arrive as names")
}

func TestGroupsBeginWhereTheyAreTold(t *testing.T) {
	t.Parallel()
	client := connect(t)
	const queue = "base.start"
	push := func(payload string) {
		_, err := client.Push(t.Context(), queen.Item{Queue: queue, Partition: "p", Payload: []byte(payload)})
		require.NoError(t, err)
	}
	read := func(group string, start queen.Start) []queen.Message {
		batch, err := client.Pop(t.Context(), queue, queen.PopOptions{Group: group, Batch: 10, Start: start})
		require.NoError(t, err)
		return batch.Messages
	}
	push(`1`)
	push(`2`)
	all := read("oldest", queen.StartOldest)
	require.Len(t, all, 2)
	require.Empty(t, read("new", queen.StartNew))
	later := read("later", queen.StartAt(all[1].CreatedAt))
	require.Len(t, later, 1)
	require.Equal(t, `2`, string(later[0].Payload))
	push(`3`)
	require.Len(t, read("new", queen.StartNew), 1)
}
