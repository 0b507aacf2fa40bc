package main

import (
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "rewrite what the scripts compare with")

// The test binary is queenctl itself when a script runs it.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"queenctl": main})
}

// params make scripts in a directory talk to a broker, each as a tenant of its own.
func params(dir, server string) testscript.Params {
	return testscript.Params{
		Dir: dir, UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("QUEEN_SERVER", server)
			env.Setenv("QUEEN_TENANT", uuid.NewString())
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("TERM", "dumb")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "normal": normal, "until": until, "keep": keep, "oldbroker": oldBroker,
		},
	}
}

// exits N command...: the command ends with exit code N.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command [args]")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		ended, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = ended.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("the exit code is %d, not %s; stdout:\n%s\nstderr:\n%s", code, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

var (
	uuids  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	times  = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	ports  = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	spaces = regexp.MustCompile(`(\S)  +`)
)

// normal: the last stdout without what differs from run to run, as the file "shown".
func normal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: normal")
	}
	text := ts.ReadFile("stdout")
	text = uuids.ReplaceAllString(text, "UUID")
	text = times.ReplaceAllString(text, "TIME")
	text = ports.ReplaceAllString(text, "BROKER")
	text = spaces.ReplaceAllString(text, "$1  ")
	ts.Check(os.WriteFile(ts.MkAbs("shown"), []byte(text), 0o600))
}

// keep NAME REGEXP: the first group of a match in the last stdout becomes an environment variable.
func keep(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: keep NAME REGEXP")
	}
	found := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if found == nil {
		ts.Fatalf("no match for %s in:\n%s", args[1], ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], found[len(found)-1])
}

// until REGEXP command...: runs the command again until its stdout matches.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP command [args]")
	}
	wanted := regexp.MustCompile(args[0])
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // a poll of a foreign process with a deadline
		_ = ts.Exec(args[1], args[2:]...) // an exit code of its own says "not yet"
		if wanted.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("stdout never matched %s:\n%s\n%s", args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
		}
	}
}

// oldbroker: from here on the script talks to a server that knows push and health and nothing else.
func oldBroker(ts *testscript.TestScript, _ bool, _ []string) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"status":"healthy","database":"connected","engine":"x","version":"0.9.0"}`))
	})
	server := httptest.NewServer(mux)
	ts.Defer(server.Close)
	ts.Setenv("QUEEN_SERVER", server.URL)
}

// Every verb against a real broker.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, params("testdata/script", serve(t, map[string]string{"QUEEN_TENANCY_HEADER": "true"})))
}

// Verbs that concern the whole broker have one for themselves.
func TestScriptsAlone(t *testing.T) {
	t.Parallel()
	scripts, err := os.ReadDir("testdata/alone")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(script.Name(), ".txtar"), func(t *testing.T) {
			t.Parallel()
			p := params("", serve(t, map[string]string{"QUEEN_TENANCY_HEADER": "true"}))
			p.Files = []string{"testdata/alone/" + script.Name()}
			testscript.Run(t, p)
		})
	}
}
