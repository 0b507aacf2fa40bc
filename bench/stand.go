package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"queenmq/internal/localpg"
)

// A stand is the test bench: one PostgreSQL, one broker in a process of its own, and this program as the load.
type stand struct {
	options options
	version string
	base    string
	// profiler is where the broker serves its profiles; empty unless they are asked for.
	profiler string
	pool     *pgxpool.Pool
	database *localpg.Server
	broker   *exec.Cmd
	dir      string
	// load is the load average before the stand.
	load string
	// postmaster is the process id of the server, 0 when it runs elsewhere.
	postmaster int
}

// startLimit is how long building and starting everything may take on a cold machine.
const startLimit = 5 * time.Minute

func newStand(ctx context.Context, o options) (*stand, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	s := &stand{options: o, load: loadAverage()}
	if err := s.start(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stand) start(ctx context.Context) error {
	var err error
	if s.dir, err = os.MkdirTemp("", "queen-bench-"); err != nil {
		return err
	}
	// The private server runs as a user of its own when this program is root; it must be able to enter.
	if err := os.Chmod(s.dir, 0o755); err != nil {
		return err
	}
	url := s.options.database
	if url == "" {
		if s.database, err = localpg.Start(ctx, localpg.Options{DataDir: filepath.Join(s.dir, "data"), MaxConnections: 200, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			return err
		}
		url = s.database.ConnString()
	}
	if err := s.startBroker(ctx, url); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns = int32(max(s.options.producers, s.options.singles) + 4)
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	var data string
	if err := s.pool.QueryRow(ctx, `SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1), current_setting('data_directory')`).Scan(&s.version, &data); err != nil {
		return err
	}
	if text, err := os.ReadFile(filepath.Join(data, "postmaster.pid")); err == nil {
		s.postmaster, _ = strconv.Atoi(strings.SplitN(string(text), "\n", 2)[0])
	}
	return nil
}

// startBroker builds the broker from this source tree, starts it and waits until it is ready.
func (s *stand) startBroker(ctx context.Context, database string) error {
	binary := filepath.Join(s.dir, "queen")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "queenmq/cmd/queen").CombinedOutput(); err != nil {
		return fmt.Errorf("build the broker: %w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	s.base = fmt.Sprintf("http://127.0.0.1:%d", port)
	s.broker = exec.Command(binary, "serve")
	// A broker that is alone stops sending hints to others some seconds after its start; without them runs do not differ by when they begin.
	s.broker.Env = append(os.Environ(), "DATABASE_URL="+database, fmt.Sprintf("PORT=%d", port), "QUEEN_BIND_ADDR=127.0.0.1", "LOG_LEVEL=warn",
		"FILE_BUFFER_DIR=off", "QUEEN_SYNC_ENABLED=false")
	if s.options.profiles != "" {
		port, err := freePort()
		if err != nil {
			return err
		}
		s.profiler = fmt.Sprintf("http://127.0.0.1:%d", port)
		s.broker.Env = append(s.broker.Env, fmt.Sprintf("QUEEN_PPROF_ADDR=127.0.0.1:%d", port))
	}
	if s.options.settings != "" {
		s.broker.Env = append(s.broker.Env, strings.Split(s.options.settings, ",")...)
	}
	s.broker.Stderr, s.broker.Stdout = os.Stderr, os.Stderr
	if err := s.broker.Start(); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if response, err := http.Get(s.base + "/readyz"); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(20 * time.Millisecond) // poll of a foreign process, bounded by ctx
	}
	return errors.New("the broker did not become ready")
}

// freePort returns a port of the loopback interface that nobody listens on.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}

// counters reads what the database and the processors count. Commits are transaction ids handed out, that is, writing
// transactions: unlike the statistics views, which sessions feed when they turn idle, that number is always current.
func (s *stand) counters(ctx context.Context) (counters, error) {
	c := counters{loadCPU: ownSeconds(), brokerCPU: processorSeconds(s.broker.Process.Pid), rss: peakMemory(s.broker.Process.Pid)}
	if s.postmaster != 0 {
		c.databaseCPU = treeSeconds(s.postmaster)
	}
	err := s.pool.QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint`).Scan(&c.commits, &c.walBytes)
	return c, err
}

func (s *stand) close() {
	if s.pool != nil {
		s.pool.Close()
	}
	if s.broker != nil && s.broker.Process != nil {
		_ = s.broker.Process.Signal(syscall.SIGTERM)
		_ = s.broker.Wait()
	}
	if s.database != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = s.database.Stop(ctx)
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}
