package pgtx_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"queenmq/queen"
	"queenmq/queen/pgtx"
)

func TestPushTx(t *testing.T) {
	t.Parallel()

	t.Run("IsSeenAfterTheCommitAndNotBefore", func(t *testing.T) {
		t.Parallel()
		client, db := broker(t)
		q := newClient(t, db)
		const queue = "tx/orders %?"
		_, err := client.Do(t.Context(), http.MethodPost, "/api/v1/configure", nil, []byte(`{"queue":"`+queue+`"}`))
		require.NoError(t, err)
		var results []queen.PushResult
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) (err error) {
			results, err = q.PushTx(t.Context(), tx, append(items(queue, "a", `{"n": 1}`, `99999999999999999999`), items(queue, "", `"b"`)...)...)
			require.NoError(t, err)
			batch, err := client.Pop(t.Context(), queue, queen.PopOptions{Partitions: -1})
			require.NoError(t, err)
			require.Empty(t, batch.Messages, "not committed yet")
			return nil
		}))
		batch, err := client.Pop(t.Context(), queue, queen.PopOptions{Partition: "a"})
		require.NoError(t, err)
		require.Equal(t, []string{`{"n": 1}`, `99999999999999999999`}, payloads(batch))
		for i, m := range batch.Messages {
			require.Equal(t, queen.Queued, results[i].Status)
			require.Equal(t, results[i].MessageID, m.ID)
			require.Equal(t, results[i].TransactionID, m.TransactionID)
			require.Equal(t, results[i].PartitionID, m.PartitionID)
		}
		batch, err = client.Pop(t.Context(), queue, queen.PopOptions{Partition: "Default"})
		require.NoError(t, err)
		require.Equal(t, []string{`"b"`}, payloads(batch))
	})

	t.Run("RolledBackLeavesNothing", func(t *testing.T) {
		t.Parallel()
		client, db := broker(t)
		q := newClient(t, db)
		regret := errors.New("regret")
		require.ErrorIs(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			_, err := q.PushTx(t.Context(), tx, queen.Item{Queue: "tx.regret", TransactionID: "once", Payload: []byte("1")})
			require.NoError(t, err)
			return regret
		}), regret)
		results, err := client.Push(t.Context(), queen.Item{Queue: "tx.regret", TransactionID: "once", Payload: []byte("2")})
		require.NoError(t, err)
		require.Equal(t, queen.Queued, results[0].Status, "the transaction id is free again")
	})

	t.Run("WakesAPopThatWaitsAtABroker", func(t *testing.T) {
		t.Parallel()
		client, db := broker(t)
		q := newClient(t, db)
		fastest := time.Hour
		for range 5 { // the machine may be busy; without the hint it takes half a minute every time
			waiting := make(chan *queen.Batch, 1)
			go func() {
				batch, err := client.Pop(t.Context(), "tx.wake", queen.PopOptions{Group: "g", Wait: 25 * time.Second})
				if err != nil {
					t.Error(err)
				}
				waiting <- batch
			}()
			require.Eventually(t, func() bool {
				response, err := client.Do(t.Context(), http.MethodGet, "/metrics/prometheus", nil, nil)
				return err == nil && strings.Contains(string(response.Body), `queen_parked_long_polls{queue="tx.wake"} 1`)
			}, time.Minute, 10*time.Millisecond)
			require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
				_, err := q.PushTx(t.Context(), tx, items("tx.wake", "p", "1")...)
				return err
			}))
			committed := time.Now()
			batch := <-waiting
			fastest = min(fastest, time.Since(committed))
			require.NotNil(t, batch)
			require.Len(t, batch.Messages, 1)
			_, err := client.Ack(t.Context(), batch.Completed()...)
			require.NoError(t, err)
		}
		require.Less(t, fastest, 10*time.Second)
	})

	t.Run("DuplicatesStoreNothing", func(t *testing.T) {
		t.Parallel()
		client, db := broker(t)
		q := newClient(t, db)
		item := func(id string) queen.Item {
			return queen.Item{Queue: "tx.duplicates", TransactionID: id, Payload: []byte(`"` + id + `"`)}
		}
		_, err := client.Push(t.Context(), item("a"))
		require.NoError(t, err)
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			results, err := q.PushTx(t.Context(), tx, item("b"), item("a"), item("b"), item("c"))
			require.NoError(t, err)
			var statuses []queen.PushStatus
			for _, r := range results {
				statuses = append(statuses, r.Status)
			}
			require.Equal(t, []queen.PushStatus{queen.Queued, queen.Duplicate, queen.Duplicate, queen.Queued}, statuses)
			require.Equal(t, results[0].MessageID, results[2].MessageID)
			results, err = q.PushTx(t.Context(), tx, item("c"))
			require.Equal(t, queen.Duplicate, results[0].Status, "of the same transaction too")
			return err
		}))
		batch, err := client.Pop(t.Context(), "tx.duplicates", queen.PopOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{`"a"`, `"b"`, `"c"`}, payloads(batch))
	})

	t.Run("FullQueueRefusesAndEndsTheTransaction", func(t *testing.T) {
		t.Parallel()
		client, db := broker(t)
		q := newClient(t, db)
		_, err := client.Do(t.Context(), http.MethodPost, "/api/v1/configure", nil, []byte(`{"queue":"tx.full","options":{"maxSize":2}}`))
		require.NoError(t, err)
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			results, err := q.PushTx(t.Context(), tx, items("tx.full", "", "1")...)
			require.NoError(t, err)
			require.True(t, results[0].Bounded)
			require.EqualValues(t, 1, results[0].RemainingCapacity)
			return nil
		}))
		err = commit(t.Context(), db, func(tx pgx.Tx) error {
			_, err := q.PushTx(t.Context(), tx, append(items("tx.full", "", "2", "3"), items("tx.roomy", "", "1")...)...)
			require.ErrorIs(t, err, queen.ErrQueueFull)
			return nil // whoever forgets to roll back
		})
		require.Error(t, err, "is not committed by halves")
		batch, err := client.Pop(t.Context(), "tx.roomy", queen.PopOptions{})
		require.NoError(t, err)
		require.Empty(t, batch.Messages)

		snapshot, err := db.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(t, err)
		_, err = q.PushTx(t.Context(), snapshot, items("tx.full", "", "2")...)
		require.ErrorIs(t, err, queen.ErrInvalid, "the depth of a snapshot may be old")
		require.NoError(t, snapshot.Rollback(t.Context()))
	})

	t.Run("TraceIDsShowInTheirPipeline", func(t *testing.T) {
		t.Parallel()
		client, db := broker(t)
		q := newClient(t, db)
		const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		const trace = "0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731"
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			_, err := q.PushTx(t.Context(), tx, queen.Item{Queue: "tx.traced", Payload: []byte("0")}, queen.Item{Queue: "tx.traced", TraceID: trace, Traceparent: traceparent, Payload: []byte("1")})
			return err
		}))
		response, err := client.Do(t.Context(), http.MethodGet, "/api/v1/pipelines/"+trace, nil, nil)
		require.NoError(t, err)
		found, err := queen.Decode[struct{ Messages []struct{ Queue string } }](response.Body)
		require.NoError(t, err)
		require.Len(t, found.Messages, 1)
		batch, err := client.Pop(t.Context(), "tx.traced", queen.PopOptions{Group: "broker"})
		require.NoError(t, err)
		require.Equal(t, traceparent, batch.Messages[1].Traceparent)
		batch, err = q.Pop(t.Context(), db, "tx.traced", queen.PopOptions{Group: "database"})
		require.NoError(t, err)
		require.Equal(t, traceparent, batch.Messages[1].Traceparent)
		require.Empty(t, batch.Messages[0].Traceparent)
	})

	t.Run("NonsenseNeverReachesTheDatabase", func(t *testing.T) {
		t.Parallel()
		_, db := broker(t)
		q := newClient(t, db)
		tx, err := db.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(t.Context()) }()
		for name, item := range map[string]queen.Item{
			"no queue":   {Payload: []byte("1")},
			"long queue": {Queue: strings.Repeat("q", 256), Payload: []byte("1")},
			"control":    {Queue: "a\nb", Payload: []byte("1")},
			"not JSON":   {Queue: "q", Payload: []byte("{")},
			"no payload": {Queue: "q"},
		} {
			_, err := q.PushTx(t.Context(), tx, item)
			require.ErrorIs(t, err, queen.ErrInvalid, name)
		}
		_, err = q.PushTx(t.Context(), tx, items("tx.after.nonsense", "", "1")...)
		require.NoError(t, err, "the transaction goes on")
	})

	t.Run("MaintenanceStopsPushesAndPops", func(t *testing.T) {
		t.Parallel()
		db := alone(t)
		q := newClient(t, db)
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			_, err := q.PushTx(t.Context(), tx, items("q", "", "1")...)
			return err
		}))
		_, err := db.Exec(t.Context(), `INSERT INTO queen.system_state (key, value) VALUES ('maintenance_mode', '{"enabled":true}'), ('pop_maintenance_mode', '{"enabled":true}')`)
		require.NoError(t, err)
		require.Error(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			_, err := q.PushTx(t.Context(), tx, items("q", "", "2")...)
			refused := new(queen.Error)
			require.ErrorAs(t, err, &refused)
			require.Equal(t, "push_maintenance", refused.Code)
			return err
		}))
		batch, err := q.Pop(t.Context(), db, "q", queen.PopOptions{})
		require.NoError(t, err)
		require.Empty(t, batch.Messages)
		_, err = db.Exec(t.Context(), `UPDATE queen.system_state SET value = '{"enabled":false}'`)
		require.NoError(t, err)
		batch, err = q.Pop(t.Context(), db, "q", queen.PopOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"1"}, payloads(batch))
	})

	t.Run("EncryptedQueueIsNeverStoredInPlainText", func(t *testing.T) {
		t.Parallel()
		db := alone(t)
		key := strings.Repeat("0123456789abcdef", 4)
		sealing, plain := newClient(t, db, pgtx.WithEncryptionKeys(key)), newClient(t, db)
		_, err := db.Exec(t.Context(), `INSERT INTO queen.queues (tenant_id, name, encryption_enabled) VALUES ('00000000-0000-0000-0000-000000000001', 'sealed', TRUE)`)
		require.NoError(t, err)
		require.Error(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			_, err := plain.PushTx(t.Context(), tx, items("sealed", "", `"secret"`)...)
			refused := new(queen.Error)
			require.ErrorAs(t, err, &refused)
			require.Equal(t, "encryption_key_missing", refused.Code)
			return err
		}))
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			_, err := sealing.PushTx(t.Context(), tx, append(items("sealed", "", `"secret"`), items("open", "", `"seen"`)...)...)
			return err
		}))
		_, err = plain.Pop(t.Context(), db, "sealed", queen.PopOptions{})
		require.ErrorIs(t, err, queen.ErrUnavailable)
		batch, err := sealing.Pop(t.Context(), db, "sealed", queen.PopOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{`"secret"`}, payloads(batch), "what could not be opened did not stay leased")
		batch, err = plain.Pop(t.Context(), db, "open", queen.PopOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{`"seen"`}, payloads(batch))
	})

	t.Run("TenantsAreApart", func(t *testing.T) {
		t.Parallel()
		db := alone(t)
		const tenant = "0199b0c4-0000-7000-8000-000000000001"
		ours, theirs := newClient(t, db), newClient(t, db, pgtx.WithTenant(tenant))
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error {
			_, err := theirs.PushTx(t.Context(), tx, items("q", "", "1")...)
			return err
		}))
		batch, err := ours.Pop(t.Context(), db, "q", queen.PopOptions{})
		require.NoError(t, err)
		require.Empty(t, batch.Messages)
		batch, err = theirs.Pop(t.Context(), db, "q", queen.PopOptions{Lease: time.Minute})
		require.NoError(t, err)
		require.Len(t, batch.Messages, 1)
		_, err = ours.Extend(t.Context(), db, batch.LeaseID, time.Hour)
		require.ErrorIs(t, err, queen.ErrLeaseLost)
		_, err = theirs.Extend(t.Context(), db, batch.LeaseID, time.Hour)
		require.NoError(t, err)
		err = commit(t.Context(), db, func(tx pgx.Tx) error { return ours.AckTx(t.Context(), tx, batch.Completed()...) })
		require.ErrorIs(t, err, queen.ErrNotFound)
		require.NoError(t, commit(t.Context(), db, func(tx pgx.Tx) error { return theirs.AckTx(t.Context(), tx, batch.Completed()...) }))
	})
}
