package testdb

import (
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ServerOptions describe a private server.
type ServerOptions struct {
	// Settings are server settings ("name": "value") over PostgreSQL's defaults, which are durable.
	Settings map[string]string
}

// A Server is a private, durable PostgreSQL that a test may stop, kill and start again. It keeps its port and its data. Its
// methods are for one goroutine at a time.
type Server struct {
	cluster *cluster
	running bool
}

// StartServer creates and starts a private server and removes it when the test ends; if the test process is killed, a
// watching process does that.
func StartServer(t testing.TB, o ServerOptions) *Server {
	t.Helper()
	root, err := os.MkdirTemp("", "queen-server-")
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	stopWatching := watchServer(t, root)
	t.Cleanup(stopWatching)
	settings := map[string]string{"timezone": "UTC", "log_timezone": "UTC", "shared_buffers": "32MB"}
	maps.Copy(settings, o.Settings)
	c, err := newCluster(root, settings)
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	s := &Server{cluster: c}
	t.Cleanup(func() {
		if err := c.stop(syscall.SIGQUIT); err != nil {
			t.Errorf("testdb: %v", err)
		}
	})
	s.Start(t)
	return s
}

// ConnString returns a URL of a database for the server's superuser; "postgres" always exists.
func (s *Server) ConnString(database string) string { return s.cluster.connString(database) }

// PID is the process id of the postmaster, 0 while the server is stopped.
func (s *Server) PID() int {
	if s.cluster.cmd == nil {
		return 0
	}
	return s.cluster.cmd.Process.Pid
}

// Start starts a stopped server and waits until it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if s.running {
		t.Fatal("testdb: the server runs already")
	}
	err := s.cluster.start(nil)
	// After a kill the sessions need a moment to notice that their postmaster is gone.
	for deadline := time.Now().Add(readyTimeout); err != nil && strings.Contains(err.Error(), "still in use") && time.Now().Before(deadline); {
		err = s.cluster.start(nil)
	}
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	s.running = true
}

// Stop ends the server and waits for its end. The mode is "fast" (sessions are ended, everything is written) or "immediate"
// (as after a crash: the next start recovers from the log).
func (s *Server) Stop(t testing.TB, mode string) {
	t.Helper()
	signals := map[string]syscall.Signal{"fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}
	signal, ok := signals[mode]
	if !ok {
		t.Fatalf("testdb: unknown stop mode %q", mode)
	}
	s.stop(t, signal)
}

// Kill ends the postmaster with SIGKILL. Its sessions notice by themselves, a moment later.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.stop(t, syscall.SIGKILL)
}

func (s *Server) stop(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := s.cluster.stop(signal); err != nil {
		t.Fatalf("testdb: %v", err)
	}
	s.running = false
}

// watchServer starts the process that removes root when this one dies, and returns what ends it in time of peace.
func watchServer(t testing.TB, root string) (stop func()) {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	cmd := exec.Command(executable) //nolint:noctx // ends with its standard input
	cmd.Env = append(os.Environ(), watchVariable+"="+root)
	cmd.Dir = filepath.Dir(root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("testdb: start the watching process: %v", err)
	}
	return func() { endWatch(t, cmd, input) }
}

func endWatch(t testing.TB, cmd *exec.Cmd, input io.Closer) {
	t.Helper()
	if err := input.Close(); err != nil {
		t.Errorf("testdb: %v", err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("testdb: the watching process: %v", err)
	}
}

// OnServer names an existing database of a private server.
func OnServer(s *Server, database string) *Database {
	return &Database{Name: database, connString: s.ConnString(database)}
}
