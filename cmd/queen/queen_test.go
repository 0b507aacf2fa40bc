package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
)

// programVariable makes the test binary the program itself, for tests that need a process.
const programVariable = "QUEEN_COMMAND_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// command runs one command line in this process.
func command(env map[string]string, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	p := program{
		lookup: func(name string) (string, bool) { text, set := env[name]; return text, set },
		names:  slices.Collect(maps.Keys(env)), stdout: &out, stderr: &err,
	}
	code = p.run(context.Background(), args)
	return code, out.String(), err.String()
}

func TestCommandLine(t *testing.T) {
	t.Parallel()

	t.Run("HelpNamesEveryCommand", func(t *testing.T) {
		t.Parallel()
		code, out, _ := command(nil, "--help")
		require.Equal(t, exitOK, code)
		for _, name := range []string{"serve", "schema apply", "schema print", "config", "doctor", "version"} {
			require.Contains(t, out, name)
		}
	})

	t.Run("HelpWorksBehindEveryCommand", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{{"serve", "--help"}, {"schema", "-h"}, {"doctor", "-help"}} {
			code, out, err := command(nil, args...)
			require.Equal(t, exitOK, code, args)
			require.Contains(t, out, "Usage:", args)
			require.Empty(t, err, args)
		}
	})

	t.Run("VersionIsOneLine", func(t *testing.T) {
		t.Parallel()
		code, out, _ := command(nil, "version")
		require.Equal(t, exitOK, code)
		require.Regexp(t, `^queen 1\.0\.0\S* \(go\S+, \w+/\w+\)\n$`, out)
	})

	t.Run("UnknownCommandShowsUsage", func(t *testing.T) {
		t.Parallel()
		code, out, err := command(nil, "srve")
		require.Equal(t, exitUsage, code)
		require.Empty(t, out)
		require.Contains(t, err, `queen: unknown command "srve"`)
		require.Contains(t, err, "Usage:")
	})

	t.Run("WrongSettingsAreOneLineEach", func(t *testing.T) {
		t.Parallel()
		code, _, err := command(map[string]string{"PORT": "x", "QUEEN_LOG_JSON": "perhaps"}, "serve")
		require.Equal(t, exitUsage, code)
		require.Equal(t, "queen: PORT=\"x\" is not a whole number\n"+
			"queen: QUEEN_LOG_JSON=\"perhaps\" is not a boolean (expected true/false, 1/0, yes/no, on/off)\n", err)
	})

	t.Run("ConfigShowsSourcesAndHidesSecrets", func(t *testing.T) {
		t.Parallel()
		code, out, _ := command(map[string]string{"PG_PASSWORD": "hunter2", "QUEEN_ADMISSION_TRACE": "1", "QUEEN_BIND_ADRR": "::1"}, "config")
		require.Equal(t, exitOK, code)
		require.NotContains(t, out, "hunter2")
		require.Regexp(t, `(?m)^PG_PASSWORD +\*\*\* +PG_PASSWORD +\*\*\*$`, out)
		require.Contains(t, out, "QUEEN_ADMISSION_TRACE: accepted, not used by this version\n")
		require.Contains(t, out, "QUEEN_BIND_ADRR: unknown, did you mean QUEEN_BIND_ADDR?\n")
	})

	t.Run("SchemaApplyThenDoctor", func(t *testing.T) {
		t.Parallel()
		env := map[string]string{"DATABASE_URL": testdb.NewEmpty(t).ConnString(), "LOG_LEVEL": "error", "DB_POOL_SIZE": "4"}
		_, out, err := command(env, "doctor")
		require.Contains(t, out, "not applied yet")
		require.Regexp(t, `queen: \d of \d checks found a problem`, err)
		code, _, err := command(env, "schema", "apply")
		require.Equal(t, exitOK, code, err)
		_, out, _ = command(env, "doctor")
		require.Regexp(t, `ok +schema +version \d+, as in this build`, out)
	})

	t.Run("SchemaPrintIsSQL", func(t *testing.T) {
		t.Parallel()
		code, out, _ := command(nil, "schema", "print")
		require.Equal(t, exitOK, code)
		require.True(t, strings.HasPrefix(out, "-- file: schema.sql\n"))
		require.Contains(t, out, "log_push_multi_v1")
	})

	t.Run("StartThatFailsIsOneLine", func(t *testing.T) {
		t.Parallel()
		code, _, err := command(map[string]string{
			"DATABASE_URL": strings.Replace(testdb.NewEmpty(t).ConnString(), "?", "_missing?", 1), "LOG_LEVEL": "error", "PORT": "0", "FILE_BUFFER_DIR": "off",
		})
		require.Equal(t, exitFailed, code)
		require.Regexp(t, `^queen: database [^ ]+ \(DATABASE_URL\): [^\t]*does not exist[^\t]*\n$`, err)
	})
	t.Run("UnusableDataDirectoryNamesItsVariable", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		for _, dir := range []string{file, filepath.Join(file, "below")} {
			code, _, err := command(map[string]string{"QUEEN_DATA_DIR": dir, "PORT": "0", "LOG_LEVEL": "error"})
			require.Equal(t, exitFailed, code)
			require.Regexp(t, `^queen: .*QUEEN_DATA_DIR.*\n$`, err)
		}
	})
}

// process is the program in a process of its own, serving.
type process struct {
	*exec.Cmd
	url string
}

func start(t *testing.T, env ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	p := &process{Cmd: exec.CommandContext(ctx, os.Args[0], "serve")}
	// Settings of whoever runs the tests stay out, and the broker stays out of the directories of brokers of this machine.
	p.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "FILE_BUFFER_DIR=" + t.TempDir()}, append(env, programVariable+"=1", "PORT=0", "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_LOG_JSON=1")...)
	stderr, err := p.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
	events := bufio.NewScanner(stderr)
	for p.url == "" {
		require.True(t, events.Scan(), "the broker ended")
		var event struct{ Msg, Address string }
		require.NoError(t, json.Unmarshal(events.Bytes(), &event), events.Text())
		if event.Msg == "queen is ready" {
			p.url = "http://" + event.Address
		}
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }() // ends with the process
	return p
}

func TestSignals(t *testing.T) {
	t.Parallel()

	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run("FirstStopsInGoodOrder/"+signal.String(), func(t *testing.T) {
			t.Parallel()
			database := testdb.New(t)
			p := start(t, "DATABASE_URL="+database.ConnString())
			parked := make(chan string)
			go func() {
				response, err := http.Get(p.url + "/api/v1/pop/queue/empty?wait=true&timeout=60000")
				if err != nil {
					parked <- err.Error()
					return
				}
				_ = response.Body.Close()
				parked <- response.Status
			}()
			pool := database.Pool(t)
			require.Eventually(t, func() bool {
				var looked bool
				err := pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM queen.queues WHERE name = 'empty')").Scan(&looked)
				return err == nil && looked
			}, 30*time.Second, 5*time.Millisecond)
			require.NoError(t, p.Process.Signal(signal))
			require.Equal(t, "204 No Content", <-parked)
			require.NoError(t, p.Wait(), "exit code 0")
		})
	}

	t.Run("SecondEndsAtOnce", func(t *testing.T) {
		t.Parallel()
		p := start(t, "DATABASE_URL="+testdb.New(t).ConnString(), "QUEEN_SHUTDOWN_DELAY_MS=600000")
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		// It stays open for load balancers, and says that it is leaving.
		require.Eventually(t, func() bool {
			response, err := http.Get(p.url + "/readyz")
			if err != nil {
				return false
			}
			defer response.Body.Close()
			return response.StatusCode == http.StatusServiceUnavailable
		}, 30*time.Second, 10*time.Millisecond)
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		var exit *exec.ExitError
		require.ErrorAs(t, p.Wait(), &exit)
		require.Equal(t, syscall.SIGTERM, exit.Sys().(syscall.WaitStatus).Signal(), fmt.Sprint(exit))
	})
}
