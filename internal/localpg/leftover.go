package localpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pidFile is what matters of the file that PostgreSQL keeps in its data directory while it runs.
type pidFile struct {
	pid    int
	status string // "starting", "ready", "stopping" or "standby"
}

func pidFilePath(dir string) string { return filepath.Join(dir, "postmaster.pid") }

func readPIDFile(dir string) (pidFile, error) {
	text, err := os.ReadFile(pidFilePath(dir))
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil {
		return pidFile{}, fmt.Errorf("read %s: %w", pidFilePath(dir), err)
	}
	file := pidFile{pid: pid}
	const statusLine = 7
	if len(lines) > statusLine {
		file.status = strings.TrimSpace(lines[statusLine])
	}
	return file, nil
}

const (
	// A fast shutdown writes a checkpoint, which on a slow disk with much to write takes a while.
	fastPatience      = 2 * time.Minute
	immediatePatience = 15 * time.Second
)

// endLeftovers makes sure that no process of an earlier server works on the data directory: it stops one that still runs and
// removes files that would keep a new one from starting. The caller holds the lock of the data directory.
func (c *cluster) endLeftovers(ctx context.Context, log *slog.Logger) error {
	dir := c.dir
	file, _ := readPIDFile(dir) // without one the processes are found all the same
	for _, step := range []struct {
		signal   syscall.Signal
		patience time.Duration
	}{{syscall.SIGINT, fastPatience}, {syscall.SIGQUIT, immediatePatience}, {syscall.SIGKILL, immediatePatience}} {
		left := serverProcesses(dir, file.pid)
		if len(left) == 0 {
			return c.removeStaleFiles(ctx, log)
		}
		log.WarnContext(ctx, "a postgresql of a killed broker still runs, stopping it", slog.Any("pids", left), slog.String("signal", step.signal.String()))
		// The postmaster takes its children along. Without it they end by themselves or by a direct signal.
		targets := left
		if slices.Contains(left, file.pid) && step.signal != syscall.SIGKILL {
			targets = []int{file.pid}
		}
		for _, pid := range targets {
			_ = syscall.Kill(pid, step.signal)
		}
		if err := awaitNone(ctx, dir, file.pid, step.patience); err != nil {
			return err
		}
	}
	if left := serverProcesses(dir, file.pid); len(left) > 0 {
		return fmt.Errorf("processes %v of an earlier PostgreSQL do not end: stop them", left)
	}
	return c.removeStaleFiles(ctx, log)
}

// awaitNone returns when no process works on dir or patience is over; an error means that ctx ended.
func awaitNone(ctx context.Context, dir string, postmaster int, patience time.Duration) error {
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for len(serverProcesses(dir, postmaster)) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for an earlier PostgreSQL to end: %w", context.Cause(ctx))
		case <-deadline.C:
			return nil
		case <-poll.C:
		}
	}
	return nil
}

// removeStaleFiles removes what would keep a new server from starting, when nothing works on the data directory any more.
// PostgreSQL refuses to start when the process number in one of its lock files is that of any process of its user, which
// after a reboot or in a fresh container is often the case, or of one that nobody reaped; and when the pid file is damaged.
// A pid file that is merely old stays: from it PostgreSQL finds shared memory that is still in use.
func (c *cluster) removeStaleFiles(ctx context.Context, log *slog.Logger) error {
	socket := filepath.Join(c.socketDir, ".s.PGSQL."+socketPort)
	stale := []string{socket, socket + ".lock"}
	file, err := readPIDFile(c.dir)
	if err != nil || !errors.Is(syscall.Kill(file.pid, 0), syscall.ESRCH) {
		stale = append(stale, pidFilePath(c.dir))
	}
	for _, path := range stale {
		err := os.Remove(path)
		switch {
		case err == nil:
			log.DebugContext(ctx, "removed a file of a postgresql that no longer runs", slog.String("path", path))
		case !errors.Is(err, os.ErrNotExist):
			return fmt.Errorf("remove a stale file of PostgreSQL: %w", err)
		}
	}
	return nil
}
