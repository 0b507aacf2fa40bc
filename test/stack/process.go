package stack

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
// for one goroutine at a time, except Exited.
type Process struct {
	// URL is where the broker listens; it stays the same over restarts.
	URL string

	options ProcessOptions
	env     map[string]string
	cmd     *exec.Cmd
	exited  chan struct{} // closed when the process that cmd started has been reaped
	err     error         // how it ended; valid when exited is closed
	log     *os.File
}

// ProcessOptions change how a broker process is made. The zero value is a plain broker.
type ProcessOptions struct {
	// Env are settings of the broker, as NAME=value.
	Env []string
	// Binary returns the program, built where needed. Nil is the broker as it is built for everybody.
	Binary func() (string, error)
	// Around is a command that runs the program: its words come before the program's.
	Around []string
}

// StartProcess builds the broker once per test binary, starts it on databaseURL and waits until it is ready. It is killed
// when the test ends; its log is shown when the test failed.
func StartProcess(t testing.TB, databaseURL string, env ...string) *Process {
	t.Helper()
	p := NewProcess(t, databaseURL, ProcessOptions{Env: env})
	p.Start(t)
	return p
}

// NewProcess prepares a broker on databaseURL without starting it. It is killed when the test ends.
func NewProcess(t testing.TB, databaseURL string, o ProcessOptions) *Process {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "broker-*.log")
	if err != nil {
		t.Fatal(err)
	}
	if o.Binary == nil {
		o.Binary = binary
	}
	port := freePort(t)
	p := &Process{URL: fmt.Sprintf("http://127.0.0.1:%d", port), options: o, env: minimalEnvironment(), log: log}
	for _, pair := range append([]string{
		"DATABASE_URL=" + databaseURL, fmt.Sprintf("PORT=%d", port), "QUEEN_BIND_ADDR=127.0.0.1", "FILE_BUFFER_DIR=" + t.TempDir(),
	}, o.Env...) {
		name, value, _ := strings.Cut(pair, "=")
		p.env[name] = value
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("broker log:\n%s", tail(p.Log(), 60))
		}
		_ = log.Close()
	})
	return p
}

// Set changes a setting for the next start.
func (p *Process) Set(name, value string) { p.env[name] = value }

// Log is everything the broker has written so far, over all its starts.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Start starts a killed or stopped broker and waits until it is ready.
func (p *Process) Start(t testing.TB) {
	t.Helper()
	p.Launch(t)
	deadline := time.Now().Add(readyTimeout)
	for !p.IsReady() {
		if time.Now().After(deadline) {
			t.Fatalf("the broker is not ready after %s:\n%s", readyTimeout, tail(p.Log(), 60))
		}
		time.Sleep(20 * time.Millisecond) // poll of a foreign process, bounded by the deadline
	}
}

// probe asks brokers whether they are ready. A frozen one does not answer at all.
var probe = &http.Client{Timeout: 5 * time.Second}

// IsReady asks the broker whether it is ready.
func (p *Process) IsReady() bool {
	response, err := probe.Get(p.URL + "/readyz")
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// Launch starts the broker without waiting for it.
func (p *Process) Launch(t testing.TB) {
	t.Helper()
	path, err := p.options.Binary()
	if err != nil {
		t.Fatal(err)
	}
	words := append(slices.Clone(p.options.Around), path, "serve")
	cmd := exec.Command(words[0], words[1:]...)
	for name, value := range p.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	p.cmd, p.exited = cmd, exited
	go func() {
		p.err = cmd.Wait()
		close(exited)
	}()
}

// Exited is closed when the broker that was started last has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Signal sends a signal to the running broker.
func (p *Process) Signal(signal syscall.Signal) error { return p.cmd.Process.Signal(signal) }

// PID is the process id of the running broker, or of what is put around it.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the broker as kill -9 does and waits for its end. Killing a dead one does nothing.
func (p *Process) Kill() {
	if p.cmd != nil {
		_ = p.cmd.Process.Kill()
		<-p.exited
		p.cmd = nil
	}
}

// Stop asks the broker to end and waits; the error is not nil when it did not end cleanly.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	<-p.exited
	p.cmd = nil
	return p.err
}

// minimalEnvironment passes on what a program needs to run and nothing that could configure the broker.
func minimalEnvironment() map[string]string {
	out := map[string]string{}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			out[name] = value
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
