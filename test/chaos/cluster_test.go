package chaos

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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

// smallDiskBytes holds what the pushes of several seconds need.
const smallDiskBytes = 1 << 20

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
	disk  *stack.SmallDisk // of the file buffer; nil where none can be made
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
		if n.disk = stack.NewSmallDisk(t, smallDiskBytes); n.disk != nil {
			options.Around = n.disk.Around
			options.Env = append(options.Env, "FILE_BUFFER_DIR="+n.disk.Dir)
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
