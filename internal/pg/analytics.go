package pg

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// A SeriesFilter selects what a time series is about. Empty fields select everything.
type SeriesFilter struct {
	Tenant uuid.UUID
	// Isolated tells that a tenancy header is in use: then the default tenant sees only its own, like every other.
	Isolated bool
	// From and To bound the range, both inclusive; zero is the procedure's default, the last hour.
	From, To               time.Time
	Queue, Namespace, Task string
	// Hostname and WorkerID select a broker. WorkerID is "0" in worker metrics and "worker-0" in system metrics.
	Hostname, WorkerID string
}

// filters renders f in the form that the procedures take.
func (f SeriesFilter) filters() ([]byte, error) {
	members := map[string]any{"_tenant": f.Tenant, "_isolated": f.Isolated}
	for name, text := range map[string]string{"queue": f.Queue, "namespace": f.Namespace, "task": f.Task, "hostname": f.Hostname, "workerId": f.WorkerID} {
		if text != "" {
			members[name] = text
		}
	}
	for name, at := range map[string]time.Time{"from": f.From, "to": f.To} {
		if !at.IsZero() {
			members[name] = at.UTC().Format(time.RFC3339Nano)
		}
	}
	rendered, err := json.Marshal(members)
	if err != nil {
		return nil, fmt.Errorf("render a filter: %w", err)
	}
	return rendered, nil
}

// Status returns the picture of the status page: throughput, queues, messages, leases, dead letters, brokers.
func (db *DB) Status(ctx context.Context, f SeriesFilter) (json.RawMessage, error) {
	return db.series(ctx, "read the status", `SELECT queen.get_status_v3($1::jsonb)`, f)
}

// SystemOverview returns one look at everything a tenant has; isolated as in SeriesFilter.
func (db *DB) SystemOverview(ctx context.Context, tenant uuid.UUID, isolated bool) (json.RawMessage, error) {
	return db.rawAnswer(ctx, "read the overview", repeatConflicts, `SELECT queen.get_system_overview_v3($1::uuid, $2::boolean)`, uuidArgument(tenant), isolated)
}

// QueueLag returns how old messages were when they were popped, per queue and bucket.
func (db *DB) QueueLag(ctx context.Context, f SeriesFilter) (json.RawMessage, error) {
	return db.rawAnswer(ctx, "read queue lag", repeatConflicts, `SELECT queen.get_queue_lag_v1($1::timestamptz, $2::timestamptz, $3::text, $4::uuid)`,
		timeArgument(f.From), timeArgument(f.To), pgtype.Text{String: f.Queue, Valid: f.Queue != ""}, uuidArgument(f.Tenant))
}

// QueueOps returns what happened to each queue, per bucket.
func (db *DB) QueueOps(ctx context.Context, f SeriesFilter) (json.RawMessage, error) {
	return db.series(ctx, "read queue operations", `SELECT queen.get_queue_ops_v1($1::jsonb)`, f)
}

// ParkedReplicas returns the parked long polls per queue and broker, per bucket.
func (db *DB) ParkedReplicas(ctx context.Context, f SeriesFilter) (json.RawMessage, error) {
	return db.series(ctx, "read parked polls", `SELECT queen.get_queue_parked_per_replica_v1($1::jsonb)`, f)
}

// RetentionSeries returns what retention deleted, per bucket.
func (db *DB) RetentionSeries(ctx context.Context, f SeriesFilter) (json.RawMessage, error) {
	return db.series(ctx, "read retention history", `SELECT queen.get_retention_timeseries_v1($1::jsonb)`, f)
}

// WorkerMetrics returns the brokers' own figures, per bucket.
func (db *DB) WorkerMetrics(ctx context.Context, f SeriesFilter) (json.RawMessage, error) {
	return db.series(ctx, "read worker metrics", `SELECT queen.get_worker_metrics_timeseries_v1($1::jsonb)`, f)
}

// SystemMetrics returns the figures of the brokers' processes, per replica and bucket.
func (db *DB) SystemMetrics(ctx context.Context, f SeriesFilter) (json.RawMessage, error) {
	return db.series(ctx, "read system metrics", `SELECT queen.get_system_metrics_v1($1::jsonb)`, f)
}

// PostgresStats returns what PostgreSQL says about itself and the schema.
func (db *DB) PostgresStats(ctx context.Context) (json.RawMessage, error) {
	return db.rawAnswer(ctx, "read PostgreSQL's statistics", repeatConflicts, `SELECT queen.get_postgres_stats_v1()`)
}

func (db *DB) series(ctx context.Context, act, statement string, f SeriesFilter) (json.RawMessage, error) {
	filters, err := f.filters()
	if err != nil {
		return nil, err
	}
	return db.rawAnswer(ctx, act, repeatConflicts, statement, filters)
}
