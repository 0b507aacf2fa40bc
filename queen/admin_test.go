package queen_test

import (
	"errors"
	"iter"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/queen"
	"queenmq/test/stack"
)

// recorder notes the routes that a client asks.
type recorder struct {
	mu    sync.Mutex
	asked []string
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.asked = append(r.asked, request.Method+" "+request.URL.EscapedPath())
	r.mu.Unlock()
	return http.DefaultTransport.RoundTrip(request)
}

// notHere are the routes that the client leaves to others, with the reason.
var notHere = map[string]string{
	"GET /api/v1/messages/tail":                                "a stream of events for browsers; Consume and Messages are the client's",
	"POST /api/v1/ack":                                         "Ack sends batches",
	"GET /api/v1/status/queues/{queue}":                        "Queue and Partitions say the same",
	"GET /api/v1/resources/consumer-groups":                    "Groups, page by page for the console",
	"GET /api/v1/resources/consumer-groups/{group}/partitions": "Group, page by page for the console",
	"GET /api/v1/system/maintenance/pop":                       "Maintenance shows both switches",
	"GET /api/v1/system/shared-state":                          "Maintenance, in an older shape",
	"POST /internal/api/notify":                                "of brokers",
	"GET /internal/api/shared-state/stats":                     "of brokers",
	"GET /internal/api/inter-instance/stats":                   "of brokers",
	"POST /streams/v1/queries":                                 "package streams", "POST /streams/v1/state/get": "package streams",
	"POST /streams/v1/state/ripe": "package streams", "POST /streams/v1/cycle": "package streams",
	"GET /auth/me": "of browsers", "GET /auth/login": "of browsers", "POST /auth/logout": "of browsers",
	"GET /openapi.json": "Do", "GET /health": "of probes", "GET /livez": "of probes", "GET /readyz": "of probes", "GET /status": "of probes",
	"GET /metrics": "of scrapers", "GET /metrics/prometheus": "of scrapers",
}

// first takes the first element of a list.
func first[E any](t *testing.T, list iter.Seq2[E, error]) E {
	t.Helper()
	for e, err := range list {
		require.NoError(t, err)
		return e
	}
	t.Fatal("the list is empty")
	panic("unreachable")
}

// TestAdmin goes through the life of a queue with every method, and at its end compares the routes that were asked with those that the
// broker has.
func TestAdmin(t *testing.T) {
	t.Parallel()
	url := stack.Start(t).URL // its own broker, because of the switches
	asked := &recorder{}
	client, err := queen.Connect(url, queen.WithHTTPClient(&http.Client{Transport: asked}), queen.WithRetryBudget(10*time.Second))
	require.NoError(t, err)
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	admin, ctx := client.Admin(), t.Context()
	const queue, group = "shop.orders/eu", "billing"

	options, err := admin.Configure(ctx, queue, queen.QueueOptions{Namespace: new("shop"), RetryLimit: new(1), MaxSize: new(1000)})
	require.NoError(t, err)
	require.Equal(t, 1, *options.RetryLimit)
	_, err = admin.Configure(ctx, queue, queen.QueueOptions{LeaseTime: new(-1)})
	require.ErrorIs(t, err, queen.ErrInvalid)
	options, err = admin.Options(ctx, queue)
	require.NoError(t, err)
	require.Equal(t, 1000, *options.MaxSize)
	_, err = admin.Options(ctx, "no such queue")
	require.ErrorIs(t, err, queen.ErrNotFound)

	const trace = "0199b0c4-7be2-7c04-a1d9-5e2c8f0b6731"
	var items []queen.Item
	for _, id := range []string{"a", "b", "c"} {
		items = append(items, queen.Item{Queue: queue, Partition: "p", TransactionID: id, TraceID: trace, Payload: []byte(`{"id": "` + id + `"}`)})
	}
	_, err = client.Push(ctx, items...)
	require.NoError(t, err)
	batch, err := client.Pop(ctx, queue, queen.PopOptions{Group: group, Partition: "p", Start: queen.StartOldest})
	require.NoError(t, err)
	require.Len(t, batch.Messages, 3)
	message := batch.Messages[0]

	queues, err := admin.Queues(ctx, queen.QueueFilter{Namespace: "shop"})
	require.NoError(t, err)
	require.Len(t, queues, 1)
	require.EqualValues(t, 3, queues[0].Messages.Total)
	detail, err := admin.Queue(ctx, queue)
	require.NoError(t, err)
	require.EqualValues(t, 3, detail.Totals.Total)
	require.Equal(t, 1, detail.PartitionCount)
	partition := first(t, admin.Partitions(ctx, queue, queen.PartitionFilter{Sort: "depth"}))
	require.Equal(t, message.PartitionID, partition.ID)
	depth, err := admin.Depth(ctx, queue, group)
	require.NoError(t, err)
	require.EqualValues(t, 3, depth)

	leases, err := admin.Leases(ctx, queen.LeaseFilter{Group: group})
	require.NoError(t, err)
	require.Len(t, leases, 1)
	require.Equal(t, batch.LeaseID, leases[0].LeaseID)
	released, err := admin.ReleaseLease(ctx, message.PartitionID, group, batch.LeaseID)
	require.NoError(t, err)
	require.True(t, released)
	batch, err = client.Pop(ctx, queue, queen.PopOptions{Group: group})
	require.NoError(t, err)

	stored := first(t, admin.Messages(ctx, queen.MessageFilter{Queue: queue, TransactionID: "a", From: time.Now().Add(-time.Hour)}))
	require.Equal(t, `{"id": "a"}`, string(stored.Payload))
	one, err := admin.Message(ctx, message.PartitionID, "b")
	require.NoError(t, err)
	require.EqualValues(t, 1, one.Offset)
	page, next, err := admin.PartitionMessages(ctx, message.PartitionID, 1, 1)
	require.NoError(t, err)
	require.Len(t, page, 1)
	require.EqualValues(t, 2, next)
	require.Equal(t, "b", page[0].TransactionID)
	require.Equal(t, queue, page[0].Queue)
	pipeline, err := admin.Pipeline(ctx, trace, 10)
	require.NoError(t, err)
	require.Len(t, pipeline, 3)

	event := queen.TraceEvent{TransactionID: "a", PartitionID: message.PartitionID, Names: []string{"checkout"}, Data: []byte(`{"text":"hello"}`)}
	require.NoError(t, admin.RecordTrace(ctx, event))
	traces, err := admin.Traces(ctx, message.PartitionID, "a")
	require.NoError(t, err)
	require.Len(t, traces, 1)
	traces, err = admin.TracesByName(ctx, "checkout", 10, 0)
	require.NoError(t, err)
	require.Len(t, traces, 1)
	require.Equal(t, queue, traces[0].Queue)
	names, err := admin.TraceNames(ctx, 10, 0)
	require.NoError(t, err)
	require.Equal(t, "checkout", names[0].Name)

	die := func(m *queen.Message, reason string) {
		_, err := client.Ack(ctx, m.DeadLettered(errors.New(reason)))
		require.NoError(t, err)
		batch, err = client.Pop(ctx, queue, queen.PopOptions{Group: group})
		require.NoError(t, err)
	}
	die(&batch.Messages[0], "no account 1")
	die(&batch.Messages[0], "no account 2")
	die(&batch.Messages[0], "no account 3")
	dead := first(t, admin.DeadLetters(ctx, queen.DeadLetterFilter{Queue: queue, Reason: "account 1"}))
	require.Equal(t, "a", dead.TransactionID)
	require.Equal(t, `{"id": "a"}`, string(dead.Payload))
	count, err := admin.CountDeadLetters(ctx, queen.DeadLetterFilter{Group: group})
	require.NoError(t, err)
	require.EqualValues(t, 3, count)
	shapes, err := admin.ErrorShapes(ctx, queen.DeadLetterFilter{})
	require.NoError(t, err)
	require.Len(t, shapes, 1)
	require.EqualValues(t, 3, shapes[0].Count)
	replayed, err := admin.Replay(ctx, dead.ID, queen.Destination{Partition: "again"})
	require.NoError(t, err)
	require.Equal(t, "again", replayed.Partition)
	_, err = admin.Replay(ctx, dead.ID, queen.Destination{})
	require.ErrorIs(t, err, queen.ErrNotFound)
	_, err = admin.ReplayMessage(ctx, message.PartitionID, "b", group)
	require.NoError(t, err)
	counted, err := admin.Redrive(ctx, queen.DeadLetterFilter{Queue: queue}, queen.TaskOptions{DryRun: true})
	require.NoError(t, err)
	require.EqualValues(t, 1, counted.Total)
	task, err := admin.Redrive(ctx, queen.DeadLetterFilter{Queue: queue, To: time.Now().Add(time.Hour)}, queen.TaskOptions{Rate: 1000})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		task, err = admin.Task(ctx, task.ID)
		return err == nil && task.State == "done"
	}, 30*time.Second, 20*time.Millisecond)
	require.EqualValues(t, 1, task.Moved)
	require.Equal(t, task.ID, first(t, admin.Tasks(ctx)).ID)
	_, err = admin.CancelTask(ctx, task.ID)
	require.NoError(t, err)
	purge, err := admin.PurgeDeadLetters(ctx, queen.DeadLetterFilter{}, queen.TaskOptions{DryRun: true})
	require.NoError(t, err)
	require.Zero(t, purge.Total)
	deleted, err := admin.DeleteDeadLetters(ctx, queen.DeadLetterFilter{Queue: queue})
	require.NoError(t, err)
	require.Zero(t, deleted)
	require.ErrorIs(t, admin.DeleteDeadLettersOf(ctx, message.PartitionID, "no such"), queen.ErrNotFound)

	groups, err := admin.Groups(ctx)
	require.NoError(t, err)
	require.Equal(t, group, groups[0].Group)
	_, err = admin.LaggingPartitions(ctx, time.Second)
	require.NoError(t, err)
	lanes, err := admin.Group(ctx, group)
	require.NoError(t, err)
	require.NotEmpty(t, lanes[queue])
	preview, err := admin.PreviewSeek(ctx, group, queue, "p", queen.AtOffset(1))
	require.NoError(t, err)
	require.EqualValues(t, 1, preview.Partitions)
	require.Positive(t, preview.Again)
	moved, err := admin.Seek(ctx, group, queue, "p", queen.AtOffset(1))
	require.NoError(t, err)
	require.Equal(t, 1, moved)
	again, err := client.Pop(ctx, queue, queen.PopOptions{Group: group, Partition: "p"})
	require.NoError(t, err)
	require.Equal(t, "b", again.Messages[0].TransactionID, "replayed")
	moved, err = admin.Seek(ctx, group, queue, "", queen.AtTime(time.Now().Add(-time.Hour)))
	require.NoError(t, err)
	require.Equal(t, 2, moved)
	_, err = admin.Seek(ctx, group, queue, "", queen.AtEnd())
	require.NoError(t, err)
	require.NoError(t, admin.SetSubscription(ctx, group, time.Now()))
	forgotten, err := admin.DeleteGroup(ctx, group, queue)
	require.NoError(t, err)
	require.Equal(t, 2, forgotten)
	_, err = admin.DeleteGroup(ctx, group, "")
	require.NoError(t, err)

	purged, err := admin.Purge(ctx, queue, queen.PurgeOptions{Unread: true, DryRun: true})
	require.NoError(t, err)
	require.Positive(t, purged.Messages)
	would := purged.Messages
	purged, err = admin.Purge(ctx, queue, queen.PurgeOptions{Unread: true})
	require.NoError(t, err)
	require.Equal(t, would, purged.Messages)

	require.NoError(t, admin.SetPushMaintenance(ctx, true))
	require.NoError(t, admin.SetPopMaintenance(ctx, true))
	switches, err := admin.Maintenance(ctx)
	require.NoError(t, err)
	require.Equal(t, queen.Maintenance{Pushes: true, Pops: true}, switches)
	require.NoError(t, admin.SetPushMaintenance(ctx, false))
	require.NoError(t, admin.SetPopMaintenance(ctx, false))

	for _, report := range []queen.Report{
		queen.ReportOverview, queen.ReportNamespaces, queen.ReportTaskNames, queen.ReportCapacity, queen.ReportStatus, queen.ReportQueueStatuses,
		queen.ReportMessageVolume, queen.ReportBuffers, queen.ReportQueueLag, queen.ReportQueueOperations, queen.ReportParkedPops, queen.ReportRetention,
		queen.ReportSystem, queen.ReportWorkers, queen.ReportPostgres, queen.ReportLeaseUtilization, queen.ReportBrokers, queen.ReportSettings, queen.ReportStreams,
	} {
		_, err := admin.Report(ctx, report, nil)
		require.NoError(t, err, report)
	}
	require.NoError(t, admin.RefreshStatistics(ctx))
	existed, err := admin.DeleteQueue(ctx, queue)
	require.NoError(t, err)
	require.True(t, existed)

	// What is left of the message plane.
	_, err = client.Pop(ctx, "", queen.PopOptions{Namespace: "shop"})
	require.NoError(t, err)
	_, err = client.Ack(ctx, queen.Ack{TransactionID: "a", PartitionID: message.PartitionID})
	require.Error(t, err)
	_, err = client.Extend(ctx, "lease", time.Second)
	require.ErrorIs(t, err, queen.ErrLeaseLost)
	_, err = client.Transaction().Commit(ctx)
	require.NoError(t, err)

	requireEveryRoute(t, client, asked.asked)
}

// requireEveryRoute compares what was asked with the broker's own description.
func requireEveryRoute(t *testing.T, client *queen.Client, asked []string) {
	t.Helper()
	response, err := client.Do(t.Context(), http.MethodGet, "/openapi.json", nil, nil)
	require.NoError(t, err)
	document, err := queen.Decode[struct {
		Paths map[string]map[string]struct{}
	}](response.Body)
	require.NoError(t, err)
	require.Greater(t, len(document.Paths), 50)
	parameter := regexp.MustCompile(`\\\{[^/]*\\\}`)
	for path, methods := range document.Paths {
		pattern := regexp.MustCompile("^" + parameter.ReplaceAllString(regexp.QuoteMeta(path), "[^/]+") + "$")
		for method := range methods {
			route := strings.ToUpper(method) + " " + path
			used := slices.ContainsFunc(asked, func(a string) bool {
				askedMethod, askedPath, _ := strings.Cut(a, " ")
				return strings.EqualFold(askedMethod, method) && pattern.MatchString(askedPath)
			})
			if _, elsewhere := notHere[route]; !used && !elsewhere {
				t.Errorf("no method of the client asks %s: add one, or its reason to notHere", route)
			}
		}
	}
}
