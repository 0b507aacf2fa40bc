package testdb_test

import (
	"bufio"
	"encoding/json"
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
)

// helperVariable makes TestHelper a test process of its own: it prints the address of its database and waits to be killed.
const helperVariable = "QUEEN_TESTDB_HELPER"

func TestHelper(t *testing.T) {
	kind := os.Getenv(helperVariable)
	if kind == "" {
		return // this is the ordinary run
	}
	var address string
	switch kind {
	case "shared":
		address = testdb.NewEmpty(t).ConnString()
	case "private":
		address = testdb.StartServer(t, testdb.ServerOptions{}).ConnString("postgres")
	}
	_, err := os.Stdout.WriteString("address " + address + "\n")
	require.NoError(t, err)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // until killed
}

// A helper is another test process with a temporary directory that stands for another machine.
type helper struct {
	cmd     *exec.Cmd
	address string
}

func startHelper(t *testing.T, kind, dir string) *helper {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelper$")
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "QUEEN_TEST_DATABASE_URL=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, helperVariable+"="+kind, "TMPDIR="+dir, "QUEEN_TESTDB_LINGER=500ms")
	input, err := cmd.StdinPipe()
	require.NoError(t, err)
	output, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = input.Close() })
	h := &helper{cmd: cmd}
	scanner := bufio.NewScanner(output)
	for scanner.Scan() {
		if address, ok := strings.CutPrefix(scanner.Text(), "address "); ok {
			h.address = address
			return h
		}
	}
	t.Fatalf("the helper ended without an address: %v", cmd.Wait())
	return nil
}

func (h *helper) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, h.cmd.Process.Kill())
	require.Error(t, h.cmd.Wait())
}

func answers(t *testing.T, address string) bool {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		return false
	}
	require.NoError(t, conn.Close(t.Context()))
	return true
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, 60*time.Second, 50*time.Millisecond, what)
}

// reachableTempDir is a directory that the server's account can enter.
func reachableTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tdb")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // the server may run under another account
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func TestTheServerOutlivesItsStarterAndNotItsLastUser(t *testing.T) {
	t.Parallel()
	dir := reachableTempDir(t)
	first := startHelper(t, "shared", dir)
	second := startHelper(t, "shared", dir)
	first.kill(t)
	require.True(t, answers(t, second.address), "the starter took the server with it")
	second.kill(t)
	eventually(t, "the server outlives its users", func() bool { return !answers(t, second.address) })
	eventually(t, "files are left behind", func() bool {
		left, err := filepath.Glob(filepath.Join(dir, "queen-testdb-*", "cluster"))
		require.NoError(t, err)
		return len(left) == 0
	})
}

func TestAServerWhoseSupervisorWasKilledIsReplaced(t *testing.T) {
	t.Parallel()
	dir := reachableTempDir(t)
	first := startHelper(t, "shared", dir)
	killSupervisor(t, dir)
	second := startHelper(t, "shared", dir)
	require.True(t, answers(t, second.address))
	eventually(t, "the orphaned server goes on", func() bool { return !answers(t, first.address) })
	first.kill(t)
	second.kill(t)
	eventually(t, "the server outlives its users", func() bool { return !answers(t, second.address) })
}

// killSupervisor kills the process that started the shared server of dir.
func killSupervisor(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "queen-testdb-*", "state.json"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	text, err := os.ReadFile(files[0])
	require.NoError(t, err)
	var state struct{ Supervisor int }
	require.NoError(t, json.Unmarshal(text, &state))
	require.Greater(t, state.Supervisor, 1, "state: "+strconv.Quote(string(text)))
	require.NoError(t, syscall.Kill(state.Supervisor, syscall.SIGKILL))
}

func TestAPrivateServerEndsWithItsTestProcess(t *testing.T) {
	t.Parallel()
	dir := reachableTempDir(t)
	helper := startHelper(t, "private", dir)
	require.True(t, answers(t, helper.address))
	helper.kill(t)
	eventually(t, "the server outlives its test", func() bool { return !answers(t, helper.address) })
	eventually(t, "files are left behind", func() bool {
		left, err := filepath.Glob(filepath.Join(dir, "queen-server-*"))
		require.NoError(t, err)
		return len(left) == 0
	})
}
