package api

import (
	"net/http"
	"slices"
	"strings"
)

// securityHeaders go with every answer: no guessing of types, no framing, no scripts in what is data, no copies in caches.
var securityHeaders = [...]struct {
	name  string
	value []string
}{
	{"X-Content-Type-Options", []string{"nosniff"}},
	{"X-Frame-Options", []string{"DENY"}},
	{"Content-Security-Policy", []string{"default-src 'none'; frame-ancestors 'none'"}},
	{"Referrer-Policy", []string{"no-referrer"}},
	{"Cache-Control", []string{"no-store"}},
}

// secure sets the security headers. Handlers may replace them.
func secure(header http.Header) {
	for i := range securityHeaders {
		header[securityHeaders[i].name] = securityHeaders[i].value
	}
}

const (
	corsMethods = "GET, HEAD, POST, DELETE, OPTIONS"
	corsHeaders = "Authorization, Content-Type, X-Queen-Tenant"
	corsExposed = "Retry-After"
	corsMaxAge  = "600"
)

// cors tells browsers which pages may read the answer, and answers preflights, which come without a token; it reports that it did.
// Without configured origins it does nothing.
func (s *Server) cors(w http.ResponseWriter, r *http.Request) (answered bool) {
	if len(s.cfg.Origins) == 0 {
		return false
	}
	header := w.Header()
	header.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if origin == "" || !s.admitsOrigin(origin) {
		return false
	}
	if slices.Contains(s.cfg.Origins, "*") {
		origin = "*"
	}
	header.Set("Access-Control-Allow-Origin", origin)
	header.Set("Access-Control-Expose-Headers", corsExposed)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	header.Set("Access-Control-Allow-Methods", corsMethods)
	header.Set("Access-Control-Allow-Headers", corsHeaders)
	header.Set("Access-Control-Max-Age", corsMaxAge)
	w.WriteHeader(http.StatusOK)
	return true
}

func (s *Server) admitsOrigin(origin string) bool {
	return slices.ContainsFunc(s.cfg.Origins, func(admitted string) bool {
		return admitted == "*" || strings.EqualFold(admitted, origin)
	})
}

// foreignPage tells whether a page of another site asks for something with an effect. A browser sends such requests without asking, and
// without a token they would be obeyed: a page that a developer happens to read could push to, or pop from, the broker on the same
// machine. Programs send neither Sec-Fetch-Site nor Origin and are not concerned.
func (s *Server) foreignPage(r *http.Request, access access) bool {
	if access == accessPublic || access == accessReadOnly {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" && r.Header.Get("Sec-Fetch-Site") == "" || origin != "" && s.admitsOrigin(origin) {
		return false
	}
	asked := *r
	asked.Method = http.MethodPost // a pop is a GET with an effect
	var protection http.CrossOriginProtection
	return protection.Check(&asked) != nil
}
