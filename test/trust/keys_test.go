package trust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/broker"
	"queenmq/internal/engine/rekey"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
	secrets "queenmq/internal/secret"
	"queenmq/test/stack"
)

// settings are those of a command on the database of s.
func settings(t *testing.T, s *stack.Stack, more map[string]string) *broker.Config {
	t.Helper()
	env := map[string]string{"DATABASE_URL": s.DB.Config().ConnString(), "PORT": "0", "QUEEN_BIND_ADDR": "127.0.0.1", "FILE_BUFFER_DIR": "off"}
	for name, value := range more {
		env[name] = value
	}
	cfg, err := broker.LoadConfig(func(name string) (string, bool) { value, ok := env[name]; return value, ok }, nil)
	require.NoError(t, err)
	return cfg
}

func TestWrongKeyStopsTheStart(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	ringA, err := secrets.NewRing(keyA, "")
	require.NoError(t, err)
	err = broker.New(settings(t, s, map[string]string{"QUEEN_ENCRYPTION_KEY": keyB})).Run(t.Context())
	require.ErrorContains(t, err, "encrypt with key "+ringA.ActiveID().String())
	require.ErrorContains(t, err, "QUEEN_ENCRYPTION_KEYS_OLD")
}

// A message whose stored bytes were changed is filed with its reason by every kind of pop, and the others are delivered.
func TestChangedMessageIsFiledAndItsNeighboursAreDelivered(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	c := as(t, s.URL, nil)
	for i, parameters := range []string{"", "&autoAck=true"} {
		for kind, path := range map[string]string{
			"queue":     "/api/v1/pop/queue/%[1]s",
			"partition": "/api/v1/pop/queue/%[1]s/partition/Default",
			"discovery": "/api/v1/pop?namespace=%[1]s",
		} {
			queue := fmt.Sprintf("%s%d", kind, i)
			c.call("POST", "/api/v1/configure", fmt.Sprintf(`{"queue":%[1]q,"namespace":%[1]q,"options":{"encryptionEnabled":true}}`, queue))
			for n := range 5 {
				c.mustPush(queue, fmt.Sprintf("m%d", n), fmt.Sprint(n))
			}
			tamper(t, s, queue, "m0", "m2", "m3")
			var got []string
			for range 4 {
				for _, m := range c.popAt(fmt.Sprintf(path, queue), "batch=10"+parameters) {
					got = append(got, string(m.Data))
					if m.LeaseID != "" {
						c.call("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"completed"}`, m.TransactionID, m.PartitionID, m.LeaseID))
					}
				}
			}
			require.Equal(t, []string{"1", "4"}, got, queue)
			letters := c.call("GET", "/api/v1/dlq?queue="+queue, "").body
			require.Contains(t, letters, `"total":3`)
			require.Equal(t, 3, strings.Count(letters, `"errorMessage":"not delivered: the payload was changed after it was encrypted with key `), letters)
		}
	}
}

// tamper changes the ciphertext of messages.
func tamper(t *testing.T, s *stack.Stack, queue string, transactionIDs ...string) {
	t.Helper()
	rewrite(t, s, queue, func(f *segment.Frame) {
		for _, id := range transactionIDs {
			if f.TransactionID == id {
				at := bytes.Index(f.Payload, []byte(`"authTag":"`)) + len(`"authTag":"`)
				if f.Payload[at] != 'A' {
					f.Payload[at] = 'A'
				} else {
					f.Payload[at] = 'B'
				}
			}
		}
	})
}

func rewrite(t *testing.T, s *stack.Stack, queue string, change func(*segment.Frame)) {
	t.Helper()
	rows, err := s.DB.Query(t.Context(), `SELECT s.partition_id, s.base_offset, s.blob FROM queen.log_segments s JOIN queen.log_partitions p ON p.id = s.partition_id
		JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1`, queue)
	require.NoError(t, err)
	type stored struct {
		partition uuid.UUID
		base      int64
		blob      []byte
	}
	var all []stored
	for rows.Next() {
		var one stored
		require.NoError(t, rows.Scan(&one.partition, &one.base, &one.blob))
		all = append(all, one)
	}
	require.NoError(t, rows.Err())
	for _, one := range all {
		frames, err := segment.Unpack(one.blob)
		require.NoError(t, err)
		changed := make([]segment.Frame, frames.Len())
		for i := range changed {
			changed[i] = frames.At(i)
			changed[i].Payload = bytes.Clone(changed[i].Payload)
			change(&changed[i])
		}
		blob, _, err := segment.Pack(changed)
		require.NoError(t, err)
		frames.Release()
		_, err = s.DB.Exec(t.Context(), `UPDATE queen.log_segments SET blob = $3 WHERE partition_id = $1 AND base_offset = $2`, one.partition, one.base, blob)
		require.NoError(t, err)
	}
}

// Everything that is stored moves under a new key while brokers serve and retention deletes; the walk is ended in the middle and goes
// on; afterwards the old key is not needed.
func TestRotationPutsEverythingUnderTheNewKey(t *testing.T) {
	t.Parallel()
	both := map[string]string{"QUEEN_ENCRYPTION_KEY": keyB, "QUEEN_ENCRYPTION_KEYS_OLD": keyA}
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	c := as(t, s.URL, nil)
	c.configure("secret", `{"encryptionEnabled":true}`)
	const messages = 300
	for i := range messages {
		a := c.call("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":"secret","partition":"p%d","transactionId":"m%d","payload":{"n":%d,"words":%q}}]}`, i%7, i, i, clear))
		require.Contains(t, a.body, `"queued"`)
	}
	c.mustPush("plain", "open", `"open"`)
	m := c.pop("secret", "consumerGroup=dead")[0]
	c.call("POST", "/api/v1/traces", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"traceNames":["seen"],"data":{"saw":%q}}`, m.TransactionID, m.PartitionID, clear))
	a := c.call("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"consumerGroup":"dead","status":"dlq","error":%q}`, m.TransactionID, m.PartitionID, m.LeaseID, clear))
	require.Contains(t, a.body, `"dlq":true`)

	db, err := pg.Open(t.Context(), pg.Options{ConnString: s.DB.Config().ConnString(), MaxConns: 4})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	ring, err := secrets.NewRing(keyB, keyA)
	require.NoError(t, err)
	after := as(t, stack.Serve(t, s.DB.Config().ConnString(), both), nil)
	after.mustPush("secret", "new", `"new"`)
	rows, err := db.StoredRows(t.Context())
	require.NoError(t, err)

	// One that ends after its first batch, and one that finds a segment gone that was read: retention took it.
	ctx, stop := context.WithCancelCause(t.Context())
	ended := errors.New("ended in the middle")
	first, err := rekey.Rotate(ctx, db, ring, nil, func(pg.Rotation) { stop(ended) })
	require.Error(t, err)
	require.Positive(t, first.Seen)
	require.Less(t, first.Seen, rows, "it was in the middle")
	deleting := &deletingStore{Store: db, s: s, t: t}
	done, err := rekey.Rotate(t.Context(), deleting, ring, nil, func(pg.Rotation) {})
	require.NoError(t, err)
	require.True(t, deleting.deleted)
	require.Equal(t, pg.RotationDone, done.Stage)
	require.Equal(t, rows, done.Seen, "every row was looked at exactly once, over both runs")
	require.EqualValues(t, messages+3, done.Payloads, "the messages, a dead letter, its error, a trace, less the one that is new already")
	require.Zero(t, done.Unreadable)

	_, err = s.DB.Exec(t.Context(), `UPDATE queen.encryption_keys SET used_at = now() - interval '1 hour'`)
	require.NoError(t, err)
	var said strings.Builder
	require.NoError(t, broker.CheckKeys(t.Context(), settings(t, s, both), slog.New(slog.DiscardHandler), &said))
	require.Contains(t, said.String(), "not used any more: it may be removed")
	requireFreshNonces(t, s)
	requireNowhereSealed(t, s, clear)

	// Without the old key everything is there.
	alone := as(t, stack.Serve(t, s.DB.Config().ConnString(), map[string]string{"QUEEN_ENCRYPTION_KEY": keyB}), nil)
	seen := 0
	for batch := alone.pop("secret", "batch=1000&partitions=10&autoAck=true&consumerGroup=later"); len(batch) > 0; batch = alone.pop("secret", "batch=1000&partitions=10&autoAck=true&consumerGroup=later") {
		for _, m := range batch {
			if m.TransactionID != "new" {
				require.Contains(t, string(m.Data), clear)
			}
		}
		seen += len(batch)
	}
	require.Equal(t, messages+1-deleting.messages, seen)
	require.Contains(t, alone.call("GET", "/api/v1/dlq?queue=secret", "").body, `"errorMessage":"`+clear+`"`)
	require.Contains(t, alone.call("GET", "/api/v1/traces/by-name/seen", "").body, clear)
}

// A deletingStore takes a segment away between the moment it is read and the moment it is put back.
type deletingStore struct {
	rekey.Store
	s        *stack.Stack
	t        *testing.T
	deleted  bool
	messages int
}

func (d *deletingStore) StoreRotation(ctx context.Context, before, after pg.Rotation, rows []pg.Resealed) (bool, error) {
	if len(rows) > 0 && !d.deleted && before.Stage == pg.RotateSegments {
		d.deleted = true
		err := d.s.DB.QueryRow(ctx, `DELETE FROM queen.log_segments WHERE partition_id = $1 AND base_offset = $2 RETURNING (end_offset - base_offset + 1)::int`,
			rows[0].Was.ID, rows[0].Was.Offset).Scan(&d.messages)
		require.NoError(d.t, err)
	}
	return d.Store.StoreRotation(ctx, before, after, rows)
}

// requireFreshNonces looks at every envelope in the segments.
func requireFreshNonces(t *testing.T, s *stack.Stack) {
	t.Helper()
	seen := map[string]bool{}
	rewrite(t, s, "secret", func(f *segment.Frame) {
		if !f.Encrypted {
			return
		}
		iv := string(f.Payload[bytes.Index(f.Payload, []byte(`"iv":`)):][:30])
		require.False(t, seen[iv])
		seen[iv] = true
	})
	require.Greater(t, len(seen), 100)
}

func requireNowhereSealed(t *testing.T, s *stack.Stack, words string) {
	t.Helper()
	all := everything(t, s)
	require.NotContains(t, all, words)
	require.NotContains(t, all, fmt.Sprintf("%x", words))
}

func TestKeyCommandsSayWhatTheyCannotDo(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	quiet := slog.New(slog.DiscardHandler)
	var said strings.Builder
	require.ErrorContains(t, broker.CheckKeys(t.Context(), settings(t, s, nil), quiet, &said), "QUEEN_ENCRYPTION_KEY is not set")
	c := as(t, s.URL, nil)
	c.configure("secret", `{"encryptionEnabled":true}`)
	c.mustPush("secret", "a", "1")
	err := broker.RotateKeys(t.Context(), settings(t, s, map[string]string{"QUEEN_ENCRYPTION_KEY": keyB}), quiet, &said)
	require.ErrorContains(t, err, "1 payloads cannot be opened")
	said.Reset()
	both := map[string]string{"QUEEN_ENCRYPTION_KEY": keyB, "QUEEN_ENCRYPTION_KEYS_OLD": keyA}
	require.NoError(t, broker.CheckKeys(t.Context(), settings(t, s, both), quiet, &said))
	require.Contains(t, said.String(), "needed")
	said.Reset()
	require.NoError(t, broker.RotateKeys(t.Context(), settings(t, s, both), quiet, &said))
	require.Contains(t, said.String(), "1 payloads re-encrypted")
	require.Contains(t, said.String(), "a broker encrypted with it in the last five minutes: keep it")
}
