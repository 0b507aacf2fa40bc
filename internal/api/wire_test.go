package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// message is what clients read of a delivered message.
type message struct {
	ID            string          `json:"id"`
	TransactionID string          `json:"transactionId"`
	TraceID       *string         `json:"traceId"`
	Data          json.RawMessage `json:"data"`
	ProducerSub   *string         `json:"producerSub"`
	CreatedAt     time.Time       `json:"createdAt"`
	PartitionID   string          `json:"partitionId"`
	Partition     string          `json:"partition"`
	LeaseID       string          `json:"leaseId"`
	ConsumerGroup string          `json:"consumerGroup"`
	Queue         string          `json:"queue"`
}

type popAnswer struct {
	Success           bool      `json:"success"`
	Queue             string    `json:"queue"`
	Partition         string    `json:"partition"`
	PartitionID       string    `json:"partitionId"`
	LeaseID           string    `json:"leaseId"`
	ConsumerGroup     string    `json:"consumerGroup"`
	PartitionsClaimed int       `json:"partitionsClaimed"`
	Messages          []message `json:"messages"`
}

// read decodes the body of an answer with the expected status.
func read[T any](t *testing.T, answer exchange, status int) T {
	t.Helper()
	require.Equal(t, status, answer.status, "body: %s", answer.body)
	var value T
	require.NoError(t, json.Unmarshal([]byte(answer.body), &value), "body: %s", answer.body)
	return value
}

func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// segmentOf escapes a name for a path.
func segmentOf(name string) string { return strings.ReplaceAll(url.PathEscape(name), ".", "%2E") }

func TestWire(t *testing.T) {
	t.Parallel()
	server := broker(t, testdb.New(t))

	t.Run("RoundTripsOfEveryKindAreMeasured", func(t *testing.T) {
		t.Parallel()
		call(t, server, "POST", "/api/v1/push", `{"items":[{"queue":"timed","transactionId":"t","payload":1}]}`)
		popped := read[popAnswer](t, call(t, server, "GET", "/api/v1/pop/queue/timed", ""), 200).Messages[0]
		acked := call(t, server, "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"t","partitionId":%q,"leaseId":%q}`, popped.PartitionID, popped.LeaseID))
		require.Contains(t, acked.body, `"success":true`)
		page := call(t, server, "GET", "/metrics/prometheus", "").body
		for _, op := range []string{"push", "pop", "ack"} {
			for _, quantile := range []string{"0.5", "0.99"} {
				require.Regexp(t, fmt.Sprintf(`(?m)^queen_batch_rtt_milliseconds\{op="%s",quantile="%s"\} [0-9.]*[1-9]`, op, quantile), page)
			}
		}
	})

	t.Run("PayloadBytesComeBackIdentical", func(t *testing.T) {
		t.Parallel()
		payloads := []string{
			`null`, `true`, `""`, `0`, `-0`, `-0.0`, `1E400`, `1e-400`, `123456789012345678901234567890123456789`, `0.1000000000000000055511151231257827`,
			`{"b":1,"a":2}`, `{"a":1,"a":2}`, `{"":{}}`, "{ \"a\" :\n\t[ 1 , 2 ] }", `"\u0000"`, `"\ud800"`, `"\udc00\ud800"`, `"\u00e9 é \/ \b\f\n\r\t"`,
			`"\"\\"`, `"<script>&\u2028"`, "\"\u2028\u2029\U0001F600\"", `[[[[]]],{},[{}]]`, strings.Repeat("[", 500) + strings.Repeat("]", 500), quoted(strings.Repeat("x", 300_000)),
		}
		var items []string
		for i, payload := range payloads {
			items = append(items, fmt.Sprintf(`{"queue":"payloads","transactionId":"t%d","payload": %s }`, i, payload))
		}
		body := `{"items":[` + strings.Join(items, ",") + `]}`
		verdicts := read[[]map[string]any](t, call(t, server, "POST", "/api/v1/push", body), 201)
		require.Len(t, verdicts, len(payloads))
		answer := call(t, server, "GET", "/api/v1/pop/queue/payloads", "")
		popped := read[popAnswer](t, answer, 200)
		require.Len(t, popped.Messages, len(payloads))
		for i, m := range popped.Messages {
			require.Equal(t, fmt.Sprint("t", i), m.TransactionID)
			require.Equal(t, verdicts[i]["message_id"], m.ID)
			require.Equal(t, payloads[i], string(m.Data))
			if i > 0 {
				require.Less(t, popped.Messages[i-1].ID, m.ID, "ids grow in offset order")
			}
		}
		require.Equal(t, fmt.Sprint(len(answer.body)), answer.header.Get("Content-Length"))

		// The same through a transaction.
		var operations []string
		for i, payload := range payloads {
			operations = append(operations, fmt.Sprintf(`{"type":"push","items":[{"queue":"payloads2","transactionId":"t%d","payload":%s}]}`, i, payload))
		}
		committed := read[map[string]any](t, call(t, server, "POST", "/api/v1/transaction", `{"operations":[`+strings.Join(operations, ",")+`]}`), 200)
		require.Equal(t, true, committed["success"], "%v", committed)
		popped = read[popAnswer](t, call(t, server, "GET", "/api/v1/pop/queue/payloads2", ""), 200)
		for i, m := range popped.Messages {
			require.Equal(t, payloads[i], string(m.Data))
		}
		require.Len(t, popped.Messages, len(payloads))
	})

	t.Run("OddNamesGoThroughEveryRoute", func(t *testing.T) {
		t.Parallel()
		for _, name := range oddNames {
			queue, group := "odd "+name, "g"+name
			if len(name) > 200 { // 255 characters already
				queue, group = name, name
			}
			path := segmentOf(queue)
			configured := read[map[string]any](t, call(t, server, "POST", "/api/v1/configure", `{"queue":`+quoted(queue)+`,"options":{"leaseTime":90}}`), 200)
			require.Equal(t, queue, configured["queue"])
			body := fmt.Sprintf(`{"items":[{"queue":%s,"partition":%s,"transactionId":%s,"payload":1}]}`, quoted(queue), quoted(name), quoted("t"+name))
			verdict := read[[]map[string]any](t, call(t, server, "POST", "/api/v1/push", body), 201)[0]
			require.Equal(t, "queued", verdict["status"], "%v", verdict)
			require.Equal(t, queue, verdict["queueName"])
			require.Equal(t, "t"+name, verdict["transaction_id"])
			query := "?subscriptionMode=all&consumerGroup=" + url.QueryEscape(group)
			popped := read[popAnswer](t, call(t, server, "GET", "/api/v1/pop/queue/"+path+query, ""), 200)
			require.Equal(t, []string{queue, name, group}, []string{popped.Queue, popped.Partition, popped.ConsumerGroup})
			m := popped.Messages[0]
			require.Equal(t, []string{queue, name, group, "t" + name}, []string{m.Queue, m.Partition, m.ConsumerGroup, m.TransactionID})
			renewed := read[map[string]any](t, call(t, server, "POST", "/api/v1/lease/"+m.LeaseID+"/extend", ""), 200)
			require.Equal(t, true, renewed["success"])
			acked := read[[]map[string]any](t, call(t, server, "POST", "/api/v1/ack/batch", fmt.Sprintf(`{"consumerGroup":%s,"acknowledgments":[{"transactionId":%s,"partitionId":%s,"leaseId":%s}]}`,
				quoted(group), quoted(m.TransactionID), quoted(m.PartitionID), quoted(m.LeaseID))), 200)[0]
			require.Equal(t, []any{true, queue, name, "t" + name}, []any{acked["success"], acked["queueName"], acked["partitionName"], acked["transactionId"]}, "%v", acked)
			specific := read[popAnswer](t, call(t, server, "GET", "/api/v1/pop/queue/"+path+"/partition/"+segmentOf(name)+"?autoAck=true", ""), 200)
			require.Equal(t, []string{queue, name, "", ""}, []string{specific.Queue, specific.Partition, specific.LeaseID, specific.Messages[0].LeaseID})
			deleted := read[map[string]any](t, call(t, server, "DELETE", "/api/v1/resources/queues/"+path, ""), 200)
			require.Equal(t, []any{true, true, queue}, []any{deleted["deleted"], deleted["existed"], deleted["queue"]})
			deleted = read[map[string]any](t, call(t, server, "DELETE", "/api/v1/resources/queues/"+path, ""), 200)
			require.Equal(t, false, deleted["existed"])
		}
	})

	t.Run("PopShape", func(t *testing.T) {
		t.Parallel()
		before := time.Now().Add(-time.Minute)
		push := call(t, server, "POST", "/api/v1/push", `{"items":[{"queue":"shape.task","partition":"","transactionId":"a","traceId":"`+traceText+`","payload":{"x":1},"producerSub":"forged"},{"queue":"shape.task","payload":2}]}`)
		verdicts := read[[]map[string]any](t, push, 201)
		require.Equal(t, traceText, verdicts[0]["trace_id"])
		require.Equal(t, verdicts[1]["message_id"], verdicts[1]["transaction_id"], "without an id the message id stands in")
		popped := read[popAnswer](t, call(t, server, "GET", "/api/v1/pop/queue/shape.task?partitions=0&consumerGroup=g&subscriptionMode=all", ""), 200)
		require.Equal(t, 2, popped.PartitionsClaimed)
		require.Len(t, popped.Messages, 2)
		require.NotEmpty(t, popped.LeaseID)
		for _, m := range popped.Messages {
			require.Equal(t, popped.LeaseID, m.LeaseID)
			require.Nil(t, m.ProducerSub)
			require.True(t, m.CreatedAt.After(before))
			require.NoError(t, uuid.Validate(m.PartitionID))
		}
		require.Equal(t, popped.PartitionID, popped.Messages[0].PartitionID)
		found := read[popAnswer](t, call(t, server, "GET", "/api/v1/pop?namespace=shape&task=task&partitions=5", ""), 200)
		require.Empty(t, found.Queue)
		require.Len(t, found.Messages, 2)
		require.Equal(t, "shape.task", found.Messages[0].Queue)
		require.Equal(t, 204, call(t, server, "GET", "/api/v1/pop?namespace=shape&task=other", "").status)
	})

	t.Run("PushRepeatedIsDuplicate", func(t *testing.T) {
		t.Parallel()
		body := `{"items":[{"queue":"dup","transactionId":"a","payload":1},{"queue":"dup","transactionId":"a","payload":2}]}`
		first := read[[]map[string]any](t, call(t, server, "POST", "/api/v1/push", body), 201)
		require.Equal(t, []any{"queued", "duplicate"}, []any{first[0]["status"], first[1]["status"]})
		again := read[[]map[string]any](t, call(t, server, "POST", "/api/v1/push", body), 201)
		for _, verdict := range again {
			require.Equal(t, []any{"duplicate", first[0]["message_id"]}, []any{verdict["status"], verdict["message_id"]})
		}
	})

	t.Run("AckOutcomes", func(t *testing.T) {
		t.Parallel()
		call(t, server, "POST", "/api/v1/push", `{"items":[{"queue":"acks","transactionId":"a","payload":1},{"queue":"acks","transactionId":"b","payload":1}]}`)
		popped := read[popAnswer](t, call(t, server, "GET", "/api/v1/pop/queue/acks", ""), 200)
		ack := func(txn, partition, lease string) map[string]any {
			return read[[]map[string]any](t, call(t, server, "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%s,"partitionId":%s,"leaseId":%s,"consumerGroup":null,"error":null}`, quoted(txn), quoted(partition), quoted(lease))), 200)[0]
		}
		require.Equal(t, "invalid or expired lease", ack("a", popped.PartitionID, uuid.NewString())["error"])
		require.Equal(t, false, ack("a", "not a uuid", popped.LeaseID)["success"])
		require.Equal(t, false, ack("a", "", popped.LeaseID)["success"])
		require.Contains(t, ack("zzz", popped.PartitionID, popped.LeaseID)["error"], "unresolvable: ")
		require.Equal(t, false, ack("a", popped.PartitionID, "nul\x00lease")["success"])
		done := ack("b", popped.PartitionID, popped.LeaseID)
		require.Equal(t, []any{true, true, nil, "acks"}, []any{done["success"], done["leaseReleased"], done["error"], done["queueName"]}, "%v", done)
		again := ack("b", popped.PartitionID, "")
		require.Equal(t, []any{true, true}, []any{again["success"], again["noop"]}, "%v", again)
	})

	t.Run("TransactionMovesAMessage", func(t *testing.T) {
		t.Parallel()
		call(t, server, "POST", "/api/v1/push", `{"items":[{"queue":"from","transactionId":"a","payload":1}]}`)
		popped := read[popAnswer](t, call(t, server, "GET", "/api/v1/pop/queue/from", ""), 200)
		body := fmt.Sprintf(`{"operations":[{"type":"push","items":[{"queue":"to","transactionId":"moved","payload":{"n":1}}]},{"type":"ack","transactionId":"a","partitionId":%s}],"requiredLeases":[%s]}`, quoted(popped.PartitionID), quoted(popped.LeaseID))
		committed := read[map[string]any](t, call(t, server, "POST", "/api/v1/transaction", body), 200)
		require.Equal(t, true, committed["success"], "%v", committed)
		require.Len(t, committed["results"], 2)
		again := read[map[string]any](t, call(t, server, "POST", "/api/v1/transaction", body), 200)
		require.Equal(t, false, again["success"])
		require.Contains(t, again["error"], "QDUP duplicate messages in queue \"to\" partition \"Default\"; transaction rolled back")
		require.Equal(t, 204, call(t, server, "GET", "/api/v1/pop/queue/from", "").status)
		require.Len(t, read[popAnswer](t, call(t, server, "GET", "/api/v1/pop/queue/to?batch=10", ""), 200).Messages, 1)
	})

	t.Run("ConfigureShape", func(t *testing.T) {
		t.Parallel()
		answer := read[map[string]any](t, call(t, server, "POST", "/api/v1/configure", `{"queue":"conf","namespace":null,"task":null,"options":{"leaseTime":30,"retentionEnabled":true,"noSuchOption":1,"priority":5}}`), 200)
		require.Equal(t, []any{true, "conf", "segments", nil}, []any{answer["configured"], answer["queue"], answer["storage"], answer["partitionId"]}, "%v", answer)
		options, ok := answer["options"].(map[string]any)
		require.True(t, ok)
		require.Equal(t, []any{30.0, true, 3600.0}, []any{options["leaseTime"], options["retentionEnabled"], options["dedupWindowSeconds"]})
		require.Contains(t, answer["ignored"], "noSuchOption")
		require.Contains(t, answer["notApplied"], "priority")
		answer = read[map[string]any](t, call(t, server, "POST", "/api/v1/configure", `{"queue":"conf","retryLimit":7}`), 200)
		options, ok = answer["options"].(map[string]any)
		require.True(t, ok)
		require.Equal(t, []any{30.0, 7.0}, []any{options["leaseTime"], options["retryLimit"]}, "absent options keep their values")
		refused := call(t, server, "POST", "/api/v1/configure", `{"queue":"conf","strict":true,"options":{"noSuchOption":1}}`)
		require.Equal(t, 400, refused.status)
		require.Contains(t, refused.body, "noSuchOption")
		refused = call(t, server, "POST", "/api/v1/configure", `{"queue":"conf","options":{"leaseTime":"soon"}}`)
		require.Equal(t, 400, refused.status)
		require.Contains(t, refused.body, "leaseTime")
		require.Contains(t, refused.body, `"code":"invalid_option"`)
		require.Equal(t, 400, call(t, server, "POST", "/api/v1/configure", `{"queue":"conf","options":{"x":"\u0000"}}`).status)
	})

	t.Run("BoundedQueueRefusesWithItsDepth", func(t *testing.T) {
		t.Parallel()
		call(t, server, "POST", "/api/v1/configure", `{"queue":"bounded","options":{"maxSize":1}}`)
		first := read[[]map[string]any](t, call(t, server, "POST", "/api/v1/push", `{"items":[{"queue":"bounded","payload":1}]}`), 201)[0]
		require.Equal(t, []any{"queued", 1.0, 0.0}, []any{first["status"], first["queueDepth"], first["remainingCapacity"]}, "%v", first)
		second := read[[]map[string]any](t, call(t, server, "POST", "/api/v1/push", `{"items":[{"queue":"bounded","payload":1}]}`), 201)[0]
		require.Equal(t, []any{"failed", "QUEUE_FULL", "Queue 'bounded' is full. Max capacity reached.", 1.0, 0.0},
			[]any{second["status"], second["code"], second["error"], second["queueDepth"], second["remainingCapacity"]}, "%v", second)
	})

	t.Run("LongPollIsWokenByAPush", func(t *testing.T) {
		t.Parallel()
		var wait sync.WaitGroup
		defer wait.Wait()
		answered := make(chan exchange, 1)
		wait.Go(func() { answered <- call(t, server, "GET", "/api/v1/pop/queue/long?wait=true&timeout=20000", "") })
		require.Eventually(t, func() bool {
			return strings.Contains(call(t, server, "GET", "/metrics/prometheus", "").body, "queen_parked_long_polls{queue=\"long\"} 1\n")
		}, 10*time.Second, 5*time.Millisecond)
		call(t, server, "POST", "/api/v1/push", `{"items":[{"queue":"long","payload":1}]}`)
		require.Len(t, read[popAnswer](t, <-answered, 200).Messages, 1)
	})

	t.Run("ManyPushersShareRecycledBodies", func(t *testing.T) {
		t.Parallel()
		const pushers, rounds = 8, 20
		var wait sync.WaitGroup
		for p := range pushers {
			wait.Go(func() {
				for round := range rounds {
					var body bytes.Buffer
					body.WriteString(`{"items":[`)
					for i := range 1 + round%5 {
						if i > 0 {
							body.WriteByte(',')
						}
						fmt.Fprintf(&body, `{"queue":"shared","partition":"p%d","transactionId":"%d-%d-%d","payload":"%d-%d-%d"}`, p%3, p, round, i, p, round, i)
					}
					body.WriteString(`]}`)
					for _, verdict := range read[[]map[string]any](t, call(t, server, "POST", "/api/v1/push", body.String()), 201) {
						require.Equal(t, "queued", verdict["status"])
					}
				}
			})
		}
		wait.Wait()
		seen := 0
		for {
			answer := call(t, server, "GET", "/api/v1/pop/queue/shared?partitions=0&autoAck=true&batch=10000", "")
			if answer.status == 204 {
				break
			}
			for _, m := range read[popAnswer](t, answer, 200).Messages {
				require.Equal(t, quoted(m.TransactionID), string(m.Data), "a payload of another message")
				seen++
			}
		}
		require.Equal(t, pushers*rounds*3, seen)
	})
}

// While the database is away every route says so with a 503 that clients repeat, and works again afterwards.
func TestWireWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	postgres := testdb.StartServer(t, testdb.ServerOptions{})
	database := testdb.OnServer(postgres, "postgres")
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 2})
	require.NoError(t, err)
	require.NoError(t, db.ApplySchema(t.Context()))
	db.Close()
	server := broker(t, database)
	const body = `{"items":[{"queue":"q","transactionId":"a","payload":1}]}`
	require.Equal(t, 200, call(t, server, "GET", "/health", "").status)
	require.Equal(t, 200, call(t, server, "GET", "/readyz", "").status)
	postgres.Stop(t, "immediate")
	for _, request := range [][3]string{
		{"POST", "/api/v1/push", body},
		{"GET", "/api/v1/pop/queue/q", ""},
		{"GET", "/api/v1/pop/queue/q/partition/p?wait=true&timeout=100", ""},
		{"GET", "/api/v1/pop?task=t", ""},
		{"POST", "/api/v1/transaction", `{"operations":[{"type":"push","queue":"q","payload":1}]}`},
		{"POST", "/api/v1/lease/l/extend", ""},
		{"POST", "/api/v1/configure", `{"queue":"q"}`},
		{"DELETE", "/api/v1/resources/queues/q", ""},
	} {
		answer := call(t, server, request[0], request[1], request[2])
		require.Equal(t, 503, answer.status, "%v: %s", request, answer.body)
		require.Contains(t, answer.body, `"code":"database_unavailable"`, "%v", request)
		require.Equal(t, "1", answer.header.Get("Retry-After"))
	}
	acked := call(t, server, "POST", "/api/v1/ack", `{"transactionId":"a","partitionId":"`+uuid.NewString()+`"}`)
	require.Equal(t, 200, acked.status)
	require.Contains(t, acked.body, `"success":false`)
	require.Equal(t, 503, call(t, server, "GET", "/health", "").status)
	require.Equal(t, 503, call(t, server, "GET", "/readyz", "").status)
	require.Equal(t, 200, call(t, server, "GET", "/livez", "").status)
	require.Equal(t, 200, call(t, server, "GET", "/metrics/prometheus", "").status)
	postgres.Start(t)
	require.Eventually(t, func() bool { return call(t, server, "GET", "/health", "").status == 200 }, 30*time.Second, 20*time.Millisecond)
	require.Eventually(t, func() bool {
		answer := call(t, server, "POST", "/api/v1/push", body)
		return answer.status == 201 && strings.Contains(answer.body, `"queued"`)
	}, 30*time.Second, 20*time.Millisecond)
}
