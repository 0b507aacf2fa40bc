package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/browse"
	"queenmq/internal/engine/replay"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// failing answers every management call with err, answering with JSON text.
func failing(err error) world { return world{emptyBroker: emptyBroker{err: err}} }

func answering(text string) world {
	return world{emptyBroker: emptyBroker{answer: json.RawMessage(text)}}
}

func TestManagementScenarios(t *testing.T) {
	t.Parallel()
	badTimestamp := fmt.Errorf("seek: %w: %w", pg.ErrBadData, errSecret)
	runScenarios(t, []scenario{
		// what procedures answer
		{name: "ProcedureBytesPass", method: "GET", path: "/api/v1/consumer-groups", world: answering(`[ {"totalLag":12345678901234567890} ]`), status: 200, exact: `[ {"totalLag":12345678901234567890} ]`},
		{name: "ProcedureNotFound", method: "GET", path: "/api/v1/resources/queues/q", world: answering(`{"error":"Queue not found"}`), status: 404, exact: `{"error":"Queue not found","code":"not_found"}`},
		{name: "ProcedureFault", method: "GET", path: "/api/v1/status/queues/q", world: answering(`{"x":1,"error":"no"}`), status: 500, exact: `{"x":1,"error":"no","code":"internal_error"}`},
		{name: "ErrorWithinIsNone", method: "GET", path: "/api/v1/status", world: answering(`{"deadLetterQueue":{"topErrors":[{"error":"not found"}]}}`), status: 200},
		{name: "NullErrorIsNone", method: "GET", path: "/api/v1/status", world: answering(`{"error":null}`), status: 200},
		{name: "PoolExhausted", method: "GET", path: "/api/v1/resources/overview", world: failing(wrapped(pg.ErrPoolTimeout)), status: 500, exact: `{"error":"pool","code":"pool_exhausted"}`},
		{name: "PrefixOfTheRoute", method: "GET", path: "/api/v1/consumer-groups/lagging", world: failing(errSecret), status: 500, contains: []string{`{"error":"lagging failed: internal error"`}, lacks: []string{"hunter2"}},
		{name: "DatabaseAway", method: "GET", path: "/api/v1/dlq", world: failing(wrapped(pg.ErrUnavailable)), status: 503, contains: []string{`"code":"database_unavailable"`}, lacks: []string{"hunter2"}},

		// queues
		{name: "QueuesLenient", method: "GET", path: "/api/v1/resources/queues?limit=ten&offset=-3&unknown=1", status: 200},
		{name: "QueueOptions", method: "GET", path: "/api/v1/resources/queues/q/options", world: answering(`{"queue":"q","options":{"leaseTime":60}}`), status: 200, exact: `{"queue":"q","options":{"leaseTime":60}}`},
		{name: "PartitionsBadSort", method: "GET", path: "/api/v1/resources/queues/q/partitions?sort=size", status: 400, contains: []string{`"code":"invalid_parameter"`, "sort must be name, depth or age"}},
		{name: "PartitionsBadCursor", method: "GET", path: "/api/v1/resources/queues/q/partitions?cursor=x", world: failing(pg.ErrInvalidCursor), status: 400, contains: []string{"invalid cursor", `"code":"invalid_cursor"`}},
		{name: "PurgeWithoutBody", method: "POST", path: "/api/v1/resources/queues/q/purge", world: answering(`{"queue":"q","dryRun":false,"partitions":2,"messages":5,"unread":0,"done":true}`), status: 200, exact: `{"queue":"q","dryRun":false,"partitions":2,"messages":5,"unread":0,"done":true}`},
		{name: "PurgeEmptyMapOfPHP", method: "POST", path: "/api/v1/resources/queues/q/purge", body: `[]`, world: answering(`{"queue":"q","dryRun":false,"partitions":0,"messages":0,"unread":0,"done":true}`), status: 200},
		{name: "PurgeBadMode", method: "POST", path: "/api/v1/resources/queues/q/purge", body: `{"mode":"some"}`, status: 400, contains: []string{"mode must be"}},
		{name: "PurgeBadDryRun", method: "POST", path: "/api/v1/resources/queues/q/purge", body: `{"dryRun":"yes"}`, status: 400, contains: []string{"dryRun must be true or false"}},
		{name: "PurgeUnknown", method: "POST", path: "/api/v1/resources/queues/q/purge", world: answering(`{"error":"Queue not found"}`), status: 404},

		// groups
		{name: "SubscriptionMissing", method: "POST", path: "/api/v1/consumer-groups/g/subscription", body: `{}`, status: 400, contains: []string{`"error":"subscriptionTimestamp is required"`}},
		{name: "SubscriptionNotText", method: "POST", path: "/api/v1/consumer-groups/g/subscription", body: `{"subscriptionTimestamp":1}`, status: 400, contains: []string{`"error":"subscriptionTimestamp is required"`}},
		{name: "SubscriptionBadBody", method: "POST", path: "/api/v1/consumer-groups/g/subscription", body: `x`, status: 400, contains: []string{`"error":"bad body: `}},
		{name: "SubscriptionNoTime", method: "POST", path: "/api/v1/consumer-groups/g/subscription", body: `{"subscriptionTimestamp":"soon"}`, world: failing(badTimestamp), status: 400, contains: []string{`subscriptionTimestamp \"soon\" is not a time`}, lacks: []string{"hunter2"}},
		{name: "SeekGroupNeedsBody", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/seek", status: 400, contains: []string{`"error":"bad body"`}},
		{name: "SeekGroupNeedsTarget", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/seek", body: `{}`, status: 400, contains: []string{`"error":"Must specify toEnd=true or a timestamp"`}},
		{name: "SeekGroupBadType", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/seek", body: `{"toEnd":"yes"}`, status: 400, contains: []string{`"error":"bad body"`}},
		{name: "SeekGroupTwoTargets", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/seek", body: `{"timestamp":"2026-09-14T00:00:00Z","offset":4}`, status: 400, contains: []string{"not both"}},
		{name: "SeekGroupNegativeOffset", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/seek", body: `{"offset":-1}`, status: 400, contains: []string{"offset must not be negative"}},
		{name: "SeekGroupNoTime", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/seek", body: `{"timestamp":"soon"}`, world: failing(badTimestamp), status: 400, contains: []string{`timestamp \"soon\" is not a time`}},
		{name: "SeekGroupUnknown", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/seek", body: `{"toEnd":true}`, world: answering(`{"success":false,"error":"Queue not found or has no partitions","partitionsUpdated":0}`), status: 404, contains: []string{`"partitionsUpdated":0`}},
		{name: "SeekPartitionEmptyBody", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/partitions/p/seek", status: 200},
		{name: "SeekPartitionEmptyObject", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/partitions/p/seek", body: `{}`, status: 200},
		{name: "SeekPartitionEmptyMapOfPHP", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/partitions/p/seek", body: `[]`, status: 200},
		{name: "SeekPartitionNull", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/partitions/p/seek", body: ` null`, status: 200},
		{name: "SeekPartitionArray", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/partitions/p/seek", body: `[1]`, status: 400, contains: []string{`"error":"bad body"`}},
		{name: "SeekGroupEmptyMapOfPHP", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/seek", body: `[]`, status: 400, contains: []string{`"error":"bad body"`}},
		{name: "SeekPartitionNotToEnd", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/partitions/p/seek", body: `{"toEnd":false}`, status: 400, contains: []string{"Must specify"}},
		{name: "SeekPartitionUnknown", method: "POST", path: "/api/v1/consumer-groups/g/queues/q/partitions/p/seek", body: `{"toEnd":true}`, world: answering(`{"success":false,"error":"Partition not found"}`), status: 404},
		{name: "DeleteGroup", method: "DELETE", path: "/api/v1/consumer-groups/g?deleteMetadata=perhaps", status: 200},
		{name: "LongGroupInPath", method: "GET", path: "/api/v1/consumer-groups/" + strings.Repeat("g", 256), status: 400, contains: []string{"group is longer than 255 characters"}},

		// messages
		{name: "MessagesEmpty", method: "GET", path: "/api/v1/messages", status: 200, exact: `{"messages":[],"mode":{"hasQueueMode":false,"busGroupsCount":0,"type":""},"total":0,"nextCursor":null}`},
		{name: "MessagesBadTrace", method: "GET", path: "/api/v1/messages?traceId=x", status: 400, contains: []string{`"error":"traceId must be a UUID"`}},
		{name: "MessagesBadCursor", method: "GET", path: "/api/v1/messages?cursor=x", world: failing(pg.ErrInvalidCursor), status: 400, exact: `{"error":"invalid cursor","code":"invalid_cursor"}`},
		{name: "MessagesNoTime", method: "GET", path: "/api/v1/messages?from=soon", world: failing(badTimestamp), status: 400, contains: []string{"is not a time"}},
		{name: "MessageOddAddress", method: "GET", path: "/api/v1/messages/nowhere/t", status: 404, exact: `{"error":"Message not found","code":"not_found"}`},
		{name: "DeleteMessageOddAddress", method: "DELETE", path: "/api/v1/messages/nowhere/t", status: 404, contains: []string{`"success":false,"partitionId":"nowhere","transactionId":"t","error":"Message not found","message":"No dead-letter row`}},
		{name: "DeleteMessageUnknown", method: "DELETE", path: "/api/v1/messages/" + partitionID.String() + "/t", world: answering(`{"success":false,"message":"Message not found"}`), status: 404, contains: []string{"Live messages live in immutable segments"}},
		{name: "RetryOddAddress", method: "POST", path: "/api/v1/messages/nowhere/t/retry", status: 404, contains: []string{"Only dead-lettered messages can be replayed"}},
		{name: "RetryWhilePaused", method: "POST", path: "/api/v1/messages/" + partitionID.String() + "/t/retry", world: world{emptyBroker: emptyBroker{paused: true}}, status: 503, contains: []string{`"code":"push_maintenance"`}, header: []string{"Retry-After: 1"}},
		{name: "PushWhilePausedWithoutBuffer", method: "POST", path: "/api/v1/push", body: `{"items":[{"queue":"q","payload":1}]}`, world: world{emptyBroker: emptyBroker{paused: true}}, status: 503, contains: []string{`"code":"push_maintenance"`}},

		{name: "PartitionOddAddress", method: "GET", path: "/api/v1/partitions/x/messages", status: 404, contains: []string{"Partition not found"}},
		{name: "PartitionBadOffset", method: "GET", path: "/api/v1/partitions/" + partitionID.String() + "/messages?offset=soon", status: 400, contains: []string{`"code":"invalid_parameter"`, "offset must be an integer"}},
		{name: "PartitionDatabaseAway", method: "GET", path: "/api/v1/partitions/" + partitionID.String() + "/messages", world: failing(wrapped(pg.ErrUnavailable)), status: 503, lacks: []string{"hunter2"}},

		// dead letters
		{name: "DeadLettersEmpty", method: "GET", path: "/api/v1/dlq?limit=5000", status: 200, exact: `{"messages":[],"pagination":{"limit":1000,"offset":0},"total":0,"nextCursor":null}`},
		{name: "DeadLettersBadPartitionID", method: "GET", path: "/api/v1/dlq?partitionId=x", status: 400, contains: []string{"partitionId must be a UUID"}},
		{name: "DeadLettersDeleteNeedsQueue", method: "DELETE", path: "/api/v1/dlq", status: 400, contains: []string{`"code":"queue_required"`}},
		{name: "ReplayOddID", method: "POST", path: "/api/v1/dlq/x/replay", status: 404, contains: []string{`"code":"not_found"`}},
		{name: "ReplayBadDestination", method: "POST", path: "/api/v1/dlq/" + messageID.String() + "/replay", body: `{"queue":"a\u0000"}`, status: 400, contains: []string{`"code":"invalid_name"`}},
		{name: "TaskNeedsKind", method: "POST", path: "/api/v1/dlq/tasks", body: `{"filter":{}}`, status: 400, contains: []string{"kind must be"}},
		{name: "TaskNeedsFilter", method: "POST", path: "/api/v1/dlq/tasks", body: `{"kind":"purge"}`, status: 400, contains: []string{"filter is required"}},
		{name: "TaskMisspeltFilter", method: "POST", path: "/api/v1/dlq/tasks", body: `{"kind":"purge","filter":{"queu":"q"}}`, status: 400, contains: []string{`filter has no member \"queu\"`}},
		{name: "TaskPurgeWithDestination", method: "POST", path: "/api/v1/dlq/tasks", body: `{"kind":"purge","filter":{},"destination":{"queue":"q"}}`, status: 400, contains: []string{"a purge has no destination"}},
		{name: "TaskRateOutOfBounds", method: "POST", path: "/api/v1/dlq/tasks", body: `{"kind":"redrive","filter":{},"rate":-1}`, status: 400, contains: []string{"rate must be"}},
		{name: "TaskDryRun", method: "POST", path: "/api/v1/dlq/tasks", body: `{"kind":"redrive","filter":{"queue":"q"},"dryRun":true}`, status: 200, exact: `{"dryRun":true,"kind":"redrive","total":0}`},
		{name: "TaskOddID", method: "GET", path: "/api/v1/dlq/tasks/x", status: 404, contains: []string{"Task not found"}},
		{name: "TaskCancelOddID", method: "POST", path: "/api/v1/dlq/tasks/x/cancel", status: 404},
		{name: "PipelineOddTrace", method: "GET", path: "/api/v1/pipelines/x", status: 400, contains: []string{"traceId must be a UUID"}},
		{name: "PipelineEmpty", method: "GET", path: "/api/v1/pipelines/" + messageID.String(), status: 200, exact: `{"traceId":"` + messageID.String() + `","messages":[],"total":0}`},

		// traces
		{name: "TraceNeedsAddress", method: "POST", path: "/api/v1/traces", body: `{"data":{}}`, status: 400, contains: []string{`"error":"transactionId and partitionId are required"`}},
		{name: "TraceNeedsData", method: "POST", path: "/api/v1/traces", body: `{"transactionId":"t","partitionId":"p","data":null}`, status: 400, contains: []string{`"error":"data is required"`}},
		{name: "TraceBadBody", method: "POST", path: "/api/v1/traces", body: `[]`, status: 400, contains: []string{`"error":"bad body: `}},
		{name: "TraceLongTransaction", method: "POST", path: "/api/v1/traces", body: `{"transactionId":"` + strings.Repeat("é", 256) + `","partitionId":"p","data":1}`, status: 400, contains: []string{"transactionId is longer than 255 characters"}},
		{name: "TraceCreated", method: "POST", path: "/api/v1/traces", body: `{"transactionId":"t","partitionId":"` + partitionID.String() + `","data":1,"traceNames":["a",3,"b"],"workerId":"w"}`, status: 201},
		{name: "TracesOddPartition", method: "GET", path: "/api/v1/traces/x/t", status: 200, exact: `{"traces":[]}`},

		// leases
		{name: "ReleaseNeedsPartition", method: "POST", path: "/api/v1/leases/release", body: `{}`, status: 400, contains: []string{"partitionId is required"}},
		{name: "ReleaseOddPartition", method: "POST", path: "/api/v1/leases/release", body: `{"partitionId":"x"}`, status: 404},

		// statistics
		{name: "SeriesNoTime", method: "GET", path: "/api/v1/analytics/queue-ops?from=soon", status: 400, contains: []string{`from \"soon\" is not a time`}},
		{name: "SeriesTimes", method: "GET", path: "/api/v1/analytics/queue-lag?from=2026-09-14T06:00:00.000Z&to=2026-09-14", status: 200},
		{name: "SeriesPlusOfAZone", method: "GET", path: "/api/v1/analytics/queue-lag?from=2026-09-14T06:00:00+02:00&to=2026-09-14%2006:00:00%2B0200", status: 200},

		// system
		{name: "MaintenanceShape", method: "GET", path: "/api/v1/system/maintenance", world: failing(wrapped(pg.ErrUnavailable)), status: 200, exact: `{"maintenanceMode":false,"popMaintenanceMode":false,"bufferedMessages":0,"bufferHealthy":true,"bufferStats":{"pendingCount":0,"failedCount":0,"dbHealthy":true,"failedFiles":{"count":0,"totalBytes":0,"totalMB":0,"failoverCount":0,"qos0Count":0}}}`},
		{name: "MaintenanceNeedsEnabled", method: "POST", path: "/api/v1/system/maintenance", body: `{"enabled":null}`, status: 400, contains: []string{`"error":"enabled (boolean) is required"`}},
		{name: "MaintenanceBadEnabled", method: "POST", path: "/api/v1/system/maintenance/pop", body: `{"enabled":"yes"}`, status: 400, contains: []string{`"error":"bad body: `}},
		{name: "PopMaintenanceOn", method: "POST", path: "/api/v1/system/maintenance/pop", body: `{"enabled":true}`, status: 200, exact: `{"popMaintenanceMode":true,"message":"Pop maintenance mode ENABLED. All POP operations will return empty arrays."}`},
		{name: "PopMaintenanceShow", method: "GET", path: "/api/v1/system/maintenance/pop", status: 200, exact: `{"popMaintenanceMode":false,"message":"Pop maintenance mode is OFF. Normal operation."}`},
		{name: "SharedState", method: "GET", path: "/api/v1/system/shared-state", status: 200, exact: `{"enabled":false,"reason":"single_node_segments_broker","maintenance_mode":false,"pop_maintenance_mode":false}`},
		{name: "MeshStats", method: "GET", path: "/internal/api/inter-instance/stats", status: 200, exact: `{"enabled":false,"reason":"no_peers","maintenance_mode":false,"pop_maintenance_mode":false}`},
		{name: "NotifyNeedsQueue", method: "POST", path: "/internal/api/notify", body: `{}`, status: 400, contains: []string{`"error":"queue is required"`}},
		{name: "Notify", method: "POST", path: "/internal/api/notify", body: `{"queue":"q"}`, status: 200, exact: `{"status":"ok"}`},
		{name: "Buffers", method: "GET", path: "/api/v1/status/buffers", status: 200, exact: `{"pending":0,"failed":0,"dbHealthy":true,"worker":0}`},
		{name: "Starting", method: "POST", path: "/streams/v1/cycle", world: world{starting: true}, status: 503, contains: []string{`"code":"starting"`}},

		// streams
		{name: "RegisterNeedsName", method: "POST", path: "/streams/v1/queries", body: `{}`, status: 400, contains: []string{`"error":"name is required"`}},
		{name: "RegisterNeedsSource", method: "POST", path: "/streams/v1/queries", body: `{"name":"n"}`, status: 400, contains: []string{`"error":"source_queue is required"`}},
		{name: "RegisterNeedsHash", method: "POST", path: "/streams/v1/queries", body: `{"name":"n","sourceQueue":"s","sink_queue":null}`, status: 400, contains: []string{`"error":"config_hash is required"`}},
		{name: "RegisterMismatch", method: "POST", path: "/streams/v1/queries", body: `{"name":"n","source_queue":"s","config_hash":"h"}`, world: answering(`{"success":false,"error":"config_hash mismatch: x"}`), status: 409, contains: []string{"config_hash mismatch", `"code":"config_mismatch"`}},
		{name: "RipeNeedsQuery", method: "POST", path: "/streams/v1/state/ripe", body: `{}`, status: 400, contains: []string{`query_id is required`}},
		{name: "RipeBadQuery", method: "POST", path: "/streams/v1/state/ripe", body: `{"query_id":"x"}`, status: 400, contains: []string{`query_id must be a UUID`}},
		{name: "RipeNegativeGrace", method: "POST", path: "/streams/v1/state/ripe", body: `{"query_id":"` + messageID.String() + `","grace_ms":-1}`, status: 400, contains: []string{`grace_ms must be`}},
		{name: "RipeLimit", method: "POST", path: "/streams/v1/state/ripe", body: `{"query_id":"` + messageID.String() + `","limit":1001}`, status: 400, contains: []string{`limit must be`}},
		{name: "CycleBadExpectation", method: "POST", path: "/streams/v1/cycle", body: `{"query_id":"` + messageID.String() + `","partition_id":"` + partitionID.String() + `","if_state":[1]}`, status: 400, contains: []string{`if_state`}},
		{name: "StateNotObject", method: "POST", path: "/streams/v1/state/get", body: `[]`, status: 400, contains: []string{`"error":"request body must be a JSON object"`}},
		{name: "StateNeedsIDs", method: "POST", path: "/streams/v1/state/get", body: `{}`, status: 400, contains: []string{`"success":false,"error":"query_id and partition_id are required"`, `"rows":[]`}},
		{name: "StateBadKeys", method: "POST", path: "/streams/v1/state/get", body: `{"query_id":"` + messageID.String() + `","partition_id":"` + partitionID.String() + `","keys":[1]}`, status: 400},
		{name: "CycleNeedsQuery", method: "POST", path: "/streams/v1/cycle", body: `{}`, status: 400, contains: []string{`"error":"query_id is required"`}},
		{name: "CycleNeedsPartition", method: "POST", path: "/streams/v1/cycle", body: `{"query_id":"` + messageID.String() + `"}`, status: 400, contains: []string{`"error":"partition_id is required"`}},
		{name: "CycleNullArrays", method: "POST", path: "/streams/v1/cycle", body: `{"query_id":"` + messageID.String() + `","partition_id":"` + partitionID.String() + `","state_ops":null,"push_items":null,"ack":null}`, status: 200},
		{name: "CycleRolledBack", method: "POST", path: "/streams/v1/cycle", body: `{"query_id":"` + messageID.String() + `","partition_id":"` + partitionID.String() + `"}`, world: answering(`{"success":false,"error":"invalid or expired lease"}`), status: 200, exact: `{"success":false,"error":"invalid or expired lease"}`},

		// identity
		{name: "Me", method: "GET", path: "/auth/me", status: 200, contains: []string{`"user_id":"standalone","email":null,"tenant_slug":"local","is_operator":true`, `"clusters":[{"id":"local","slug":"local","role":"admin","tenant_slug":"local","tenant_id":"00000000-0000-0000-0000-000000000001","status":"active","cell_slug":"local"}]`}},
		{name: "Login", method: "GET", path: "/auth/login", status: 303, header: []string{"Location: /"}},
		{name: "Logout", method: "POST", path: "/auth/logout", status: 200, exact: `{"ok":true}`},
	})
}

// pages is a Browser of fixed messages.
type pages struct {
	page    browse.Page
	letters pg.DeadLetterPage
}

func (p pages) DeadLetters(context.Context, uuid.UUID, pg.DeadLetterFilter) (pg.DeadLetterPage, error) {
	return p.letters, nil
}

func (p pages) List(context.Context, uuid.UUID, pg.MessageFilter) (browse.Page, error) {
	return p.page, nil
}

func (p pages) Search(_ context.Context, _ uuid.UUID, _ pg.MessageFilter, c browse.Condition) (browse.Page, browse.Searched, error) {
	found := p.page
	found.Messages = nil
	for _, m := range p.page.Messages {
		if c.Holds(m.Payload) {
			found.Messages = append(found.Messages, m)
		}
	}
	found.Next = "on"
	return found, browse.Searched{Messages: len(p.page.Messages), Unreadable: 1, Until: time.Unix(0, 0)}, nil
}

func (p pages) Find(context.Context, uuid.UUID, uuid.UUID, string) (browse.Detail, bool, error) {
	return browse.Detail{Content: p.page.Messages[0].Content, MessageDetail: pg.MessageDetail{Groups: []pg.GroupState{{Name: "g", Consumed: true}}}}, true, nil
}

func (p pages) Partition(_ context.Context, _, _ uuid.UUID, from int64, limit int) (browse.Part, bool, error) {
	if from == 404 {
		return browse.Part{}, false, nil
	}
	return browse.Part{Queue: "q", Partition: "", LogStart: 3, End: 9, Next: 5, Messages: []browse.Stored{
		{Offset: 3, Content: p.page.Messages[0].Content}, {Offset: 4, Content: p.page.Messages[1].Content},
	}}, true, nil
}

func (p pages) Trace(context.Context, uuid.UUID, uuid.UUID, int) ([]browse.Traced, error) {
	return []browse.Traced{{Content: p.page.Messages[0].Content}, {}}, nil
}

func TestPayloadBytesPassThroughEveryReadRoute(t *testing.T) {
	t.Parallel()
	const payload = "{\"b\": 123456789012345678901234567890,\n\t\"a\":\"<\\u0000\\ud800>\", \"a\":1E400}"
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	f := &world{}
	s := f.server()
	s.deps.Browser = pages{page: browse.Page{Messages: []browse.Message{
		{Content: browse.Content{Available: true, ID: messageID, TransactionID: "t", Payload: []byte(payload), Context: segment.ParseTraceparent([]byte(parent))}},
		{Content: browse.Content{Available: true, ID: messageID}},
		{},
	}}, letters: pg.DeadLetterPage{Rows: []pg.DeadLetterRow{{Payload: []byte(payload), FailedAt: time.UnixMilli(1)}}}}
	server := serveHandler(t, s)
	for _, path := range []string{"/api/v1/messages", "/api/v1/messages/" + partitionID.String() + "/t", "/api/v1/pipelines/" + messageID.String(), "/api/v1/dlq"} {
		answer := call(t, server, "GET", path, "")
		require.Equal(t, 200, answer.status, path)
		require.Contains(t, answer.body, `"data":`+payload+`,"payload":`+payload+`}`, path)
	}
	part := "/api/v1/partitions/" + partitionID.String() + "/messages"
	require.Equal(t, `{"partitionId":"`+partitionID.String()+`","queue":"q","partition":"","logStart":3,"endOffset":9,"nextOffset":5,"messages":[`+
		`{"id":"`+messageID.String()+`","transactionId":"t","traceId":null,"producerSub":null,"isEncrypted":false,"unreadable":null,"offset":3,"createdAt":null,"traceparent":"`+parent+`","data":`+payload+`},`+
		`{"id":"`+messageID.String()+`","transactionId":"","traceId":null,"producerSub":null,"isEncrypted":false,"unreadable":null,"offset":4,"createdAt":null,"data":null}]}`,
		call(t, server, "GET", part, "").body)
	require.Equal(t, 404, call(t, server, "GET", part+"?offset=404", "").status)
	list := call(t, server, "GET", "/api/v1/messages", "").body
	require.Contains(t, list, `{"id":"`+messageID.String()+`","transactionId":"t"`)
	require.Contains(t, list, `{"id":null,"transactionId":null,"traceId":null,"producerSub":null,"isEncrypted":false`, "an evicted message shows nothing of its content")
	require.Contains(t, list, `"data":null,"payload":null`)
	require.Contains(t, call(t, server, "GET", "/api/v1/dlq", "").body, `"failedAt":"1970-01-01T00:00:00.001Z"`)
}

// A search answers with what fits, and with what it looked at, whether it found anything or not.
func TestASearchForPayloadsSaysWhatItLookedAt(t *testing.T) {
	t.Parallel()
	f := &world{}
	s := f.server()
	s.deps.Browser = pages{page: browse.Page{Messages: []browse.Message{
		{Content: browse.Content{Available: true, ID: messageID, TransactionID: "fits", Payload: []byte(`{"n":1.50}`)}},
		{Content: browse.Content{Available: true, ID: messageID, TransactionID: "other", Payload: []byte(`{"n":2}`)}},
	}}}
	server := serveHandler(t, s)
	answer := call(t, server, "GET", "/api/v1/messages?payload="+url.QueryEscape("n < 2"), "")
	require.Equal(t, 200, answer.status)
	require.Contains(t, answer.body, `"payload":{"n":1.50}`)
	require.NotContains(t, answer.body, `"other"`)
	require.Contains(t, answer.body, `"total":1,"nextCursor":"on","searched":{"messages":2,"unreadable":1,"until":"1970-01-01T00:00:00.000Z"}}`)
	require.NotContains(t, call(t, server, "GET", "/api/v1/messages", "").body, `"searched"`)
	refused := call(t, server, "GET", "/api/v1/messages?payload="+url.QueryEscape("n["), "")
	require.Equal(t, 400, refused.status)
	require.Contains(t, refused.body, "cannot read the path")
	for query, word := range map[string]string{"kind=move": "kind must be", "state=failed": "state must be one of"} {
		refused := call(t, server, "GET", "/api/v1/dlq/tasks?"+query, "")
		require.Equal(t, 400, refused.status, query)
		require.Contains(t, refused.body, word)
	}
	require.Equal(t, 400, call(t, server, "GET", "/api/v1/streams?sort=state", "").status)
}

// A queueLister notes what it was asked for.
type queueLister struct {
	fakeStore
	asked pg.QueueFilter
}

func (l *queueLister) ListQueues(_ context.Context, _ uuid.UUID, filter pg.QueueFilter) (json.RawMessage, error) {
	l.asked = filter
	return json.RawMessage(`{"queues":[]}`), nil
}

func TestQueueListIsLiveUnlessAskedOtherwise(t *testing.T) {
	t.Parallel()
	f := &world{}
	s := f.server()
	store := &queueLister{fakeStore: fakeStore{&f.emptyBroker, f}}
	s.deps.Store = store
	server := serveHandler(t, s)
	for query, cached := range map[string]bool{"": false, "?stats=cached": true, "?stats=live": false} {
		require.Equal(t, 200, call(t, server, "GET", "/api/v1/resources/queues"+query, "").status)
		require.Equal(t, cached, store.asked.Cached, query)
	}
}

// A replayer answers replays with a fixed outcome.
type replayer struct {
	outcome replay.Outcome
	err     error
}

func (r replayer) ByID(context.Context, uuid.UUID, uuid.UUID, replay.Destination) (replay.Outcome, error) {
	return r.outcome, r.err
}

func (r replayer) ByAddress(context.Context, uuid.UUID, uuid.UUID, string, string) (replay.Outcome, error) {
	return r.outcome, r.err
}

func TestReplayAnswers(t *testing.T) {
	t.Parallel()
	row := pg.DeadLetterRow{ID: partitionID, Queue: "q", Partition: "p", Group: "g", TransactionID: "old"}
	outcome := func(status string) replay.Outcome {
		o := replay.Outcome{Found: true, Row: row, MessageID: messageID, TransactionID: "dlq:" + partitionID.String()}
		o.Move = pg.DeadLetterMoveResult{Status: status}
		return o
	}
	for _, tc := range []struct {
		name     string
		replayer replayer
		status   int
		contains []string
	}{
		{"Moved", replayer{outcome: outcome("moved")}, 200, []string{`"success":true,"queue":"q","partition":"p"`, `"status":"queued"`, `"dlqRowRemoved":true`, `"originalTransactionId":"old"`}},
		{"DuplicateKeepsTheRow", replayer{outcome: outcome("duplicate")}, 200, []string{`"status":"duplicate"`, `"dlqRowRemoved":false`, `"result":"duplicate"`}},
		{"Full", replayer{outcome: outcome("full")}, 500, []string{"the message is still in the dead-letter queue", `"code":"QUEUE_FULL"`, `Queue 'q' is full`}},
		{"EncryptionRequired", replayer{outcome: outcome("config")}, 500, []string{`"code":"encryption_key_missing"`}},
		{"NoPayload", replayer{outcome: outcome(""), err: replay.ErrNoPayload}, 500, []string{"nothing to replay", `"success":false`}},
		{"Gone", replayer{}, 404, []string{"not found"}},
		{"DatabaseAway", replayer{err: wrapped(pg.ErrUnavailable)}, 503, []string{`"code":"database_unavailable"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := &world{}
			s := f.server()
			s.deps.Replayer = tc.replayer
			server := serveHandler(t, s)
			for _, path := range []string{"/api/v1/messages/" + partitionID.String() + "/old/retry", "/api/v1/dlq/" + partitionID.String() + "/replay"} {
				answer := call(t, server, "POST", path, "")
				require.Equal(t, tc.status, answer.status, "%s: %s", path, answer.body)
				for _, part := range tc.contains {
					require.Contains(t, answer.body, part, path)
				}
			}
		})
	}
}

func TestPurgeGoesOnUntilDoneAndSumsUp(t *testing.T) {
	t.Parallel()
	f := &world{}
	s := f.server()
	steps := 0
	s.deps.Store = fakeStore{purger{&f.emptyBroker, func() (json.RawMessage, error) {
		steps++
		return json.RawMessage(fmt.Sprintf(`{"queue":"q","dryRun":false,"partitions":3,"messages":10,"unread":1,"done":%t}`, steps == 3)), nil
	}}, f}
	answer := call(t, serveHandler(t, s), "POST", "/api/v1/resources/queues/q/purge", `{"mode":"all"}`)
	require.JSONEq(t, `{"queue":"q","dryRun":false,"partitions":3,"messages":30,"unread":3,"done":true}`, answer.body)
	require.Equal(t, []string{"q"}, f.changed)
}

type purger struct {
	*emptyBroker
	step func() (json.RawMessage, error)
}

func (p purger) PurgeQueue(context.Context, uuid.UUID, string, string, pg.PurgeOptions) (json.RawMessage, error) {
	return p.step()
}

func TestChangesOfGroupsAreAnnounced(t *testing.T) {
	t.Parallel()
	f := &world{}
	s := f.server()
	var seen []string
	s.deps.GroupChanged = func(_ uuid.UUID, queue, group string) { seen = append(seen, queue+"/"+group) }
	server := serveHandler(t, s)
	for _, request := range [][3]string{
		{"POST", "/api/v1/consumer-groups/g/queues/q/seek", `{"toEnd":true}`},
		{"POST", "/api/v1/consumer-groups/g/queues/q/partitions/p/seek", ``},
		{"POST", "/api/v1/consumer-groups/g/subscription", `{"subscriptionTimestamp":"2026-09-14T00:00:00Z"}`},
		{"DELETE", "/api/v1/consumer-groups/g", ``},
		{"DELETE", "/api/v1/consumer-groups/g/queues/q", ``},
	} {
		require.Equal(t, 200, call(t, server, request[0], request[1], request[2]).status, request[1])
	}
	require.Equal(t, []string{"q/g", "q/g", "/g", "/g", "q/g"}, seen)
}

func TestEveryHandlerPassesOnThatTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	f := failing(wrapped(pg.ErrUnavailable))
	f.push = failEach(wrapped(pg.ErrUnavailable))
	server := serve(t, &f)
	bodies := map[string]string{
		"/api/v1/consumer-groups/{group}/subscription":        `{"subscriptionTimestamp":"2026-09-14T00:00:00Z"}`,
		"/api/v1/consumer-groups/{group}/queues/{queue}/seek": `{"toEnd":true}`,
		"/api/v1/dlq/tasks":      `{"kind":"purge","filter":{}}`,
		"/api/v1/traces":         `{"transactionId":"t","partitionId":"` + partitionID.String() + `","data":1}`,
		"/api/v1/leases/release": `{"partitionId":"` + partitionID.String() + `"}`,
		"/streams/v1/queries":    `{"name":"n","source_queue":"s","config_hash":"h"}`,
		"/streams/v1/state/get":  `{"query_id":"` + messageID.String() + `","partition_id":"` + partitionID.String() + `"}`,
		"/streams/v1/state/ripe": `{"query_id":"` + messageID.String() + `"}`,
		"/streams/v1/cycle":      `{"query_id":"` + messageID.String() + `","partition_id":"` + partitionID.String() + `"}`,
	}
	// These answer from memory, or have a test of their own; a switch is turned for this broker also while the database is away.
	other := []string{"/api/v1/system/maintenance", "/api/v1/push", "/api/v1/pop", "/api/v1/ack", "/api/v1/transaction", "/api/v1/lease/", "/api/v1/configure", "/api/v1/status/buffers", "/api/v1/system/shared-state", "/api/v1/messages/tail"}
	checked := 0
routes:
	for _, r := range routes {
		if !r.needsDatabase() || strings.HasPrefix(r.path, "/internal/") || strings.HasPrefix(r.path, "/auth/") || r.method == "GET" && strings.HasPrefix(r.path, "/api/v1/system/") {
			continue
		}
		for _, prefix := range other {
			if strings.HasPrefix(r.path, prefix) {
				continue routes
			}
		}
		if r.method == "DELETE" && r.path == "/api/v1/resources/queues/{queue}" {
			continue
		}
		path := concrete(r.path)
		if r.path == "/api/v1/dlq" {
			path += "?queue=q"
		}
		answer := call(t, server, r.method, path, bodies[r.path])
		require.Equal(t, http.StatusServiceUnavailable, answer.status, "%s %s: %s", r.method, r.path, answer.body)
		require.Contains(t, answer.body, `"code":"database_unavailable"`)
		if r.failed != "" {
			require.Contains(t, answer.body, `"error":"`+r.failed+`: `, "%s %s", r.method, r.path)
		}
		checked++
	}
	require.Greater(t, checked, 40)
}
