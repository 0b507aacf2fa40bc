package trust

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/segment"
	"queenmq/test/stack"
)

const clear = "the-plain-words-of-the-payload"

// requireNowhere looks for the plain words in every row of every table, inside segments too.
func requireNowhere(t *testing.T, s *stack.Stack, words string) {
	t.Helper()
	all := everything(t, s)
	require.NotContains(t, all, words)
	require.NotContains(t, all, fmt.Sprintf("%x", words), "bytes are shown in hexadecimal")
	rows, err := s.DB.Query(t.Context(), `SELECT blob FROM queen.log_segments`)
	require.NoError(t, err)
	segments := 0
	for rows.Next() {
		var blob []byte
		require.NoError(t, rows.Scan(&blob))
		frames, err := segment.Unpack(blob)
		require.NoError(t, err)
		for i := range frames.Len() {
			require.True(t, frames.At(i).Encrypted)
			require.NotContains(t, string(frames.At(i).Payload), words)
		}
		frames.Release()
		segments++
	}
	require.NoError(t, rows.Err())
	require.Positive(t, segments)
}

func TestEncryptedQueueLeavesNoPlainText(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	c := as(t, s.URL, nil)
	c.configure("secret", `{"encryptionEnabled":true,"retryLimit":0}`)
	c.mustPush("secret", "pushed", `{"words":"`+clear+`"}`)
	done := c.call("POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"secret","transactionId":"moved","payload":"`+clear+`"}]}]}`)
	require.Contains(t, done.body, `"success":true`)

	batch := c.pop("secret", "batch=10")
	require.Len(t, batch, 2)
	require.Equal(t, `{"words":"`+clear+`"}`, string(batch[0].Data), "readers get clear text, byte for byte")
	require.Equal(t, `"`+clear+`"`, string(batch[1].Data))
	traced := c.call("POST", "/api/v1/traces", fmt.Sprintf(`{"transactionId":"pushed","partitionId":%q,"traceNames":["seen"],"data":{"saw":%q,"n":1e400}}`, batch[0].PartitionID, clear))
	require.Equal(t, 201, traced.status, traced.body)
	dead := c.call("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"pushed","partitionId":%q,"leaseId":%q,"status":"dlq","error":"cannot parse %s"}`, batch[0].PartitionID, batch[0].LeaseID, clear))
	require.Contains(t, dead.body, `"dlq":true`)
	batch = c.pop("secret", "batch=10")
	dead = c.call("POST", "/api/v1/transaction", fmt.Sprintf(`{"operations":[{"type":"ack","transactionId":"moved","partitionId":%q,"leaseId":%q,"status":"failed","error":"%s too"}]}`,
		batch[0].PartitionID, batch[0].LeaseID, clear))
	require.Contains(t, dead.body, `"success":true`)
	requireNowhere(t, s, clear)
	everywhere := s.DB.QueryRow(t.Context(), `SELECT count(*) FROM queen.log_dlq WHERE encrypted AND payload_raw IS NOT NULL`)
	var letters int
	require.NoError(t, everywhere.Scan(&letters))
	require.Equal(t, 2, letters)

	// Whoever may read gets it back.
	listed := c.call("GET", "/api/v1/dlq?queue=secret", "").body
	require.Contains(t, listed, `"errorMessage":"cannot parse `+clear+`"`)
	require.Contains(t, listed, `"data":{"words":"`+clear+`"}`)
	require.Contains(t, listed, `"isEncrypted":true`)
	for _, path := range []string{"/api/v1/traces/by-name/seen", "/api/v1/traces/" + batch[0].PartitionID + "/pushed"} {
		require.Contains(t, c.call("GET", path, "").body, `{"saw":"`+clear+`","n":1e400}`, path)
	}

	// A replay brings it back, encrypted all the way, one by one and as a task.
	replayed := c.call("POST", "/api/v1/messages/"+batch[0].PartitionID+"/pushed/retry", "")
	require.Equal(t, 200, replayed.status, replayed.body)
	task := c.call("POST", "/api/v1/dlq/tasks", `{"kind":"redrive","filter":{"queue":"secret"},"destination":{"queue":"open"}}`)
	require.Less(t, task.status, 300, task.body)
	require.Equal(t, `{"words":"`+clear+`"}`, string(c.pop("secret", "")[0].Data))
	require.Eventually(t, func() bool {
		batch = c.pop("open", "")
		return len(batch) == 1
	}, 20*time.Second, 50*time.Millisecond, "what was encrypted stays so in a queue that does not demand it")
	require.Equal(t, `"`+clear+`"`, string(batch[0].Data))
	requireNowhere(t, s, clear)
	require.NotContains(t, c.call("GET", "/metrics/prometheus", "").body, clear)
}

func TestWithoutAKeyAnEncryptedQueueRefuses(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	keyless := as(t, stack.Serve(t, s.DB.Config().ConnString()), nil)
	c := as(t, s.URL, nil)
	c.configure("secret", `{"encryptionEnabled":true}`)
	c.mustPush("secret", "a", `"`+clear+`"`)

	for range 2 { // with a cold cache and a warm one
		a := keyless.push("secret", "b", `"`+clear+`"`)
		require.Equal(t, 503, a.status, a.body)
		require.Contains(t, a.body, "encryption_key_missing")
	}
	a := keyless.call("POST", "/api/v1/push", `{"items":[{"queue":"secret","payload":"`+clear+`"},{"queue":"open","payload":1}]}`)
	require.Equal(t, 201, a.status)
	require.Contains(t, a.body, `"code":"encryption_key_missing"`)
	require.Contains(t, a.body, `"status":"queued"`, "other queues go on")
	a = keyless.call("POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"secret","payload":"`+clear+`"}]}]}`)
	require.Equal(t, 503, a.status, a.body)
	for _, parameters := range []string{"", "autoAck=true"} {
		a = keyless.call("GET", "/api/v1/pop/queue/secret?"+parameters, "")
		require.Equal(t, 503, a.status, a.body)
		require.Contains(t, a.body, "encryption_key_missing")
	}
	batch := c.pop("secret", "batch=10")
	require.Len(t, batch, 1, "nothing was acknowledged and nothing stays leased")
	require.Equal(t, `"`+clear+`"`, string(batch[0].Data))
}

func TestKeysRotate(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	before := as(t, s.URL, nil)
	before.configure("secret", `{"encryptionEnabled":true}`)
	before.mustPush("secret", "old", `"old"`)
	after := as(t, stack.Serve(t, s.DB.Config().ConnString(), map[string]string{"QUEEN_ENCRYPTION_KEY": keyB, "QUEEN_ENCRYPTION_KEYS_OLD": keyA}), nil)
	after.mustPush("secret", "new", `"new"`)
	batch := after.pop("secret", "batch=10&consumerGroup=rotated")
	require.Len(t, batch, 2)
	require.Equal(t, []string{`"old"`, `"new"`}, []string{string(batch[0].Data), string(batch[1].Data)})
	batch = before.pop("secret", "batch=10&consumerGroup=behind")
	require.Len(t, batch, 1)
	require.Equal(t, `"old"`, string(batch[0].Data))
	a := before.call("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"old","partitionId":%q,"leaseId":%q,"status":"completed","consumerGroup":"behind"}`, batch[0].PartitionID, batch[0].LeaseID))
	require.Contains(t, a.body, `"success":true`)
	for _, parameters := range []string{"consumerGroup=behind", "consumerGroup=behind&autoAck=true"} {
		a = before.call("GET", "/api/v1/pop/queue/secret?"+parameters, "")
		require.Equal(t, 503, a.status, "the broker lacks a key that others have: the message is not at fault")
		require.Contains(t, a.body, "encryption_key_missing")
	}
	require.Equal(t, `"new"`, string(after.pop("secret", "consumerGroup=behind")[0].Data))
	require.NotContains(t, before.call("GET", "/api/v1/dlq", "").body, "transactionId")
}

// A payload that somebody shaped like an envelope is a payload, not something to decrypt.
func TestLookalikesAreReturnedUnchanged(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	sniffing := as(t, stack.Serve(t, s.DB.Config().ConnString(), map[string]string{"QUEEN_ENCRYPTION_KEY": keyA, "QUEEN_ENCRYPTION_SNIFF": "true"}), nil)
	c := as(t, s.URL, nil)
	const envelope = `{"encrypted":"PCC4Of/Uvw==","iv":"AAECAwQFBgcICQoLDA0ODw==","authTag":"nC7+pk5gtDf6uERqsDtuOw=="}`
	c.mustPush("open", "a", envelope)
	require.Equal(t, envelope, string(c.pop("open", "consumerGroup=one")[0].Data), "the broker is no decryption oracle")
	require.Equal(t, `{"n":1}`, string(sniffing.pop("open", "consumerGroup=two")[0].Data), "unless it is told to be one")
}

// Producers push through two brokers while the queue comes to demand encryption through one of them. From the moment the
// configuration is answered no payload is stored in plain text, also by the broker that still believes otherwise.
func TestNoPlainTextAfterTheSwitch(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	brokers := []*caller{as(t, s.URL, nil), as(t, stack.Serve(t, s.DB.Config().ConnString(), map[string]string{"QUEEN_ENCRYPTION_KEY": keyA}), nil)}
	for i, b := range brokers {
		b.mustPush("secret", fmt.Sprintf("warm-%d", i), `"before"`) // both brokers know the queue as a plain one
	}
	stop := make(chan struct{})
	var producers sync.WaitGroup
	for i, b := range brokers {
		for p := range 4 {
			producers.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					id := fmt.Sprintf("%d-%d-%d", i, p, n)
					a := b.call("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":"secret","partition":"p%d","transactionId":%q,"payload":"before"}]}`, p, id))
					if a.status != http.StatusCreated || !strings.Contains(a.body, `"queued"`) {
						t.Errorf("push %s: %d %s", id, a.status, a.body)
						return
					}
				}
			})
		}
	}
	brokers[0].configure("secret", `{"encryptionEnabled":true}`)
	// Every message pushed from here on is named so.
	for n := range 50 {
		for i, b := range brokers {
			b.mustPush("secret", fmt.Sprintf("after-%d-%d", i, n), `"`+clear+`"`)
			done := b.call("POST", "/api/v1/transaction", fmt.Sprintf(
				`{"operations":[{"type":"push","items":[{"queue":"secret","transactionId":"moved-%d-%d","payload":%q}]}]}`, i, n, clear))
			require.Contains(t, done.body, `"success":true`, done.body)
		}
	}
	close(stop)
	producers.Wait()

	rows, err := s.DB.Query(t.Context(), `SELECT blob FROM queen.log_segments`)
	require.NoError(t, err)
	after := 0
	for rows.Next() {
		var blob []byte
		require.NoError(t, rows.Scan(&blob))
		frames, err := segment.Unpack(blob)
		require.NoError(t, err)
		for i := range frames.Len() {
			f := frames.At(i)
			if strings.HasPrefix(f.TransactionID, "after-") || strings.HasPrefix(f.TransactionID, "moved-") {
				after++
				require.True(t, f.Encrypted, f.TransactionID)
				require.NotContains(t, string(f.Payload), clear)
			}
		}
		frames.Release()
	}
	require.NoError(t, rows.Err())
	require.Equal(t, 200, after)
	require.NotContains(t, everything(t, s), clear)
	deadline := time.Now().Add(time.Minute)
	seen := 0
	for seen < 200 && time.Now().Before(deadline) {
		for _, m := range brokers[1].pop("secret", "batch=1000&partitions=10&autoAck=true&consumerGroup=g&subscriptionMode=all") {
			if strings.HasPrefix(m.TransactionID, "after-") || strings.HasPrefix(m.TransactionID, "moved-") {
				require.Equal(t, `"`+clear+`"`, string(m.Data))
				seen++
			}
		}
	}
	require.Equal(t, 200, seen)
}

func TestMessageReadsAndStreamsOfAnEncryptedQueue(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_ENCRYPTION_KEY": keyA})
	c := as(t, s.URL, nil)
	c.configure("secret", `{"encryptionEnabled":true,"retryLimit":0}`)
	c.mustPush("secret", "a", `"`+clear+`"`)
	m := c.pop("secret", "")[0]
	detail := c.call("GET", "/api/v1/messages/"+m.PartitionID+"/a", "")
	require.Equal(t, 200, detail.status, detail.body)
	require.Contains(t, detail.body, clear)
	require.Contains(t, detail.body, `"isEncrypted":true`)

	// A dead letter keeps the envelope, is listed in clear for who has the key, and a replay never becomes plain text.
	dead := c.call("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"a","partitionId":%q,"leaseId":%q,"status":"dlq"}`, m.PartitionID, m.LeaseID))
	require.Contains(t, dead.body, `"dlq":true`)
	keyless := as(t, stack.Serve(t, s.DB.Config().ConnString()), nil)
	require.NotContains(t, keyless.call("GET", "/api/v1/dlq", "").body, clear)
	require.Contains(t, c.call("GET", "/api/v1/dlq", "").body, clear)
	replayed := keyless.call("POST", "/api/v1/messages/"+m.PartitionID+"/a/retry", "")
	require.Equal(t, 200, replayed.status, "the envelope goes on as it is: %s", replayed.body)
	require.Equal(t, `"`+clear+`"`, string(c.pop("secret", "")[0].Data))

	registered := c.call("POST", "/streams/v1/queries", `{"name":"s","source_queue":"source","sink_queue":"secret","config_hash":"h"}`)
	require.Equal(t, 200, registered.status, registered.body)
	var query struct {
		ID string `json:"query_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(registered.body), &query))
	c.mustPush("source", "in", `1`)
	in := c.pop("source", "consumerGroup=streams")[0]
	done := c.call("POST", "/streams/v1/cycle", fmt.Sprintf(
		`{"query_id":%q,"partition_id":%q,"consumer_group":"streams","push_items":[{"queue":"secret","partition":"out","transactionId":"sunk","payload":%q}],"ack":{"transactionId":"in","leaseId":%q,"status":"completed"}}`,
		query.ID, in.PartitionID, clear, in.LeaseID))
	require.Equal(t, 200, done.status, done.body)
	require.Contains(t, done.body, `"success": true`)
	require.NotContains(t, everything(t, s), clear)
	out := c.call("GET", "/api/v1/pop/queue/secret/partition/out", "")
	require.Contains(t, out.body, clear)
	var stored []byte
	require.NoError(t, s.DB.QueryRow(t.Context(), `SELECT s.blob FROM queen.log_segments s JOIN queen.log_partitions p ON p.id = s.partition_id WHERE p.name = 'out'`).Scan(&stored))
	frames, err := segment.Unpack(stored)
	require.NoError(t, err)
	defer frames.Release()
	require.True(t, frames.At(0).Encrypted)
}
