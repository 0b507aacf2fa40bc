package api

import (
	"bytes"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"queenmq/internal/pg"
)

// metrics are the figures of the HTTP face. Requests count every call of a route, also refused ones; messages count what
// requests carried (push, ack) or were given (pop).
type metrics struct {
	pushRequests, popRequests, ackRequests atomic.Int64
	pushMessages, popMessages, ackMessages atomic.Int64

	requests    *prometheus.CounterVec
	answers     map[*route]*[6]prometheus.Counter // by hundreds of the status
	panics      prometheus.Counter
	clientsGone prometheus.Counter
	gatherer    prometheus.Gatherer
}

// newMetrics registers the families of the API in reg.
func newMetrics(reg *prometheus.Registry, s *Server) *metrics {
	m := &metrics{gatherer: reg, answers: make(map[*route]*[6]prometheus.Counter, len(routes))}
	gauge := func(name, help string, value func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	counter := func(name, help string, value *atomic.Int64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help},
			func() float64 { return float64(value.Load()) }))
	}
	gauge("queen_uptime_seconds", "Seconds since this process began to serve.", func() float64 { return time.Since(s.started).Seconds() })
	gauge("queen_process_resident_memory_bytes", "Resident memory of this process.", func() float64 { return float64(residentBytes()) })
	counter("queen_process_push_requests_total", "Push requests received.", &m.pushRequests)
	counter("queen_process_pop_requests_total", "Pop requests received.", &m.popRequests)
	counter("queen_process_ack_requests_total", "Ack requests received.", &m.ackRequests)
	counter("queen_process_push_messages_total", "Messages in well-formed push requests.", &m.pushMessages)
	counter("queen_process_pop_messages_total", "Messages claimed by pops.", &m.popMessages)
	counter("queen_process_ack_messages_total", "Acknowledgments in well-formed ack requests.", &m.ackMessages)
	pool := func(value func(pg.PoolStats) int) func() float64 {
		return func() float64 { return float64(value(s.deps.Store.Stats())) }
	}
	gauge("queen_db_pool_size", "Most database connections the pool may open.", pool(func(p pg.PoolStats) int { return p.Max }))
	gauge("queen_db_pool_idle", "Open database connections that are free.", pool(func(p pg.PoolStats) int { return p.Idle }))
	gauge("queen_db_pool_active", "Database connections in use.", pool(func(p pg.PoolStats) int { return p.InUse }))
	gauge("queen_db_pool_waiting", "Calls that wait for a database connection.", pool(func(p pg.PoolStats) int { return p.Waiting }))

	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queen_http_requests_total", Help: "Requests answered, by route and class of status.",
	}, []string{"method", "route", "status"})
	m.panics = prometheus.NewCounter(prometheus.CounterOpts{Name: "queen_http_panics_total", Help: "Requests whose handler panicked."})
	m.clientsGone = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "queen_http_clients_gone_total", Help: "Requests whose client left before the answer was written.",
	})
	reg.MustRegister(m.requests, m.panics, m.clientsGone)
	for i := range routes {
		classes := new([6]prometheus.Counter)
		for _, class := range [...]int{2, 4, 5} {
			classes[class] = m.requests.WithLabelValues(routes[i].method, routes[i].path, strconv.Itoa(class)+"xx")
		}
		m.answers[&routes[i]] = classes
	}
	reg.MustRegister(engineCollector{&s.deps, s.cfg.TenantLabels})
	if s.deps.Cluster != nil {
		reg.MustRegister(&clusterCollector{read: s.deps.Cluster, tenants: s.cfg.TenantLabels})
	}
	if s.deps.Buffer != nil {
		reg.MustRegister(bufferCollector{s.deps.Buffer})
	}
	if s.deps.Mesh != nil {
		reg.MustRegister(meshCollector{s.deps.Mesh})
	}
	if s.deps.Upkeep != nil {
		reg.MustRegister(upkeepCollector{s.deps.Upkeep})
	}
	return m
}

// answered counts one answer.
func (m *metrics) answered(r *route, status int) {
	if class := status / 100; class >= 0 && class < 6 && m.answers[r][class] != nil {
		m.answers[r][class].Inc()
	}
}

// processFigures is the older JSON shape of the metrics. What has no source stays zero in it, as clients know it.
type processFigures struct {
	Uptime   int64        `json:"uptime"`
	Requests runningTotal `json:"requests"`
	Messages runningTotal `json:"messages"`
	Database struct {
		PoolSize int `json:"poolSize"`
		Idle     int `json:"idleConnections"`
		Waiting  int `json:"waitingRequests"`
	} `json:"database"`
	Memory struct {
		RSS          int64 `json:"rss"`
		HeapTotal    int64 `json:"heapTotal"`
		HeapUsed     int64 `json:"heapUsed"`
		External     int64 `json:"external"`
		ArrayBuffers int64 `json:"arrayBuffers"`
	} `json:"memory"`
	CPU struct {
		User   int64 `json:"user"`
		System int64 `json:"system"`
	} `json:"cpu"`
}

type runningTotal struct {
	Total int64 `json:"total"`
	Rate  int64 `json:"rate"`
}

// metricsJSON answers the basic figures of this process.
func (s *Server) metricsJSON(w http.ResponseWriter, _ *http.Request) error {
	m, pool := s.metrics, s.deps.Store.Stats()
	var figures processFigures
	figures.Uptime = int64(time.Since(s.started).Seconds())
	figures.Requests.Total = m.pushRequests.Load() + m.popRequests.Load() + m.ackRequests.Load()
	figures.Messages.Total = m.pushMessages.Load() + m.popMessages.Load() + m.ackMessages.Load()
	figures.Database.PoolSize, figures.Database.Idle, figures.Database.Waiting = pool.Max, pool.Idle, pool.Waiting
	figures.Memory.RSS = residentBytes()
	return writeValue(w, http.StatusOK, figures)
}

// metricsPrometheus answers everything in the registry in the text format.
func (s *Server) metricsPrometheus(w http.ResponseWriter, _ *http.Request) error {
	families, err := s.metrics.gatherer.Gather()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			return err
		}
	}
	header := w.Header()
	header.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	header.Set("Cache-Control", "no-cache")
	header.Set("Content-Length", strconv.Itoa(text.Len()))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(text.Bytes()) // the client is gone; nothing is left to tell it
	return nil
}

// residentBytes reads the resident memory of this process, 0 where the system has no /proc.
func residentBytes() int64 {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
