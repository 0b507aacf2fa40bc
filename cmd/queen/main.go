// Command queen runs a message broker on PostgreSQL.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	// Authorities for where there are none, as in an image with nothing but this program: JWT_JWKS_URL and DATABASE_URL may need them.
	_ "golang.org/x/crypto/x509roots/fallback"
)

func main() {
	// A limit on the size of files is an error of the write that meets it, like a full disk, and not the end of the process.
	signal.Ignore(syscall.SIGXFSZ)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// Once the first signal is heard, the next one has its usual effect: it ends the process at once.
	context.AfterFunc(ctx, stop)
	p := program{lookup: os.LookupEnv, stdout: os.Stdout, stderr: os.Stderr}
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		p.names = append(p.names, name)
	}
	os.Exit(p.run(ctx, os.Args[1:]))
}

// program is everything the commands touch of the process.
type program struct {
	lookup         func(name string) (string, bool)
	names          []string // the variables that are set
	stdout, stderr io.Writer
}
