package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/auth"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/push"
	"queenmq/internal/pg"
	"queenmq/internal/tenant"
)

// A doorkeeper takes the token for a list of roles, and everything else for no token.
type doorkeeper struct{ skip []string }

func (d doorkeeper) Verify(_ context.Context, header string) (auth.Identity, error) {
	names := map[string]auth.Roles{"ro": auth.ReadOnly, "wo": auth.WriteOnly, "rw": auth.ReadWrite, "admin": auth.Admin, "none": 0}
	who := auth.Identity{Subject: "sub-" + header}
	if header == "" {
		return auth.Identity{}, auth.ErrRequired
	}
	for word := range strings.SplitSeq(header, "+") {
		roles, known := names[word]
		if !known {
			return auth.Identity{}, &auth.TokenError{Text: "Token has expired"}
		}
		who.Roles |= roles
	}
	return who, nil
}

func (d doorkeeper) Skips(path string) bool {
	for _, s := range d.skip {
		if s == path {
			return true
		}
	}
	return false
}

// guarded serves f with changes to what the server was made of.
func guarded(t *testing.T, f *world, change func(*Config, *Deps)) *httptest.Server {
	t.Helper()
	plain := f.server()
	cfg, deps := plain.cfg, plain.deps
	deps.Registry = nil
	change(&cfg, &deps)
	s := New(cfg, deps)
	if f.pop != nil {
		s.claim = f.pop
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server
}

func callWith(t *testing.T, server *httptest.Server, method, path, body string, header map[string]string) exchange {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	for name, value := range header {
		request.Header.Add(name, value)
	}
	answer, err := server.Client().Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.Body.Close()) }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return exchange{answer.StatusCode, answer.Header, string(text)}
}

// admits is the table of the contract, written out once more: the test must not read it from the code.
var admits = map[access][]string{
	accessPublic:    {"", "none", "ro", "wo", "rw", "admin", "ro+wo", "expired"},
	accessReadOnly:  {"ro", "rw", "admin", "ro+wo"},
	accessWriteOnly: {"wo", "rw", "admin", "ro+wo"},
	accessReadWrite: {"rw", "admin"},
	accessAdmin:     {"admin"},
}

// Every route with every role and every method: a route that is not declared for a method is refused, a role that is not declared
// for a route is refused, and no refusal reaches a handler.
func TestEveryRouteAdmitsItsRolesAndNoOthers(t *testing.T) {
	t.Parallel()
	server := guarded(t, &world{}, func(_ *Config, d *Deps) { d.Verifier = doorkeeper{} })
	tokens := admits[accessPublic]
	declared := map[string]access{}
	paths := map[string]bool{}
	for _, r := range routes {
		declared[r.method+" "+r.path] = r.access
		if r.method == "GET" {
			declared["HEAD "+r.path] = r.access
		}
		paths[r.path] = true
	}
	for path := range paths {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
			level, isRoute := declared[method+" "+path]
			for i := range routes { // the same path may stand for a parameter of another route
				if !isRoute && routes[i].method == strings.Replace(method, "HEAD", "GET", 1) && newRouter(routes[i:i+1]).knows(concrete(path)) {
					level, isRoute = routes[i].access, true
				}
			}
			for _, token := range tokens {
				header := map[string]string{}
				if token != "" {
					header["Authorization"] = token
				}
				answer := callWith(t, server, method, concrete(path), "{}", header)
				what := method + " " + path + " as " + token
				admitted := false
				for _, a := range admits[level] {
					admitted = admitted || a == token
				}
				switch {
				case !isRoute:
					require.Contains(t, []int{401, 403, 405}, answer.status, what)
				case path == "/auth/me": // says itself whom it knows
					require.Equal(t, map[string]int{"": 401, "expired": 401, "none": 403}[token]+map[bool]int{true: 200}[token != "" && token != "expired" && token != "none"], answer.status, what)
				case admitted:
					require.NotContains(t, []int{401, 403}, answer.status, what)
				case token == "":
					require.Equal(t, 401, answer.status, what)
					if method != "HEAD" {
						require.JSONEq(t, `{"error":"Authentication required","code":"auth_required"}`, answer.body)
					}
					require.Equal(t, "Bearer", answer.header.Get("WWW-Authenticate"))
				case token == "expired":
					require.Equal(t, 401, answer.status, what)
					if method != "HEAD" {
						require.JSONEq(t, `{"error":"Token has expired","code":"invalid_token"}`, answer.body)
					}
				default:
					require.Equal(t, 403, answer.status, what)
					if method != "HEAD" {
						require.JSONEq(t, `{"error":"Insufficient permissions","code":"insufficient_permissions"}`, answer.body)
					}
				}
			}
		}
	}
}

func TestLevelsOfTheRouteTableAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	// Routes of our own that destroy or move much at once ask for more than the contract's rule for unknown paths.
	stricter := map[string]bool{
		"POST /api/v1/resources/queues/{queue}/purge": true, "DELETE /api/v1/dlq": true, "POST /api/v1/dlq/tasks": true,
		"POST /api/v1/dlq/tasks/{id}/cancel": true, "POST /api/v1/leases/release": true,
	}
	for _, r := range routes {
		path := r.path
		want := accessReadWrite
		switch {
		case stricter[r.method+" "+path]:
			want = accessAdmin
		case path == "/openapi.json":
			want = accessPublic // it describes the program and nothing in it
		case strings.HasPrefix(path, "/api/v1/system/"), strings.HasPrefix(path, "/internal/"), path == "/api/v1/stats/refresh":
			want = accessAdmin
		case r.method == "DELETE" && (strings.HasPrefix(path, "/api/v1/consumer-groups/") || strings.HasPrefix(path, "/api/v1/resources/queues/")):
			want = accessAdmin
		case path == "/health", path == "/livez", path == "/readyz", strings.HasPrefix(path, "/metrics"), strings.HasPrefix(path, "/auth/"):
			want = accessPublic
		case path == "/api/v1/push":
			want = accessWriteOnly
		case path == "/streams/v1/state/get", path == "/streams/v1/state/ripe":
			want = accessReadOnly
		case r.method == "GET" && !strings.HasPrefix(path, "/api/v1/pop"):
			want = accessReadOnly
		}
		if r.access != want {
			t.Errorf("%s %s: the table says %s, the contract %s", r.method, path, r.access, want)
		}
	}
}

func TestUndeclaredPathsAreRefusedBeforeTheyAreSaidNotToExist(t *testing.T) {
	t.Parallel()
	server := guarded(t, &world{}, func(_ *Config, d *Deps) { d.Verifier = doorkeeper{skip: []string{"/open"}} })
	for _, path := range []string{"/api/v1/unknown", "/api", "/auth/unknown", "/internal/unknown", "/queues/orders", "/api/v1/push/"} {
		for token, want := range map[string][]int{"": {401, 400}, "ro": {403, 400}, "rw": {404, 400}} {
			header := map[string]string{}
			if token != "" {
				header["Authorization"] = token
			}
			require.Contains(t, want, callWith(t, server, "GET", path, "", header).status, "%s as %q", path, token)
		}
	}
	for _, path := range []string{"/", "/assets/app.js", "/favicon.ico", "/open"} {
		require.Equal(t, 404, call(t, server, "GET", path, "").status, "%s needs no token", path)
	}
	require.Equal(t, 401, call(t, server, "POST", "/", "").status, "pages are read, not written")
	// Ways around the path: none of them reaches the handler without a token.
	for _, path := range []string{"/open/../api/v1/status", "//api/v1/pop/queue/q", "/api/v1/pop/queue/q/", "/%61pi/v1/pop/queue/q", "/open%2f..%2fapi/v1/push", "/API/v1/pop/queue/q"} {
		require.Contains(t, []int{400, 401}, call(t, server, "GET", path, "").status, path)
	}
}

func TestTwoTokensAreRefused(t *testing.T) {
	t.Parallel()
	server := guarded(t, &world{}, func(_ *Config, d *Deps) { d.Verifier = doorkeeper{} })
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/status", nil)
	require.NoError(t, err)
	request.Header["Authorization"] = []string{"ro", "admin"}
	answer, err := server.Client().Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, 401, answer.StatusCode)
}

func TestProducerIsTheTokensSubjectWhateverTheBodySays(t *testing.T) {
	t.Parallel()
	var got push.Request
	f := &world{push: func(_ context.Context, r push.Request) ([]push.Verdict, error) {
		got = r
		return []push.Verdict{{Status: push.StatusQueued}}, nil
	}}
	body := `{"producerSub":"root","items":[{"queue":"q","payload":1,"producerSub":"root","producer_sub":"root"}]}`
	server := guarded(t, f, func(_ *Config, d *Deps) { d.Verifier = doorkeeper{} })
	require.Equal(t, 201, callWith(t, server, "POST", "/api/v1/push", body, map[string]string{"Authorization": "wo"}).status)
	require.Equal(t, "sub-wo", got.ProducerSub)
	require.Equal(t, 201, callWith(t, serve(t, f), "POST", "/api/v1/push", body, map[string]string{"Authorization": "wo"}).status)
	require.Empty(t, got.ProducerSub, "without authentication there is no subject")
}

func TestTenantHeader(t *testing.T) {
	t.Parallel()
	var got uuid.UUID
	f := &world{push: func(_ context.Context, r push.Request) ([]push.Verdict, error) {
		got = r.Tenant
		return []push.Verdict{{Status: push.StatusQueued}}, nil
	}}
	const body = `{"items":[{"queue":"q","payload":1}]}`
	id := uuid.New()
	header := map[string]string{"x-queen-tenant": id.String()}

	off := serve(t, f)
	require.Equal(t, 201, callWith(t, off, "POST", "/api/v1/push", body, header).status)
	require.Equal(t, pg.DefaultTenant, got, "the header is not read")
	require.Equal(t, 201, callWith(t, off, "POST", "/api/v1/push", body, map[string]string{"x-queen-tenant": "nonsense"}).status)

	on := guarded(t, f, func(c *Config, d *Deps) { c.Tenancy, d.Verifier = true, doorkeeper{} })
	header["Authorization"] = "wo"
	require.Equal(t, 201, callWith(t, on, "POST", "/api/v1/push", body, header).status)
	require.Equal(t, id, got)
	require.Equal(t, 201, callWith(t, on, "POST", "/api/v1/push", body, map[string]string{"Authorization": "wo"}).status)
	require.Equal(t, pg.DefaultTenant, got)
	refused := callWith(t, on, "POST", "/api/v1/push", body, map[string]string{"Authorization": "wo", "x-queen-tenant": "acme"})
	require.Equal(t, 400, refused.status)
	require.JSONEq(t, `{"error":"invalid x-queen-tenant header (must be a UUID)","code":"invalid_tenant"}`, refused.body)
	require.Equal(t, 401, callWith(t, on, "POST", "/api/v1/push", body, map[string]string{"x-queen-tenant": "acme"}).status, "the token comes first")
	require.Equal(t, 200, callWith(t, on, "GET", "/health", "", map[string]string{"x-queen-tenant": "acme"}).status, "not scoped")
}

func TestLimitsOfATenant(t *testing.T) {
	t.Parallel()

	t.Run("Rate", func(t *testing.T) {
		t.Parallel()
		server := guarded(t, &world{}, func(c *Config, _ *Deps) { c.Tenancy, c.Limits = true, tenant.Limits{Rate: 0.01, Burst: 2} })
		mine := map[string]string{"x-queen-tenant": uuid.NewString()}
		require.Equal(t, 200, callWith(t, server, "GET", "/status", "", mine).status)
		require.Equal(t, 200, callWith(t, server, "GET", "/status", "", mine).status)
		refused := callWith(t, server, "GET", "/status", "", mine)
		require.Equal(t, 429, refused.status)
		require.Contains(t, refused.body, `"code":"rate_limited"`)
		require.Regexp(t, `^(9\d|100)$`, refused.header.Get("Retry-After"))
		require.Equal(t, 200, callWith(t, server, "GET", "/health", "", mine).status, "probes are never limited")
		require.Equal(t, 200, callWith(t, server, "GET", "/status", "", nil).status, "another tenant")
	})

	t.Run("ParkedPops", func(t *testing.T) {
		t.Parallel()
		parked, leave := make(chan struct{}, 8), make(chan struct{})
		f := &world{pop: func(_ context.Context, r pop.Request) (popResult, error) {
			if r.Wait {
				parked <- struct{}{}
				<-leave
			}
			return nil, nil
		}}
		server := guarded(t, f, func(c *Config, _ *Deps) { c.Limits = tenant.Limits{Parked: 1} })
		ended := make(chan int)
		go func() { ended <- call(t, server, "GET", "/api/v1/pop/queue/q?wait=true", "").status }()
		<-parked
		refused := call(t, server, "GET", "/api/v1/pop/queue/q?wait=true", "")
		require.Equal(t, 429, refused.status)
		require.Contains(t, refused.body, `"code":"too_many_parked_pops"`)
		require.Equal(t, "1", refused.header.Get("Retry-After"))
		require.Equal(t, 204, call(t, server, "GET", "/api/v1/pop/queue/q", "").status, "a pop that does not wait is no parked one")
		close(leave)
		require.Equal(t, 204, <-ended)
		require.Eventually(t, func() bool {
			return call(t, server, "GET", "/api/v1/pop/queue/q?wait=true", "").status == 204
		}, 10*time.Second, time.Millisecond)
	})
}

func TestAKeyThatIsMissingIs503ForTheWholePush(t *testing.T) {
	t.Parallel()
	verdict := push.Verdict{Status: push.StatusFailed, Err: push.ErrEncryptionRequired}
	verdicts := []push.Verdict{verdict, verdict}
	f := &world{push: func(context.Context, push.Request) ([]push.Verdict, error) { return verdicts, nil }}
	server := serve(t, f)
	const body = `{"items":[{"queue":"q","payload":"clear text"},{"queue":"q","payload":1}]}`
	answer := call(t, server, "POST", "/api/v1/push", body)
	require.Equal(t, 503, answer.status)
	require.Contains(t, answer.body, `"code":"encryption_key_missing"`)
	require.NotContains(t, answer.body, "clear text")
	verdicts = []push.Verdict{verdict, {Status: push.StatusQueued}}
	answer = call(t, server, "POST", "/api/v1/push", body)
	require.Equal(t, 201, answer.status)
	require.Contains(t, answer.body, `"code":"encryption_key_missing"`)

	f = &world{pop: func(context.Context, pop.Request) (popResult, error) { return nil, pop.ErrKeyMissing }}
	answer = call(t, serve(t, f), "GET", "/api/v1/pop/queue/q", "")
	require.Equal(t, 503, answer.status)
	require.Contains(t, answer.body, `"code":"encryption_key_missing"`)
}

// The console asks who it acts as before it shows what may be done.
func TestTheConsoleLearnsTheRolesOfItsToken(t *testing.T) {
	t.Parallel()
	server := guarded(t, &world{}, func(_ *Config, d *Deps) { d.Verifier = doorkeeper{} })
	for token, want := range map[string]string{
		"ro": `{"user_id":"sub-ro","role":"read-only","roles":["read-only"],"is_operator":false}`, "rw": `{"user_id":"sub-rw","role":"read-write","roles":["read-write"],"is_operator":false}`,
		"ro+wo": `{"user_id":"sub-ro+wo","role":"read-only","roles":["read-only","write-only"],"is_operator":false}`,
		"admin": `{"user_id":"sub-admin","role":"admin","roles":["admin"],"is_operator":true}`,
	} {
		var got struct {
			User     string   `json:"user_id"`
			Role     string   `json:"role"`
			Roles    []string `json:"roles"`
			Operator bool     `json:"is_operator"`
		}
		answer := callWith(t, server, "GET", "/auth/me", "", map[string]string{"Authorization": token})
		require.Equal(t, 200, answer.status)
		require.NoError(t, json.Unmarshal([]byte(answer.body), &got))
		text, err := json.Marshal(got)
		require.NoError(t, err)
		require.JSONEq(t, want, string(text))
	}
	require.JSONEq(t, `{"error":"auth_required","code":"auth_required"}`, callWith(t, server, "GET", "/auth/me", "", nil).body)
}
