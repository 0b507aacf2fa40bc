package queen

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Admin does what operators do: queues, groups, stored messages, dead letters, traces, switches. Get one from [Client.Admin].
// Its methods need tokens with more rights than those that push and pop; the broker's documentation lists them by route.
// Unknown names are [ErrNotFound], unless a method says otherwise.
type Admin struct{ client *Client }

// Admin returns the operator's side of the client.
func (c *Client) Admin() Admin { return Admin{c} }

// A Report is a figure that the broker computes for people. Its shape is in the broker's /openapi.json under the same path.
type Report string

// The reports. In brackets what the query of [Admin.Report] may hold.
const (
	ReportOverview         Report = "/api/v1/resources/overview"
	ReportNamespaces       Report = "/api/v1/resources/namespaces"
	ReportTaskNames        Report = "/api/v1/resources/tasks"
	ReportCapacity         Report = "/api/v1/resources/capacity"              // queue namespace task limit offset
	ReportStatus           Report = "/api/v1/status"                          // from to queue namespace task
	ReportQueueStatuses    Report = "/api/v1/status/queues"                   // queue namespace task limit offset
	ReportMessageVolume    Report = "/api/v1/status/analytics"                // from to interval queue namespace task
	ReportBuffers          Report = "/api/v1/status/buffers"                  // what waits in the broker's file buffer
	ReportQueueLag         Report = "/api/v1/analytics/queue-lag"             // from to queue
	ReportQueueOperations  Report = "/api/v1/analytics/queue-ops"             // from to queue
	ReportParkedPops       Report = "/api/v1/analytics/queue-parked-replicas" // from to queue
	ReportRetention        Report = "/api/v1/analytics/retention"             // from to queue
	ReportSystem           Report = "/api/v1/analytics/system-metrics"        // from to hostname workerId
	ReportWorkers          Report = "/api/v1/analytics/worker-metrics"        // from to hostname workerId queue
	ReportPostgres         Report = "/api/v1/analytics/postgres-stats"
	ReportLeaseUtilization Report = "/api/v1/leases/utilization" // queue consumerGroup
	ReportBrokers          Report = "/api/v1/system/brokers"
	ReportSettings         Report = "/api/v1/system/settings"
	ReportStreams          Report = "/api/v1/streams" // limit cursor
)

// Report returns a report as JSON; read it with [Decode].
func (a Admin) Report(ctx context.Context, report Report, query url.Values) (json.RawMessage, error) {
	response, err := a.client.Do(ctx, http.MethodGet, string(report), query, nil)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// RefreshStatistics computes the cached counters now instead of within the next seconds.
func (a Admin) RefreshStatistics(ctx context.Context) error {
	_, err := change[struct{}](ctx, a.client, http.MethodPost, "/api/v1/stats/refresh", nil, nil)
	return err
}

// get reads what a route answers.
func get[T any](ctx context.Context, c *Client, path string, query url.Values) (T, error) {
	response, err := c.do(ctx, request{method: http.MethodGet, path: path, query: query.Encode(), repeatable: true})
	if err != nil {
		var none T
		return none, err
	}
	return Decode[T](response.Body)
}

// change sends a request that is safe to repeat, as all of this package's that change settings, cursors or dead letters are.
func change[T any](ctx context.Context, c *Client, method, path string, query url.Values, body json.Marshaler) (T, error) {
	var none T
	r := request{method: method, path: path, query: query.Encode(), repeatable: true}
	if body != nil {
		text, err := body.MarshalJSON()
		if err != nil {
			return none, fmt.Errorf("queen: encode the request: %w", err)
		}
		r.body = text
	}
	response, err := c.do(ctx, r)
	if err != nil {
		return none, err
	}
	return Decode[T](response.Body)
}

// body makes a value a request body.
type body[T any] struct{ value T }

func (b body[T]) MarshalJSON() ([]byte, error) { return json.Marshal(b.value) }

func bodyOf[T any](value T) json.Marshaler { return body[T]{value} }

// pages goes through a list with cursors. read takes one page apart.
func pages[P, E any](ctx context.Context, c *Client, path string, query url.Values, read func(*P) (list []E, next string)) iter.Seq2[E, error] {
	return func(yield func(E, error) bool) {
		for {
			page, err := get[P](ctx, c, path, query)
			if err != nil {
				var none E
				yield(none, err)
				return
			}
			list, next := read(&page)
			for i := range list {
				if !yield(list[i], nil) {
					return
				}
			}
			if next == "" {
				return
			}
			query.Set("cursor", next)
		}
	}
}

// A values builds the query of a request and leaves out what is zero.
type values struct{ url.Values }

func newValues() values { return values{url.Values{}} }

func (v values) text(name, value string) values {
	if value != "" {
		v.Set(name, value)
	}
	return v
}

func (v values) number(name string, value int) values {
	if value != 0 {
		v.Set(name, strconv.Itoa(value))
	}
	return v
}

func (v values) time(name string, value time.Time) values {
	if !value.IsZero() {
		v.Set(name, value.UTC().Format(time.RFC3339Nano))
	}
	return v
}
