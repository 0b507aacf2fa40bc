package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"queenmq/internal/localpg"
	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

// A databaseAuthority signs certificates.
type databaseAuthority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func (a databaseAuthority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// certify makes a certificate, signed by the authority or, without one, by itself.
func certify(t *testing.T, by *databaseAuthority, name string, addresses ...net.IP) databaseAuthority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: addresses,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: by == nil,
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.certificate, by.key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(raw)
	require.NoError(t, err)
	return databaseAuthority{certificate, key}
}

// A real PostgreSQL with TLS: each mode of the connection string protects as it says, and nothing falls back to less.
func TestPostgreSQLOverTLS(t *testing.T) {
	t.Parallel()
	ours, other := certify(t, nil, "ours"), certify(t, nil, "other")
	server := certify(t, &ours, "server", net.IPv4(127, 0, 0, 1))
	dir, err := os.MkdirTemp("", "queen-tls-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		return path
	}
	key, err := x509.MarshalPKCS8PrivateKey(server.key)
	require.NoError(t, err)
	certFile := write("server.crt", server.pem())
	keyFile := write("server.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	credential, err := localpg.Credential()
	require.NoError(t, err)
	if credential != nil { // the server runs as another account than the test
		for _, path := range []string{dir, certFile, keyFile} {
			require.NoError(t, os.Chown(path, int(credential.Uid), int(credential.Gid)))
		}
	}
	database := testdb.StartServer(t, testdb.ServerOptions{Settings: map[string]string{
		"fsync": "off", "ssl": "on", "ssl_cert_file": certFile, "ssl_key_file": keyFile,
	}})
	for name, row := range map[string]struct {
		mode, host string
		roots      []byte
		encrypted  bool
		refused    string
	}{
		"Disable":                   {mode: "disable"},
		"Require":                   {mode: "require", encrypted: true},
		"VerifyCA":                  {mode: "verify-ca", roots: ours.pem(), encrypted: true},
		"VerifyCAByAnotherName":     {mode: "verify-ca", host: "localhost", roots: ours.pem(), encrypted: true},
		"VerifyFull":                {mode: "verify-full", roots: ours.pem(), encrypted: true},
		"VerifyFullByAnotherName":   {mode: "verify-full", host: "localhost", roots: ours.pem(), refused: "localhost"},
		"VerifyCAWrongAuthority":    {mode: "verify-ca", roots: other.pem(), refused: "unknown authority"},
		"VerifyFullWrongAuthority":  {mode: "verify-full", roots: other.pem(), refused: "unknown authority"},
		"VerifyFullSystemAuthority": {mode: "verify-full", refused: "unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			address, err := url.Parse(database.ConnString("postgres"))
			require.NoError(t, err)
			if row.host != "" {
				address.Host = net.JoinHostPort(row.host, address.Port())
			}
			query := address.Query()
			query.Set("sslmode", row.mode)
			address.RawQuery = query.Encode()
			db, err := pg.Open(t.Context(), pg.Options{ConnString: address.String(), MaxConns: 2, RootCertificates: string(row.roots)})
			require.NoError(t, err)
			defer db.Close()
			_, err = db.Inspect(t.Context())
			if row.refused != "" {
				require.ErrorContains(t, err, row.refused)
				return
			}
			require.NoError(t, err)
			encrypted, err := sessionsEncrypted(t, database)
			require.NoError(t, err)
			require.Equal(t, row.encrypted, encrypted)
		})
	}
}

// sessionsEncrypted tells whether the sessions of the tested pool are, seen from the server.
func sessionsEncrypted(t *testing.T, server *testdb.Server) (encrypted bool, err error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.ConnString("postgres"))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	err = conn.QueryRow(t.Context(), `SELECT COALESCE(bool_or(s.ssl), false) FROM pg_stat_ssl s JOIN pg_stat_activity a ON a.pid = s.pid
		WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid()`).Scan(&encrypted)
	return encrypted, err
}
