package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// counters are readings of database and processors that only grow.
type counters struct {
	commits, walBytes                    int64
	loadCPU, brokerCPU, databaseCPU, rss float64
}

// clockTicks is the unit of processor times in /proc (USER_HZ), fixed at 100 by the Linux ABI.
const clockTicks = 100

// statFields returns the fields of /proc/PID/stat behind the command name, which may itself hold spaces. The first is the
// process state, the second the parent.
func statFields(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}

// processorSeconds returns user and system time of a process and of its finished children.
func processorSeconds(pid int) float64 {
	fields := statFields(pid)
	if len(fields) < 15 {
		return 0
	}
	total := 0.0
	for _, field := range fields[11:15] {
		ticks, _ := strconv.ParseFloat(field, 64)
		total += ticks
	}
	return total / clockTicks
}

// ownSeconds returns the processor time of this program, without that of its children.
func ownSeconds() float64 {
	var own syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &own) != nil {
		return 0
	}
	return time.Duration(own.Utime.Nano() + own.Stime.Nano()).Seconds()
}

// treeSeconds returns the processor time of a process, its living children, and those that it has waited for.
func treeSeconds(parent int) float64 {
	total := processorSeconds(parent)
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if fields := statFields(pid); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			total += processorSeconds(pid)
		}
	}
	return total
}

// resetPeak lets peakMemory begin anew, where the kernel allows it.
func resetPeak(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) // otherwise the peak is that of all runs so far
}

// peakMemory returns the largest resident memory of a process since the last resetPeak, in bytes.
func peakMemory(pid int) float64 { return statusBytes(pid, "VmHWM:") }

// residentMemory returns the resident memory of a process, in bytes.
func residentMemory(pid int) float64 { return statusBytes(pid, "VmRSS:") }

func statusBytes(pid int, name string) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, name); found {
			kilobytes, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kilobytes * 1024
		}
	}
	return 0
}
