package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"queenmq/broker"
	"queenmq/internal/localpg"
	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy", name))
	require.NoError(t, err)
	return string(text)
}

// documents are the YAML documents of a file.
func documents(t *testing.T, name string) (all []map[string]any) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(read(t, name)))
	for {
		var one map[string]any
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			require.NotEmpty(t, all)
			return all
		}
		require.NoError(t, err, name)
		all = append(all, one)
	}
}

// at follows keys and list positions.
func at(t *testing.T, value any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch key := step.(type) {
		case string:
			value = value.(map[string]any)[key]
		case int:
			value = value.([]any)[key]
		}
		require.NotNil(t, value, "%v", path)
	}
	return value
}

func TestSettingsOfTheFilesExist(t *testing.T) {
	t.Parallel()
	env := map[string]string{}
	for name, value := range at(t, documents(t, "compose.yaml")[0], "services", "queen", "environment").(map[string]any) {
		env[name] = value.(string)
	}
	for line := range strings.Lines(read(t, "queen.env")) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !strings.HasPrefix(line, "#") {
			env[name] = value
		}
	}
	for _, document := range documents(t, "kubernetes/queen.yaml") {
		if document["kind"] != "StatefulSet" {
			continue
		}
		for _, one := range at(t, document, "spec", "template", "spec", "containers", 0, "env").([]any) {
			entry := one.(map[string]any)
			env[entry["name"].(string)], _ = entry["value"].(string)
		}
	}
	for _, name := range regexp.MustCompile(`from-literal=(\w+)`).FindAllStringSubmatch(read(t, "kubernetes/queen.yaml"), -1) {
		env[name[1]] = ""
	}
	for _, name := range regexp.MustCompile(`(?m)^ENV (\w+)=`).FindAllStringSubmatch(read(t, "Dockerfile"), -1) {
		env[name[1]] = "x"
	}
	require.Greater(t, len(env), 10)
	var names []string
	for name := range env {
		names = append(names, name)
	}
	// What the files leave to secrets and to the one who starts it.
	env["JWT_SECRET"], env["QUEEN_ENCRYPTION_KEY"] = strings.Repeat("s", 32), strings.Repeat("0f", 32)
	cfg, err := broker.LoadConfig(func(name string) (string, bool) { return env[name], env[name] != "" }, names)
	require.NoError(t, err)
	require.Empty(t, cfg.Unknown)
	require.Empty(t, cfg.Unused)
}

func TestProbesAreAnswered(t *testing.T) {
	t.Parallel()
	s := stack.Start(t)
	for _, document := range documents(t, "kubernetes/queen.yaml") {
		if document["kind"] != "StatefulSet" {
			continue
		}
		container := at(t, document, "spec", "template", "spec", "containers", 0)
		for probe, want := range map[string]string{"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"} {
			path := at(t, container, probe, "httpGet", "path").(string)
			require.Equal(t, want, path)
			response, err := http.Get(s.URL + path)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusOK, response.StatusCode, path)
			require.Equal(t, at(t, container, "ports", 0, "name"), at(t, container, probe, "httpGet", "port"))
		}
		scrape := at(t, document, "spec", "template", "metadata", "annotations", "prometheus.io/path").(string)
		response, err := http.Get(s.URL + scrape)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
		return
	}
	t.Fatal("no StatefulSet")
}

// systemd judges the unit where it is installed; elsewhere its sections and the time for a stop are looked at.
func TestUnitIsAccepted(t *testing.T) {
	t.Parallel()
	unit := read(t, "queen.service")
	for _, line := range []string{"[Unit]", "[Service]", "[Install]", "ExecStart=/usr/local/bin/queen serve", "TimeoutStopSec=40"} {
		require.Contains(t, unit, line+"\n")
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return
	}
	path := filepath.Join(t.TempDir(), "queen.service")
	unit = strings.ReplaceAll(unit, "/usr/local/bin/queen serve", "/bin/true")
	require.NoError(t, os.WriteFile(path, []byte(unit), 0o600))
	said, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
	require.NoError(t, err, "%s", said)
	require.NotContains(t, string(said), "queen.service:", "systemd found fault with a line")
}

// program returns a client program of PostgreSQL.
func program(t *testing.T, name string) string {
	t.Helper()
	dir, err := localpg.Programs(t.Context())
	require.NoError(t, err)
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		path, err = exec.LookPath(name)
		require.NoError(t, err, "the client programs of PostgreSQL are needed")
	}
	return path
}

func script(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Env = append(os.Environ(), env...)
	said, err := command.CombinedOutput()
	require.NoError(t, err, "%s", said)
}

// A backup taken while a broker serves restores into another server, and consumers go on there from where they were.
func TestBackupRestoresElsewhere(t *testing.T) {
	t.Parallel()
	s := stack.Start(t)
	push := func(client *wire.Client, txn string) {
		verdicts, err := client.Push(t.Context(), []wire.PushItem{{Queue: "orders", Partition: "p", TransactionID: txn, Payload: json.RawMessage(`"` + txn + `"`)}})
		require.NoError(t, err)
		require.Equal(t, "queued", verdicts[0].Status)
	}
	pop := func(client *wire.Client) string {
		batch, err := client.Pop(t.Context(), wire.PopRequest{Queue: "orders", AnyPartition: true, Group: "g", Batch: 1, Mode: "all", AutoAck: true})
		require.NoError(t, err)
		require.NotNil(t, batch)
		return batch.Messages[0].TransactionID
	}
	for _, txn := range []string{"a", "b", "c"} {
		push(s.Client, txn)
	}
	require.Equal(t, "a", pop(s.Client))
	dump := filepath.Join(t.TempDir(), "queen.dump")
	script(t, []string{"DATABASE_URL=" + s.DB.Config().ConnString(), "PG_DUMP=" + program(t, "pg_dump")}, "../../deploy/backup.sh", dump)
	require.Equal(t, "b", pop(s.Client), "after the backup")

	server := testdb.StartServer(t, testdb.ServerOptions{Settings: map[string]string{"fsync": "off"}})
	script(t, []string{"DATABASE_URL=" + server.ConnString("postgres"), "PG_RESTORE=" + program(t, "pg_restore")}, "../../deploy/restore.sh", dump)
	restored := wire.NewClient(stack.Serve(t, server.ConnString("postgres")), 8)
	defer restored.Close()
	require.Equal(t, "b", pop(restored), "the cursor is that of the backup")
	verdicts, err := restored.Push(t.Context(), []wire.PushItem{{Queue: "orders", Partition: "p", TransactionID: "c", Payload: json.RawMessage(`1`)}})
	require.NoError(t, err)
	require.Equal(t, "duplicate", verdicts[0].Status, "what was pushed is remembered")
	push(restored, "d")
	require.Equal(t, "c", pop(restored))
	require.Equal(t, "d", pop(restored))
}

// A broker whose role has only what the script gives does its work on a schema that an owner applied.
func TestBrokerRunsWithoutRights(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	role := strings.ToLower(database.Name) + "_broker"
	psql := program(t, "psql")
	script(t, nil, psql, "-q", "-v", "role="+role, "-f", "../../deploy/low-privilege-role.sql", database.ConnString())
	t.Cleanup(func() {
		script := exec.Command(psql, "-q", "-c", `DROP OWNED BY "`+role+`"; DROP ROLE "`+role+`"`, database.ConnString())
		if said, err := script.CombinedOutput(); err != nil {
			t.Errorf("%s: %v", said, err)
		}
	})
	pool := database.Pool(t)
	var superuser bool
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT rolsuper OR rolcreatedb OR rolcreaterole FROM pg_roles WHERE rolname = $1`, role).Scan(&superuser))
	require.False(t, superuser)
	url := strings.Replace(database.ConnString(), "postgres@", role+"@", 1)
	require.NotEqual(t, database.ConnString(), url)
	client := wire.NewClient(stack.Serve(t, url, map[string]string{"QUEEN_ENCRYPTION_KEY": strings.Repeat("01", 32)}), 8)
	defer client.Close()
	require.NoError(t, client.Configure(t.Context(), "orders", map[string]any{"encryptionEnabled": true, "retryLimit": 0}))
	_, err := client.Push(t.Context(), []wire.PushItem{{Queue: "orders", Partition: "p", TransactionID: "a", Payload: json.RawMessage(`1`)}})
	require.NoError(t, err)
	batch, err := client.Pop(t.Context(), wire.PopRequest{Queue: "orders", AnyPartition: true, Batch: 1, Mode: "all"})
	require.NoError(t, err)
	results, err := client.Ack(t.Context(), "", []wire.AckItem{{TransactionID: "a", PartitionID: batch.Messages[0].PartitionID, LeaseID: batch.LeaseID, Status: "dlq", Error: "no"}})
	require.NoError(t, err)
	require.True(t, results[0].DLQ)
	_, err = pool.Exec(t.Context(), `SET ROLE "`+role+`"; CREATE TABLE queen.mine (n int)`)
	require.Error(t, err)
	require.True(t, bytes.Contains([]byte(err.Error()), []byte("permission denied")))
}
