package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"queenmq/internal/auth"
	"queenmq/internal/pg"
	"queenmq/internal/tenant"
)

// A Verifier checks the tokens of requests; *auth.Verifier is one.
type Verifier interface {
	// Verify checks the value of an Authorization header.
	Verify(ctx context.Context, header string) (auth.Identity, error)
	// Skips reports whether an escaped path needs no token.
	Skips(path string) bool
}

// rolesOf says which roles each access level admits. A level that is not here admits nobody.
var rolesOf = map[access]auth.Roles{
	accessReadOnly:  auth.ReadOnly | auth.ReadWrite | auth.Admin,
	accessWriteOnly: auth.WriteOnly | auth.ReadWrite | auth.Admin,
	accessReadWrite: auth.ReadWrite | auth.Admin,
	accessAdmin:     auth.Admin,
}

// A caller is who a request comes from. Requests without one come from nobody in particular and act for the default tenant.
type caller struct {
	subject string
	tenant  uuid.UUID
}

type callerKey struct{}

// tenantOf returns the tenant a request acts for.
func tenantOf(r *http.Request) uuid.UUID {
	if who, ok := r.Context().Value(callerKey{}).(*caller); ok {
		return who.tenant
	}
	return pg.DefaultTenant
}

// subjectOf returns the subject of the request's token, "" without one. Nothing in a body can change it.
func subjectOf(r *http.Request) string {
	if who, ok := r.Context().Value(callerKey{}).(*caller); ok {
		return who.subject
	}
	return ""
}

// admit decides whether a request may go on, in the order of the contract: token, then tenant, then limits. level is what the route
// asks for. The request it returns knows its caller.
func (s *Server) admit(r *http.Request, path string, level access) (*http.Request, error) {
	who := caller{tenant: pg.DefaultTenant}
	if s.deps.Verifier != nil {
		identity, err := s.authenticate(r, path, level)
		if err != nil {
			return r, err
		}
		who.subject = identity.Subject
	}
	if s.cfg.Tenancy && level != accessPublic {
		var err error
		if who.tenant, err = tenant.Of(r.Header.Values(tenant.Header), pg.DefaultTenant); err != nil {
			return r, err
		}
	}
	if who != (caller{tenant: pg.DefaultTenant}) {
		known := who // nothing is allocated for the others
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, &known))
	}
	if level != accessPublic {
		if wait := s.meter.Allow(who.tenant, time.Now()); wait > 0 {
			refused := newError(codeRateLimited, errorRows[codeRateLimited].text)
			refused.retryAfter = wait
			return r, refused
		}
	}
	return r, nil
}

// authenticate checks the token of a request for a route of the given level.
func (s *Server) authenticate(r *http.Request, path string, level access) (auth.Identity, error) {
	if level == accessPublic || s.deps.Verifier.Skips(path) {
		return auth.Identity{}, nil
	}
	identity, err := s.verify(r)
	if err != nil {
		return auth.Identity{}, err
	}
	if !identity.Roles.Any(rolesOf[level]) {
		return auth.Identity{}, auth.ErrForbidden
	}
	return identity, nil
}

// verify checks the token of a request, whatever its roles are good for.
func (s *Server) verify(r *http.Request) (auth.Identity, error) {
	values := r.Header.Values("Authorization")
	header := ""
	switch len(values) {
	case 0:
	case 1:
		header = values[0]
	default: // which of them counts is a guess
		return auth.Identity{}, &auth.TokenError{Text: "Bad token header"}
	}
	return s.deps.Verifier.Verify(r.Context(), header)
}

// unroutedAccess is the level of paths that no route has: pages and their files are public, as far as they hold nothing but the
// program; everything else asks for the level of the contract before it is even said not to exist.
func unroutedAccess(r *http.Request, path string) access {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		switch {
		case path == "/", strings.HasPrefix(path, "/assets/"), strings.HasPrefix(path, "/favicon"):
			return accessPublic
		}
	}
	return accessReadWrite
}
