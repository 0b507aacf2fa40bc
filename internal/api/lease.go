package api

import (
	"encoding/json"
	"math"
	"net/http"
	"time"

	"queenmq/internal/engine/ack"
)

// timeMicros is how times of leases and messages are written: UTC with microseconds.
const timeMicros = "2006-01-02T15:04:05.000000Z"

// extend lengthens every live lease held under one id. The body is optional in every way: whatever does not name a number of
// seconds means 60. The answer is always 200; success says whether anything was extended.
func (s *Server) extend(w http.ResponseWriter, r *http.Request) error {
	buffer := getBuffer()
	defer putBuffer(buffer)
	var err error
	if *buffer, err = s.readBody(w, r, *buffer); err != nil {
		return err
	}
	leaseID := r.PathValue("leaseId")
	renewal, err := s.deps.Acker.Extend(r.Context(), tenantOf(r), leaseID, extendSeconds(*buffer))
	if err != nil {
		return err
	}
	var expiresAt *string
	if renewal.Renewed > 0 {
		expiresAt = new(renewal.ExpiresAt.UTC().Format(timeMicros))
	}
	return writeValue(w, http.StatusOK, struct {
		LeaseID    string  `json:"leaseId"`
		Success    bool    `json:"success"`
		Renewed    int     `json:"renewed"`
		NewExpires *string `json:"newExpiresAt"`
		Expires    *string `json:"expiresAt"`
		OldName    *string `json:"lease_expires_at"`
	}{leaseID, renewal.Renewed > 0, renewal.Renewed, expiresAt, expiresAt, expiresAt})
}

// extendSeconds reads {"seconds": n}. The engine bounds n from above; below 1 it is 1.
func extendSeconds(body []byte) int {
	var request struct {
		Seconds *float64 `json:"seconds"`
	}
	if err := json.Unmarshal(body, &request); err != nil || request.Seconds == nil {
		return ack.DefaultExtendSeconds
	}
	const most = int(time.Hour/time.Second) * 24 * 365
	return int(math.Min(math.Max(*request.Seconds, 1), float64(most)))
}
