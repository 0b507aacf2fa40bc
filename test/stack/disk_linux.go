package stack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// A SmallDisk is a file system of a fixed size that only the processes it is put around see. It lives as long as the test.
type SmallDisk struct {
	// Around goes before the command of a process that shall see it, see [ProcessOptions]; Dir is where that process finds it.
	Around  []string
	Dir     string
	outside string // the same, as this process sees it
}

// NewSmallDisk returns nil where this process may not make name spaces.
func NewSmallDisk(t testing.TB, bytes int) *SmallDisk {
	t.Helper()
	dir := t.TempDir()
	script := fmt.Sprintf("mount -t tmpfs -o size=%d,mode=0700 none '%s' && echo mounted && exec sleep 100000", bytes, dir)
	unshare, nsenter := []string{"-m"}, []string{"-m"}
	if os.Geteuid() != 0 {
		unshare, nsenter = []string{"-r", "-m"}, []string{"-U", "-m", "--preserve-credentials"}
	}
	keeper := exec.Command("unshare", append(unshare, "sh", "-c", script)...)
	keeper.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := keeper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := keeper.Start(); err != nil {
		return nil
	}
	t.Cleanup(func() { _ = keeper.Process.Kill(); _ = keeper.Wait() })
	said := make([]byte, 8)
	if n, _ := output.Read(said); string(said[:n]) != "mounted\n" {
		return nil
	}
	// exec keeps the process id: unshare, sh and sleep are one process.
	pid := strconv.Itoa(keeper.Process.Pid)
	return &SmallDisk{
		Around: append([]string{"nsenter", "-t", pid}, nsenter...), Dir: dir, outside: filepath.Join("/proc", pid, "root", dir),
	}
}

// Fill takes all the room that is left.
func (d *SmallDisk) Fill() error {
	f, err := os.Create(filepath.Join(d.outside, "filler"))
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 4096)
	for {
		if _, err := f.Write(block); err != nil {
			return nil // full
		}
	}
}

// Empty gives it back.
func (d *SmallDisk) Empty() error { return os.Remove(filepath.Join(d.outside, "filler")) }
