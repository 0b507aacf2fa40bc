package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// recordedSettings are the settings of PostgreSQL that decide what the figures of a run mean.
const recordedSettings = `'fsync', 'synchronous_commit', 'full_page_writes', 'wal_sync_method', 'shared_buffers', 'max_wal_size', 'autovacuum_naptime', 'checkpoint_timeout'`

// record writes the report of a run to a file of its own in the directory, with all that is needed to judge and to repeat it.
func record(ctx context.Context, s *stand, began time.Time, text string) error {
	settings, err := s.pool.Query(ctx, `SELECT name || '=' || current_setting(name) FROM pg_settings WHERE name IN (`+recordedSettings+`) ORDER BY name`)
	if err != nil {
		return err
	}
	var database []string
	for settings.Next() {
		var one string
		if err := settings.Scan(&one); err != nil {
			return err
		}
		database = append(database, one)
	}
	if err := settings.Err(); err != nil {
		return err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "# %s\n\n", began.UTC().Format("2006-01-02 15:04 UTC"))
	fmt.Fprintf(&out, "- command: `go run ./bench %s`\n", strings.Join(os.Args[1:], " "))
	fmt.Fprintf(&out, "- source: commit %s\n", sourceVersion())
	fmt.Fprintf(&out, "- machine: %s; load average at the start %s\n", machine(), s.load)
	fmt.Fprintf(&out, "- versions: %s, %s\n", s.version, runtime.Version())
	fmt.Fprintf(&out, "- settings of the broker: %s\n", orDefaults(s.options.settings))
	fmt.Fprintf(&out, "- settings of PostgreSQL: %s\n\n```\n%s```\n", strings.Join(database, ", "), text)
	name := fmt.Sprintf("%s-%s.md", began.UTC().Format("2006-01-02-150405"), s.options.payload)
	return os.WriteFile(filepath.Join(s.options.record, name), []byte(out.String()), 0o644)
}

func orDefaults(settings string) string {
	if settings == "" {
		return "defaults"
	}
	return settings
}

// sourceVersion names the commit that was measured, and says when the tree differs from it.
func sourceVersion() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// machine describes processors and memory.
func machine() string {
	model, memory := "unknown processor", "unknown memory"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, found := strings.Cut(string(text), "model name"); found {
			line, _, _ := strings.Cut(rest, "\n")
			model = strings.TrimSpace(strings.TrimLeft(line, " \t:"))
		}
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if fields := strings.Fields(string(text)); len(fields) > 2 {
			memory = fields[1] + " " + fields[2] + " of memory"
		}
	}
	return fmt.Sprintf("%d processors (%s), %s, %s/%s", runtime.NumCPU(), model, memory, runtime.GOOS, runtime.GOARCH)
}

// loadAverage is that of the last minute: a machine that others use gives no figures worth keeping.
func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	if fields := strings.Fields(string(text)); len(fields) > 0 {
		return fields[0]
	}
	return "unknown"
}
