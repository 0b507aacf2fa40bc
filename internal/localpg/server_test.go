package localpg

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// dataDir is a fresh directory that the server's account can reach; the testing package makes its own for us alone.
func dataDir(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	return filepath.Join(root, "data")
}

// start runs a server in this process and stops it at the end of the test.
func start(t *testing.T, dir string, log *slog.Logger) *Server {
	t.Helper()
	s, err := Start(deadline(t), Options{DataDir: dir, MaxConnections: 10, Logger: log})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Stop(context.WithoutCancel(deadline(t))) })
	return s
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func query(t *testing.T, connString, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(deadline(t), connString)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	var text string
	require.NoError(t, conn.QueryRow(deadline(t), sql).Scan(&text))
	return text
}

func execute(t *testing.T, connString, sql string) {
	t.Helper()
	conn, err := pgx.Connect(deadline(t), connString)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(deadline(t), sql)
	require.NoError(t, err)
}

// A broker is the test binary running child.
type broker struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	server int // process id of its server
}

func startBroker(t *testing.T, dir string) *broker {
	t.Helper()
	b := launch(t, dir)
	line, err := b.stdout.ReadString('\n')
	require.NoError(t, err)
	_, err = fmt.Sscanf(line, "ready %d", &b.server)
	require.NoError(t, err, line)
	return b
}

func launch(t *testing.T, dir string) *broker {
	t.Helper()
	b := &broker{cmd: exec.CommandContext(deadline(t), os.Args[0])}
	b.cmd.Env = append(os.Environ(), childVariable+"="+dir)
	var err error
	b.stdin, err = b.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := b.cmd.StdoutPipe()
	require.NoError(t, err)
	b.stdout = bufio.NewReader(stdout)
	b.cmd.Stderr = &bytes.Buffer{}
	require.NoError(t, b.cmd.Start())
	t.Cleanup(func() {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
		// Its server is nobody's any more.
		orphaned := &cluster{dir: filepath.Join(dir, "postgres"), socketDir: filepath.Join(dir, "run")}
		require.NoError(t, orphaned.endLeftovers(context.Background(), slog.New(slog.DiscardHandler)))
	})
	return b
}

func (b *broker) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, b.cmd.Process.Kill())
	require.Error(t, b.cmd.Wait())
}

// runs tells whether pid is a running server on the data directory; a process that ended and was not reaped is none.
func runs(pid int, dir string) bool {
	return slices.Contains(serverProcesses(filepath.Join(dir, "postgres"), pid), pid)
}

func TestServerKeepsItsDataAndIsPrivate(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	s := start(t, dir, nil)
	execute(t, s.ConnString(), "CREATE TABLE kept AS SELECT 'still here' AS text")
	require.Empty(t, query(t, s.ConnString(), "SHOW listen_addresses"))
	for _, setting := range []string{"fsync", "full_page_writes", "synchronous_commit", "data_checksums"} {
		require.Equal(t, "on", query(t, s.ConnString(), "SHOW "+setting), setting)
	}
	require.Equal(t, "UTF8", query(t, s.ConnString(), "SHOW server_encoding"))
	require.Equal(t, "30", query(t, s.ConnString(), "SHOW max_connections"), "pool and spare")
	for _, private := range []string{s.cluster.dir, s.cluster.socketDir} {
		info, err := os.Stat(private)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), private)
		require.Equal(t, s.cluster.account.uidOrOurs(), info.Sys().(*syscall.Stat_t).Uid, private)
		require.NotZero(t, info.Sys().(*syscall.Stat_t).Uid, "PostgreSQL must not run as root")
	}

	require.NoError(t, s.Stop(deadline(t)))
	require.NoError(t, s.Stop(deadline(t)), "a second stop changes nothing")
	require.Empty(t, serverProcesses(s.cluster.dir, 0))
	require.NoFileExists(t, pidFilePath(s.cluster.dir), "a clean stop removes it")

	again := start(t, dir, nil)
	require.Equal(t, "still here", query(t, again.ConnString(), "SELECT text FROM kept"))
}

func TestSettingsOfThePersonOutrankOurs(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	s := start(t, dir, nil)
	execute(t, s.ConnString(), "ALTER SYSTEM SET work_mem = '7MB'")
	execute(t, s.ConnString(), "ALTER SYSTEM SET listen_addresses = '127.0.0.1'")
	require.NoError(t, s.Stop(deadline(t)))
	s = start(t, dir, nil)
	require.Equal(t, "7MB", query(t, s.ConnString(), "SHOW work_mem"))
	require.Empty(t, query(t, s.ConnString(), "SHOW listen_addresses"), "privacy is not negotiable")
}

func TestServerOfAKilledBrokerIsTakenOver(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	b := startBroker(t, dir)
	execute(t, ConnString(dir), "CREATE TABLE committed AS SELECT 'yes' AS text")
	b.kill(t)
	require.True(t, runs(b.server, dir), "the server outlives a broker that was killed")

	s := start(t, dir, nil)
	require.NotEqual(t, b.server, s.process.pid())
	require.False(t, runs(b.server, dir))
	require.Equal(t, "yes", query(t, s.ConnString(), "SELECT text FROM committed"))
}

func TestServerAndBrokerKilledTogetherRecover(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	b := startBroker(t, dir)
	execute(t, ConnString(dir), "CREATE TABLE committed AS SELECT 'yes' AS text")
	b.kill(t)
	require.NoError(t, syscall.Kill(b.server, syscall.SIGKILL))

	s := start(t, dir, nil)
	require.Equal(t, "yes", query(t, s.ConnString(), "SELECT text FROM committed"))
}

func TestStalePIDFileDoesNotStopTheStart(t *testing.T) {
	t.Parallel()
	// PostgreSQL is only misled by a process of its own user.
	account, err := serverAccount()
	require.NoError(t, err)
	bystander := exec.CommandContext(deadline(t), "sleep", "600")
	bystander.SysProcAttr = account.attributes()
	require.NoError(t, bystander.Start())
	t.Cleanup(func() { _ = bystander.Process.Kill(); _ = bystander.Wait() })

	dir := dataDir(t)
	s := start(t, dir, nil)
	require.NoError(t, s.Stop(deadline(t)))
	for name, text := range map[string]string{
		"NumberOfALivingProcess": fmt.Sprintf("%d\n%s\n1700000000\n5432\n%s\n\n  1234  5678\nready   \n", bystander.Process.Pid, s.cluster.dir, s.cluster.socketDir),
		"NumberOfNobody":         fmt.Sprintf("%d\n%s\n1700000000\n5432\n\n\n\nready   \n", 1<<22+1, s.cluster.dir),
		"Damaged":                "",
	} {
		require.NoError(t, s.cluster.write(pidFilePath(s.cluster.dir), []byte(text)))
		again, err := Start(deadline(t), Options{DataDir: dir, MaxConnections: 10})
		require.NoError(t, err, name)
		require.NoError(t, again.Stop(deadline(t)))
		require.NoError(t, syscall.Kill(bystander.Process.Pid, 0), "a bystander is never signalled")
	}
}

func TestSecondBrokerIsToldInOneLine(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	first := startBroker(t, dir)

	_, err := Start(deadline(t), Options{DataDir: dir, MaxConnections: 10})
	var inUse *InUseError
	require.ErrorAs(t, err, &inUse)
	require.Equal(t, fmt.Sprint(first.cmd.Process.Pid), inUse.Holder)
	require.Contains(t, err.Error(), dir)
	require.NotContains(t, err.Error(), "\n")
	require.True(t, runs(first.server, dir), "the first broker's server is left alone")

	second := launch(t, dir)
	line, err := second.stdout.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "in use by another broker")
	var exit *exec.ExitError
	require.ErrorAs(t, second.cmd.Wait(), &exit)
	require.Equal(t, 1, exit.ExitCode())
}

func TestServerThatDiesIsStartedAgain(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		signal syscall.Signal
	}{{"Killed", syscall.SIGKILL}, {"StoppedImmediately", syscall.SIGQUIT}, {"StoppedByAPerson", syscall.SIGINT}} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			log := &recorder{}
			s := start(t, dataDir(t), slog.New(slog.NewTextHandler(log, nil)))
			execute(t, s.ConnString(), "CREATE TABLE committed AS SELECT 'yes' AS text")
			old := s.process.pid()
			require.NoError(t, syscall.Kill(old, row.signal))
			require.Eventually(t, func() bool { return strings.Contains(log.String(), "private postgresql is up again") }, 60*time.Second, 10*time.Millisecond)
			require.Contains(t, log.String(), "ended by itself")
			require.Equal(t, "yes", query(t, s.ConnString(), "SELECT text FROM committed"))
			require.NotContains(t, serverProcesses(s.cluster.dir, old), old)
			require.NoError(t, s.Err())
		})
	}
}

func TestServerThatCannotComeBackIsReported(t *testing.T) {
	t.Parallel()
	s := start(t, dataDir(t), nil)
	require.NoError(t, os.Remove(filepath.Join(s.cluster.dir, "global", "pg_control")))
	require.NoError(t, syscall.Kill(s.process.pid(), syscall.SIGKILL))
	select {
	case <-s.Done():
	case <-deadline(t).Done():
		require.FailNow(t, "still trying")
	}
	require.ErrorContains(t, s.Err(), "pg_control")
	require.ErrorContains(t, s.Stop(deadline(t)), "does not stay up")
}

func TestStopDuringRestartLeavesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, dataDir(t), nil)
	require.NoError(t, syscall.Kill(s.process.pid(), syscall.SIGKILL))
	require.NoError(t, s.Stop(deadline(t)))
	require.Empty(t, serverProcesses(s.cluster.dir, 0))
	// The lock is free.
	require.NoError(t, start(t, filepath.Dir(s.cluster.dir), nil).Stop(deadline(t)))
}

func TestFailedStartLeavesNothing(t *testing.T) {
	t.Parallel()

	t.Run("ServerRefusesItsSettings", func(t *testing.T) {
		t.Parallel()
		dir := dataDir(t)
		s := start(t, dir, nil)
		require.NoError(t, s.Stop(deadline(t)))
		auto := filepath.Join(s.cluster.dir, "postgresql.auto.conf")
		require.NoError(t, s.cluster.write(auto, []byte("shared_buffers = 'plenty'\n")))
		_, err := Start(deadline(t), Options{DataDir: dir, MaxConnections: 10})
		require.ErrorContains(t, err, "shared_buffers")
		require.NotContains(t, err.Error(), "\n")
		require.Empty(t, serverProcesses(s.cluster.dir, 0))
		require.NoError(t, s.cluster.write(auto, nil))
		start(t, dir, nil) // the lock is free, the data unharmed
	})

	t.Run("CancelledWhileInitialising", func(t *testing.T) {
		t.Parallel()
		dir := dataDir(t)
		ctx, cancel := context.WithCancel(deadline(t))
		go func() {
			// initdb has begun when its first files are there.
			for ctx.Err() == nil {
				if _, err := os.Stat(filepath.Join(dir, "postgres.new", "PG_VERSION")); err == nil {
					cancel()
				}
			}
		}()
		_, err := Start(ctx, Options{DataDir: dir, MaxConnections: 10})
		require.ErrorIs(t, err, context.Canceled)
		require.NoDirExists(t, filepath.Join(dir, "postgres"))
		start(t, dir, nil)
	})

	t.Run("ForeignDirectory", func(t *testing.T) {
		t.Parallel()
		dir := dataDir(t)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "postgres", "photos"), 0o755))
		_, err := Start(deadline(t), Options{DataDir: dir, MaxConnections: 10})
		require.ErrorContains(t, err, "is no data directory")
		require.DirExists(t, filepath.Join(dir, "postgres", "photos"))
	})
}

func TestLongDataDirStillGetsASocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(dataDir(t), strings.Repeat("long", 20), `it's "odd" \ ünïcode`)
	s := start(t, dir, nil)
	require.True(t, strings.HasPrefix(s.cluster.socketDir, "/tmp/queen-"), s.cluster.socketDir)
	t.Cleanup(func() { _ = os.RemoveAll(s.cluster.socketDir) })
	require.Equal(t, "1", query(t, s.ConnString(), "SELECT 1::text"))
}

func TestSocketDirOfSomebodyElseIsRefused(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(base, "run"), 0o755))
	_, err := makeSocketDir(base, nil)
	require.ErrorContains(t, err, "remove it")
}

// recorder collects what a logger writes, from several goroutines.
type recorder struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}
