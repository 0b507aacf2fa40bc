package stack

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// buildTimeout covers a cold compile of the broker on a loaded machine.
const buildTimeout = 5 * time.Minute

// readyTimeout is how long a started broker may take until it says that it is ready.
const readyTimeout = time.Minute

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "queen-binary-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "queen")
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "build", "-o", path, "queenmq/cmd/queen").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the broker: %w: %s", err, out)
	}
	return path, nil
})

// RemoveBinary deletes what StartProcess built. Call it at the end of TestMain.
func RemoveBinary() {
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
}

// A Process is a broker in a process of its own that a test may kill and start again on the same port. Its methods are
// for one goroutine at a time.
type Process struct {
	// URL is where the broker listens; it stays the same over restarts.
	URL string

	port int
	env  []string
	cmd  *exec.Cmd
	log  *os.File
}

// StartProcess builds the broker once per test binary, starts it on databaseURL and waits until it is ready. It is killed
// when the test ends; its log is shown when the test failed.
func StartProcess(t testing.TB, databaseURL string, env ...string) *Process {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "broker-*.log")
	if err != nil {
		t.Fatal(err)
	}
	p := &Process{port: freePort(t), log: log}
	p.URL = fmt.Sprintf("http://127.0.0.1:%d", p.port)
	p.env = append(minimalEnvironment(), append([]string{
		"DATABASE_URL=" + databaseURL, fmt.Sprintf("PORT=%d", p.port), "QUEEN_BIND_ADDR=127.0.0.1", "FILE_BUFFER_DIR=" + t.TempDir(),
	}, env...)...)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("broker log:\n%s", tail(string(text), 60))
		}
		_ = log.Close()
	})
	p.Start(t)
	return p
}

// Start starts a killed or stopped broker and waits until it is ready.
func (p *Process) Start(t testing.TB) {
	t.Helper()
	p.Launch(t)
	deadline := time.Now().Add(readyTimeout)
	for {
		response, err := http.Get(p.URL + "/readyz")
		if err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(p.log.Name())
			t.Fatalf("the broker is not ready after %s (%v):\n%s", readyTimeout, err, tail(string(text), 60))
		}
		time.Sleep(20 * time.Millisecond) // poll of a foreign process, bounded by the deadline
	}
}

// Launch starts the broker without waiting for it.
func (p *Process) Launch(t testing.TB) {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(path, "serve")
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = p.env, p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// Kill ends the broker as kill -9 does and waits for its end. Killing a dead one does nothing.
func (p *Process) Kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.cmd = nil
	}
}

// Stop asks the broker to end and waits; the error is not nil when it did not end cleanly.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err := p.cmd.Wait()
	p.cmd = nil
	return err
}

// minimalEnvironment passes on what a program needs to run and nothing that could configure the broker.
func minimalEnvironment() []string {
	var out []string
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+value)
		}
	}
	return out
}

func freePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(len(all)-lines, 0):], "\n")
}
