package api

import (
	"encoding/json"
	"net/http"
	"time"

	"queenmq/internal/pg"
)

func volumeFilter(q lenientQuery) pg.VolumeFilter {
	return pg.VolumeFilter{
		From: q.time("from"), To: q.time("to"), Interval: q.text("interval"),
		Queue: q.text("queue"), Namespace: q.text("namespace"), Task: q.text("task"),
	}
}

// timeForms are the ways in which callers write a time: RFC 3339 first, then what its neighbours leave out. A time without
// a zone is UTC.
var timeForms = [...]string{
	time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04:05.999999999Z0700", "2006-01-02T15:04:05.999999999Z07",
	"2006-01-02T15:04", "2006-01-02T15:04Z07:00", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999",
	"2006-01-02 15:04:05.999999999Z0700", "2006-01-02 15:04:05.999999999Z07", time.DateOnly,
}

// timeParameter returns a time, zero when it is absent.
func (q lenientQuery) timeParameter(name string) (time.Time, error) {
	text := q.time(name)
	if text == "" {
		return time.Time{}, nil
	}
	for _, form := range timeForms {
		if at, err := time.Parse(form, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, newError(codeInvalidParameter, name+" "+quoteShort(text)+" is not a time; write ISO 8601, for example 2026-09-14T06:00:00Z")
}

// series reads the filter that all time series take, and answers with what call makes of it.
func (s *Server) series(w http.ResponseWriter, r *http.Request, call func(pg.SeriesFilter) (json.RawMessage, error)) error {
	q := lenient(r)
	filter := pg.SeriesFilter{
		Tenant: tenantOf(r), Isolated: s.cfg.Tenancy, Queue: q.text("queue"), Namespace: q.text("namespace"), Task: q.text("task"),
		Hostname: q.text("hostname"), WorkerID: q.text("workerId"),
	}
	var err error
	if filter.From, err = q.timeParameter("from"); err != nil {
		return err
	}
	if filter.To, err = q.timeParameter("to"); err != nil {
		return err
	}
	return relay(w)(call(filter))
}

// systemStatus is the overview of the whole broker that the dashboard opens with.
func (s *Server) systemStatus(w http.ResponseWriter, r *http.Request) error {
	return s.series(w, r, func(f pg.SeriesFilter) (json.RawMessage, error) { return s.deps.Store.Status(r.Context(), f) })
}

// queueStatuses lists the counters of the queues, the newest queue first.
func (s *Server) queueStatuses(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.QueueStatuses(r.Context(), tenantOf(r), queueFilter(lenient(r), 100)))
}

// queueStatus shows the counters of one queue, partition by partition, at most maxPageLimit of them.
func (s *Server) queueStatus(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.QueueDetail(r.Context(), tenantOf(r), r.PathValue("queue"), partitionPage(lenient(r))))
}

// messageVolume counts the stored messages by the time of their push.
func (s *Server) messageVolume(w http.ResponseWriter, r *http.Request) error {
	q := lenient(r)
	answer, err := s.deps.Store.MessageVolume(r.Context(), tenantOf(r), volumeFilter(q))
	if err != nil {
		return badRange(err, q.time("from"), q.time("to"))
	}
	return writeProcedure(w, http.StatusOK, answer)
}

// queueLag shows how long messages waited until they were popped.
func (s *Server) queueLag(w http.ResponseWriter, r *http.Request) error {
	return s.series(w, r, func(f pg.SeriesFilter) (json.RawMessage, error) { return s.deps.Store.QueueLag(r.Context(), f) })
}

// queueOps shows what happened in each queue.
func (s *Server) queueOps(w http.ResponseWriter, r *http.Request) error {
	return s.series(w, r, func(f pg.SeriesFilter) (json.RawMessage, error) { return s.deps.Store.QueueOps(r.Context(), f) })
}

// parkedReplicas shows the waiting long polls of each broker.
func (s *Server) parkedReplicas(w http.ResponseWriter, r *http.Request) error {
	return s.series(w, r, func(f pg.SeriesFilter) (json.RawMessage, error) { return s.deps.Store.ParkedReplicas(r.Context(), f) })
}

// retentionSeries shows what retention deleted.
func (s *Server) retentionSeries(w http.ResponseWriter, r *http.Request) error {
	return s.series(w, r, func(f pg.SeriesFilter) (json.RawMessage, error) { return s.deps.Store.RetentionSeries(r.Context(), f) })
}

// systemMetrics shows processor, memory and pool of each broker.
func (s *Server) systemMetrics(w http.ResponseWriter, r *http.Request) error {
	return s.series(w, r, func(f pg.SeriesFilter) (json.RawMessage, error) { return s.deps.Store.SystemMetrics(r.Context(), f) })
}

// workerMetrics shows the throughput of each broker.
func (s *Server) workerMetrics(w http.ResponseWriter, r *http.Request) error {
	return s.series(w, r, func(f pg.SeriesFilter) (json.RawMessage, error) { return s.deps.Store.WorkerMetrics(r.Context(), f) })
}

// postgresStats shows what PostgreSQL says about its tables, caches and sessions.
func (s *Server) postgresStats(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.Store.PostgresStats(r.Context()))
}
