package testdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// sharedSettings make the shared server fast: its data lives for one run only.
var sharedSettings = map[string]string{
	"fsync":              "off",
	"full_page_writes":   "off",
	"synchronous_commit": "off",
	"autovacuum":         "off", // tests that care about statistics run ANALYZE themselves
	"max_connections":    "400",
	"shared_buffers":     "128MB",
	"max_wal_size":       "2GB",
	"checkpoint_timeout": "1h",
	"timezone":           "UTC",
	"log_timezone":       "UTC",
	"log_line_prefix":    "%m [%p] %d %a ",
}

// Files of the shared directory. The three locks are flocks, which the kernel releases however their holder ends.
const (
	usersLock      = "users.lock"      // shared: every test process; exclusive: the supervisor, while it stops the server
	startLock      = "start.lock"      // exclusive: the process that starts a supervisor
	supervisorLock = "supervisor.lock" // exclusive: the supervisor, all its life
	stateFile      = "state.json"      // exists while the server accepts users
	failureFile    = "failure.txt"     // why the last supervisor could not start
	clusterDir     = "cluster"
)

type sharedState struct {
	Port int `json:"port"`
	// Supervisor is the process that stops the server.
	Supervisor int `json:"supervisor"`
}

// A membership is this process's part in the server of the run.
type membership struct {
	url string
	// users is the lock that counts this process. It is kept open until the process ends.
	users *os.File
}

// shared joins the server of the run, once.
var shared = sync.OnceValues(func() (membership, error) {
	if url := os.Getenv("QUEEN_TEST_DATABASE_URL"); url != "" {
		return membership{url: url}, nil
	}
	return join()
})

// serverURL returns the connection string of the maintenance database of the run's server.
func serverURL(t testing.TB) string {
	t.Helper()
	member, err := shared()
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	return member.url
}

// sharedDir is one per account, so that parallel runs share a server.
func sharedDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "queen-testdb-"+strconv.Itoa(os.Geteuid()))
	// The server may run under another account, which must be able to walk through.
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("create the shared directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("read the shared directory: %w", err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || int(owner.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s is not a directory of this account: remove it", dir)
	}
	return dir, nil
}

// join takes part in the running shared server, or starts one.
func join() (membership, error) {
	dir, err := sharedDir()
	if err != nil {
		return membership{}, err
	}
	users, err := openLock(filepath.Join(dir, usersLock))
	if err != nil {
		return membership{}, err
	}
	if err := flock(users, syscall.LOCK_SH); err != nil {
		return membership{}, err
	}
	if url, ok := running(dir); ok {
		return membership{url: url, users: users}, nil
	}
	start, err := openLock(filepath.Join(dir, startLock))
	if err != nil {
		return membership{}, err
	}
	defer start.Close()
	if err := flock(start, syscall.LOCK_EX); err != nil {
		return membership{}, err
	}
	url, ok := running(dir) // somebody else may have started it while we waited
	if !ok {
		if url, err = startSupervisor(dir); err != nil {
			return membership{}, err
		}
	}
	return membership{url: url, users: users}, nil
}

// running says whether a supervised server answers.
func running(dir string) (string, bool) {
	state, ok := readState(dir)
	if !ok || !supervised(dir) {
		return "", false
	}
	url := localURL(state.Port, "postgres")
	return url, ping(context.Background(), url) == nil
}

func readState(dir string) (sharedState, bool) {
	var state sharedState
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil || json.Unmarshal(text, &state) != nil {
		return sharedState{}, false
	}
	return state, true
}

// supervised says whether a supervisor is alive.
func supervised(dir string) bool {
	lock, err := openLock(filepath.Join(dir, supervisorLock))
	if err != nil {
		return false
	}
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

// startSupervisor runs this binary again as the supervisor and waits for its server. The caller holds the start lock.
func startSupervisor(dir string) (string, error) {
	executable, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this binary: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, failureFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("forget the last failure: %w", err)
	}
	cmd := exec.Command(executable) //nolint:noctx // outlives this process on purpose
	cmd.Env = append(os.Environ(), superviseVariable+"="+dir)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start the server's supervisor: %w", err)
	}
	defer func() { _ = cmd.Process.Release() }()
	for deadline := time.Now().Add(2 * readyTimeout); time.Now().Before(deadline); {
		if url, ok := running(dir); ok {
			return url, nil
		}
		if text, err := os.ReadFile(filepath.Join(dir, failureFile)); err == nil {
			return "", errors.New(string(text))
		}
		<-time.After(50 * time.Millisecond)
	}
	return "", fmt.Errorf("the shared PostgreSQL did not start within %s; its log is in %s", 2*readyTimeout, filepath.Join(dir, clusterDir))
}

func openLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a lock file: %w", err)
	}
	return file, nil
}

// flock waits for a lock; signals of the Go runtime interrupt the call and are no reason to give up.
func flock(file *os.File, how int) error {
	for {
		err := syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			if err != nil {
				return fmt.Errorf("lock %s: %w", file.Name(), err)
			}
			return nil
		}
	}
}
