// Package telemetry builds the logger and the metrics registry of a broker and hands them down. It keeps no globals: the
// default logger and the default registry of the libraries stay untouched, so that several brokers fit into one process.
package telemetry

import (
	"fmt"
	"io"
	"log"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewLogger writes one event a line to w: key=value pairs, or JSON. level is debug, info, warn or error.
func NewLogger(w io.Writer, level string, asJSON bool) (*slog.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q is unknown: %w", level, err)
	}
	options := &slog.HandlerOptions{Level: least, ReplaceAttr: inUTC}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return slog.New(slog.NewTextHandler(w, options)), nil
}

// inUTC writes times in UTC, like every other time that the broker shows.
func inUTC(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() == slog.KindTime {
		return slog.Time(attr.Key, attr.Value.Time().UTC().Truncate(time.Microsecond))
	}
	return attr
}

// NewRegistry returns a registry of its own that holds the figures of the Go runtime and of the process.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// ServerErrorLog takes what net/http reports about single connections: broken handshakes and clients that left. Nobody needs
// to act on one of them, so they are debug lines.
func ServerErrorLog(logger *slog.Logger) *log.Logger {
	return log.New(lineWriter{logger}, "", 0)
}

type lineWriter struct{ logger *slog.Logger }

func (w lineWriter) Write(line []byte) (int, error) {
	w.logger.Debug("http connection", slog.String("text", strings.TrimSpace(string(line))))
	return len(line), nil
}
