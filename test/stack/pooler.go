package stack

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"queenmq/internal/localpg"
)

// A Pooler is a PgBouncer in transaction mode in front of one server, in a process of its own.
type Pooler struct {
	t          testing.TB
	program    string
	config     string
	log        string
	target     *url.URL
	port       int
	credential *syscall.Credential
	cmd        *exec.Cmd
}

// poolerConfig is what docs/pooler.md asks for, and nothing that would hide what a broker must not do.
const poolerConfig = `[databases]
* = host=%s port=%s user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 12
server_login_retry = 1
logfile = %s
`

// StartPooler puts a pooler in front of the server that connString names, until the test ends.
func StartPooler(t testing.TB, connString string) *Pooler {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Fatal("PgBouncer is not installed: run tools/setup.sh test, or install its package")
		}
	}
	target, err := url.Parse(connString)
	if err != nil {
		t.Fatal(err)
	}
	credential, err := localpg.Credential() // it refuses to run as root, as the server does
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "queen-pooler-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &Pooler{
		t: t, program: program, config: filepath.Join(dir, "pgbouncer.ini"), log: filepath.Join(dir, "pgbouncer.log"), target: target,
		port: freePort(t), credential: credential,
	}
	text := fmt.Sprintf(poolerConfig, target.Hostname(), target.Port(), target.User.Username(), p.port, p.log)
	if err := os.WriteFile(p.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if credential != nil {
		if err := os.Chown(dir, int(credential.Uid), int(credential.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(p.Stop)
	p.Start()
	return p
}

// ConnString is how to reach the database through the pooler.
func (p *Pooler) ConnString() string {
	through := *p.target
	through.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))
	return through.String()
}

// Start starts a stopped pooler and waits until it takes connections.
func (p *Pooler) Start() {
	p.t.Helper()
	p.cmd = exec.Command(p.program, "-q", p.config)
	p.cmd.Dir = filepath.Dir(p.config)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.credential}
	var output strings.Builder
	p.cmd.Stderr = &output
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	for deadline := time.Now().Add(readyTimeout); ; {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)))
		if err == nil {
			_ = conn.Close()
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("the pooler does not listen after %s: %s", readyTimeout, output.String())
		}
		time.Sleep(20 * time.Millisecond) // poll of a foreign process, bounded by the deadline
	}
}

// Stop ends the pooler at once, with all its connections. Stopping a stopped one does nothing.
func (p *Pooler) Stop() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}
