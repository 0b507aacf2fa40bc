package testdb

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Variables that make a test binary a supervisor instead of running its tests.
const (
	superviseVariable = "QUEEN_TESTDB_SUPERVISE" // value: the shared directory
	watchVariable     = "QUEEN_TESTDB_WATCH"     // value: the directory of a private server
)

// lingerVariable shortens linger; the tests of this package do not want to wait.
const lingerVariable = "QUEEN_TESTDB_LINGER"

// linger is how long the shared server outlives its last user: 20 seconds, because the go command starts the test processes of
// a run one after another, with compilation in between.
func linger() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(lingerVariable)); err == nil {
		return d
	}
	return 20 * time.Second
}

// A test binary has no other place where it could become something else before its tests run.
func init() {
	if dir := os.Getenv(superviseVariable); dir != "" {
		if err := supervise(dir); err != nil {
			_ = os.WriteFile(filepath.Join(dir, failureFile), []byte(err.Error()), 0o600)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(watchVariable); dir != "" {
		watch(dir)
		os.Exit(0)
	}
}

// supervise starts the shared server and stops it when nobody has used it for the time of linger.
func supervise(dir string) error {
	lock, err := openLock(filepath.Join(dir, supervisorLock))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := flock(lock, syscall.LOCK_EX); err != nil {
		return err
	}
	users, err := openLock(filepath.Join(dir, usersLock))
	if err != nil {
		return err
	}
	defer users.Close()

	root := filepath.Join(dir, clusterDir)
	if err := removeStale(dir, root); err != nil {
		return err
	}
	if err := os.Mkdir(root, 0o700); err != nil {
		return fmt.Errorf("create the server's directory: %w", err)
	}
	server, err := newCluster(root, sharedSettings)
	if err != nil {
		return err
	}
	// init runs on the main thread, so the server lives exactly as long as this process.
	if err := server.start(dieWithParent); err != nil {
		return err
	}
	if err := writeState(dir, sharedState{Port: server.port, Supervisor: os.Getpid()}); err != nil {
		_ = server.stop(syscall.SIGQUIT)
		return err
	}
	waitUntilUnused(users, server.exited)
	// Whoever comes now waits for the users lock, which ends with this process, and then finds no state.
	if err := os.Remove(filepath.Join(dir, stateFile)); err != nil {
		return fmt.Errorf("close the server to new users: %w", err)
	}
	if err := server.stop(syscall.SIGQUIT); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// waitUntilUnused returns holding the users lock exclusively, or when the server ended by itself.
func waitUntilUnused(users *os.File, exited <-chan struct{}) {
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	lastUsed := time.Now()
	for {
		select {
		case <-exited:
			return
		case <-ticker.C:
		}
		if syscall.Flock(int(users.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			lastUsed = time.Now()
			continue
		}
		if time.Since(lastUsed) >= linger() {
			return
		}
		_ = syscall.Flock(int(users.Fd()), syscall.LOCK_UN)
	}
}

// writeState publishes the server in one step, so that no reader sees half a file.
func writeState(dir string, state sharedState) error {
	text, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	path := filepath.Join(dir, stateFile)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("publish the state: %w", err)
	}
	return nil
}

// removeStale stops and removes a server whose supervisor was killed.
func removeStale(dir, root string) error {
	if err := os.Remove(filepath.Join(dir, stateFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the state of a crashed run: %w", err)
	}
	stopByPIDFile(root)
	if err := os.RemoveAll(root); err != nil {
		return fmt.Errorf("remove the server of a crashed run: %w", err)
	}
	return nil
}

// watch waits until its standard input ends, which the kernel brings about when the owner of a private server dies, and then
// stops the server and removes it.
func watch(root string) {
	_, _ = io.Copy(io.Discard, os.Stdin)
	stopByPIDFile(root)
	_ = os.RemoveAll(root)
}

// stopByPIDFile ends the postmaster named in the data directory's pid file, if there is one.
func stopByPIDFile(root string) {
	text, err := os.ReadFile(filepath.Join(root, "data", "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.SplitN(string(text), "\n", 3)
	if len(lines) < 3 || lines[1] != filepath.Join(root, "data") {
		return // not the pid file of this directory's server
	}
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil || pid <= 1 {
		return
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); <-time.After(50 * time.Millisecond) {
		if syscall.Kill(pid, syscall.SIGQUIT) != nil {
			return
		}
	}
}
