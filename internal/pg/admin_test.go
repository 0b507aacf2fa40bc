package pg_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

var (
	anyUUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	anyTime = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
)

// shape is an answer with ids and times replaced by <id> and <time>; its members are in jsonb order.
func shape(t testing.TB, answer json.RawMessage, err error) string {
	t.Helper()
	require.NoError(t, err)
	require.True(t, json.Valid(answer), "%s", answer)
	return anyTime.ReplaceAllString(anyUUID.ReplaceAllString(string(answer), "<id>"), "<time>")
}

// kolkata is setup with sessions at +05:30: no answer may depend on the zone.
func kolkata(t testing.TB) (*pg.DB, *testdb.Database) {
	t.Helper()
	database := testdb.New(t, testdb.TimeZone("Asia/Kolkata"))
	return open(t, database.ConnString()), database
}

func exec(t testing.TB, database *testdb.Database, sql string, args ...any) {
	t.Helper()
	_, err := database.Pool(t).Exec(context.Background(), sql, args...)
	require.NoError(t, err)
}

// deadLetter files the first leased message of partition "p" of queue "q" and returns its partition.
func deadLetter(t testing.TB, db *pg.DB, group, worker, id, reason string, offset int64, partition uuid.UUID) uuid.UUID {
	t.Helper()
	result, err := db.FileDeadLetter(t.Context(), pg.DeadLetter{
		PartitionID: partition, Group: group, Worker: worker, Offset: offset, TransactionID: id,
		MessageID: uuid.NullUUID{UUID: uuid.New(), Valid: true}, Payload: []byte(`{"big":12345678901234567890, "a" : 1}`), Error: reason,
	})
	require.NoError(t, err)
	require.True(t, result.OK, result.Error)
	return result.ID
}

// One queue with two partitions: p has three messages, of which group g has consumed one, holds one and has one before it; r has
// one that nobody has read.
func consumed(t testing.TB, db *pg.DB) (p, r uuid.UUID) {
	t.Helper()
	configure(t, db, "q", `{"namespace":"ns","task":"tk","leaseTime":30,"maxSize":10}`)
	p = push(t, db, segment("q", "p", "1", "2")).PartitionID
	push(t, db, segment("q", "p", "3"))
	r = push(t, db, segment("q", "r", "4")).PartitionID
	request := popRequest("q", "w")
	request.Partition, request.Budget = "p", 1
	_, err := db.PopSpecific(t.Context(), request)
	require.NoError(t, err)
	_, err = db.AckByHash(t.Context(), pg.HashAck{PartitionID: p, Group: "g", Worker: "w", Hashes: hashesOf("1"), Statuses: []string{"completed"}})
	require.NoError(t, err)
	_, err = db.PopSpecific(t.Context(), request)
	require.NoError(t, err)
	return p, r
}

// The shapes are those of the wire.
func TestManagementShapes(t *testing.T) {
	t.Parallel()
	db, _ := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	p, _ := consumed(t, db)
	raw := func(answer json.RawMessage, err error) string { t.Helper(); return shape(t, answer, err) }

	const figures = `{"total":3,"failed":null,"pending":2,"completed":1,"deadLetter":0,"processing":1}`
	detail := raw(db.QueueDetail(ctx, tenant, "q", pg.PartitionPage{}))
	require.Contains(t, detail, `"queue":{"id":"<id>","name":"q","task":"tk","config":{"ttl":3600,"leaseTime":30,"retryDelay":1000,"retryLimit":3,"maxQueueSize":10,"deadLetterQueue":true},"priority":0,"createdAt":"<time>","namespace":"ns"}`)
	require.Contains(t, detail, `{"id":"<id>","dlq":0,"name":"p","stats":`+figures+`,"cursor":{"totalConsumed":1,"batchesConsumed":0},"pending":2,"messages":`+figures+`,"completed":1,"createdAt":"<time>","processing":1,"lastActivity":"<time>","newestMessage":"<time>","oldestMessage":"<time>"}`)
	require.Contains(t, detail, `"totals":{"messages":{"total":4,"failed":null,"pending":3,"completed":1,"deadLetter":0,"processing":1}}`)
	summary := raw(db.QueueSummary(ctx, tenant, "q", pg.PartitionPage{}))
	require.Contains(t, summary, `"totals":{"total":4,"failed":null,"pending":3,"completed":1,"deadLetter":0,"processing":1}`)
	require.Contains(t, summary, `"maxSize":10`)
	require.Contains(t, summary, `"queueDepth":3,`)
	require.Contains(t, summary, `"remainingCapacity":7`)
	require.Contains(t, summary, `"segments":{"messages":4,"segments":3}`)
	require.Contains(t, summary, `{"id":"<id>","name":"p","stats":`+figures+`,"createdAt":"<time>","newestMessage":"<time>","oldestMessage":"<time>"}`)
	require.JSONEq(t, `{"error":"Queue not found"}`, raw(db.QueueSummary(ctx, uuid.New(), "q", pg.PartitionPage{})))
	require.JSONEq(t, `{"error":"Queue not found"}`, raw(db.QueueDetail(ctx, tenant, "none", pg.PartitionPage{})))

	require.JSONEq(t, `[{"name":"g","topics":["q"],"queueName":"q","members":1,"partitionCursors":1,"partitionsWithLag":1,"totalLag":2,"maxTimeLag":0,"queue":"q","lagMessages":2,"lagSeconds":0,
		"state":"Stable","storage":"segments","subscriptionMode":null,"subscriptionTimestamp":null,"subscriptionCreatedAt":null}]`, raw(db.ConsumerGroups(ctx, tenant)))
	require.JSONEq(t, `{"q":{"partitions":[{"partition":"p","workerId":"w","lastConsumedAt":null,"totalConsumed":1,"offsetLag":2,"timeLagSeconds":0,"leaseActive":true}]}}`,
		raw(db.ConsumerGroupDetails(ctx, tenant, "g")))
	require.JSONEq(t, `{}`, raw(db.ConsumerGroupDetails(ctx, tenant, "none")))
	require.JSONEq(t, `[]`, raw(db.LaggingPartitions(ctx, tenant, 0)), "strictly more than the minimum")
	require.JSONEq(t, `[]`, raw(db.ConsumerGroups(ctx, uuid.New())))
	require.JSONEq(t, `{"queues":[{"queue":"q","maxSize":10,"queueDepth":3,"remainingCapacity":7,"full":false}]}`, raw(db.QueueCapacity(ctx, tenant, pg.QueueFilter{})))
	require.JSONEq(t, `{"queue":"q","group":null,"depth":3,"partitions":[{"partition":"p","partitionId":"<id>","depth":2},{"partition":"r","partitionId":"<id>","depth":1}]}`,
		raw(db.QueueDepth(ctx, tenant, "q", "")))
	require.JSONEq(t, `{"queue":"q","group":"h","depth":4,"partitions":[{"partition":"p","partitionId":"<id>","depth":3},{"partition":"r","partitionId":"<id>","depth":1}]}`,
		raw(db.QueueDepth(ctx, tenant, "q", "h")))

	leases := raw(db.Leases(ctx, tenant, pg.LeaseFilter{}))
	require.Regexp(t, `\{"queue": "q", "leaseId": "w", "partition": "p", "acquiredAt": "<time>", "heldSeconds": 0\.\d, "partitionId": "<id>", "attemptCount": 1, "messageCount": 1, "consumerGroup": "g", "leaseExpiresAt": "<time>", "batchRetryCount": 0, "secondsRemaining": \d+\.\d\}`, leases)
	require.Contains(t, leases, `"total": 1`)
	require.JSONEq(t, `{"queues":[{"queue":"q","totalPartitions":2,"leasedPartitions":1,"utilizationPct":50.00}]}`, raw(db.LeaseUtilization(ctx, tenant, "", "")))
	soon := 5
	require.Contains(t, raw(db.Leases(ctx, tenant, pg.LeaseFilter{ExpiringWithin: &soon})), `"leases": []`)
	require.JSONEq(t, `{"error":"Partition not found"}`, raw(db.ReleaseLeaseOf(ctx, uuid.New(), p, "g", "")))
	require.Contains(t, raw(db.ReleaseLeaseOf(ctx, tenant, p, "g", "other")), `"released": false`)
	require.JSONEq(t, `{"released":true,"leaseId":"w","queue":"q","partition":"p","partitionId":"<id>","consumerGroup":"g"}`, raw(db.ReleaseLeaseOf(ctx, tenant, p, "g", "w")))

	refreshed := raw(db.RefreshStats(ctx, time.Minute))
	require.JSONEq(t, `{"engine":"segments","queuesUpdated":1,"segPartitions":2,"namespaces":{"namespacesUpdated":1},"tasks":{"tasksUpdated":1},"system":{"systemUpdated":1},"refreshedAt":"<time>"}`, refreshed)
	require.JSONEq(t, `{"queues":[{"id":"<id>","name":"q","namespace":"ns","task":"tk","createdAt":"<time>","partitions":2,
		"messages":{"total":4,"pending":3,"processing":0,"completed":1,"deadLetter":0}}],"pagination":{"limit":100,"offset":0}}`, raw(db.QueueStatuses(ctx, tenant, pg.QueueFilter{})))
	require.JSONEq(t, `{"queues":[{"id":"<id>","name":"q","namespace":"ns","task":"tk","createdAt":"<time>","partitions":2,"partitionCount":2,"priority":0,"leaseTime":30,"retryLimit":3,"maxSize":10,"encryptionEnabled":false,"retainedBytes":0,
		"segments":{"segments":3,"messages":4},"messages":{"total":4,"pending":3,"processing":0}}]}`, raw(db.ListQueues(ctx, tenant, pg.QueueFilter{})))
	require.JSONEq(t, `{"queues":[{"id":"<id>","name":"q","namespace":"ns","task":"tk","createdAt":"<time>","partitions":2,"partitionCount":2,"priority":0,"leaseTime":30,"retryLimit":3,"maxSize":10,"encryptionEnabled":false,"retainedBytes":0,
		"messages":{"total":4,"pending":3,"processing":0}}]}`, raw(db.ListQueues(ctx, tenant, pg.QueueFilter{Cached: true})))
	require.JSONEq(t, `{"queues":[]}`, raw(db.ListQueues(ctx, tenant, pg.QueueFilter{Namespace: "other"})))
	require.JSONEq(t, `{"namespaces":[{"namespace":"ns","queues":1,"partitions":2,"messages":{"total":4,"pending":3}}]}`, raw(db.Namespaces(ctx, tenant)))
	require.JSONEq(t, `{"tasks":[{"task":"tk","queues":1,"partitions":2,"messages":{"total":4,"pending":3}}]}`, raw(db.Tasks(ctx, tenant)))
	require.JSONEq(t, `{"tasks":[]}`, raw(db.Tasks(ctx, uuid.New())))
	volume := raw(db.MessageVolume(ctx, tenant, pg.VolumeFilter{Interval: "nonsense"}))
	require.Contains(t, volume, `"interval": "hour"`)
	require.Contains(t, volume, `{"messages": 4, "timestamp": "<time>"}`)
	require.Len(t, anyTime.FindAllString(volume, -1), 0)
	_, err := db.MessageVolume(ctx, tenant, pg.VolumeFilter{From: "yesterday"})
	require.ErrorIs(t, err, pg.ErrBadData)
	require.Contains(t, raw(db.SystemMetrics(ctx, pg.SeriesFilter{})), `"replicas": []`)
}

func TestTracesOverTheWire(t *testing.T) {
	t.Parallel()
	db, _ := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	p := push(t, db, segment("q", "p", "1")).PartitionID
	raw := func(answer json.RawMessage, err error) string { t.Helper(); return shape(t, answer, err) }
	record := pg.TraceRecord{PartitionID: p, TransactionID: "1", Group: "g", EventType: "step", Data: []byte(`{"text":"hi"}`), Names: []string{"b", "a", "b", ""}}
	require.JSONEq(t, `{"success":true,"traceId":"<id>"}`, raw(db.RecordTrace(ctx, tenant, record)))
	require.JSONEq(t, `{"success":false,"error":"Message not found"}`, raw(db.RecordTrace(ctx, uuid.New(), record)))
	long := record
	long.TransactionID = strings.Repeat("x", 256)
	_, err := db.RecordTrace(ctx, tenant, long)
	require.ErrorIs(t, err, pg.ErrBadData)
	require.JSONEq(t, `{"traces":[{"id":"<id>","event_type":"step","data":{"text":"hi"},"consumer_group":"g","worker_id":"queen","created_at":"<time>","trace_names":["a","b"]}]}`,
		raw(db.MessageTraces(ctx, tenant, p, "1")))
	require.JSONEq(t, `{"traces":[]}`, raw(db.MessageTraces(ctx, uuid.New(), p, "1")))
	require.JSONEq(t, `{"traces":[]}`, raw(db.MessageTraces(ctx, tenant, uuid.New(), "1")))
	require.JSONEq(t, `{"traces":[{"id":"<id>","transaction_id":"1","partition_id":"<id>","event_type":"step","data":{"text":"hi"},"consumer_group":"g","worker_id":"queen",
		"created_at":"<time>","queue_name":"q","partition_name":"p","message_payload":null,"trace_names":["a","b"]}],"total":1,"pagination":{"limit":1,"offset":0},"nextCursor":null}`,
		raw(db.TracesByName(ctx, tenant, "a", pg.TracePage{Limit: 1})))
	require.JSONEq(t, `{"traces":[],"total":1,"pagination":{"limit":1,"offset":5},"nextCursor":null}`, raw(db.TracesByName(ctx, tenant, "a", pg.TracePage{Limit: 1, Offset: 5})))
	require.JSONEq(t, `{"trace_names":[{"trace_name":"a","trace_count":1,"message_count":1,"first_seen":"<time>","last_seen":"<time>"},{"trace_name":"b","trace_count":1,"message_count":1,"first_seen":"<time>","last_seen":"<time>"}],
		"total":2,"pagination":{"limit":50,"offset":0},"nextCursor":null}`, raw(db.TraceNames(ctx, tenant, pg.TracePage{Limit: 50})))
	require.JSONEq(t, `{"trace_names":[],"total":0,"pagination":{"limit":50,"offset":0},"nextCursor":null}`, raw(db.TraceNames(ctx, uuid.New(), pg.TracePage{})))
}

func TestStreamRegistryAndState(t *testing.T) {
	t.Parallel()
	db, database := kolkata(t)
	ctx, tenant := t.Context(), pg.DefaultTenant
	register := func(tenant uuid.UUID, body string) map[string]any {
		t.Helper()
		answer, err := db.RegisterStreamQuery(ctx, tenant, json.RawMessage(body))
		require.NoError(t, err)
		var result map[string]any
		require.NoError(t, json.Unmarshal(answer, &result))
		return result
	}
	first := register(tenant, `{"name":"n","source_queue":"q","sink_queue":"","config_hash":"a"}`)
	require.Equal(t, []any{true, true, false}, []any{first["success"], first["fresh"], first["reset"]})
	again := register(tenant, `{"name":"n","source_queue":"q2","config_hash":"a"}`)
	require.Equal(t, []any{true, false, first["query_id"]}, []any{again["success"], again["fresh"], again["query_id"]})
	other := register(uuid.New(), `{"name":"n","source_queue":"q","config_hash":"b","tenant":"`+tenant.String()+`"}`)
	require.Equal(t, true, other["fresh"], "names are per tenant, and the tenant is the caller's")
	refused := register(tenant, `{"name":"n","source_queue":"q3","config_hash":"b"}`)
	require.Equal(t, false, refused["success"])
	require.Contains(t, refused["error"], "config_hash mismatch")
	require.Contains(t, register(tenant, `{"name":"","source_queue":"q","config_hash":"a"}`)["error"], "name is required")
	require.Contains(t, register(tenant, `{"name":"n","config_hash":null,"source_queue":"q"}`)["error"], "config_hash is required")

	partition, query := uuid.New(), first["query_id"].(string)
	for key, value := range map[string]string{`a_b`: `{"windowEnd":5}`, `axb`: `{"windowEnd":"5"}`, "k\x1fz": `{"windowEnd":9}`, `%`: `7`} {
		exec(t, database, `INSERT INTO queen_streams.state (query_id, partition_id, key, value) VALUES ($1, $2, $3, $4)`, query, partition, key, value)
	}
	keys := func(tenant uuid.UUID, more string) []string {
		t.Helper()
		answer, err := db.StreamState(ctx, tenant, json.RawMessage(fmt.Sprintf(`{"query_id":"%s","partition_id":"%s"%s}`, query, partition, more)))
		require.NoError(t, err)
		var result struct {
			Success bool
			Rows    []struct {
				Key       string
				UpdatedAt string `json:"updated_at"`
			}
		}
		require.NoError(t, json.Unmarshal(answer, &result))
		require.True(t, result.Success)
		found := []string{}
		for _, row := range result.Rows {
			require.Regexp(t, `^\d{4}-.*\.\d{6}\+00:00$`, row.UpdatedAt)
			found = append(found, row.Key)
		}
		return found
	}
	require.Equal(t, []string{"%", "a_b", "axb", "k\x1fz"}, keys(tenant, ""))
	require.Equal(t, []string{"a_b"}, keys(tenant, `,"key_prefix":"a_"`), "a prefix is no pattern")
	require.Equal(t, []string{"%"}, keys(tenant, `,"key_prefix":"%"`))
	require.Equal(t, []string{"a_b"}, keys(tenant, `,"ripe_at_or_before":5,"keys":[]`), "text is no number")
	require.Equal(t, []string{"axb"}, keys(tenant, `,"keys":["axb","none"]`))
	require.Equal(t, []string{"%", "a_b", "axb", "k\x1fz"}, keys(tenant, `,"keys":"axb","ripe_at_or_before":null,"key_prefix":""`))
	require.Empty(t, keys(uuid.New(), ""), "a foreign query reads as empty")
	answer, err := db.StreamState(ctx, tenant, json.RawMessage(`{"query_id":""}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"success":false,"error":"query_id and partition_id are required","rows":[]}`, string(answer))

	wiped := register(tenant, `{"name":"n","source_queue":"q","config_hash":"b","reset":true}`)
	require.Equal(t, []any{true, false, true}, []any{wiped["success"], wiped["fresh"], wiped["reset"]})
	require.Empty(t, keys(tenant, ""))
	same := register(tenant, `{"name":"n","source_queue":"q","config_hash":"b","reset":true}`)
	require.Equal(t, false, same["reset"], "the same shape keeps its state")
}

// Of many first registrations at once one makes the query, and the others are judged by its shape.
func TestStreamRegistrationsAtOnce(t *testing.T) {
	t.Parallel()
	db, _ := kolkata(t)
	var fresh, same, refused atomic.Int64
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			answer, err := db.RegisterStreamQuery(context.Background(), pg.DefaultTenant,
				json.RawMessage(fmt.Sprintf(`{"name":"n","source_queue":"q","config_hash":"shape %d"}`, i%2)))
			var result struct{ Success, Fresh bool }
			if err != nil || json.Unmarshal(answer, &result) != nil {
				t.Errorf("register: %s %v", answer, err)
				return
			}
			switch {
			case result.Fresh:
				fresh.Add(1)
			case result.Success:
				same.Add(1)
			default:
				refused.Add(1)
			}
		})
	}
	all.Wait()
	require.Equal(t, []int64{1, 5, 6}, []int64{fresh.Load(), same.Load(), refused.Load()})
}
