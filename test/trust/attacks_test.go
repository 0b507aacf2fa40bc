package trust

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
)

// A broker that takes its keys from an issuer follows it without a restart, and is not talked into anything by tokens that choose their own
// key or algorithm.
func TestKeysOfAnIssuerAreFollowed(t *testing.T) {
	t.Parallel()
	keys := make(map[string]*rsa.PrivateKey)
	for _, id := range []string{"old", "new"} {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		require.NoError(t, err)
		keys[id] = key
	}
	var published atomic.Value
	published.Store("old")
	var fetches atomic.Int32
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetches.Add(1)
		id := published.Load().(string)
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []map[string]any{{
			"kty": "RSA", "kid": id, "use": "sig", "n": base64.RawURLEncoding.EncodeToString(keys[id].N.Bytes()), "e": "AQAB",
		}}})
	}))
	t.Cleanup(issuer.Close)
	s := stack.Start(t, map[string]string{
		"JWT_ENABLED": "true", "JWT_ALGORITHM": "RS256", "JWT_JWKS_URL": issuer.URL, "JWT_ISSUER": "the issuer", "JWT_AUDIENCE": "queen", "QUEEN_REQUIRE_AUTH": "true",
	})
	claims := func(change ...func(jwt.MapClaims)) jwt.MapClaims {
		c := jwt.MapClaims{"sub": "alice", "iss": "the issuer", "aud": []string{"others", "queen"}, "roles": []string{"read-only"}, "exp": time.Now().Add(time.Hour).Unix()}
		for _, f := range change {
			f(c)
		}
		return c
	}
	status := func(method jwt.SigningMethod, key any, id string, c jwt.MapClaims) int {
		token := jwt.NewWithClaims(method, c)
		if id != "" {
			token.Header["kid"] = id
		}
		text, err := token.SignedString(key)
		require.NoError(t, err)
		return as(t, s.URL, map[string]string{"Authorization": "Bearer " + text}).call("GET", "/status", "").status
	}
	set := func(name string, value any) func(jwt.MapClaims) { return func(c jwt.MapClaims) { c[name] = value } }
	rs := jwt.SigningMethodRS256
	require.Equal(t, 200, status(rs, keys["old"], "old", claims()))
	der, err := x509.MarshalPKIXPublicKey(&keys["old"].PublicKey)
	require.NoError(t, err)
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	for name, got := range map[string]int{
		"another's key under the known id": status(rs, keys["new"], "old", claims()),
		"the public key as a secret":       status(jwt.SigningMethodHS256, public, "old", claims()),
		"no signature":                     status(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "old", claims()),
		"another issuer":                   status(rs, keys["old"], "old", claims(set("iss", "another"))),
		"no issuer":                        status(rs, keys["old"], "old", claims(func(c jwt.MapClaims) { delete(c, "iss") })),
		"another audience":                 status(rs, keys["old"], "old", claims(set("aud", "queens"))),
		"expired beyond the leeway":        status(rs, keys["old"], "old", claims(set("exp", time.Now().Add(-2*time.Minute).Unix()))),
		"not valid yet":                    status(rs, keys["old"], "old", claims(set("nbf", time.Now().Add(2*time.Minute).Unix()))),
		"from the future":                  status(rs, keys["old"], "old", claims(set("iat", time.Now().Add(2*time.Minute).Unix()))),
	} {
		require.Equal(t, 401, got, name)
	}
	require.Equal(t, 200, status(rs, keys["old"], "old", claims(set("exp", time.Now().Add(-5*time.Second).Unix()))), "clocks differ a little")
	require.Equal(t, 403, status(rs, keys["old"], "old", claims(set("roles", "read-only admin"))), "a list of roles is a list, a text is none")
	require.Equal(t, 200, status(rs, keys["old"], "old", claims(func(c jwt.MapClaims) { delete(c, "roles"); c["role"] = "admin" })))

	// The issuer has a new key: its tokens are taken as soon as they come, and those of the old key are not any more.
	published.Store("new")
	require.Eventually(t, func() bool { return status(rs, keys["new"], "new", claims()) == 200 }, 30*time.Second, 100*time.Millisecond)
	require.Equal(t, 401, status(rs, keys["old"], "old", claims()))
	before := fetches.Load()
	var asking sync.WaitGroup
	for i := range 20 {
		asking.Go(func() { assert.Equal(t, 401, status(rs, keys["new"], fmt.Sprint("invented", i), claims())) })
	}
	asking.Wait()
	require.LessOrEqual(t, fetches.Load(), before+3, "invented ids do not make the broker ask its issuer again and again")
}

// The limits of a tenant on a whole broker: what it does too much of is answered 429 with the time to wait, others notice nothing, and who
// has no token cannot use up what a tenant may do.
func TestTenantsAreLimitedEachForItself(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{
		"JWT_ENABLED": "true", "JWT_SECRET": secret, "QUEEN_TENANCY_HEADER": "true", "QUEEN_RATE_LIMIT": "1", "QUEEN_RATE_BURST": "30", "QUEEN_MAX_PARKED_POPS": "2",
	})
	caller := func(tenant uuid.UUID, token bool) *caller {
		header := tenantHeader(tenant)
		if token {
			header["Authorization"] = bearer(t, "admin")["Authorization"]
		}
		return as(t, s.URL, header)
	}
	victim, other := uuid.New(), uuid.New()
	for range 60 {
		require.Equal(t, 401, caller(victim, false).call("GET", "/api/v1/resources/queues", "").status)
	}
	one := caller(victim, true)
	statuses := map[int]int{}
	var refused answer
	for range 60 {
		a := one.call("GET", "/api/v1/resources/queues", "")
		statuses[a.status]++
		if a.status == 429 {
			refused = a
		}
	}
	require.GreaterOrEqual(t, statuses[200], 30, "requests without a token took nothing from the tenant")
	require.Positive(t, statuses[429])
	require.Contains(t, refused.body, `"code":"rate_limited"`)
	require.Regexp(t, `^[1-9]\d*$`, refused.header.Get("Retry-After"))
	require.Equal(t, 200, caller(other, true).call("GET", "/api/v1/resources/queues", "").status)

	ctx, leave := context.WithCancel(t.Context())
	var parked sync.WaitGroup
	for range 2 {
		parked.Go(func() {
			for ctx.Err() == nil { // the look below may have the place for a moment
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/v1/pop/queue/q?wait=true&timeout=60000", nil)
				if !assert.NoError(t, err) {
					return
				}
				for name, value := range caller(other, true).header {
					request.Header.Set(name, value)
				}
				if response, err := http.DefaultClient.Do(request); err == nil {
					_ = response.Body.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(300 * time.Millisecond):
				}
			}
		})
	}
	// Asked rarely, so that it is not the rate that is refused.
	require.Eventually(t, func() bool {
		a := caller(other, true).call("GET", "/api/v1/pop/queue/q?wait=true&timeout=1", "")
		return a.status == 429 && strings.Contains(a.body, "too_many_parked_pops") && a.header.Get("Retry-After") != ""
	}, 40*time.Second, 700*time.Millisecond)
	require.Equal(t, 204, caller(uuid.New(), true).call("GET", "/api/v1/pop/queue/q?wait=true&timeout=1", "").status, "another tenant may wait")
	leave()
	parked.Wait()
}

// Clients that are slow on purpose - half a header, half a handshake, half a body, nothing at all - lose their connections after a while, and
// keep nobody waiting meanwhile.
func TestSlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	cert, key := ca.issue("broker", time.Now().Add(time.Hour))
	paths := files(t, cert, key)
	plain := stack.Start(t)
	secure := stack.Start(t, map[string]string{"QUEEN_TLS_CERT": paths[0], "QUEEN_TLS_KEY": paths[1]})
	address := func(s *stack.Stack) string { return s.URL[strings.Index(s.URL, "//")+2:] }
	var slow sync.WaitGroup
	began := time.Now()
	hold := func(name, address, first string, drip string) {
		slow.Go(func() {
			conn, err := net.Dial("tcp", address)
			if !assert.NoError(t, err) {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, first)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = io.Copy(io.Discard, conn) // ends when the broker closes
			}()
			for {
				select {
				case <-ended:
					return
				case <-time.After(time.Second):
					_, _ = io.WriteString(conn, drip) // a byte now and then is no progress
				}
				if !assert.Less(t, time.Since(began), 75*time.Second, "%s keeps its connection", name) {
					return
				}
			}
		})
	}
	const each = 40
	for range each {
		hold("nothing at all", address(plain), "", "")
		hold("half a header", address(plain), "GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ", "x")
		hold("half a request line", address(plain), "GE", "")
		hold("one header after the other", address(plain), "GET /livez HTTP/1.1\r\nHost: x\r\n", "A: b\r\n")
		hold("half a handshake", address(secure), "\x16\x03\x01\x02\x00\x01\x00", "\x00")
		hold("half a preface of HTTP/2", address(plain), "PRI * HTTP/2.0\r\n\r\nSM", "")
	}
	c, behindTLS := as(t, plain.URL, nil), as(t, secure.URL, nil)
	behindTLS.client = ca.client()
	for time.Since(began) < 5*time.Second {
		c.mustPush("q", "", `1`)
		require.Equal(t, 200, behindTLS.call("GET", "/livez", "").status)
		time.Sleep(50 * time.Millisecond) // a pace, not a wait
	}
	slow.Wait()
	t.Logf("the last slow client was cut off after %.1f s", time.Since(began).Seconds())
	require.Equal(t, 200, c.call("GET", "/livez", "").status)
}

// Clients that announce as much as there is room for and then send a byte now and then keep nobody out for longer than a moment.
func TestSlowBodiesKeepNobodyOut(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, map[string]string{"QUEEN_MAX_INFLIGHT_BODY_BYTES": fmt.Sprint(8 << 20)})
	address := strings.TrimPrefix(s.URL, "http://")
	var holding sync.WaitGroup
	over := make(chan struct{})
	hold := func(head string) {
		holding.Go(func() {
			conn, err := net.Dial("tcp", address)
			if !assert.NoError(t, err) {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, head)
			for {
				select {
				case <-over:
					return
				case <-time.After(200 * time.Millisecond):
					_, _ = io.WriteString(conn, " ")
				}
			}
		})
	}
	for range 6 { // 6 MiB are there for large bodies
		hold(fmt.Sprintf("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 1<<20))
	}
	for range 32 { // and 2 MiB for small ones
		hold(fmt.Sprintf("POST /api/v1/ack/batch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 64<<10))
	}
	c := as(t, s.URL, nil)
	time.Sleep(500 * time.Millisecond) // they are under way; nothing tells when
	for _, size := range []int{1 << 10, 40 << 10, 3 << 20} {
		require.Eventually(t, func() bool {
			a := c.push("q", "", `"`+strings.Repeat("x", size)+`"`)
			return a.status == 201 && strings.Contains(a.body, `"queued"`)
		}, 20*time.Second, 10*time.Millisecond, "%d bytes", size)
	}
	close(over)
	holding.Wait()
}

// Requests that two programs could read in two ways are refused, and what follows them on the connection is not read as another request.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := stack.Start(t)
	address := strings.TrimPrefix(s.URL, "http://")
	item := `{"items":[{"queue":"smuggled","payload":1}]}`
	smuggled := fmt.Sprintf("POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(item), item)
	for name, request := range map[string]string{
		"two different lengths":        "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 60\r\n\r\n{}",
		"a list of lengths":            "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 60\r\n\r\n{}",
		"a negative length":            "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
		"a length with a sign":         "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}",
		"a length beyond all":          "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
		"an unknown encoding":          "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"an encoding that looks known": "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"two encodings":                "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a chunk that is no number":    "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
		"a space before the colon":     "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nContent-Length : 2\r\n\r\n{}",
		"a folded header":              "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\n Content-Length: 2\r\n\r\n",
		"a header without a name":      "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\n: 2\r\n\r\n",
		"a zero byte in a header":      "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n",
		"a bare return in a header":    "POST /api/v1/ack HTTP/1.1\r\nHost: x\r\nA: b\rContent-Length: 2\r\n\r\n",
		"two hosts":                    "GET /livez HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
		"no host":                      "GET /livez HTTP/1.1\r\n\r\n",
		"no such protocol":             "GET /livez HTTP/9.9\r\nHost: x\r\n\r\n",
		"spaces in the target":         "GET /livez /readyz HTTP/1.1\r\nHost: x\r\n\r\n",
		"a header beyond all":          "GET /livez HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 600<<10) + "\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		go func() { _, _ = io.WriteString(conn, request+smuggled) }() // the broker need not read it all
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil { // or nothing but the end of the connection
			require.GreaterOrEqual(t, response.StatusCode, 400, name)
			require.True(t, response.Close, "%s: the connection ends", name)
		}
		require.NoError(t, conn.Close())
	}
	var queues int
	require.NoError(t, s.DB.QueryRow(t.Context(), `SELECT count(*) FROM queen.queues WHERE name = 'smuggled'`).Scan(&queues))
	require.Zero(t, queues)
}
