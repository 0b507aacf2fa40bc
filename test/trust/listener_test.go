package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/broker"
	"queenmq/internal/testdb"
	"queenmq/test/stack"
)

// An authority signs certificates for the time of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, next: 2}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(raw)
	require.NoError(t, err)
	return a
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue signs a certificate and returns it with its key as PEM.
func (a *authority) issue(name string, until time.Time) (cert, key []byte) {
	a.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.next), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	a.next++
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	require.NoError(a.t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (a *authority) client(certs ...tls.Certificate) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certs}, DisableKeepAlives: true, ForceAttemptHTTP2: true,
	}}
}

// files writes contents to files of a fresh directory and returns their paths.
func files(t *testing.T, contents ...[]byte) []string {
	t.Helper()
	dir := t.TempDir()
	paths := make([]string, len(contents))
	for i, content := range contents {
		paths[i] = filepath.Join(dir, string(rune('a'+i))+".pem")
		require.NoError(t, os.WriteFile(paths[i], content, 0o600))
	}
	return paths
}

func TestCertificateIsReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	cert, key := ca.issue("first", time.Now().Add(time.Hour))
	paths := files(t, cert, key)
	s := stack.Start(t, map[string]string{"QUEEN_TLS_CERT": paths[0], "QUEEN_TLS_KEY": paths[1]})
	require.True(t, strings.HasPrefix(s.URL, "https://"))
	name := func() string {
		response, err := ca.client().Get(s.URL + "/livez")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, 2, response.ProtoMajor)
		return response.TLS.PeerCertificates[0].Subject.CommonName
	}
	require.Equal(t, "first", name())

	// Half a change is no change: the certificate does not fit its key yet.
	cert, key = ca.issue("second", time.Now().Add(time.Hour))
	require.NoError(t, os.WriteFile(paths[0], cert, 0o600))
	until := time.Now().Add(2500 * time.Millisecond)
	require.Eventually(t, func() bool {
		require.Equal(t, "first", name())
		return time.Now().After(until)
	}, 20*time.Second, 100*time.Millisecond)
	require.NoError(t, os.WriteFile(paths[1], key, 0o600))
	require.Eventually(t, func() bool { return name() == "second" }, 20*time.Second, 50*time.Millisecond)

	plain, err := http.Get("http" + strings.TrimPrefix(s.URL, "https") + "/livez")
	require.NoError(t, err)
	require.NoError(t, plain.Body.Close())
	require.Equal(t, http.StatusBadRequest, plain.StatusCode, "plain text gets nothing")
}

func TestClientsNeedACertificateOfTheAuthority(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	cert, key := ca.issue("broker", time.Now().Add(time.Hour))
	paths := files(t, cert, key, ca.pem())
	s := stack.Start(t, map[string]string{
		"QUEEN_TLS_CERT": paths[0], "QUEEN_TLS_KEY": paths[1], "QUEEN_TLS_CLIENT_CA": paths[2], "QUEEN_REQUIRE_AUTH": "true",
	})
	pair := func(cert, key []byte) tls.Certificate {
		c, err := tls.X509KeyPair(cert, key)
		require.NoError(t, err)
		return c
	}
	response, err := ca.client(pair(ca.issue("worker", time.Now().Add(time.Hour)))).Get(s.URL + "/status")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
	for who, client := range map[string]*http.Client{
		"nobody":         ca.client(),
		"a stranger":     ca.client(pair(stranger.issue("worker", time.Now().Add(time.Hour)))),
		"an expired one": ca.client(pair(ca.issue("worker", time.Now().Add(-time.Minute)))),
	} {
		response, err := client.Get(s.URL + "/status")
		if err == nil {
			_ = response.Body.Close()
		}
		require.Error(t, err, who)
	}
}

// What cannot be honoured stops the start, in a line that names the variable and shows no secret.
func TestStartFailsClosed(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	cert, key := ca.issue("broker", time.Now().Add(time.Hour))
	_, otherKey := ca.issue("other", time.Now().Add(time.Hour))
	paths := files(t, cert, key, otherKey, []byte("no certificate"))
	for name, row := range map[string]struct {
		env  map[string]string
		want string
	}{
		"TokensWithoutAKey":       {map[string]string{"JWT_ENABLED": "true"}, "JWT_SECRET"},
		"UnknownAlgorithm":        {map[string]string{"JWT_ENABLED": "true", "JWT_SECRET": secret, "JWT_ALGORITHM": "none"}, "JWT_ALGORITHM"},
		"BrokenPublicKey":         {map[string]string{"JWT_ENABLED": "true", "JWT_ALGORITHM": "RS256", "JWT_PUBLIC_KEY": "x"}, "JWT_PUBLIC_KEY"},
		"ShortKey":                {map[string]string{"QUEEN_ENCRYPTION_KEY": keyA[:62]}, "QUEEN_ENCRYPTION_KEY"},
		"KeyThatIsNotHex":         {map[string]string{"QUEEN_ENCRYPTION_KEY": strings.Repeat("xy", 32)}, "QUEEN_ENCRYPTION_KEY"},
		"BrokenOldKey":            {map[string]string{"QUEEN_ENCRYPTION_KEY": keyA, "QUEEN_ENCRYPTION_KEYS_OLD": "00"}, "QUEEN_ENCRYPTION_KEYS_OLD"},
		"OpenWhereAuthIsDemanded": {map[string]string{"QUEEN_REQUIRE_AUTH": "true"}, "QUEEN_REQUIRE_AUTH"},
		"NoCertificateFile":       {map[string]string{"QUEEN_TLS_CERT": "/nowhere", "QUEEN_TLS_KEY": paths[1]}, "QUEEN_TLS_CERT"},
		"KeyOfAnother":            {map[string]string{"QUEEN_TLS_CERT": paths[0], "QUEEN_TLS_KEY": paths[2]}, "QUEEN_TLS_KEY"},
		"NoAuthority":             {map[string]string{"QUEEN_TLS_CERT": paths[0], "QUEEN_TLS_KEY": paths[1], "QUEEN_TLS_CLIENT_CA": paths[3]}, "QUEEN_TLS_CLIENT_CA"},
	} {
		_, err := broker.LoadConfig(func(name string) (string, bool) { value, ok := row.env[name]; return value, ok }, nil)
		require.ErrorContains(t, err, row.want, name)
		require.NotContains(t, err.Error(), "\n", name)
		require.NotContains(t, err.Error(), keyA[:62], name)
		require.NotContains(t, err.Error(), secret, name)
	}
}

func TestPostgresAuthorityIsUsed(t *testing.T) {
	t.Parallel()
	env := map[string]string{"DATABASE_URL": testdb.New(t).ConnString(), "PG_SSL_ROOT_CERT": "no certificate"}
	cfg, err := broker.LoadConfig(func(name string) (string, bool) { value, ok := env[name]; return value, ok }, nil)
	require.NoError(t, err)
	err = broker.New(cfg).Run(t.Context())
	require.ErrorContains(t, err, "PG_SSL_ROOT_CERT")
}

func TestOpenAddressIsSaidAtTheStart(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		env  map[string]string
		want bool
	}{
		"Open":       {map[string]string{"QUEEN_BIND_ADDR": "0.0.0.0"}, true},
		"Default":    {map[string]string{}, false},
		"Loopback":   {map[string]string{"QUEEN_BIND_ADDR": "127.0.0.1"}, false},
		"WithTokens": {map[string]string{"QUEEN_BIND_ADDR": "0.0.0.0", "JWT_ENABLED": "1", "JWT_SECRET": secret}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.env["DATABASE_URL"], row.env["PORT"] = "postgres://127.0.0.1:1/x", "0"
			row.env["PG_SSL_ROOT_CERT"] = "it ends the run after the report"
			cfg, err := broker.LoadConfig(func(name string) (string, bool) { value, ok := row.env[name]; return value, ok }, nil)
			require.NoError(t, err)
			var log bytes.Buffer
			require.Error(t, broker.New(cfg, broker.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))).Run(t.Context()))
			require.Equal(t, row.want, strings.Contains(log.String(), "everybody who reaches this address may do everything"), log.String())
			require.NotContains(t, log.String(), secret)
		})
	}
}
