package upkeep

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processUsage is what this process has used up by some moment.
type processUsage struct {
	at           time.Time
	user, system time.Duration
}

func readUsage() processUsage {
	usage := processUsage{at: time.Now()}
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		usage.user, usage.system = time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())
	}
	return usage
}

// memory reads the virtual and the resident memory of this process in bytes; zero where the system has no /proc.
func memory() (virtual, resident int64) {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, 0
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0, 0
	}
	page := int64(os.Getpagesize())
	pages := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0
		}
		return n * page
	}
	return pages(fields[0]), pages(fields[1])
}

// share is a part of the time between two usages as per cent of one processor, times a hundred.
func share(used, of time.Duration) int64 {
	if of <= 0 {
		return 0
	}
	return int64(10_000 * float64(used) / float64(of))
}

// A leaf is one figure of system_metrics. Readers aggregate leaves again, so a single value fills all four.
type leaf struct {
	Avg  int64 `json:"avg"`
	Min  int64 `json:"min"`
	Max  int64 `json:"max"`
	Last int64 `json:"last"`
}

func leafOf(value int64) leaf { return leaf{value, value, value, value} }

// flushSystem stores the figures of the process. shared_state keeps the shape that readers know; what it speaks of has no
// counterpart here and stays zero.
func (c *Collector) flushSystem(ctx context.Context, seconds int) error {
	pool, usage := c.store.Stats(), readUsage()
	virtual, resident := memory()
	elapsed := usage.at.Sub(c.usage.at)
	threads := map[string]leaf{"pool_size": leafOf(0), "queue_size": leafOf(0)}
	operation := func(count, items int64) map[string]int64 {
		return map[string]int64{"count": count, "latency_us": 0, "items": items}
	}
	total := c.meter.Total()
	metrics, err := json.Marshal(map[string]any{
		"cpu":            map[string]leaf{"user_us": leafOf(share(usage.user-c.usage.user, elapsed)), "system_us": leafOf(share(usage.system-c.usage.system, elapsed))},
		"memory":         map[string]leaf{"rss_bytes": leafOf(resident), "virtual_bytes": leafOf(virtual)},
		"database":       map[string]leaf{"pool_size": leafOf(int64(pool.Max)), "pool_idle": leafOf(int64(pool.Idle)), "pool_active": leafOf(int64(pool.InUse))},
		"threadpool":     map[string]any{"db": threads, "system": threads},
		"registries":     map[string]leaf{"response": leafOf(0)},
		"uptime_seconds": int64(time.Since(c.started).Seconds()),
		"shared_state": map[string]any{
			"enabled": false,
			"sidecar_ops": map[string]any{
				"push": operation(total.PushRequests, total.PushMessages), "pop": operation(total.PopRequests, total.PopMessages),
				"ack": operation(total.AckRequests, total.AckMessages),
			},
			"queue_backoff":         map[string]int64{"queues_with_backoff": 0, "total_backed_off_groups": 0, "avg_interval_ms": 0},
			"queue_backoff_summary": []any{},
			"queue_config_cache":    map[string]int64{"size": 0, "hits": 0, "misses": 0},
			"consumer_presence":     map[string]int64{"queues_tracked": 0, "servers_tracked": 0, "total_registrations": 0},
			"server_health":         map[string]int64{"alive": 1, "dead": 0},
			"transport":             map[string]int64{"sent": 0, "received": 0, "dropped": 0},
		},
	})
	if err != nil {
		return fmt.Errorf("render system metrics: %w", err)
	}
	if err := c.store.InsertSystemMetrics(ctx, c.cfg.Hostname, c.cfg.Port, systemWorkerName, seconds, metrics); err != nil {
		return err
	}
	c.usage = usage
	return nil
}
