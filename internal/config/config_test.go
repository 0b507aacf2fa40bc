package config_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"queenmq/internal/config"
)

var update = flag.Bool("update", false, "rewrite docs/configuration.md")

var machine = config.Machine{Root: true, Cores: 2, Home: "/home/somebody"}

func load(env map[string]string) (*config.Config, error) {
	lookup := func(name string) (string, bool) { text, set := env[name]; return text, set }
	return config.Load(lookup, slices.Collect(maps.Keys(env)), machine)
}

func TestLoad(t *testing.T) {
	t.Parallel()

	t.Run("EmptyEnvironmentGivesDefaults", func(t *testing.T) {
		t.Parallel()
		c, err := load(nil)
		require.NoError(t, err)
		require.Equal(t, 6632, c.Server.Port)
		require.Empty(t, c.Server.BindAddr)
		require.EqualValues(t, 64<<20, c.Server.MaxBodyBytes)
		require.Equal(t, 25*time.Second, c.Server.ShutdownTimeout)
		require.Regexp(t, `^queen-[0-9a-f]{8}$`, c.Server.ServerID)
		require.Equal(t, "all", c.Pop.DefaultSubscriptionMode)
		require.InDelta(t, 2.0, c.Pop.WaitBackoffMultiplier, 0)
		require.True(t, c.Database.ApplySchema)
		require.False(t, c.Database.Configured)
		require.Empty(t, c.Database.ConnString())
		require.Equal(t, 32, c.Database.PoolSize)
		require.Equal(t, "/var/lib/queen/data", c.Private.DataDir)
		require.Empty(t, c.Unused)
		require.Empty(t, c.Unknown)
	})

	t.Run("ValuesAreTakenTrimmedAndInTheirUnit", func(t *testing.T) {
		t.Parallel()
		c, err := load(map[string]string{
			"PORT": " 7000 ", "QUEEN_STMT_TIMEOUT_MS": "1500", "QUEEN_LOG_JSON": "On", "LOG_LEVEL": "WARN",
			"POP_WAIT_BACKOFF_MULTIPLIER": "1.5", "DEFAULT_SUBSCRIPTION_MODE": "new", "HOSTNAME": "node-7",
		})
		require.NoError(t, err)
		require.Equal(t, 7000, c.Server.Port)
		require.Equal(t, 1500*time.Millisecond, c.Database.StatementTimeout)
		require.True(t, c.Log.JSON)
		require.Equal(t, "warn", c.Log.Level)
		require.InDelta(t, 1.5, c.Pop.WaitBackoffMultiplier, 0)
		require.Equal(t, "new", c.Pop.DefaultSubscriptionMode)
		require.Equal(t, "node-7", c.Server.ServerID)
	})

	t.Run("FirstSetNameWins", func(t *testing.T) {
		t.Parallel()
		c, err := load(map[string]string{"DEFAULT_TIMEOUT": "5", "POP_DEFAULT_TIMEOUT_MS": "7", "PG_DATABASE": "", "PG_DB": "second", "QUEEN_SERVER_ID": "", "HOSTNAME": "h"})
		require.NoError(t, err)
		require.Equal(t, 5*time.Millisecond, c.Pop.DefaultTimeout)
		require.Equal(t, "second", c.Database.Name)
		require.Equal(t, "h", c.Server.ServerID)
	})

	t.Run("BlankNumbersAndBooleansAreUnset", func(t *testing.T) {
		t.Parallel()
		c, err := load(map[string]string{"PORT": "", "QUEEN_LOG_JSON": " ", "LOG_LEVEL": "", "QUEEN_BIND_ADDR": ""})
		require.NoError(t, err)
		require.Equal(t, 6632, c.Server.Port)
		require.Empty(t, c.Server.BindAddr)
	})

	t.Run("AllFaultsAreReportedAtOnceEachOnItsLine", func(t *testing.T) {
		t.Parallel()
		_, err := load(map[string]string{"PORT": "http", "QUEEN_LOG_JSON": "maybe", "DB_POOL_SIZE": "0", "LOG_LEVEL": "loud", "POP_WAIT_BACKOFF_MULTIPLIER": "NaN"})
		require.Error(t, err)
		want := []string{
			`DB_POOL_SIZE="0" is out of bounds: expected 4 to 10000 (connections)`,
			`LOG_LEVEL="loud" is not one of debug, info, warn, error`,
			`POP_WAIT_BACKOFF_MULTIPLIER="NaN" is not a number`,
			`PORT="http" is not a whole number`,
			`QUEEN_LOG_JSON="maybe" is not a boolean (expected true/false, 1/0, yes/no, on/off)`,
		}
		require.Empty(t, cmp.Diff(want, slices.Sorted(strings.SplitSeq(err.Error(), "\n"))))
	})

	t.Run("NumberBeyondInt64IsRefused", func(t *testing.T) {
		t.Parallel()
		_, err := load(map[string]string{"QUEEN_MAX_BODY_BYTES": "99999999999999999999"})
		require.ErrorContains(t, err, "QUEEN_MAX_BODY_BYTES")
	})
}

func TestDatabaseChoice(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"NothingSetMeansPrivate", nil, ""},
		{"BlankVariablesMeanPrivate", map[string]string{"DATABASE_URL": "", "PG_HOST": " "}, ""},
		{"URLWinsOverVariables", map[string]string{"DATABASE_URL": "postgres://a:b@c/d", "PG_HOST": "other"}, "postgres://a:b@c/d"},
		{"OneVariableIsEnough", map[string]string{"PG_PORT": "5433"}, `host='localhost' port=5433 user='postgres' dbname='postgres' sslmode=disable password='postgres'`},
		{
			"ValuesAreQuoted",
			map[string]string{"PG_HOST": "/run/pg", "PG_PASSWORD": `it's a \ back`, "PG_USE_SSL": "1"},
			`host='/run/pg' port=5432 user='postgres' dbname='postgres' sslmode=verify-full password='it\'s a \\ back'`,
		},
		{
			"EmptyPasswordStaysEmpty",
			map[string]string{"PG_HOST": "h", "PG_PASSWORD": "", "PG_USE_SSL": "yes", "PG_SSL_REJECT_UNAUTHORIZED": "no"},
			`host='h' port=5432 user='postgres' dbname='postgres' sslmode=require`,
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c, err := load(row.env)
			require.NoError(t, err)
			require.Equal(t, row.want, c.Database.ConnString())
			require.Equal(t, row.want != "", c.Database.Configured)
		})
	}

	t.Run("MisplacedPasswordIsNotRepeated", func(t *testing.T) {
		t.Parallel()
		_, err := load(map[string]string{"DATABASE_URL": "hunter2"})
		require.ErrorContains(t, err, "DATABASE_URL")
		require.NotContains(t, err.Error(), "hunter2")
	})

	t.Run("ExternalPoolKeepsTheContractsSize", func(t *testing.T) {
		t.Parallel()
		c, err := load(map[string]string{"PG_HOST": "db"})
		require.NoError(t, err)
		require.Equal(t, 160, c.Database.PoolSize)
	})
}

func TestDataDirDefault(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		env     map[string]string
		machine config.Machine
		want    string
	}{
		{"Root", nil, config.Machine{Root: true, Home: "/root"}, "/var/lib/queen/data"},
		{"Home", nil, config.Machine{Home: "/home/a"}, "/home/a/.local/share/queen"},
		{"XDG", map[string]string{"XDG_DATA_HOME": "/data/a"}, config.Machine{Home: "/home/a"}, "/data/a/queen"},
		{"RelativeXDGIsIgnored", map[string]string{"XDG_DATA_HOME": "data"}, config.Machine{Home: "/home/a"}, "/home/a/.local/share/queen"},
		{"Set", map[string]string{"QUEEN_DATA_DIR": "/srv/q"}, config.Machine{Root: true}, "/srv/q"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			lookup := func(name string) (string, bool) { text, set := row.env[name]; return text, set }
			c, err := config.Load(lookup, nil, row.machine)
			require.NoError(t, err)
			require.Equal(t, row.want, c.Private.DataDir)
		})
	}
	t.Run("NoHomeIsAFaultThatSaysWhatToDo", func(t *testing.T) {
		t.Parallel()
		_, err := config.Load(func(string) (string, bool) { return "", false }, nil, config.Machine{})
		require.ErrorContains(t, err, "QUEEN_DATA_DIR")
	})
}

func TestVariablesWithoutEffect(t *testing.T) {
	t.Parallel()
	c, err := load(map[string]string{
		"QUEEN_MESH_PEERS": "a,b", "QUEEN_VEGAS_MAX": "1", "QUEEN_LOG_RATES_MS": "1", "QUEEN_POP_FUSION_SHARDS": "1", "JWT_ENABLED": "false",
		"QUEEN_FUSION_SHARDS": "4", "QUEEN_SOMETHING_ELSE_ENTIRELY": "1", "UNRELATED": "1", "QUEEN_LOG_TOPN_QUEUES": "",
	})
	require.NoError(t, err)
	var unused []string
	for _, u := range c.Unused {
		require.NotEmpty(t, u.Why)
		unused = append(unused, u.Name)
	}
	require.Empty(t, cmp.Diff([]string{"QUEEN_LOG_RATES_MS", "QUEEN_MESH_PEERS", "QUEEN_POP_FUSION_SHARDS", "QUEEN_VEGAS_MAX"}, unused))
	want := []config.Unknown{{Name: "QUEEN_FUSION_SHARDS", Nearest: "QUEEN_V2_FUSION_SHARDS"}, {Name: "QUEEN_SOMETHING_ELSE_ENTIRELY"}}
	require.Empty(t, cmp.Diff(want, c.Unknown))
}

func TestSettingsOfTrustAreCheckedTogether(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		env  map[string]string
		want string
	}{
		"CertificateWithoutKey":  {map[string]string{"QUEEN_TLS_CERT": "c.pem"}, "QUEEN_TLS_KEY"},
		"KeyWithoutCertificate":  {map[string]string{"QUEEN_TLS_KEY": "k.pem"}, "QUEEN_TLS_CERT"},
		"ClientsWithoutTLS":      {map[string]string{"QUEEN_TLS_CLIENT_CA": "ca.pem"}, "QUEEN_TLS_CLIENT_CA needs"},
		"OriginWithPath":         {map[string]string{"QUEEN_CORS_ORIGINS": "https://a, https://b/"}, `QUEEN_CORS_ORIGINS: "https://b/"`},
		"OriginWithoutScheme":    {map[string]string{"QUEEN_CORS_ORIGINS": "example.org"}, "QUEEN_CORS_ORIGINS"},
		"OriginNull":             {map[string]string{"QUEEN_CORS_ORIGINS": "null"}, "QUEEN_CORS_ORIGINS"},
		"SwitchThatIsNoBoolean":  {map[string]string{"JWT_ENABLED": "maybe"}, `JWT_ENABLED="maybe" is not a boolean`},
		"TenancyThatIsNoBoolean": {map[string]string{"QUEEN_TENANCY_HEADER": "2"}, "QUEEN_TENANCY_HEADER"},
		"RateThatIsNoNumber":     {map[string]string{"QUEEN_RATE_LIMIT": "fast"}, "QUEEN_RATE_LIMIT"},
		"ProfilesForEverybody":   {map[string]string{"QUEEN_PPROF_ADDR": "0.0.0.0:6060"}, "QUEEN_PPROF_ADDR"},
		"ProfilesWithoutAddress": {map[string]string{"QUEEN_PPROF_ADDR": ":6060"}, "is not a loopback address"},
		"ProfilesWithoutPort":    {map[string]string{"QUEEN_PPROF_ADDR": "127.0.0.1"}, "QUEEN_PPROF_ADDR"},
		"ServerIDTooLong":        {map[string]string{"QUEEN_SERVER_ID": strings.Repeat("x", 256)}, "QUEEN_SERVER_ID"},
		"ServerIDWithNUL":        {map[string]string{"QUEEN_SERVER_ID": "a\x00b"}, "QUEEN_SERVER_ID"},
		"HostnameThatIsNoText":   {map[string]string{"HOSTNAME": "a\xff"}, "QUEEN_SERVER_ID"},
		"ProfilesUnderAName":     {map[string]string{"QUEEN_PPROF_ADDR": "localhost:6060"}, "QUEEN_PPROF_ADDR"},
		"SkewThatIsNegative":     {map[string]string{"JWT_CLOCK_SKEW": "-1"}, "JWT_CLOCK_SKEW"},
	} {
		_, err := load(row.env)
		require.ErrorContains(t, err, row.want, name)
	}
	c, err := load(map[string]string{"QUEEN_CORS_ORIGINS": " https://a , http://b:8080,*", "JWT_SKIP_PATHS": ""})
	require.NoError(t, err)
	require.Equal(t, []string{"https://a", "http://b:8080", "*"}, c.Tenancy.Origins())
	require.Empty(t, c.Auth.SkipPaths, "set but empty means none")
	c, err = load(nil)
	require.NoError(t, err)
	require.Equal(t, "/health,/metrics/prometheus,/metrics,/", c.Auth.SkipPaths)
}

func TestSecretsNeverShow(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	c, err := load(map[string]string{"DATABASE_URL": "postgres://u:" + password + "@h/d", "PG_PASSWORD": password})
	require.NoError(t, err)
	var table strings.Builder
	require.NoError(t, c.WriteTable(&table))
	asJSON, err := json.Marshal(c)
	require.NoError(t, err)
	for _, text := range []string{
		table.String(), string(asJSON), fmt.Sprint(*c), fmt.Sprintf("%+v %#v %s %q %x", *c, *c, c.Database.URL, c.Database.URL, c.Database.URL),
		c.Database.Target(),
	} {
		require.NotContains(t, text, password)
		require.NotContains(t, text, fmt.Sprintf("%x", password))
	}
	require.Contains(t, table.String(), "***")
	require.Equal(t, "h/d", c.Database.Target())
}

func TestTableTellsSourceOfEachValue(t *testing.T) {
	t.Parallel()
	c, err := load(map[string]string{"PG_DB": "orders"})
	require.NoError(t, err)
	var table strings.Builder
	require.NoError(t, c.WriteTable(&table))
	require.Regexp(t, `(?m)^PG_DATABASE +orders +PG_DB +postgres$`, table.String())
	require.Regexp(t, `(?m)^PORT +6632 +default +6632$`, table.String())
	require.Regexp(t, `(?m)^DB_POOL_SIZE +160 +default +160; with`, table.String())
}

func TestDeclarationsAreSound(t *testing.T) {
	t.Parallel()
	c, err := load(nil)
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, v := range c.Values() {
		require.False(t, seen[v.Name], "%s is declared twice", v.Name)
		seen[v.Name] = true
		require.True(t, strings.HasSuffix(v.Doc, "."), "%s needs a documentation sentence", v.Name)
	}
	require.NotEmpty(t, seen)
}

func TestDocumentationIsCurrent(t *testing.T) {
	t.Parallel()
	const path = "../../docs/configuration.md"
	if *update {
		require.NoError(t, os.MkdirAll("../../docs", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(config.Markdown()), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(config.Markdown(), string(have)), "run: go test ./internal/config -update")
}
