package localpg

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// serverProcesses lists the processes of a PostgreSQL server on dir. All of them keep dir as their working directory, which
// tells them from a process that merely got the same number; the pid file is not needed.
func serverProcesses(dir string, _ int) []int {
	return findProcesses(dir, byWorkingDir)
}

// findProcesses asks belongs about every process. Those it may not look into are judged by what everybody may read.
func findProcesses(dir string, belongs func(proc, dir string) (bool, error)) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	postmasters := map[string]bool{}
	closed := map[string]int{} // entries of /proc that are closed to us
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		proc := filepath.Join("/proc", entry.Name())
		ours, err := belongs(proc, dir)
		if errors.Is(err, os.ErrPermission) {
			if ours = byCommandLine(proc, dir); ours {
				postmasters[entry.Name()] = true
			} else {
				closed[proc] = pid
			}
		}
		if ours {
			pids = append(pids, pid)
		}
	}
	if len(postmasters) == 0 {
		return pids
	}
	for proc, pid := range closed {
		if postmasters[parent(proc)] {
			pids = append(pids, pid)
		}
	}
	return pids
}

func byWorkingDir(proc, dir string) (bool, error) {
	cwd, err := os.Readlink(filepath.Join(proc, "cwd"))
	if err != nil || cwd != dir {
		return false, err
	}
	// A person's shell may stand in the directory too. After an upgrade of the package the program is "postgres (deleted)".
	program, err := os.Readlink(filepath.Join(proc, "exe"))
	return strings.HasPrefix(filepath.Base(program), "postgres"), err
}

// byCommandLine recognises a postmaster that we started. Root without the right to trace, as in most containers, may not see
// the working directory of another account's process.
func byCommandLine(proc, dir string) bool {
	text, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	return err == nil && bytes.Contains(text, []byte("postgres\x00-D\x00"+dir+"\x00"))
}

// parent is the process id of the parent, as text, "" when it cannot be read.
func parent(proc string) string {
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return ""
	}
	// pid (name) state ppid …; the name may hold spaces and parentheses.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return ""
	}
	return fields[1]
}
