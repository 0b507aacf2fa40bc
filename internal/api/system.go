package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"

	"queenmq/internal/pg"
)

// Flags are the maintenance switches that all brokers of a database share.
type Flags interface {
	// PushesPaused and PopsPaused tell the switches as of the last look. Brokers look at least once a second.
	PushesPaused() bool
	PopsPaused() bool
	// Refresh looks now.
	Refresh(ctx context.Context) error
	// Set turns a switch for this broker at once. written is false when the database could not be told yet: it is, once it answers.
	Set(ctx context.Context, flag pg.SystemFlag, enabled bool) (written bool)
}

// maintenanceAnswer is the state of push maintenance and of the file buffer.
type maintenanceAnswer struct {
	Maintenance    bool         `json:"maintenanceMode"`
	PopMaintenance *bool        `json:"popMaintenanceMode,omitempty"`
	Buffered       int64        `json:"bufferedMessages"`
	Healthy        bool         `json:"bufferHealthy"`
	Stats          *bufferStats `json:"bufferStats,omitempty"`
	Message        string       `json:"message,omitempty"`
}

// refreshFlags looks at the switches, which another broker may have turned. When the database is away the last known ones count.
func (s *Server) refreshFlags(ctx context.Context) {
	if err := s.deps.Flags.Refresh(ctx); err != nil && ctx.Err() == nil {
		s.log.DebugContext(ctx, "maintenance switches could not be read", slog.Any("error", err))
	}
}

// maintenance shows both switches.
func (s *Server) maintenance(w http.ResponseWriter, r *http.Request) error {
	s.refreshFlags(r.Context())
	figures := s.bufferFigures()
	answer := maintenanceAnswer{
		Maintenance: s.deps.Flags.PushesPaused(), PopMaintenance: new(s.deps.Flags.PopsPaused()),
		Buffered: figures.Pending, Healthy: figures.DBHealthy, Stats: statsOf(figures),
	}
	return writeValue(w, http.StatusOK, answer)
}

// setMaintenance turns the push switch of all brokers.
func (s *Server) setMaintenance(w http.ResponseWriter, r *http.Request) error {
	enabled, err := s.setFlag(w, r, pg.PushMaintenance)
	if err != nil {
		return err
	}
	figures := s.bufferFigures()
	answer := maintenanceAnswer{
		Maintenance: enabled, Buffered: figures.Pending, Healthy: figures.DBHealthy,
		Message: "Maintenance mode DISABLED. Background processor will drain buffer to DB.",
	}
	switch {
	case enabled && s.deps.Buffer != nil:
		answer.Message = "Maintenance mode ENABLED. All PUSHes routing to file buffer."
	case enabled:
		answer.Message = "Maintenance mode ENABLED. PUSHes are refused with 503 and can be repeated later: this broker has no file buffer."
	}
	return writeValue(w, http.StatusOK, answer)
}

type popMaintenanceAnswer struct {
	PopMaintenance bool   `json:"popMaintenanceMode"`
	Message        string `json:"message"`
}

// popMaintenance shows the pop switch.
func (s *Server) popMaintenance(w http.ResponseWriter, r *http.Request) error {
	s.refreshFlags(r.Context())
	answer := popMaintenanceAnswer{false, "Pop maintenance mode is OFF. Normal operation."}
	if s.deps.Flags.PopsPaused() {
		answer = popMaintenanceAnswer{true, "Pop maintenance mode is ON. All POP operations return empty arrays."}
	}
	return writeValue(w, http.StatusOK, answer)
}

// setPopMaintenance turns the pop switch of all brokers.
func (s *Server) setPopMaintenance(w http.ResponseWriter, r *http.Request) error {
	enabled, err := s.setFlag(w, r, pg.PopMaintenance)
	if err != nil {
		return err
	}
	answer := popMaintenanceAnswer{false, "Pop maintenance mode DISABLED. Normal operation resumed."}
	if enabled {
		answer = popMaintenanceAnswer{true, "Pop maintenance mode ENABLED. All POP operations will return empty arrays."}
	}
	return writeValue(w, http.StatusOK, answer)
}

// setFlag turns a switch to {"enabled": bool}. This broker follows before it answers, also when the database is away.
func (s *Server) setFlag(w http.ResponseWriter, r *http.Request, flag pg.SystemFlag) (bool, error) {
	members, err := s.readObject(w, r)
	if err != nil {
		return false, err
	}
	enabled, given, err := boolMember(members, "enabled")
	if err != nil {
		return false, err
	}
	if !given {
		return false, newError(codeBadBody, "enabled (boolean) is required")
	}
	if s.deps.Flags.Set(r.Context(), flag, enabled) {
		s.deps.FlagsChanged()
	}
	return enabled, nil
}

// sharedStateAnswer is what clients of the older line expect of a broker without a mesh of its own.
type sharedStateAnswer struct {
	Enabled        bool   `json:"enabled"`
	Reason         string `json:"reason"`
	Maintenance    bool   `json:"maintenance_mode"`
	PopMaintenance bool   `json:"pop_maintenance_mode"`
}

// sharedState shows the switches in the older shape.
func (s *Server) sharedState(w http.ResponseWriter, _ *http.Request) error {
	return writeValue(w, http.StatusOK, sharedStateAnswer{
		Reason: "single_node_segments_broker", Maintenance: s.deps.Flags.PushesPaused(), PopMaintenance: s.deps.Flags.PopsPaused(),
	})
}

// refreshStats computes the cached counters now.
func (s *Server) refreshStats(w http.ResponseWriter, r *http.Request) error {
	return relay(w)(s.deps.RefreshStats(r.Context()))
}

// notify wakes the long polls of a queue.
func (s *Server) notify(w http.ResponseWriter, r *http.Request) error {
	members, err := s.readObject(w, r)
	if err != nil {
		return err
	}
	queue, err := stringMember(members, "queue")
	if err != nil || queue == "" {
		return newError(codeQueueRequired, errorRows[codeQueueRequired].text)
	}
	partition, err := stringMember(members, "partition")
	if err != nil {
		return err
	}
	s.deps.Wake(tenantOf(r), queue, partition)
	return writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
}

// noStats answers a refresh where no loop computes counters.
func noStats(context.Context) (json.RawMessage, error) {
	return nil, newError(codeInternal, "no statistics are kept here")
}

// A Setting is one setting as it is in force.
type Setting struct {
	Name string `json:"name"`
	// Value is masked when the setting is secret.
	Value string `json:"value"`
	// Source is the variable it came from, or "default".
	Source  string `json:"source"`
	Default string `json:"default"`
	Doc     string `json:"doc"`
}

// settings shows what this broker runs with.
func (s *Server) settings(w http.ResponseWriter, _ *http.Request) error {
	all := []Setting{}
	if s.deps.Settings != nil {
		all = s.deps.Settings()
	}
	return writeValue(w, http.StatusOK, struct {
		Settings []Setting `json:"settings"`
	}{all})
}
