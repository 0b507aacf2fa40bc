package auth_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

const hmacSecret = "a secret of at least thirty-two bytes"

// Keys are made once: RSA keys take a while.
var (
	rsaKey      = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	otherRSAKey = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	p256Key     = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	p384Key     = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)) })
	edKey       = sync.OnceValue(func() ed25519.PrivateKey {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return must(key, err)
	})
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func publicPEM(key any) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(key))}))
}

// config is a working configuration for HS256 with the defaults of the contract.
func config() auth.Config {
	return auth.Config{
		Algorithm: "HS256", Secret: hmacSecret, Leeway: 30 * time.Second, SkipPaths: "/health,/metrics/prometheus,/metrics,/",
		RoleClaim: "role", RolesClaim: "roles",
		Roles: auth.RoleNames{Admin: "admin", ReadWrite: "read-write", ReadOnly: "read-only", WriteOnly: "write-only"},
		Now:   func() time.Time { return now },
	}
}

func verifier(t *testing.T, cfg auth.Config) *auth.Verifier {
	t.Helper()
	v, err := auth.New(cfg)
	require.NoError(t, err)
	return v
}

// sign makes a token; header members with a nil value are left out.
func sign(t *testing.T, method jwt.SigningMethod, key any, claims jwt.MapClaims, header ...map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(method, claims)
	for _, members := range header {
		for name, value := range members {
			token.Header[name] = value
		}
	}
	text, err := token.SignedString(key)
	require.NoError(t, err)
	return text
}

func hs(t *testing.T, claims jwt.MapClaims) string {
	t.Helper()
	return sign(t, jwt.SigningMethodHS256, []byte(hmacSecret), claims)
}
