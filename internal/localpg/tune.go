package localpg

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

const (
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// size is what the server may use of the machine.
type size struct {
	cores    int
	memory   int64 // bytes, of the machine or of this container
	freeDisk int64 // bytes, where the data directory is
}

func machine(dir string) size {
	s := size{cores: runtime.GOMAXPROCS(0), memory: 2 * gib, freeDisk: 16 * gib} // where nothing can be read: a small machine
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if kib := memTotal(text); kib > 0 {
			s.memory = kib << 10
		}
	}
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && limit > 0 {
			s.memory = min(s.memory, limit)
		}
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err == nil {
		s.freeDisk = int64(fs.Bavail) * int64(fs.Bsize) //nolint:gosec,unconvert // types differ by system
	}
	return s
}

// memTotal is the machine's memory in KiB from the text of /proc/meminfo, 0 when it is not there.
func memTotal(meminfo []byte) int64 {
	for line := range bytes.Lines(meminfo) {
		if rest, ok := bytes.CutPrefix(line, []byte("MemTotal:")); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(rest)), " kB"), 10, 64)
			if err == nil {
				return kib
			}
		}
	}
	return 0
}

// spareConnections are for the broker's single connections (leader lock, LISTEN, NOTIFY, cancel requests), for the three that
// PostgreSQL keeps for superusers, and for a person with psql.
const spareConnections = 20

// A parameter is one line of queen.conf.
type parameter struct{ name, value string }

// tune chooses the server's settings. Memory is shared with the broker and whatever else runs here, hence modest parts of it.
func tune(s size, poolConnections int) []parameter {
	megabytes := func(n int64) string { return strconv.FormatInt(n/mib, 10) + "MB" }
	// Between two checkpoints the WAL may grow this large. Fewer checkpoints mean fewer full-page images of hot rows, which
	// are most of what a queue writes; the price is disk and a longer recovery.
	maxWAL := clamp(min(s.memory/4, s.freeDisk/8), 256*mib, 4*gib)
	workers := strconv.Itoa(max(2, s.cores))
	return []parameter{
		{"max_connections", strconv.Itoa(poolConnections + spareConnections)},
		{"unix_socket_permissions", "0700"},

		// What an answered commit promises.
		{"fsync", "on"},
		{"full_page_writes", "on"},
		{"synchronous_commit", "on"},

		{"shared_buffers", megabytes(clamp(s.memory/5, 64*mib, 8*gib))},
		{"effective_cache_size", megabytes(clamp(s.memory/2, 128*mib, 256*gib))},
		{"maintenance_work_mem", megabytes(clamp(s.memory/32, 32*mib, gib))},
		{"work_mem", megabytes(clamp(s.memory/int64(poolConnections+spareConnections)/16, 4*mib, 32*mib))},
		{"wal_buffers", megabytes(clamp(s.memory/256, 4*mib, 32*mib))},
		{"min_wal_size", megabytes(maxWAL / 4)},
		{"max_wal_size", megabytes(maxWAL)},
		{"checkpoint_timeout", "15min"},
		{"checkpoint_completion_target", "0.9"},

		{"max_worker_processes", workers},
		{"max_parallel_workers", workers},
		{"max_parallel_workers_per_gather", strconv.Itoa(min(2, s.cores/4))},
		{"autovacuum_max_workers", strconv.Itoa(clamp(s.cores, 2, 4))},
		// Queue tables turn over quickly: look at them often.
		{"autovacuum_naptime", "15s"},
		// Statements are short, so compiling them costs more than it saves; and the disk is taken for one without seek time.
		{"jit", "off"},
		{"random_page_cost", "1.1"},

		{"timezone", "UTC"},
		{"log_timezone", "UTC"},
		// The broker reads the server's messages and passes warnings on. Statements stay out of them: they carry payloads.
		{"logging_collector", "off"},
		{"log_destination", "stderr"},
		{"log_line_prefix", ""},
		{"log_min_error_statement", "panic"},
		{"log_checkpoints", "off"},
		{"lc_messages", "C"},
	}
}

func clamp[T int | int64](n, low, high T) T { return max(low, min(n, high)) }

// render is the text of queen.conf.
func render(parameters []parameter) []byte {
	var b bytes.Buffer
	b.WriteString("# Written by the broker at every start, sized to the machine. Set your own values with ALTER SYSTEM, which outranks this file.\n")
	for _, p := range parameters {
		fmt.Fprintf(&b, "%s = '%s'\n", p.name, strings.ReplaceAll(p.value, "'", "''"))
	}
	return b.Bytes()
}
