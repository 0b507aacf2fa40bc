package testdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"queenmq/internal/localpg"
)

// readyTimeout bounds initdb, a server start and a server stop; the machines that run tests are often busy.
const readyTimeout = 60 * time.Second

// A cluster is one PostgreSQL data directory and, while it runs, its postmaster.
type cluster struct {
	bin        string
	dir        string // holds data, the socket and the log; owned by the account the server runs as
	credential *syscall.Credential
	port       int
	settings   map[string]string

	cmd    *exec.Cmd
	exited chan struct{} // closed when the postmaster has been reaped
}

func (c *cluster) dataDir() string { return filepath.Join(c.dir, "data") }
func (c *cluster) logFile() string { return filepath.Join(c.dir, "server.log") }

// connString names a database of the cluster for its superuser.
func (c *cluster) connString(database string) string { return localURL(c.port, database) }

func localURL(port int, database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", port, database)
}

// newCluster creates a data directory below dir, which must exist and be empty, and picks a free port.
func newCluster(dir string, settings map[string]string) (*cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	bin, err := programs(ctx)
	if err != nil {
		return nil, err
	}
	credential, err := localpg.Credential()
	if err != nil {
		return nil, err
	}
	if credential != nil {
		if err := os.Chown(dir, int(credential.Uid), int(credential.Gid)); err != nil {
			return nil, fmt.Errorf("hand the directory to the server's account: %w", err)
		}
	}
	c := &cluster{bin: bin, dir: dir, credential: credential, settings: settings}
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", c.dataDir(), "--username=postgres", "--auth=trust",
		"--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	initdb.Dir = dir
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	c.port, err = freePort()
	return c, err
}

// start runs the server and returns when it answers. configure may change the process attributes.
func (c *cluster) start(configure func(*syscall.SysProcAttr)) error {
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the server log: %w", err)
	}
	defer log.Close()
	args := []string{"-D", c.dataDir(), "-p", strconv.Itoa(c.port), "-h", "127.0.0.1", "-k", c.dir}
	names := make([]string, 0, len(c.settings))
	for name := range c.settings {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		args = append(args, "-c", name+"="+c.settings[name])
	}
	cmd := exec.Command(filepath.Join(c.bin, "postgres"), args...) //nolint:noctx // lives longer than any context
	cmd.Dir = c.dir
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own keeps Ctrl-C on the terminal away from the server: its owner decides when it stops.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.credential, Setsid: true}
	if configure != nil {
		configure(cmd.SysProcAttr)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in the log
		close(exited)
	}()
	c.cmd, c.exited = cmd, exited
	return c.waitReady()
}

func (c *cluster) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	ticker := time.NewTicker(30 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ping(ctx, c.connString("postgres"))
		if err == nil {
			return nil
		}
		select {
		case <-c.exited:
			return fmt.Errorf("postgres ended while starting:\n%s", tail(c.logFile()))
		case <-ctx.Done():
			_ = c.stop(syscall.SIGQUIT)
			return fmt.Errorf("postgres did not answer within %s: %w\n%s", readyTimeout, err, tail(c.logFile()))
		case <-ticker.C:
		}
	}
}

// stop signals the postmaster and waits for its end. Stopping a cluster that does not run is not an error.
func (c *cluster) stop(signal syscall.Signal) error {
	if c.cmd == nil {
		return nil
	}
	if err := c.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal postgres: %w", err)
	}
	select {
	case <-c.exited:
	case <-time.After(readyTimeout):
		_ = c.cmd.Process.Kill()
		<-c.exited
		return fmt.Errorf("postgres did not end within %s of %s", readyTimeout, signal)
	}
	c.cmd = nil
	return nil
}

// ping makes one round trip.
func ping(ctx context.Context, connString string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, connString)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.Ping(ctx)
}

// freePort asks the kernel for a port nobody listens on. Somebody may take it before the server does; then the start fails
// with a clear line in the log.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // returns at once
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// tail returns the last lines of a log, or why it cannot be read.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const most = 2000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return strings.TrimSpace(string(text))
}
