package broker_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/broker"
	"queenmq/internal/testdb"
)

func TestBroker(t *testing.T) {
	t.Parallel()

	t.Run("ServesFromAConfiguredDatabase", func(t *testing.T) {
		t.Parallel()
		r := begin(t, map[string]string{"DATABASE_URL": testdb.NewEmpty(t).ConnString()}).ready(t)
		require.Contains(t, r.log.String(), "fsync=off", "the test server is not durable, and the broker says so")
		r.push(t, "orders", `{"n":12345678901234567890}`)
		require.Equal(t, []string{`{"n":12345678901234567890}`}, r.payloads(t, "orders"))
		require.Equal(t, http.StatusOK, r.call(t, "GET", "/readyz", "").status)
		require.NoError(t, r.end(t))
		_, err := r.do("GET", r.URL()+"/livez", "")
		require.Error(t, err, "nothing listens any more")
	})

	t.Run("WithoutADatabaseKeepsMessagesOverRestarts", func(t *testing.T) {
		t.Parallel()
		env := map[string]string{"QUEEN_DATA_DIR": privateDir(t)}
		r := begin(t, env).ready(t)
		r.push(t, "orders", `"kept"`)
		require.NoError(t, r.end(t))
		r = begin(t, env).ready(t)
		require.Equal(t, []string{`"kept"`}, r.payloads(t, "orders"))

		second := begin(t, env)
		require.ErrorContains(t, second.result(t), "in use by another broker")
		r.push(t, "orders", `"undisturbed"`)
	})

	t.Run("StopAnswersParkedPopsThenCloses", func(t *testing.T) {
		t.Parallel()
		database := testdb.New(t)
		r := begin(t, map[string]string{"DATABASE_URL": database.ConnString()}).ready(t)
		parked := make(chan answer)
		go func() {
			a, err := r.do("GET", r.URL()+"/api/v1/pop/queue/empty?wait=true&timeout=60000", "")
			if err != nil {
				a = answer{body: err.Error()}
			}
			parked <- a
		}()
		// Its first look registers the queue; after that it waits for a push that never comes.
		pool := database.Pool(t)
		require.Eventually(t, func() bool {
			var looked bool
			err := pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM queen.queues WHERE name = 'empty')").Scan(&looked)
			return err == nil && looked
		}, 30*time.Second, 5*time.Millisecond)
		began := time.Now()
		require.NoError(t, r.end(t))
		require.Equal(t, answer{http.StatusNoContent, ""}, <-parked)
		require.Less(t, time.Since(began), 20*time.Second)
	})

	t.Run("StopFinishesPushesInFlight", func(t *testing.T) {
		t.Parallel()
		database := testdb.New(t)
		r := begin(t, map[string]string{"DATABASE_URL": database.ConnString()}).ready(t)
		const producers = 16
		var answered sync.WaitGroup
		stored := make([]int, producers)
		for i := range producers {
			answered.Go(func() {
				for {
					a, err := r.do("POST", r.URL()+"/api/v1/push", fmt.Sprintf(`{"items":[{"queue":"q","partition":"p%d","payload":1}]}`, i))
					if err != nil || a.status != http.StatusCreated {
						return
					}
					stored[i]++
				}
			})
		}
		require.Eventually(t, func() bool { return countMessages(t, database) > 50 }, 30*time.Second, 5*time.Millisecond)
		require.NoError(t, r.end(t))
		answered.Wait()
		total := 0
		for _, n := range stored {
			total += n
		}
		require.Equal(t, total, countMessages(t, database), "what was answered is stored, and what was stored was answered")
	})

	t.Run("RunsOnce", func(t *testing.T) {
		t.Parallel()
		r := begin(t, map[string]string{"DATABASE_URL": testdb.New(t).ConnString()}).ready(t)
		require.NoError(t, r.end(t))
		require.ErrorContains(t, r.Run(t.Context()), "has run already")
	})
}

func TestBrokerWaitsForItsDatabase(t *testing.T) {
	t.Parallel()
	database := testdb.NewEmpty(t)
	address := freeAddress(t)
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	listen := freeAddress(t)
	_, listenPort, err := net.SplitHostPort(listen)
	require.NoError(t, err)
	r := begin(t, map[string]string{
		"PORT":         listenPort,
		"DATABASE_URL": fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", net.JoinHostPort(host, port), database.Name),
	})
	url := "http://" + listen
	require.Eventually(t, func() bool {
		a, err := r.do("GET", url+"/livez", "")
		return err == nil && a.status == http.StatusOK
	}, 30*time.Second, 10*time.Millisecond)
	for path, want := range map[string]string{"/readyz": `"ready":false`, "/health": `"database":"disconnected"`} {
		a, err := r.do("GET", url+path, "")
		require.NoError(t, err)
		require.Equal(t, http.StatusServiceUnavailable, a.status, path)
		require.Contains(t, a.body, want)
	}
	a, err := r.do("POST", url+"/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.Contains(t, a.body, `"code":"starting"`)

	forward(t, address, database)
	r.ready(t)
	r.push(t, "q", `1`)
	require.NoError(t, r.end(t))
}

func TestBrokerThatWaitsCanBeStopped(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	r := begin(t, map[string]string{"DATABASE_URL": "postgres://postgres@" + address + "/postgres"})
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "waiting for PostgreSQL") }, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, r.end(t))
}

func TestBrokerThatCannotStartSaysWhyInOneLine(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	_, takenPort, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	newer := testdb.NewEmpty(t)
	require.NoError(t, broker.ApplySchema(t.Context(), settings(t, map[string]string{"DATABASE_URL": newer.ConnString()}), slog.New(slog.DiscardHandler)))
	_, err = newer.Pool(t).Exec(t.Context(), "UPDATE queen.schema_version SET version = version + 1")
	require.NoError(t, err)

	for _, row := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"AddressInUse", map[string]string{"DATABASE_URL": testdb.New(t).ConnString(), "PORT": takenPort}, "PORT"},
		{"UnreadableURL", map[string]string{"DATABASE_URL": "postgres://user:hunter2@host:port/db"}, "DATABASE_URL: "},
		{"UnknownDatabase", map[string]string{"DATABASE_URL": strings.Replace(testdb.New(t).ConnString(), "?", "_missing?", 1)}, "does not exist"},
		{"NewerSchema", map[string]string{"DATABASE_URL": newer.ConnString()}, "run a newer Queen"},
		{"NewerSchemaThatIsNotApplied", map[string]string{"DATABASE_URL": newer.ConnString(), "QUEEN_APPLY_SCHEMA": "0"}, "run a newer Queen"},
		{"NoSchemaAndMayNotApply", map[string]string{"DATABASE_URL": testdb.NewEmpty(t).ConnString(), "QUEEN_APPLY_SCHEMA": "0"}, "queen schema apply"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			r := begin(t, row.env)
			err := r.result(t)
			require.ErrorContains(t, err, row.want)
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "hunter2")
			require.Empty(t, r.URL())
		})
	}
}

func TestBrokerStartsAndStopsAtAnyMoment(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	for i := range 12 {
		r := begin(t, map[string]string{"DATABASE_URL": database.ConnString()})
		if i%3 == 0 {
			r.ready(t)
		}
		require.NoError(t, r.end(t))
	}
}

func TestSchemaCommands(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)

	t.Run("ApplyMakesDiagnosisClean", func(t *testing.T) {
		t.Parallel()
		cfg := settings(t, map[string]string{"QUEEN_DATA_DIR": privateDir(t)})
		require.Contains(t, problems(broker.Diagnose(t.Context(), cfg, log)), "schema")
		require.NoError(t, broker.ApplySchema(t.Context(), cfg, log))
		require.Empty(t, problems(broker.Diagnose(t.Context(), cfg, log)))
	})

	t.Run("DiagnosisUsesTheServerOfARunningBroker", func(t *testing.T) {
		t.Parallel()
		env := map[string]string{"QUEEN_DATA_DIR": privateDir(t)}
		begin(t, env).ready(t)
		require.Empty(t, problems(broker.Diagnose(t.Context(), settings(t, env), log)))
	})

	t.Run("DiagnosisNamesRisks", func(t *testing.T) {
		t.Parallel()
		cfg := settings(t, map[string]string{"DATABASE_URL": testdb.New(t).ConnString(), "DB_POOL_SIZE": "9999"})
		found := problems(broker.Diagnose(t.Context(), cfg, log))
		require.Contains(t, found["durability"], "fsync=off")
		require.Contains(t, found["connections"], "DB_POOL_SIZE")
	})

	t.Run("DiagnosisOfAnAbsentDatabaseIsAProblem", func(t *testing.T) {
		t.Parallel()
		cfg := settings(t, map[string]string{"DATABASE_URL": "postgres://postgres@" + freeAddress(t) + "/postgres"})
		require.Contains(t, problems(broker.Diagnose(t.Context(), cfg, log)), "connection")
	})

	t.Run("PrintIsTheWholeSchema", func(t *testing.T) {
		t.Parallel()
		var text bytes.Buffer
		require.NoError(t, broker.WriteSchema(&text))
		_, err := testdb.NewEmpty(t).Pool(t).Exec(t.Context(), text.String())
		require.NoError(t, err, "it can be applied with psql")
	})
}

func problems(findings []broker.Finding) map[string]string {
	found := map[string]string{}
	for _, f := range findings {
		if !f.OK {
			found[f.Subject] = f.Text
		}
	}
	return found
}

// Without a word about it, a broker that asks nobody who they are is reached from its own machine alone.
func TestListensToThisMachineUnlessCallersAreKnown(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		env      map[string]string
		loopback bool
	}{
		"Nobody":   {map[string]string{"QUEEN_BIND_ADDR": ""}, true},
		"Open":     {map[string]string{"QUEEN_BIND_ADDR": "0.0.0.0"}, false},
		"Tokens":   {map[string]string{"QUEEN_BIND_ADDR": "", "JWT_ENABLED": "true", "JWT_SECRET": "a secret of more than thirty-two bytes"}, false},
		"Explicit": {map[string]string{"QUEEN_BIND_ADDR": "127.0.0.1", "JWT_ENABLED": "true", "JWT_SECRET": "a secret of more than thirty-two bytes"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.env["DATABASE_URL"] = testdb.New(t).ConnString()
			r := begin(t, row.env).ready(t)
			require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "queen is ready") }, 30*time.Second, time.Millisecond)
			require.Equal(t, row.loopback, strings.Contains(r.log.String(), "address=127.0.0.1:"), r.log)
			require.NoError(t, r.end(t))
		})
	}
}
