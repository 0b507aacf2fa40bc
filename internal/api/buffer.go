package api

import (
	"context"
	"math"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// BufferFigures are those of the file buffer.
type BufferFigures struct {
	// Pending messages wait to be stored, Failed ones were set aside.
	Pending, Failed int64
	// DBHealthy tells that the database took what it was given last.
	DBHealthy bool
	// Files and Bytes are what waits on the disk.
	Files int
	Bytes int64
}

// bufferStats is the shape of the figures in the maintenance answer. Files that failed means files of messages that the database did not
// take when they were pushed: all that wait.
type bufferStats struct {
	Pending   int64 `json:"pendingCount"`
	Failed    int64 `json:"failedCount"`
	DBHealthy bool  `json:"dbHealthy"`
	Files     struct {
		Count     int     `json:"count"`
		Bytes     int64   `json:"totalBytes"`
		Megabytes float64 `json:"totalMB"`
		Failover  int     `json:"failoverCount"`
		QoS0      int     `json:"qos0Count"`
	} `json:"failedFiles"`
}

func (s *Server) bufferFigures() BufferFigures {
	if s.deps.Buffer == nil {
		return BufferFigures{DBHealthy: true}
	}
	return s.deps.Buffer()
}

func statsOf(f BufferFigures) *bufferStats {
	stats := &bufferStats{Pending: f.Pending, Failed: f.Failed, DBHealthy: f.DBHealthy}
	stats.Files.Count, stats.Files.Failover, stats.Files.Bytes = f.Files, f.Files, f.Bytes
	stats.Files.Megabytes = math.Round(float64(f.Bytes)/(1<<20)*100) / 100
	return stats
}

// buffers shows the file buffer. dbHealthy is a round trip, too.
func (s *Server) buffers(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
	defer cancel()
	figures := s.bufferFigures()
	return writeValue(w, http.StatusOK, struct {
		Pending   int64 `json:"pending"`
		Failed    int64 `json:"failed"`
		DBHealthy bool  `json:"dbHealthy"`
		Worker    int   `json:"worker"`
	}{figures.Pending, figures.Failed, figures.DBHealthy && s.deps.Store.Ping(ctx) == nil, 0})
}

var (
	bufferPending = engineDesc("queen_file_buffer_pending", "Messages in the file buffer that wait to be stored.")
	bufferFailed  = engineDesc("queen_file_buffer_failed", "Messages of the file buffer that could not be stored and were set aside.")
	bufferHealthy = engineDesc("queen_file_buffer_db_healthy", "1 while the database takes what it is given.")
	bufferBytes   = engineDesc("queen_file_buffer_bytes", "Size of the files that wait.")
)

// A bufferCollector reads the figures of the file buffer when they are asked for.
type bufferCollector struct{ read func() BufferFigures }

// Describe names every family.
func (c bufferCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range [...]*prometheus.Desc{bufferPending, bufferFailed, bufferHealthy, bufferBytes} {
		descs <- desc
	}
}

// Collect sends the figures.
func (c bufferCollector) Collect(out chan<- prometheus.Metric) {
	figures := c.read()
	gauge := func(desc *prometheus.Desc, value float64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(bufferPending, float64(figures.Pending))
	gauge(bufferFailed, float64(figures.Failed))
	gauge(bufferHealthy, oneIf(figures.DBHealthy))
	gauge(bufferBytes, float64(figures.Bytes))
}
