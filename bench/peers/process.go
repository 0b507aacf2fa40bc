package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A program is one server under measurement: a process with all its descendants.
type program struct {
	name string
	pid  int
}

// clockTicks is the unit of processor times in /proc (USER_HZ), fixed at 100 by the Linux ABI.
const clockTicks = 100

// tree returns the processes below and including root.
func tree(root int) []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if fields := statFields(pid); len(fields) > 1 {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], pid)
		}
	}
	all := []int{root}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// statFields returns the fields of /proc/PID/stat behind the command name, which may itself hold spaces. The first is the
// process state, the second the parent.
func statFields(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// seconds is the processor time of the program so far: of its processes and of those that they have waited for.
func (p program) seconds() float64 {
	total := 0.0
	for _, pid := range tree(p.pid) {
		if fields := statFields(pid); len(fields) >= 15 {
			for _, field := range fields[11:15] {
				ticks, _ := strconv.ParseFloat(field, 64)
				total += ticks
			}
		}
	}
	return total / clockTicks
}

// memory is the program's resident memory in bytes. Pages that its processes share are counted once (proportional set size).
func (p program) memory() float64 {
	total := 0.0
	for _, pid := range tree(p.pid) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		for line := range strings.Lines(string(text)) {
			if rest, found := strings.CutPrefix(line, "Pss:"); found {
				kilobytes, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				total += kilobytes * 1024
			}
		}
	}
	return total
}

// A child is a server in a process group of its own, so that Ctrl-C reaches this program alone.
type child struct {
	command *exec.Cmd
	output  *bytes.Buffer
	// input stays open as long as this program lives, which tells a child that asks.
	input io.Closer
	done  chan struct{}
}

// startServer starts a program and waits until ready returns nil. The server's output is shown when it does not come up.
func startServer(ctx context.Context, environment []string, ready func(ctx context.Context) error, name string, arguments ...string) (*child, error) {
	c := &child{command: exec.Command(name, arguments...), output: &bytes.Buffer{}, done: make(chan struct{})}
	c.command.Env = append(os.Environ(), environment...)
	c.command.Stdout, c.command.Stderr = c.output, c.output
	c.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var err error
	if c.input, err = c.command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.command.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = c.command.Wait()
		close(c.done)
	}()
	ctx, stop := context.WithTimeout(ctx, startLimit)
	defer stop()
	for {
		err := ready(ctx)
		if err == nil {
			return c, nil
		}
		select {
		case <-time.After(20 * time.Millisecond): // poll of a foreign process, bounded by ctx
			continue
		case <-c.done:
			err = fmt.Errorf("ended at once: %s", c.command.ProcessState)
		case <-ctx.Done():
		}
		c.stop()
		return nil, fmt.Errorf("start %s: %w\n%s", filepath.Base(name), err, c.output.Bytes())
	}
}

// startLimit is how long a server may take to come up, stopLimit how long to end.
const (
	startLimit = 2 * time.Minute
	stopLimit  = 20 * time.Second
)

// stop ends the server, and whatever of its process group does not end by itself. Stopping nil does nothing.
func (c *child) stop() {
	if c == nil {
		return
	}
	_ = c.input.Close()
	_ = c.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(stopLimit):
	}
	_ = syscall.Kill(-c.command.Process.Pid, syscall.SIGKILL)
	<-c.done
}

func (c *child) program(name string) program { return program{name, c.command.Process.Pid} }

// freePort returns a port of the loopback interface on which nothing listens.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}
