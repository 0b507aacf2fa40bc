package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// Where the system knows no authorities, as in an image from scratch, the program brings some.
func TestAuthoritiesComeWithTheProgram(t *testing.T) {
	t.Parallel()
	const inside = "QUEEN_TEST_WITHOUT_AUTHORITIES"
	if os.Getenv(inside) != "" {
		pool, err := x509.SystemCertPool()
		require.NoError(t, err)
		require.False(t, pool.Equal(x509.NewCertPool()))
		return
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), inside+"=1", "SSL_CERT_FILE=/nowhere", "SSL_CERT_DIR=/nowhere")
	said, err := again.CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.Contains(t, string(said), "--- PASS: "+t.Name())
}
