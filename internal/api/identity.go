package api

import (
	"io"
	"net/http"

	"github.com/google/uuid"

	"queenmq/internal/auth"
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
	Roles            []string  `json:"roles,omitempty"`
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

// me tells the dashboard who it acts as: everybody is the operator where no tokens are asked for, otherwise who the token speaks for.
func (s *Server) me(w http.ResponseWriter, r *http.Request) error {
	who, roles := "standalone", []string{"admin"}
	if s.deps.Verifier != nil {
		if len(r.Header.Values("Authorization")) == 0 { // whoever looks has not signed in, or a proxy in front does that
			return newError(codeAuthRequired, "auth_required")
		}
		token, err := s.verify(r)
		if err != nil {
			return err
		}
		who, roles = token.Subject, roleNames(token.Roles)
		if len(roles) == 0 {
			return auth.ErrForbidden
		}
	}
	const local = "local"
	operates := roles[0] == "admin"
	answer := identity{
		UserID: who, TenantSlug: local, IsOperator: operates, OperatorEnabled: operates, OperatorLive: operates,
		ActingCluster: cluster{ID: local, Slug: local},
		Clusters: []cluster{{
			ID: local, Slug: local, Role: roles[0], TenantSlug: local, TenantID: new(pg.DefaultTenant), Status: "active", CellSlug: s.cfg.ServerID,
		}},
		ActClusterHeader: "x-queen-act-cluster", Role: roles[0], Standalone: true,
	}
	if s.deps.Verifier != nil {
		answer.Roles = roles
	}
	return writeValue(w, http.StatusOK, answer)
}

// roleNames lists roles in the words of the contract, the one that may most first.
func roleNames(roles auth.Roles) []string {
	var names []string
	for _, one := range [...]struct {
		role auth.Roles
		name access
	}{{auth.Admin, accessAdmin}, {auth.ReadWrite, accessReadWrite}, {auth.ReadOnly, accessReadOnly}, {auth.WriteOnly, accessWriteOnly}} {
		if roles.Any(one.role) {
			names = append(names, string(one.name))
		}
	}
	return names
}

// loginPage is shown where tokens are asked for.
const loginPage = `<!doctype html><html lang="en"><meta charset="utf-8"><title>Queen</title><p>This broker asks for tokens. ` +
	`Sign in at the proxy in front of it, which sends the token along, or give a token to <a href="/">the console</a>.</p>
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
