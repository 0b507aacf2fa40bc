package auth_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"queenmq/internal/auth"
)

// An issuer publishes a key set that a test changes.
type issuer struct {
	*httptest.Server
	mu      sync.Mutex
	keys    []map[string]any
	status  int
	fetches atomic.Int32
}

func newIssuer(t *testing.T, keys ...map[string]any) *issuer {
	t.Helper()
	i := &issuer{keys: keys, status: http.StatusOK}
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.fetches.Add(1)
		i.mu.Lock()
		defer i.mu.Unlock()
		w.WriteHeader(i.status)
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": i.keys})
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) publish(status int, keys ...map[string]any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.status, i.keys = status, keys
}

func encode(raw []byte) string { return base64.RawURLEncoding.EncodeToString(raw) }

func rsaJWK(id string, key *rsa.PrivateKey) map[string]any {
	return map[string]any{"kty": "RSA", "kid": id, "n": encode(key.N.Bytes()), "e": encode([]byte{1, 0, 1})}
}

func edJWK(id string) map[string]any {
	return map[string]any{"kty": "OKP", "crv": "Ed25519", "kid": id, "use": "sig", "x": encode(edKey().Public().(ed25519.PublicKey))}
}

// serve runs a verifier on the issuer's keys.
func serve(t *testing.T, i *issuer, change func(*auth.Config)) *auth.Verifier {
	t.Helper()
	cfg := config()
	cfg.Algorithm, cfg.Secret, cfg.JWKSURL, cfg.RefreshInterval = "auto", "", i.URL, time.Hour
	change(&cfg)
	v := verifier(t, cfg)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return v
}

func withKey(id any) map[string]any { return map[string]any{"kid": id} }

func TestKeySet(t *testing.T) {
	t.Parallel()

	t.Run("KeysAreFoundByID", func(t *testing.T) {
		t.Parallel()
		i := newIssuer(t, map[string]any{"kty": "unheard of"}, rsaJWK("r1", rsaKey()), edJWK("e1"))
		v := serve(t, i, func(*auth.Config) {})
		for _, token := range []string{
			sign(t, jwt.SigningMethodRS256, rsaKey(), jwt.MapClaims{}, withKey("r1")),
			sign(t, jwt.SigningMethodRS512, rsaKey(), jwt.MapClaims{}), // names none: the first key
			sign(t, jwt.SigningMethodEdDSA, edKey(), jwt.MapClaims{}, withKey("e1")),
		} {
			_, err := v.Verify(t.Context(), token)
			require.NoError(t, err)
		}
		require.EqualValues(t, 1, i.fetches.Load())
		for name, row := range map[string]struct{ token, want string }{
			"KeyOfAnotherKind":      {sign(t, jwt.SigningMethodRS256, rsaKey(), jwt.MapClaims{}, withKey("e1")), "Unsupported token algorithm"},
			"KeyOfAnotherID":        {sign(t, jwt.SigningMethodRS256, otherRSAKey(), jwt.MapClaims{}, withKey("r1")), "Invalid token signature"},
			"IDOfAStrangeType":      {sign(t, jwt.SigningMethodRS256, rsaKey(), jwt.MapClaims{}, withKey(1)), "Bad token header"},
			"SignedWithAPublicText": {sign(t, jwt.SigningMethodHS256, []byte(encode(rsaKey().N.Bytes())), jwt.MapClaims{}, withKey("r1")), "Unsupported token algorithm"},
		} {
			_, err := v.Verify(t.Context(), row.token)
			require.EqualError(t, err, row.want, name)
		}
	})

	t.Run("SecretsAndWeakKeysOfASetAreNotUsed", func(t *testing.T) {
		t.Parallel()
		i := newIssuer(t, map[string]any{"kty": "oct", "kid": "s", "k": encode([]byte(hmacSecret))}, edJWK("e1"))
		v := serve(t, i, func(c *auth.Config) { c.Secret = "another secret of the operator's own" })
		_, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodHS256, []byte(hmacSecret), jwt.MapClaims{}, withKey("s")))
		require.EqualError(t, err, "Invalid token signature")
	})

	t.Run("KeysForOneAlgorithmServeNoOther", func(t *testing.T) {
		t.Parallel()
		key := rsaJWK("r1", rsaKey())
		key["alg"] = "RS256"
		encryption := rsaJWK("enc", rsaKey())
		encryption["use"] = "enc"
		v := serve(t, newIssuer(t, key, encryption), func(*auth.Config) {})
		_, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodRS256, rsaKey(), jwt.MapClaims{}, withKey("r1")))
		require.NoError(t, err)
		_, err = v.Verify(t.Context(), sign(t, jwt.SigningMethodRS512, rsaKey(), jwt.MapClaims{}, withKey("r1")))
		require.EqualError(t, err, "Unsupported token algorithm")
		_, err = v.Verify(t.Context(), sign(t, jwt.SigningMethodRS256, rsaKey(), jwt.MapClaims{}, withKey("enc")))
		require.EqualError(t, err, "Unknown key ID")
	})

	t.Run("UnknownIDsAskTheIssuerOnceInAWhile", func(t *testing.T) {
		t.Parallel()
		i := newIssuer(t, edJWK("e1"))
		v := serve(t, i, func(*auth.Config) {})
		_, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodEdDSA, edKey(), jwt.MapClaims{}, withKey("e1")))
		require.NoError(t, err)
		fetched := i.fetches.Load()
		var asking sync.WaitGroup
		for range 20 {
			asking.Go(func() {
				_, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodEdDSA, edKey(), jwt.MapClaims{}, withKey("invented")))
				if err == nil || err.Error() != "Unknown key ID" {
					t.Errorf("an invented key id: %v", err)
				}
			})
		}
		asking.Wait()
		require.LessOrEqual(t, i.fetches.Load(), fetched+1, "a flood of invented ids is no flood at the issuer")
	})

	t.Run("UntilTheFirstFetchNothingCanBeChecked", func(t *testing.T) {
		t.Parallel()
		i := newIssuer(t)
		i.publish(http.StatusBadGateway)
		v := serve(t, i, func(*auth.Config) {})
		_, err := v.Verify(t.Context(), sign(t, jwt.SigningMethodEdDSA, edKey(), jwt.MapClaims{}, withKey("e1")))
		require.ErrorIs(t, err, auth.ErrKeysUnavailable)
	})

	t.Run("ANewKeySetReplacesTheOldOne", func(t *testing.T) {
		t.Parallel()
		i := newIssuer(t, edJWK("e1"))
		v := serve(t, i, func(c *auth.Config) { c.RefreshInterval = 5 * time.Millisecond })
		token := sign(t, jwt.SigningMethodEdDSA, edKey(), jwt.MapClaims{}, withKey("e1"))
		_, err := v.Verify(t.Context(), token)
		require.NoError(t, err)
		i.publish(http.StatusInternalServerError)
		before := i.fetches.Load()
		require.Eventually(t, func() bool { return i.fetches.Load() > before+2 }, 10*time.Second, time.Millisecond)
		_, err = v.Verify(t.Context(), token)
		require.NoError(t, err, "an issuer in trouble revokes nothing")
		i.publish(http.StatusOK, rsaJWK("r1", rsaKey()))
		require.Eventually(t, func() bool {
			_, err := v.Verify(t.Context(), token)
			return err != nil && err.Error() == "Unknown key ID"
		}, 10*time.Second, time.Millisecond, "a key that is gone from the set is revoked")
	})
}
