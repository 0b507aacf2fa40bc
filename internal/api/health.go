package api

import (
	"context"
	"net/http"
	"time"
)

// engineName is what clients of the older line expect to read.
const engineName = "segments-rust"

// healthTimeout bounds the round trips of health checks. Whoever asks has a deadline of a few seconds and must hear "no".
const healthTimeout = 2 * time.Second

type healthAnswer struct {
	Status   string `json:"status"`
	Database string `json:"database"`
	Engine   string `json:"engine"`
	Version  string `json:"version"`
}

// health makes one round trip to the database.
func (s *Server) health(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
	defer cancel()
	answer := healthAnswer{Status: "healthy", Database: "connected", Engine: engineName, Version: s.cfg.Version}
	status := http.StatusOK
	if err := s.deps.Store.Ping(ctx); err != nil {
		answer.Status, answer.Database, status = "unhealthy", "disconnected", http.StatusServiceUnavailable
	}
	if s.deps.Stopping() {
		answer.Status, status = "unhealthy", http.StatusServiceUnavailable
	}
	if status != http.StatusOK {
		w.Header().Set("Retry-After", "1")
	}
	return writeValue(w, status, answer)
}

// livez says that the process serves requests.
func (s *Server) livez(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
}

// status is livez in the older shape.
func (s *Server) status(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, []byte(`{"status":"ok","engine":"`+engineName+`"}`))
}

// readyz runs every check and answers 503 when one that is not advisory fails: {"ready": bool, "checks": {name: "ok" or the
// reason}}.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
	defer cancel()
	answer := struct {
		Ready  bool              `json:"ready"`
		Checks map[string]string `json:"checks"`
	}{true, make(map[string]string, len(s.deps.Ready)+2)}
	note := func(name, reason string) {
		if reason == "" {
			answer.Checks[name] = "ok"
			return
		}
		answer.Ready = false
		answer.Checks[name] = reason
	}
	reason := ""
	if err := s.deps.Store.Ping(ctx); err != nil {
		reason = classify(err, "").text
	}
	note("database", reason)
	for _, check := range s.deps.Ready {
		reason := ""
		if err := check.Run(ctx); err != nil {
			reason = err.Error()
		}
		if check.Advisory && reason != "" {
			answer.Checks[check.Name] = reason
			continue
		}
		note(check.Name, reason)
	}
	reason = ""
	if s.deps.Stopping() {
		reason = errorRows[codeStopping].text
	}
	note("running", reason)
	status := http.StatusOK
	if !answer.Ready {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	return writeValue(w, status, answer)
}
