package chaos

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
)

// brokers is how many there are.
const brokers = 3

// year is how wrong the clocks of two of them are.
const year = 365 * 24 * 3600

// grace is the brokers' grace time after a stop signal.
const grace = 6 * time.Second

// A cluster is what gets broken.
type cluster struct {
	t      *testing.T
	server *testdb.Server
	nodes  []*node
}

// A node is one broker and its network to the database.
type node struct {
	*stack.Process
	proxy *stack.Proxy
	disk  *smallDisk // of the file buffer; nil where none can be made
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	server := testdb.StartServer(t, testdb.ServerOptions{Settings: map[string]string{"max_connections": "150"}})
	c := &cluster{t: t, server: server}
	for i := range brokers {
		address, err := url.Parse(server.ConnString("postgres"))
		require.NoError(t, err)
		n := &node{proxy: stack.StartProxy(t, address.Host)}
		address.Host = n.proxy.Address()
		options := stack.ProcessOptions{Binary: stack.ShiftedClock, Env: []string{
			fmt.Sprintf("QUEEN_SERVER_ID=broker-%d", i), "DB_POOL_SIZE=20", fmt.Sprintf("QUEEN_SHUTDOWN_TIMEOUT_MS=%d", grace.Milliseconds()),
			"QUEEN_STMT_TIMEOUT_MS=3000", "RETENTION_INTERVAL=1000", "STATS_INTERVAL_MS=2000", "METRICS_FLUSH_MS=2000",
			fmt.Sprintf("%s=%d", stack.ClockShift, (i-1)*year),
		}}
		if n.disk = newSmallDisk(t); n.disk != nil {
			options.Around = n.disk.around
			options.Env = append(options.Env, "FILE_BUFFER_DIR="+n.disk.dir)
		} else {
			options.Env = append(options.Env, "FILE_BUFFER_MAX_BYTES=20000")
		}
		n.Process = stack.NewProcess(t, address.String(), options)
		c.nodes = append(c.nodes, n)
	}
	c.nodes[0].Start(t) // applies the schema
	for _, n := range c.nodes[1:] {
		n.Start(t)
	}
	return c
}

// do runs one statement on a connection of its own, past all proxies. It fails while the server is away.
func (c *cluster) do(ctx context.Context, statement string, arguments ...any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.server.ConnString("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, statement, arguments...)
	return err
}

// family are the processes of the server: the postmaster and its children.
func (c *cluster) family() []int {
	parent := c.server.PID()
	family := []int{parent}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		// pid (name) state parent ...; a name may hold anything.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				family = append(family, pid)
			}
		}
	}
	return family
}

// A smallDisk is a file system of a few hundred kilobytes that only the processes it is put around see. It lives as long as the test.
type smallDisk struct {
	around  []string
	dir     string // as the broker sees it
	outside string // the same, as this process sees it
}

// smallDiskBytes holds what the pushes of several seconds need.
const smallDiskBytes = 1 << 20

// newSmallDisk returns nil where this process may not make name spaces.
func newSmallDisk(t *testing.T) *smallDisk {
	t.Helper()
	dir := t.TempDir()
	script := fmt.Sprintf("mount -t tmpfs -o size=%d,mode=0700 none '%s' && echo mounted && exec sleep 100000", smallDiskBytes, dir)
	unshare, nsenter := []string{"-m"}, []string{"-m"}
	if os.Geteuid() != 0 {
		unshare, nsenter = []string{"-r", "-m"}, []string{"-U", "-m", "--preserve-credentials"}
	}
	keeper := exec.Command("unshare", append(unshare, "sh", "-c", script)...)
	keeper.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	output, err := keeper.StdoutPipe()
	require.NoError(t, err)
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
	return &smallDisk{
		around: append([]string{"nsenter", "-t", pid}, nsenter...), dir: dir, outside: filepath.Join("/proc", pid, "root", dir),
	}
}

// fill takes all the room that is left.
func (d *smallDisk) fill() error {
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

func (d *smallDisk) empty() error { return os.Remove(filepath.Join(d.outside, "filler")) }
