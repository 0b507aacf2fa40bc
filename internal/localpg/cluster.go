package localpg

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A cluster is an initialised data directory together with the programs that run it. No server runs on it when it is opened.
type cluster struct {
	dir       string // PostgreSQL's data directory
	socketDir string
	account   *account
	binaries  binaries
}

// openCluster finds or creates the cluster below base. The caller holds base's lock, so a server that still runs there belongs
// to a broker that was killed: it is stopped.
func openCluster(ctx context.Context, base string, a *account, parameters []parameter, log *slog.Logger) (*cluster, error) {
	c := &cluster{dir: filepath.Join(base, "postgres"), account: a}
	major, err := c.major()
	if err != nil {
		return nil, err
	}
	if c.binaries, err = obtain(ctx, filepath.Join(base, "binaries"), major, log); err != nil {
		return nil, err
	}
	if c.socketDir, err = makeSocketDir(base, a); err != nil {
		return nil, err
	}
	if err := c.endLeftovers(ctx, log); err != nil {
		return nil, err
	}
	if major == 0 {
		if err := c.initialise(ctx); err != nil {
			return nil, err
		}
	}
	return c, c.write(filepath.Join(c.dir, "queen.conf"), render(parameters))
}

// major is the version that made the data directory, 0 when there is none yet.
func (c *cluster) major() (int, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, "PG_VERSION"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		if _, err := os.Stat(c.dir); err == nil {
			return 0, fmt.Errorf("%s exists and is no data directory of PostgreSQL: move it away, or set QUEEN_DATA_DIR to another directory", c.dir)
		}
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("read the version of the data directory: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read the version of the data directory: %w", err)
	}
	return major, nil
}

// initialise makes the data directory under another name and renames it when it is complete, so that a start that was cut
// short leaves nothing that looks like a database.
func (c *cluster) initialise(ctx context.Context) error {
	fresh := c.dir + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("remove an unfinished data directory: %w", err)
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return fmt.Errorf("create the data directory (QUEEN_DATA_DIR): %w", err)
	}
	if err := c.account.own(fresh); err != nil {
		return fmt.Errorf("hand the data directory to PostgreSQL's account: %w", err)
	}
	// trust is safe on a socket in a directory that only the server's account (and root) may enter.
	initdb := exec.CommandContext(ctx, c.binaries.path("initdb"), "--pgdata="+fresh, "--username="+superuser, "--auth-local=trust",
		"--auth-host=reject", "--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions")
	initdb.Dir = fresh
	initdb.SysProcAttr = c.account.attributes()
	if out, err := initdb.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("initdb: %w", context.Cause(ctx))
		}
		return fmt.Errorf("initdb (as %s): %w: %s", c.accountName(), err, lastLine(out))
	}
	conf := filepath.Join(fresh, "postgresql.conf")
	text, err := os.ReadFile(conf)
	if err != nil {
		return fmt.Errorf("read the configuration initdb made: %w", err)
	}
	if err := c.write(conf, append(text, "\ninclude_if_exists = 'queen.conf'\n"...)); err != nil {
		return err
	}
	if err := os.Rename(fresh, c.dir); err != nil {
		return fmt.Errorf("put the data directory in its place: %w", err)
	}
	return syncDir(filepath.Dir(c.dir))
}

func (c *cluster) accountName() string {
	if c.account == nil {
		return "the broker's user"
	}
	return c.account.name
}

// write replaces a file of the cluster.
func (c *cluster) write(path string, text []byte) error {
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := c.account.own(path); err != nil {
		return fmt.Errorf("hand %s to PostgreSQL's account: %w", path, err)
	}
	return nil
}

// start runs the server and returns when it accepts connections, or with its last words when it ends before.
func (c *cluster) start(ctx context.Context, log *slog.Logger) (*process, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for the server's messages: %w", err)
	}
	// On the command line nothing can override these two: the server is private whatever its files say.
	cmd := exec.Command(c.binaries.path("postgres"), "-D", c.dir, "-k", c.socketDir, "-p", socketPort, "-c", "listen_addresses=") //nolint:noctx // outlives the start
	cmd.Dir = c.dir
	cmd.Stdout, cmd.Stderr = writer, writer
	cmd.SysProcAttr = c.account.attributes()
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PGDATA="+c.dir)
	startErr := cmd.Start()
	_ = writer.Close()
	if startErr != nil {
		_ = reader.Close()
		return nil, fmt.Errorf("start PostgreSQL as %s: %w", c.accountName(), startErr)
	}
	p := newProcess(cmd, reader, log)
	if err := c.awaitReady(ctx, p, log); err != nil {
		p.kill()
		<-p.exited
		return nil, err
	}
	return p, nil
}

// awaitReady polls the status line that the server keeps in its pid file; that needs no client and no credentials.
func (c *cluster) awaitReady(ctx context.Context, p *process, log *slog.Logger) error {
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	patience := time.NewTicker(10 * time.Second)
	defer patience.Stop()
	for {
		if file, err := readPIDFile(c.dir); err == nil && file.pid == p.pid() && file.status == "ready" {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("PostgreSQL did not start: %s", p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL was still starting: %w", context.Cause(ctx))
		case <-patience.C:
			log.InfoContext(ctx, "private postgresql is still starting, most likely it recovers from a crash")
		case <-poll.C:
		}
	}
}

// maxSocketPath is the longest path of a Unix socket, without the terminating NUL.
func maxSocketPath() int {
	if runtime.GOOS == "linux" {
		return 107
	}
	return 103
}

// socketDir is where the socket of a data directory is. The name follows from the data directory, so that the next start and
// other processes find it.
func socketDir(base string) string {
	dir := filepath.Join(base, "run")
	if len(dir)+len("/.s.PGSQL."+socketPort) > maxSocketPath() {
		dir = fmt.Sprintf("/tmp/queen-%x", sha256.Sum256([]byte(base)))[:len("/tmp/queen-")+16]
	}
	return dir
}

// makeSocketDir creates the directory of the socket, which the server's account owns and nobody else may enter.
func makeSocketDir(base string, a *account) (string, error) {
	dir := socketDir(base)
	if err := os.Mkdir(dir, 0o700); err == nil {
		if err := a.own(dir); err != nil {
			return "", fmt.Errorf("hand the socket directory to PostgreSQL's account: %w", err)
		}
	} else if !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("create the socket directory: %w", err)
	}
	// Whoever owned it could put his own socket there, so an existing one is not taken on trust.
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("socket directory: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 || !ok || owner.Uid != a.uidOrOurs() {
		return "", fmt.Errorf("%s is not a directory that only PostgreSQL's account (user id %d) may enter: remove it", dir, a.uidOrOurs())
	}
	return dir, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open %s to sync it: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

func lastLine(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(lines[len(lines)-1])
}
