package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCORS(t *testing.T) {
	t.Parallel()
	preflight := func(origin string) map[string]string {
		return map[string]string{"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
	}

	t.Run("OffByDefault", func(t *testing.T) {
		t.Parallel()
		answer := callWith(t, serve(t, &world{}), "OPTIONS", "/api/v1/push", "", preflight("https://page"))
		require.Equal(t, 405, answer.status)
		require.Empty(t, answer.header.Get("Access-Control-Allow-Origin"))
	})

	t.Run("ListedOriginsOnly", func(t *testing.T) {
		t.Parallel()
		server := guarded(t, &world{}, func(c *Config, d *Deps) { c.Origins, d.Verifier = []string{"https://page"}, doorkeeper{} })
		answer := callWith(t, server, "OPTIONS", "/api/v1/push", "", preflight("https://page"))
		require.Equal(t, 200, answer.status, "preflights come without a token")
		require.Equal(t, "https://page", answer.header.Get("Access-Control-Allow-Origin"))
		require.Contains(t, answer.header.Get("Access-Control-Allow-Headers"), "Authorization")
		require.Contains(t, answer.header.Get("Access-Control-Allow-Methods"), "DELETE")
		require.Empty(t, answer.header.Get("Access-Control-Allow-Credentials"))
		require.Equal(t, "Origin", answer.header.Get("Vary"))

		refused := callWith(t, server, "POST", "/api/v1/push", "{}", map[string]string{"Origin": "https://page"})
		require.Equal(t, 401, refused.status)
		require.Equal(t, "https://page", refused.header.Get("Access-Control-Allow-Origin"), "the page may read why")

		for _, origin := range []string{"https://page.evil", "https://pag", "http://page", "null", "https://page:8443"} {
			answer := callWith(t, server, "OPTIONS", "/api/v1/push", "", preflight(origin))
			require.NotEqual(t, 200, answer.status, origin)
			require.Empty(t, answer.header.Get("Access-Control-Allow-Origin"), origin)
		}
	})

	t.Run("AnyOrigin", func(t *testing.T) {
		t.Parallel()
		server := guarded(t, &world{}, func(c *Config, _ *Deps) { c.Origins = []string{"*"} })
		require.Equal(t, "*", callWith(t, server, "GET", "/status", "", map[string]string{"Origin": "https://x"}).header.Get("Access-Control-Allow-Origin"))
	})
}

func TestEveryAnswerHasTheSecurityHeaders(t *testing.T) {
	t.Parallel()
	server := serve(t, &world{})
	for _, path := range []string{"/health", "/status", "/api/v1/unknown", "/page", "/api//x", "/metrics/prometheus"} {
		header := call(t, server, "GET", path, "").header
		require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"), path)
		require.Equal(t, "DENY", header.Get("X-Frame-Options"), path)
		require.Contains(t, header.Get("Content-Security-Policy"), "frame-ancestors 'none'", path)
		require.NotEmpty(t, header.Get("Cache-Control"), path)
	}
}

func TestPagesOfOtherSitesChangeNothing(t *testing.T) {
	t.Parallel()
	server := guarded(t, &world{}, func(c *Config, _ *Deps) { c.Origins = []string{"https://console.example"} })
	ask := func(method, path string, header map[string]string) int {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(`{"items":[]}`))
		require.NoError(t, err)
		for name, value := range header {
			r.Header.Set(name, value)
		}
		response, err := server.Client().Do(r)
		require.NoError(t, err)
		_ = response.Body.Close()
		return response.StatusCode
	}
	const push, pop, list = "/api/v1/push", "/api/v1/pop/queue/orders?autoAck=true", "/api/v1/resources/queues"
	for _, foreign := range []map[string]string{
		{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
		{"Sec-Fetch-Site": "same-site"},
		{"Sec-Fetch-Site": "cross-site"},
		{"Origin": "https://evil.example"},
		{"Origin": "null"},
	} {
		require.Equal(t, http.StatusForbidden, ask("POST", push, foreign), "%v", foreign)
		require.Equal(t, http.StatusForbidden, ask("GET", pop, foreign), "%v: a pop is a GET with an effect", foreign)
		require.Equal(t, http.StatusOK, ask("GET", list, foreign), "%v: browsers do not show the answer to the page", foreign)
	}
	for _, own := range []map[string]string{
		nil,
		{"Sec-Fetch-Site": "same-origin", "Origin": server.URL},
		{"Sec-Fetch-Site": "none"},
		{"Origin": server.URL},
		{"Sec-Fetch-Site": "cross-site", "Origin": "https://console.example"},
	} {
		require.Equal(t, http.StatusCreated, ask("POST", push, own), "%v", own)
		require.Less(t, ask("GET", pop, own), 300, "%v", own)
	}
}
