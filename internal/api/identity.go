package api

import (
	"io"
	"net/http"

	"github.com/google/uuid"

	"queenmq/internal/pg"
)

// identity is who the dashboard acts as. Without authentication everybody is the operator of the one cluster there is.
type identity struct {
	UserID           string    `json:"user_id"`
	Email            *string   `json:"email"`
	TenantSlug       string    `json:"tenant_slug"`
	IsOperator       bool      `json:"is_operator"`
	OperatorEnabled  bool      `json:"operator_enabled"`
	OperatorLive     bool      `json:"operator_live"`
	ActingCluster    cluster   `json:"acting_cluster"`
	Clusters         []cluster `json:"clusters"`
	ActClusterHeader string    `json:"act_cluster_header"`
	Role             string    `json:"role"`
	Cluster          *cluster  `json:"cluster"`
	Standalone       bool      `json:"standalone"`
}

type cluster struct {
	ID         string     `json:"id"`
	Slug       string     `json:"slug"`
	Role       string     `json:"role,omitempty"`
	TenantSlug string     `json:"tenant_slug,omitempty"`
	TenantID   *uuid.UUID `json:"tenant_id,omitempty"`
	Status     string     `json:"status,omitempty"`
	CellSlug   string     `json:"cell_slug,omitempty"`
}

// me tells the dashboard who it acts as.
func (s *Server) me(w http.ResponseWriter, _ *http.Request) error {
	if s.deps.Verifier != nil { // the page has no token of its own: who signs people in is the proxy in front
		return newError(codeAuthRequired, "auth_required")
	}
	const local = "local"
	return writeValue(w, http.StatusOK, identity{
		UserID: "standalone", TenantSlug: local, IsOperator: true, OperatorEnabled: true, OperatorLive: true,
		ActingCluster: cluster{ID: local, Slug: local},
		Clusters: []cluster{{
			ID: local, Slug: local, Role: "admin", TenantSlug: local, TenantID: new(pg.DefaultTenant), Status: "active", CellSlug: s.cfg.ServerID,
		}},
		ActClusterHeader: "x-queen-act-cluster", Role: "admin", Standalone: true,
	})
}

// loginPage is shown where tokens are asked for.
const loginPage = `<!doctype html><meta charset="utf-8"><title>Queen</title><p>This broker asks for tokens and has no sign-in of its own. ` +
	`Sign in at the proxy in front of it, which sends the token along.</p>
`

// login has nothing to ask: it leads back to the start page, or says where to sign in.
func (s *Server) login(w http.ResponseWriter, r *http.Request) error {
	if s.deps.Verifier != nil {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, loginPage) // the client is gone; nothing is left to tell it
		return nil
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
	return nil
}

// logout has nothing to forget.
func (s *Server) logout(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, http.StatusOK, []byte(`{"ok":true}`))
}
