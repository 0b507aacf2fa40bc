package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// downloadTimeout bounds a download of some 30 MB over a slow line.
const downloadTimeout = 10 * time.Minute

var downloadable = map[int]embeddedpostgres.PostgresVersion{
	15: embeddedpostgres.V15, 16: embeddedpostgres.V16, 17: embeddedpostgres.V17, 18: embeddedpostgres.V18,
}

// downloadDefault is the major version a new data directory is made with when nothing is installed.
const downloadDefault = 17

// download fetches PostgreSQL's programs into dir/<major>/bin. repository replaces the library's own source when not empty.
func download(ctx context.Context, dir string, major int, repository string) error {
	if major == 0 {
		major = downloadDefault
	}
	version, ok := downloadable[major]
	if !ok {
		return fmt.Errorf("there is no download of version %d", major)
	}
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	finished := make(chan error, 1)
	// The library takes no context. After a cancelled start this goroutine ends with its download or with the process.
	go func() { finished <- fetch(dir, version, major, repository) }()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
		return fmt.Errorf("download: %w", context.Cause(ctx))
	}
}

// fetch makes the library download and unpack. It offers that only as the first half of starting a server of its own, which
// would listen on TCP and refuses to run as root; so the second half is given a directory that looks like a data directory and
// is none, and what counts is whether the programs are there afterwards.
func fetch(dir string, version embeddedpostgres.PostgresVersion, major int, repository string) error {
	target := filepath.Join(dir, fmt.Sprint(major))
	decoy := filepath.Join(dir, "decoy")
	defer os.RemoveAll(decoy)
	if err := os.MkdirAll(filepath.Join(decoy, "data"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(decoy, "data", "PG_VERSION"), fmt.Appendln(nil, major), 0o600); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	var output bytes.Buffer
	settings := embeddedpostgres.DefaultConfig().Version(version).Port(port).BinariesPath(target).CachePath(filepath.Join(dir, "archive")).
		RuntimePath(filepath.Join(decoy, "run")).DataPath(filepath.Join(decoy, "data")).Logger(&output)
	if repository != "" {
		settings = settings.BinaryRepositoryURL(repository)
	}
	server := embeddedpostgres.NewDatabase(settings)
	startErr := server.Start()
	if startErr == nil {
		return errors.Join(errors.New("a server came up on an empty directory"), server.Stop())
	}
	if _, err := os.Stat(filepath.Join(target, "bin", "postgres")); err != nil {
		return errors.New(strings.Join(strings.Fields(startErr.Error()), " ")) // one line
	}
	return os.RemoveAll(filepath.Join(dir, "archive"))
}

func freePort() (uint32, error) {
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return uint32(listener.Addr().(*net.TCPAddr).Port), nil //nolint:gosec // a port fits
}
