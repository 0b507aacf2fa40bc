package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/engine/transaction"
	"queenmq/internal/pg"
)

// A scenario is one request and what must be true of its answer.
type scenario struct {
	name, method, path, body string
	world                    world
	status                   int
	contains                 []string
	lacks                    []string
	// exact, when set, is the whole body.
	exact string
	// header lines that must be there, as "Name: value".
	header []string
}

func failEach(err error) func(context.Context, push.Request) ([]push.Verdict, error) {
	return func(_ context.Context, r push.Request) ([]push.Verdict, error) {
		verdicts := make([]push.Verdict, len(r.Items))
		for i, item := range r.Items {
			verdicts[i] = push.Verdict{Status: push.StatusFailed, MessageID: messageID, TransactionID: item.TransactionID, Err: err}
		}
		return verdicts, nil
	}
}

func failPop(err error) func(context.Context, pop.Request) (popResult, error) {
	return func(context.Context, pop.Request) (popResult, error) { return nil, err }
}

var errSecret = errors.New("password=hunter2")

func wrapped(err error) error { return fmt.Errorf("pop: %w: %w", err, errSecret) }

func TestScenarios(t *testing.T) {
	t.Parallel()
	const one = `{"items":[{"queue":"q","transactionId":"t","payload":1}]}`
	const two = `{"items":[{"queue":"q","transactionId":"a","payload":1},{"queue":"q","transactionId":"b","payload":1,"traceId":"` + traceText + `"}]}`
	const ackOne = `{"transactionId":"t","partitionId":"p","leaseId":"l","consumerGroup":"g","status":"failed","error":"why"}`
	scenarios := []scenario{
		// push
		{
			name: "PushQueued", method: "POST", path: "/api/v1/push", body: one, status: 201,
			exact:  `[{"index":0,"message_id":"` + messageID.String() + `","transaction_id":"t","queueName":"q","status":"queued","partition_id":"` + partitionID.String() + `"}]`,
			header: []string{"Content-Type: application/json"},
		},
		{name: "PushTrace", method: "POST", path: "/api/v1/push", body: two, status: 201, contains: []string{`"index":1`, `"trace_id":"` + traceText + `"`}},
		{name: "PushEmpty", method: "POST", path: "/api/v1/push", body: `{"items":[]}`, status: 201, exact: `[]`},
		{name: "PushNoBody", method: "POST", path: "/api/v1/push", status: 400, contains: []string{`{"error":"bad body: unexpected end of the body at line 1 column 1","code":"bad_body"}`}},
		{name: "PushNoItems", method: "POST", path: "/api/v1/push", body: `{}`, status: 400, contains: []string{"missing field `items`"}},
		{name: "PushBadJSON", method: "POST", path: "/api/v1/push", body: `{"items":[}`, status: 400, contains: []string{`"code":"bad_body"`, "column 11"}},
		{name: "PushTooLarge", method: "POST", path: "/api/v1/push", body: one, world: world{maxBody: 10}, status: 413, contains: []string{`"code":"body_too_large"`, "10 bytes"}},
		{
			name: "PushTooManyItems", method: "POST", path: "/api/v1/push", body: `{"items":[` + strings.Repeat(`{"queue":"q","payload":1},`, maxPushItems) + `{"queue":"q","payload":1}]}`,
			world: world{push: func(context.Context, push.Request) ([]push.Verdict, error) { panic("must not be called") }}, status: 413, contains: []string{`"code":"batch_too_large"`},
		},
		{
			name: "PushDatabaseAwayForAll", method: "POST", path: "/api/v1/push", body: two, world: world{push: failEach(wrapped(pg.ErrUnavailable))}, status: 503,
			contains: []string{`"code":"database_unavailable"`, "same transaction ids"}, lacks: []string{"hunter2"}, header: []string{"Retry-After: 1"},
		},
		{name: "PushDatabaseAwayForSome", method: "POST", path: "/api/v1/push", body: two, world: world{push: func(_ context.Context, r push.Request) ([]push.Verdict, error) {
			return []push.Verdict{
				{Status: push.StatusQueued, MessageID: messageID, TransactionID: "a"},
				{Status: push.StatusFailed, MessageID: messageID, TransactionID: "b", Err: wrapped(pg.ErrUnavailable)},
			}, nil
		}}, status: 201, contains: []string{`"status":"queued"`, `"status":"failed"`, `"code":"database_unavailable"`}, lacks: []string{"hunter2"}},
		{name: "PushWholeCallFailed", method: "POST", path: "/api/v1/push", body: one, world: world{push: func(context.Context, push.Request) ([]push.Verdict, error) {
			return nil, wrapped(pg.ErrUnavailable)
		}}, status: 503, contains: []string{`"code":"database_unavailable"`}},
		{
			name: "PushTimeoutStaysPerItem", method: "POST", path: "/api/v1/push", body: one, world: world{push: failEach(wrapped(pg.ErrTimeout))}, status: 201,
			contains: []string{`"status":"failed"`, `"code":"timeout"`}, lacks: []string{"hunter2"},
		},
		{
			name: "PushUnknownFaultHidesItsCause", method: "POST", path: "/api/v1/push", body: one, world: world{push: failEach(errSecret)}, status: 201,
			contains: []string{`"error":"internal error","code":"internal_error"`}, lacks: []string{"hunter2"},
		},
		{name: "PushFull", method: "POST", path: "/api/v1/push", body: one, world: world{push: func(context.Context, push.Request) ([]push.Verdict, error) {
			err := &push.QueueFullError{Queue: "q", Depth: 10, Limit: 10}
			return []push.Verdict{{Status: push.StatusFailed, MessageID: messageID, TransactionID: "t", Err: err}}, nil
		}}, status: 201, contains: []string{`"status":"failed","error":"Queue 'q' is full. Max capacity reached.","code":"QUEUE_FULL","queueDepth":10,"remainingCapacity":0`}},
		{name: "PushBounded", method: "POST", path: "/api/v1/push", body: one, world: world{push: func(context.Context, push.Request) ([]push.Verdict, error) {
			return []push.Verdict{{Status: push.StatusQueued, MessageID: messageID, TransactionID: "t", Depth: 3, Limit: 10, Remaining: 7}}, nil
		}}, status: 201, contains: []string{`"queueDepth":3,"remainingCapacity":7`}, lacks: []string{"error", "code"}},
		{
			name: "PushPanics", method: "POST", path: "/api/v1/push", body: one, world: world{push: func(context.Context, push.Request) ([]push.Verdict, error) { panic(errSecret) }},
			status: 500, exact: `{"error":"internal error","code":"internal_error"}`, header: []string{"Content-Type: application/json"},
		},
		{
			name: "PushStopping", method: "POST", path: "/api/v1/push", body: one, world: world{push: func(context.Context, push.Request) ([]push.Verdict, error) { return nil, push.ErrStopped }},
			status: 503, contains: []string{`"code":"stopping"`}, header: []string{"Retry-After: 1"},
		},

		// pop
		{name: "PopNothing", method: "GET", path: "/api/v1/pop/queue/q", status: 204, exact: ""},
		{name: "PopMessages", method: "GET", path: "/api/v1/pop/queue/q", world: world{pop: func(context.Context, pop.Request) (popResult, error) {
			return &batch{body: `{"success":true}`}, nil
		}}, status: 200, exact: `{"success":true}`, header: []string{"Content-Type: application/json", "Content-Length: 16"}},
		{name: "PopDiscoveryWithoutFilter", method: "GET", path: "/api/v1/pop?batch=3", status: 400, exact: `{"success":false,"error":"namespace or task is required","code":"filter_required","messages":[]}`},
		{name: "PopDiscovery", method: "GET", path: "/api/v1/pop?task=x", status: 204},
		{name: "PopBadBatch", method: "GET", path: "/api/v1/pop/queue/q?batch=ten", status: 400, contains: []string{`"code":"invalid_parameter"`, `batch must be an integer of 32 bits, not \"ten\"`}},
		{name: "PopBadWait", method: "GET", path: "/api/v1/pop/queue/q/partition/p?wait=yes", status: 400, contains: []string{"wait must be true or false"}},
		{name: "PopLongGroup", method: "GET", path: "/api/v1/pop/queue/q?consumerGroup=" + strings.Repeat("g", 256), status: 400, contains: []string{`"code":"invalid_name"`, "consumerGroup is longer than 255 characters"}},
		{name: "PopDatabaseAway", method: "GET", path: "/api/v1/pop/queue/q", world: world{pop: failPop(wrapped(pg.ErrUnavailable))}, status: 503, contains: []string{`"code":"database_unavailable"`}, lacks: []string{"hunter2"}, header: []string{"Retry-After: 1"}},
		{name: "PopPoolExhausted", method: "GET", path: "/api/v1/pop/queue/q", world: world{pop: failPop(wrapped(pg.ErrPoolTimeout))}, status: 500, exact: `{"error":"pool","code":"pool_exhausted"}`},
		{name: "PopStatementTimeout", method: "GET", path: "/api/v1/pop/queue/q", world: world{pop: failPop(wrapped(pg.ErrTimeout))}, status: 503, contains: []string{`"code":"timeout"`}, header: []string{"Retry-After: 1"}},
		{name: "PopLockTimeout", method: "GET", path: "/api/v1/pop/queue/q", world: world{pop: failPop(wrapped(pg.ErrLockTimeout))}, status: 503, contains: []string{`"code":"timeout"`}, header: []string{"Retry-After: 1"}},
		{name: "PopFailed", method: "GET", path: "/api/v1/pop/queue/q", world: world{pop: failPop(errSecret)}, status: 500, contains: []string{`"error":"pop failed`}, lacks: []string{"hunter2"}},
		{name: "PopHeadClaimsNothing", method: "HEAD", path: "/api/v1/pop/queue/q", world: world{pop: func(context.Context, pop.Request) (popResult, error) { panic("must not be called") }}, status: 204},

		// ack
		{name: "AckOne", method: "POST", path: "/api/v1/ack", body: ackOne, world: world{ack: func(group string, items []ack.Item) []ack.Result {
			if group != "g" || len(items) != 1 || items[0] != (ack.Item{TransactionID: "t", PartitionID: "p", Status: "failed", LeaseID: "l", Error: "why"}) {
				panic(fmt.Sprint(group, items))
			}
			return []ack.Result{{TransactionID: "t", Success: true, LeaseReleased: true, DeadLetter: true, Queue: "q", Partition: "p"}}
		}}, status: 200, exact: `[{"index":0,"transactionId":"t","success":true,"error":null,"leaseReleased":true,"dlq":true,"noop":false,"queueName":"q","partitionName":"p"}]`},
		{name: "AckFailedItem", method: "POST", path: "/api/v1/ack/batch", body: `{"acknowledgments":[{"transactionId":"x\"y"}]}`, world: world{ack: func(group string, items []ack.Item) []ack.Result {
			if group != pg.QueueModeGroup || items[0].Status != "completed" {
				panic(fmt.Sprint(group, items))
			}
			return []ack.Result{{TransactionID: items[0].TransactionID, Error: "no leased batch"}}
		}}, status: 200, exact: `[{"index":0,"transactionId":"x\"y","success":false,"error":"no leased batch","leaseReleased":false,"dlq":false,"noop":false,"queueName":null,"partitionName":null}]`},
		{name: "AckEmptyBatch", method: "POST", path: "/api/v1/ack/batch", body: `{"consumerGroup":null,"acknowledgments":[]}`, status: 200, exact: `[]`},
		{name: "AckBatchWithoutList", method: "POST", path: "/api/v1/ack/batch", body: `{}`, status: 200, exact: `[]`},
		{
			name: "AckStatusWords", method: "POST", path: "/api/v1/ack/batch", body: `{"acknowledgments":[{"status":null},{"status":"success"},{"status":"acked"},{"status":"ok"},{"status":""},{"status":"Completed"},{"status":"retry"},{"status":"dlq"},{"status":"failed","status":"completed"}]}`,
			world: world{ack: func(_ string, items []ack.Item) []ack.Result {
				var words []string
				for _, item := range items {
					words = append(words, item.Status)
				}
				return []ack.Result{{TransactionID: strings.Join(words, " ")}}
			}}, status: 200, contains: []string{`"completed completed completed completed failed failed retry dlq completed"`},
		},
		{
			name: "AckDelays", method: "POST", path: "/api/v1/ack/batch", body: `{"acknowledgments":[{"delayMs":1500,"status":"retry"},{"delayMs":null},{},{"delayMs":0},{"delayMs":-1},{"delayMs":1.5},{"delayMs":1e3},{"delayMs":99999999999999}]}`,
			world: world{ack: func(_ string, items []ack.Item) []ack.Result {
				var delays []string
				for _, item := range items {
					if item.DelayMs == nil {
						delays = append(delays, "none")
						continue
					}
					delays = append(delays, strconv.Itoa(*item.DelayMs))
				}
				return []ack.Result{{TransactionID: strings.Join(delays, " ")}}
			}}, status: 200, contains: []string{`"1500 none none 0 -1 -1 1000 -1"`},
		},
		{name: "AckDelayWrongType", method: "POST", path: "/api/v1/ack/batch", body: `{"acknowledgments":[{},{"delayMs":"5"}]}`, status: 400, contains: []string{"expected an integer for `delayMs` of acknowledgment 1"}},
		{name: "AckWrongType", method: "POST", path: "/api/v1/ack/batch", body: `{"acknowledgments":[{},{"status":true}]}`, status: 400, contains: []string{"invalid type: a boolean, expected a string for `status` of acknowledgment 1"}},
		{name: "AckNotAnObject", method: "POST", path: "/api/v1/ack/batch", body: `{"acknowledgments":[7]}`, status: 400, contains: []string{"expected an object for acknowledgment 0"}},
		{name: "AckBadJSON", method: "POST", path: "/api/v1/ack", body: `{"transactionId":}`, status: 400, contains: []string{`"code":"bad_body"`}},
		{name: "AckLongGroup", method: "POST", path: "/api/v1/ack", body: `{"consumerGroup":"` + strings.Repeat("g", 256) + `"}`, status: 400, contains: []string{`"code":"invalid_name"`}},
		{name: "AckErrorOfAnyType", method: "POST", path: "/api/v1/ack/batch", body: `{"acknowledgments":[{"error":{"code":"E1","n":[1,2]}},{"error":404},{"error":{}},{"error":[]},{"error":false}]}`, world: world{ack: func(_ string, items []ack.Item) []ack.Result {
			for i, want := range []string{`{"code":"E1","n":[1,2]}`, "404", "", "", "false"} {
				if items[i].Error != want {
					panic(fmt.Sprintf("%d: %q", i, items[i].Error))
				}
			}
			return make([]ack.Result, 5)
		}}, status: 200},
		{name: "AckErrorWithNUL", method: "POST", path: "/api/v1/ack", body: `{"error":"a\u0000\ud800b"}`, world: world{ack: func(_ string, items []ack.Item) []ack.Result {
			return []ack.Result{{TransactionID: items[0].Error}}
		}}, status: 200, contains: []string{"a\uFFFD\uFFFDb"}},

		// transaction
		{
			name: "TransactionCommitted", method: "POST", path: "/api/v1/transaction", body: `{"operations":[{"items":[{"queue":"q","payload":1},{"queue":"q","data":2,"partition":null}],"type":"push"},{"type":"ack","transactionId":"t","partitionId":"p","consumerGroup":null}],"requiredLeases":["l",null]}`,
			world: world{transact: func(operations []transaction.Operation, leases []string) (transaction.Outcome, error) {
				if len(operations) != 3 || string(operations[1].Push.Payload) != "2" || operations[1].Push.Partition != "Default" || operations[2].Ack.PartitionID != "p" || operations[2].Ack.Status != "completed" || len(leases) != 1 {
					panic(fmt.Sprint(operations, leases))
				}
				return transaction.Outcome{ID: messageID, Results: []transaction.Result{
					{TransactionID: "a", MessageID: messageID}, {TransactionID: "a", MessageID: messageID, Duplicate: true}, {TransactionID: "t", DeadLetter: true},
				}}, nil
			}}, status: 200, exact: `{"transactionId":"` + messageID.String() + `","success":true,"results":[` +
				`{"index":0,"type":"push","success":true,"transactionId":"a","messageId":"` + messageID.String() + `","queueName":"q"},` +
				`{"index":1,"type":"push","success":true,"transactionId":"a","messageId":"` + messageID.String() + `","queueName":"q","duplicate":true},` +
				`{"index":2,"type":"ack","success":true,"transactionId":"t","error":null,"dlq":true,"noop":false}]}`,
		},
		{
			name: "TransactionFlatPush", method: "POST", path: "/api/v1/transaction", body: `{"operations":[{"queue":"q","type":"push","transactionId":"x","items":null}]}`,
			world: world{transact: func(operations []transaction.Operation, _ []string) (transaction.Outcome, error) {
				if item := operations[0].Push; item.Queue != "q" || string(item.Payload) != "{}" || item.TransactionID != "x" {
					panic(fmt.Sprint(item))
				}
				return transaction.Outcome{ID: messageID, Results: make([]transaction.Result, 1)}, nil
			}}, status: 200, contains: []string{`"success":true`},
		},
		{
			name: "TransactionNullPayload", method: "POST", path: "/api/v1/transaction", body: `{"operations":[{"queue":"q","type":"push","payload":null,"data":1}]}`,
			world: world{transact: func(operations []transaction.Operation, _ []string) (transaction.Outcome, error) {
				if string(operations[0].Push.Payload) != "null" {
					panic(string(operations[0].Push.Payload))
				}
				return transaction.Outcome{ID: messageID, Results: make([]transaction.Result, 1)}, nil
			}}, status: 200,
		},
		{name: "TransactionEmpty", method: "POST", path: "/api/v1/transaction", body: `{"operations":[]}`, status: 200, contains: []string{`"success":true,"results":[]`}},
		{
			name: "TransactionWithoutOperations", method: "POST", path: "/api/v1/transaction", body: `{"x":1}`, status: 400,
			contains: []string{`"success":false,"error":"transaction requires an operations array","code":"invalid_transaction","results":[]}`, `{"transactionId":"`},
		},
		{name: "TransactionOperationsObject", method: "POST", path: "/api/v1/transaction", body: `{"operations":{}}`, status: 400, contains: []string{"transaction requires an operations array"}},
		{name: "TransactionOtherOperation", method: "POST", path: "/api/v1/transaction", body: `{"operations":[{"type":"pop"}]}`, status: 400, contains: []string{"segments transaction supports only push and ack operations"}},
		{name: "TransactionNumberOperation", method: "POST", path: "/api/v1/transaction", body: `{"operations":[1]}`, status: 400, contains: []string{"segments transaction supports only push and ack operations"}},
		{name: "TransactionBadJSON", method: "POST", path: "/api/v1/transaction", body: `{"operations":[`, status: 400, contains: []string{`{"error":"bad body: unexpected end of the body at line 1 column 16"`}},
		{name: "TransactionNoQueue", method: "POST", path: "/api/v1/transaction", body: `{"operations":[{"type":"ack"},{"type":"push","items":[{"queue":"q"},{"payload":1}]}]}`, status: 400, contains: []string{"queue of operation 2 must not be empty"}},
		{name: "TransactionRolledBack", method: "POST", path: "/api/v1/transaction", body: `{"operations":[]}`, world: world{transact: func([]transaction.Operation, []string) (transaction.Outcome, error) {
			return transaction.Outcome{}, fmt.Errorf("transact: %w", &pg.TransactionError{Reason: `QDUP duplicate messages in queue "q" partition "p"; transaction rolled back`})
		}}, status: 200, contains: []string{`"success":false,"error":"QDUP duplicate messages in queue \"q\" partition \"p\"; transaction rolled back","code":"transaction_failed","results":[]`}},
		{name: "TransactionQueueFull", method: "POST", path: "/api/v1/transaction", body: `{"operations":[]}`, world: world{transact: func([]transaction.Operation, []string) (transaction.Outcome, error) {
			return transaction.Outcome{}, &pg.TransactionError{Reason: `QUEUE_FULL queue "q" is full; transaction rolled back`, QueueFull: true}
		}}, status: 200, contains: []string{`"success":false,"error":"QUEUE_FULL queue \"q\" is full; transaction rolled back","code":"QUEUE_FULL"`}},
		{name: "TransactionDatabaseAway", method: "POST", path: "/api/v1/transaction", body: `{"operations":[]}`, world: world{transact: func([]transaction.Operation, []string) (transaction.Outcome, error) {
			return transaction.Outcome{}, wrapped(pg.ErrUnavailable)
		}}, status: 503, contains: []string{`"code":"database_unavailable"`}, lacks: []string{"hunter2"}},
		{name: "TransactionTooLarge", method: "POST", path: "/api/v1/transaction", body: `{"operations":[` + strings.Repeat(`{"type":"ack"},`, maxTransactionOperations) + `{"type":"ack"}]}`, status: 413, contains: []string{`"code":"batch_too_large"`}},

		// lease
		{name: "ExtendNothing", method: "POST", path: "/api/v1/lease/l/extend", status: 200, exact: `{"leaseId":"l","success":false,"renewed":0,"newExpiresAt":null,"expiresAt":null,"lease_expires_at":null}`},
		{name: "ExtendLive", method: "POST", path: "/api/v1/lease/l/extend", body: `{"seconds":90}`, world: world{extend: func(leaseID string, seconds int) (pg.Renewal, error) {
			if leaseID != "l" || seconds != 90 {
				panic(fmt.Sprint(leaseID, seconds))
			}
			return pg.Renewal{Renewed: 2, ExpiresAt: time.Date(2026, 9, 14, 8, 24, 11, 8271000, time.FixedZone("", 7200))}, nil
		}}, status: 200, exact: `{"leaseId":"l","success":true,"renewed":2,"newExpiresAt":"2026-09-14T06:24:11.008271Z","expiresAt":"2026-09-14T06:24:11.008271Z","lease_expires_at":"2026-09-14T06:24:11.008271Z"}`},
		{name: "ExtendNotJSON", method: "POST", path: "/api/v1/lease/l/extend", body: `soon`, world: world{extend: func(_ string, seconds int) (pg.Renewal, error) {
			if seconds != 60 {
				panic(seconds)
			}
			return pg.Renewal{}, nil
		}}, status: 200},
		{name: "ExtendFailed", method: "POST", path: "/api/v1/lease/l/extend", world: world{extend: func(string, int) (pg.Renewal, error) { return pg.Renewal{}, errSecret }}, status: 500, contains: []string{`"error":"renew failed: `}, lacks: []string{"hunter2"}},

		// configure and delete
		{
			name: "ConfigureOptions", method: "POST", path: "/api/v1/configure", body: `{"queue":"q","namespace":"n","task":null,"options":{"leaseTime":90,"big":12345678901234567890},"mode":"replace","strict":true,"other":1}`,
			world: world{configure: func(queue, namespace, task string, options json.RawMessage) (json.RawMessage, error) {
				return json.RawMessage(fmt.Sprintf(`{"got":["%s","%s","%s"],"options":%s}`, queue, namespace, task, options)), nil
			}}, status: 200, exact: `{"got":["q","n",""],"options":{"__mode":"replace","__strict":true,"big":12345678901234567890,"leaseTime":90}}`,
		},
		{
			name: "ConfigureTopLevelOptions", method: "POST", path: "/api/v1/configure", body: `{"queue":"q","leaseTime":null,"ack":null,"options":null,"__strict":true,"mode":"merge"}`,
			world: world{configure: func(_, _, _ string, options json.RawMessage) (json.RawMessage, error) { return options, nil }}, status: 200, exact: `{"ack":null,"leaseTime":null}`,
		},
		{name: "ConfigureNoQueue", method: "POST", path: "/api/v1/configure", body: `{}`, status: 400, exact: `{"error":"queue is required","code":"queue_required"}`},
		{name: "ConfigureNumberQueue", method: "POST", path: "/api/v1/configure", body: `{"queue":1}`, status: 400, contains: []string{"queue is required"}},
		{name: "ConfigureEmptyQueue", method: "POST", path: "/api/v1/configure", body: `{"queue":""}`, status: 400, contains: []string{"queue is required"}},
		{name: "ConfigureNoBody", method: "POST", path: "/api/v1/configure", status: 400, contains: []string{`"code":"bad_body"`}},
		{name: "ConfigureBadJSON", method: "POST", path: "/api/v1/configure", body: `{"queue":"q",}`, status: 400, contains: []string{"bad body: key must be a string at line 1 column 14"}},
		{name: "ConfigureLoneSurrogate", method: "POST", path: "/api/v1/configure", body: `{"queue":"q","options":{"leaseTime":"\ud800"}}`, status: 400, contains: []string{"lone surrogate"}},
		{name: "ConfigureOptionsArray", method: "POST", path: "/api/v1/configure", body: `{"queue":"q","options":[1]}`, status: 400, contains: []string{"options must be an object"}},
		{
			name: "ConfigureOptionsOfPHP", method: "POST", path: "/api/v1/configure", body: `{"queue":"q","options":[ ],"leaseTime":5}`,
			world: world{configure: func(_, _, _ string, options json.RawMessage) (json.RawMessage, error) { return options, nil }}, status: 200, exact: `{}`,
		},
		{name: "ConfigureTaskNumber", method: "POST", path: "/api/v1/configure", body: `{"queue":"q","task":1}`, status: 400, contains: []string{"task must be a string"}},
		{name: "ConfigureLongNamespace", method: "POST", path: "/api/v1/configure", body: `{"queue":"q","namespace":"` + strings.Repeat("n", 256) + `"}`, status: 400, contains: []string{"namespace is longer than 255 characters"}},
		{name: "ConfigureNULQueue", method: "POST", path: "/api/v1/configure", body: `{"queue":"\u0000"}`, status: 400, contains: []string{"queue must not contain control characters"}},
		{name: "ConfigureUnknownMode", method: "POST", path: "/api/v1/configure", body: `{"queue":"q","mode":"upsert"}`, status: 400, contains: []string{"mode must be"}},
		{name: "ConfigureBadOption", method: "POST", path: "/api/v1/configure", body: `{"queue":"q"}`, world: world{configure: func(_, _, _ string, _ json.RawMessage) (json.RawMessage, error) {
			return nil, &pg.OptionError{Text: "leaseTime must be at least 1"}
		}}, status: 400, exact: `{"error":"leaseTime must be at least 1","code":"invalid_option"}`},
		{name: "ConfigureFailed", method: "POST", path: "/api/v1/configure", body: `{"queue":"q"}`, world: world{configure: func(_, _, _ string, _ json.RawMessage) (json.RawMessage, error) { return nil, errSecret }}, status: 500, contains: []string{`"error":"configure failed: `}, lacks: []string{"hunter2"}},
		{name: "Delete", method: "DELETE", path: "/api/v1/resources/queues/q", status: 200, contains: []string{`"deleted":true`}},
		{name: "DeleteFailed", method: "DELETE", path: "/api/v1/resources/queues/q", world: world{remove: func(string) (json.RawMessage, error) { return nil, wrapped(pg.ErrUnavailable) }}, status: 503, contains: []string{"delete failed: "}, lacks: []string{"hunter2"}},
		{name: "DeleteProcedureNotFound", method: "DELETE", path: "/api/v1/resources/queues/q", world: world{remove: func(string) (json.RawMessage, error) { return json.RawMessage(`{"error":"Queue Not Found"}`), nil }}, status: 404, exact: `{"error":"Queue Not Found","code":"not_found"}`},
		{name: "DeleteProcedureError", method: "DELETE", path: "/api/v1/resources/queues/q", world: world{remove: func(string) (json.RawMessage, error) { return json.RawMessage(`{"error":"no"}`), nil }}, status: 500},

		// health
		{name: "Health", method: "GET", path: "/health", status: 200, exact: `{"status":"healthy","database":"connected","engine":"segments-rust","version":"1.0.0"}`},
		{name: "HealthDatabaseAway", method: "GET", path: "/health", world: world{ping: func() error { return errSecret }}, status: 503, exact: `{"status":"unhealthy","database":"disconnected","engine":"segments-rust","version":"1.0.0"}`},
		{name: "HealthStopping", method: "GET", path: "/health", world: world{stopping: true}, status: 503, contains: []string{`"unhealthy","database":"connected"`}},
		{name: "HealthHead", method: "HEAD", path: "/health", status: 200, exact: ""},
		{name: "Livez", method: "GET", path: "/livez", world: world{ping: func() error { panic("must not be called") }, stopping: true}, status: 200, exact: `{"status":"ok"}`},
		{name: "Status", method: "GET", path: "/status", world: world{ping: func() error { panic("must not be called") }}, status: 200, exact: `{"status":"ok","engine":"segments-rust"}`},
		{name: "Readyz", method: "GET", path: "/readyz", world: world{checks: []Check{{Name: "schema", Run: func(context.Context) error { return nil }}}}, status: 200, exact: `{"ready":true,"checks":{"database":"ok","running":"ok","schema":"ok"}}`},
		{
			name: "ReadyzAdvisory", method: "GET", path: "/readyz",
			world:  world{checks: []Check{{Name: "metrics", Advisory: true, Run: func(context.Context) error { return errors.New("late") }}}},
			status: 200, exact: `{"ready":true,"checks":{"database":"ok","metrics":"late","running":"ok"}}`,
		},
		{
			name: "ReadyzNot", method: "GET", path: "/readyz", world: world{ping: func() error { return wrapped(pg.ErrUnavailable) }, stopping: true, checks: []Check{{Name: "schema", Run: func(context.Context) error { return errors.New("not applied") }}}}, status: 503,
			contains: []string{`"ready":false`, `"schema":"not applied"`, `"database":"the database is unavailable`, `"running":"the broker is stopping"`}, lacks: []string{"hunter2"},
		},
		{name: "Metrics", method: "GET", path: "/metrics", status: 200, contains: []string{`"uptime":0,"requests":{"total":0,"rate":0}`, `"database":{"poolSize":160,"idleConnections":7,"waitingRequests":1}`, `"arrayBuffers":0`, `"cpu":{"user":0,"system":0}`}},
		{
			name: "Prometheus", method: "GET", path: "/metrics/prometheus", status: 200, contains: []string{"# HELP queen_uptime_seconds ", "# TYPE queen_process_push_requests_total counter\nqueen_process_push_requests_total 0\n", "queen_db_pool_size 160", `queen_admission_inflight{lane="maint"} 0`, "queen_admission_budget 12", `queen_dedup_claims_total{result="vouched"} 7`, `queen_dedup_given_up_total{reason="evicted"} 1`, "queen_dedup_bytes 4096"},
			header: []string{"Content-Type: text/plain; version=0.0.4; charset=utf-8", "Cache-Control: no-cache"},
		},

		{name: "PushWhileStarting", method: "POST", path: "/api/v1/push", body: one, world: world{starting: true, push: func(context.Context, push.Request) ([]push.Verdict, error) {
			panic("must not be called")
		}}, status: 503, exact: `{"error":"the broker is starting: it waits for the database","code":"starting"}`, header: []string{"Retry-After: 1"}},
		{name: "LivezWhileStarting", method: "GET", path: "/livez", world: world{starting: true}, status: 200},
		{name: "HealthWhileStarting", method: "GET", path: "/health", world: world{starting: true}, status: 200},
		{name: "MetricsWhileStarting", method: "GET", path: "/metrics/prometheus", world: world{starting: true}, status: 200},

		// routing
		{name: "UnknownAPI", method: "GET", path: "/api/v1/nope", status: 404, exact: `{"error":"Not Found","code":"no_such_route"}`},
		{name: "UnknownAPIRoot", method: "GET", path: "/api", status: 404, exact: `{"error":"Not Found","code":"no_such_route"}`},
		{name: "UnknownAuth", method: "GET", path: "/auth/you", status: 404, exact: `{"error":"Not Found","code":"no_such_route"}`},
		{name: "UnknownPost", method: "POST", path: "/x", status: 404, exact: `{"error":"Not Found","code":"no_such_route"}`},
		{name: "UnknownPage", method: "GET", path: "/apiary/", status: 404, exact: `Not Found`},
		{name: "RootPage", method: "GET", path: "/", status: 404, exact: `Not Found`},
		{name: "WrongMethod", method: "GET", path: "/api/v1/push", status: 405, contains: []string{`"code":"method_not_allowed"`, "allowed: POST"}, header: []string{"Allow: POST", "Content-Type: application/json"}},
		{name: "WrongMethodOfGet", method: "DELETE", path: "/api/v1/pop/queue/q", status: 405, header: []string{"Allow: GET, HEAD"}},
		{name: "Options", method: "OPTIONS", path: "/api/v1/push", status: 405, header: []string{"Allow: POST"}},
		{name: "EmptyQueueSegment", method: "GET", path: "/api/v1/pop/queue//partition/p", status: 400, contains: []string{`"code":"invalid_path"`}},
		{name: "EmptyQueueAtTheEnd", method: "GET", path: "/api/v1/pop/queue/", status: 400, contains: []string{`"code":"invalid_path"`}},
		{name: "EmptyPartitionAtTheEnd", method: "GET", path: "/api/v1/pop/queue/q/partition/", status: 400, contains: []string{`"code":"invalid_path"`}},
		{name: "DoubleSlash", method: "GET", path: "//health", status: 400, contains: []string{`"code":"invalid_path"`}},
		{name: "ControlInPath", method: "GET", path: "/api/v1/pop/queue/%00", status: 400, contains: []string{`"code":"invalid_name"`, "queue must not contain control characters"}},
		{name: "InvalidUTF8InPath", method: "GET", path: "/api/v1/pop/queue/%ff", status: 400, contains: []string{"queue must be valid UTF-8"}},
		{name: "LongQueueInPath", method: "DELETE", path: "/api/v1/resources/queues/" + strings.Repeat("q", 256), status: 400, contains: []string{"queue is longer than 255 characters"}},
		{name: "LongPartitionInPath", method: "GET", path: "/api/v1/pop/queue/q/partition/" + strings.Repeat("p", 1025), status: 400, contains: []string{"partition is longer than 1024 bytes"}},
		{name: "ControlInLease", method: "POST", path: "/api/v1/lease/a%0Ab/extend", status: 400, contains: []string{"leaseId must not contain control characters"}},
	}
	runScenarios(t, scenarios)
}

// runScenarios runs every scenario against a server of its own.
func runScenarios(t *testing.T, scenarios []scenario) {
	t.Helper()
	for i := range scenarios {
		tc := &scenarios[i]
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			answer := call(t, serve(t, &tc.world), tc.method, tc.path, tc.body)
			require.Equal(t, tc.status, answer.status, "body: %s", answer.body)
			if tc.exact != "" || tc.status == 204 {
				require.Equal(t, tc.exact, answer.body)
			}
			for _, part := range tc.contains {
				require.Contains(t, answer.body, part)
			}
			for _, part := range tc.lacks {
				require.NotContains(t, answer.body, part)
			}
			for _, line := range tc.header {
				name, value, _ := strings.Cut(line, ": ")
				require.Equal(t, value, answer.header.Get(name), name)
			}
			if tc.status >= 400 && tc.exact != "Not Found" {
				require.Equal(t, "application/json", answer.header.Get("Content-Type"))
				if tc.method != "HEAD" {
					require.True(t, json.Valid([]byte(answer.body)), "not JSON: %s", answer.body)
				}
			}
		})
	}
}
