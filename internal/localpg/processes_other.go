//go:build unix && !linux

package localpg

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// serverProcesses lists the postmaster of the pid file when that number still belongs to a PostgreSQL. Its children cannot be
// told from those of other servers here; they end with it.
func serverProcesses(_ string, postmaster int) []int {
	if postmaster <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ps", "-o", "comm=", "-p", strconv.Itoa(postmaster)).Output()
	if err != nil || !strings.Contains(string(out), "postgres") {
		return nil
	}
	return []int{postmaster}
}
