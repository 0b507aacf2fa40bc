package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

const jwtSecret = "a secret that only this test and its broker know"

// tokenFor is a token with one role.
func tokenFor(t *testing.T, role string) []byte {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"sub": "somebody", "role": role, "exp": time.Now().Add(time.Hour).Unix()}).SignedString([]byte(jwtSecret))
	require.NoError(t, err)
	return []byte(token + "\n")
}

// certificate makes a certificate for 127.0.0.1 that signs itself, as files.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}

// What a token may do, and how queenctl says what it may not, at a broker that asks for tokens and speaks TLS.
func TestTokens(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	p := params("testdata/token", serve(t, map[string]string{"JWT_ENABLED": "true", "JWT_SECRET": jwtSecret, "QUEEN_TLS_CERT": cert, "QUEEN_TLS_KEY": key}))
	setup := p.Setup
	p.Setup = func(env *testscript.Env) error {
		env.Setenv("CERT", cert)
		for _, role := range []string{"read-only", "write-only", "admin"} {
			if err := os.WriteFile(filepath.Join(env.WorkDir, role), tokenFor(t, role), 0o600); err != nil {
				return err
			}
		}
		return setup(env)
	}
	testscript.Run(t, p)
}
