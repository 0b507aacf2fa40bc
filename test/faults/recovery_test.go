package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

// recovery is how long after the end of a fault everything works again.
const recovery = 5 * time.Second

// slowest is how much slower than a quiet one a machine may be: on a slower one the limit is that of this.
const slowest = 6

// A site is two brokers in front of one server, each with a network of its own.
type site struct {
	server  *testdb.Server
	data    [2]*stack.Proxy // carries everything, or with listening the pool alone
	listen  *stack.Proxy    // of the first broker's sessions that are its own
	url     [2]string
	clients [2]*wire.Client
	round   int
}

// newSite starts one. With listening the first broker's own sessions have a network apart from its pool's.
func newSite(t *testing.T, listening bool) *site {
	t.Helper()
	s := &site{server: testdb.StartServer(t, testdb.ServerOptions{})}
	through := func() (*stack.Proxy, string) {
		address, err := url.Parse(s.server.ConnString("postgres"))
		require.NoError(t, err)
		proxy := stack.StartProxy(t, address.Host)
		address.Host = proxy.Address()
		return proxy, address.String()
	}
	for i := range s.url {
		settings := map[string]string{"QUEEN_SERVER_ID": fmt.Sprint("broker-", i)}
		proxy, connString := through()
		s.data[i] = proxy
		if listening && i == 0 {
			s.listen, settings["QUEEN_LISTEN_URL"] = through()
		}
		s.url[i] = stack.Serve(t, connString, settings)
		s.clients[i] = wire.NewClient(s.url[i], 32)
		t.Cleanup(s.clients[i].Close)
	}
	require.Eventually(t, func() bool { return s.works(t.Context()) == nil }, time.Minute, time.Millisecond, "the brokers know each other")
	return s
}

// do runs one statement past all networks.
func (s *site) do(t *testing.T, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.server.ConnString("postgres"))
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), statement)
	require.NoError(t, err)
}

// requireRecovery ends a fault and fails unless everything works again within the limit of the guarantee: on a quiet machine, and on one that
// others keep busy as much later as work takes longer there. What was measured is in the log.
func (s *site) requireRecovery(t *testing.T, end func()) {
	t.Helper()
	slowness := stack.MeasureSlowness()
	defer slowness.End()
	end()
	healed := time.Now()
	var before error
	for {
		began := time.Now()
		err := s.works(t.Context())
		limit := time.Duration(min(slowness.Now(), slowest) * float64(recovery))
		if err == nil {
			took := began.Sub(healed) // what is measured has its own length, of which the last look is no part
			t.Logf("everything works %.2f s after the end of the fault, on a machine %.1f times slower than a quiet one; last before that: %v",
				took.Seconds(), slowness.Now(), before)
			require.LessOrEqual(t, took, limit)
			return
		}
		before = err
		require.Less(t, time.Since(healed), limit+20*time.Second, "still broken: %v", err)
	}
}

// works uses everything once: a push through one broker wakes a pop that is parked at the other, which is acknowledged through the first; a
// transaction; a look.
func (s *site) works(ctx context.Context) error {
	s.round++
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	for i, client := range s.clients {
		other := s.clients[1-i]
		queue := fmt.Sprint("site.", i)
		type popped struct {
			batch *wire.Batch
			err   error
		}
		parked := make(chan popped, 1)
		text := fmt.Sprint(s.round) // a partition of its own: what an earlier round left is leased
		if err := drain(ctx, other, queue); err != nil {
			return fmt.Errorf("drain: %w", err)
		}
		go func() {
			batch, err := other.Pop(ctx, wire.PopRequest{Queue: queue, AnyPartition: true, Wait: true, Timeout: 2 * time.Second})
			parked <- popped{batch, err}
		}()
		// The pop parks within a moment; when it does not, it finds the message at once, which proves less and breaks nothing.
		time.Sleep(20 * time.Millisecond)
		verdicts, err := client.Push(ctx, []wire.PushItem{{Queue: queue, Partition: text, Payload: json.RawMessage(text)}})
		if err != nil {
			return fmt.Errorf("push: %w", err)
		}
		if verdicts[0].Status != "queued" {
			return fmt.Errorf("push: %+v", verdicts[0])
		}
		got := <-parked
		if got.err != nil || got.batch == nil {
			return fmt.Errorf("pop at the other broker: %v, %w", got.batch, got.err)
		}
		m := got.batch.Messages[0]
		results, err := client.Ack(ctx, "", []wire.AckItem{{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID}})
		if err != nil || !results[0].Success {
			return fmt.Errorf("ack: %+v, %w", results, err)
		}
		answer, err := client.Transaction(ctx, []wire.Operation{{Type: "push", Items: []wire.PushItem{{Queue: "site.other", Payload: json.RawMessage(text)}}}})
		if err != nil || !answer.Success {
			return fmt.Errorf("transaction: %+v, %w", answer, err)
		}
		if _, err := client.Do(ctx, http.MethodGet, "/api/v1/resources/queues", nil, nil); err != nil {
			return fmt.Errorf("look: %w", err)
		}
		if _, err := client.Do(ctx, http.MethodGet, "/readyz", nil, nil); err != nil {
			return fmt.Errorf("readyz: %w", err)
		}
	}
	return nil
}

// drain takes what is in a queue.
func drain(ctx context.Context, client *wire.Client, queue string) error {
	for {
		batch, err := client.Pop(ctx, wire.PopRequest{Queue: queue, AnyPartition: true, Batch: 100, AutoAck: true})
		if batch == nil || err != nil {
			return err
		}
	}
}

// requireAway fails unless the first broker behaves as one whose database is away: reads are refused with a time to come back, pushes are
// kept.
func (s *site) requireAway(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		verdicts, err := s.clients[0].Push(t.Context(), []wire.PushItem{{Queue: "site.kept", Payload: json.RawMessage(`1`)}})
		return err == nil && verdicts[0].Status == "buffered"
	}, 30*time.Second, 10*time.Millisecond)
	var looks sync.WaitGroup
	for _, path := range []string{"/api/v1/resources/queues", "/api/v1/pop/queue/site.0?autoAck=true", "/api/v1/pop/queue/site.0/partition/p"} {
		looks.Go(func() {
			response, err := http.Get(s.url[0] + path)
			if assert.NoError(t, err) {
				_ = response.Body.Close()
				assert.Equal(t, http.StatusServiceUnavailable, response.StatusCode, path)
				assert.NotEmpty(t, response.Header.Get("Retry-After"), path)
			}
		})
	}
	looks.Wait()
	// Asked last: what was kept waits, so that the database is known to be away.
	began := time.Now()
	_, err := s.clients[0].Push(t.Context(), []wire.PushItem{{Queue: "site.kept", Payload: json.RawMessage(`2`)}})
	require.NoError(t, err)
	require.Less(t, time.Since(began), 2*time.Second, "nobody waits for a time-out any more")
}

// The database goes away in every way that it has, and comes back: both brokers serve within seconds, without a restart.
func TestDatabaseComesBack(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	setReadOnly := func(value string) {
		s.do(t, "ALTER SYSTEM SET default_transaction_read_only = "+value)
		s.do(t, "SELECT pg_reload_conf()")
	}
	for _, fault := range []struct {
		name       string
		begin, end func()
	}{
		{"restart", func() { s.server.Stop(t, "fast") }, func() { s.server.Start(t) }},
		{"crash", func() { s.server.Stop(t, "immediate") }, func() { s.server.Start(t) }},
		{"a server that only reads", func() { setReadOnly("on") }, func() { setReadOnly("off") }},
	} {
		fault.begin()
		if fault.name == "a server that only reads" {
			s.requireReadOnly(t)
		} else {
			s.requireAway(t)
		}
		t.Log(fault.name)
		s.requireRecovery(t, fault.end)
	}
	t.Log("terminated sessions")
	s.requireRecovery(t, func() {
		for range 5 {
			s.do(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'queen %' AND pid <> pg_backend_pid()")
		}
	})
	s.requireKept(t)
}

// requireReadOnly fails unless the first broker behaves as one whose database refuses writes.
func (s *site) requireReadOnly(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		verdicts, err := s.clients[0].Push(t.Context(), []wire.PushItem{{Queue: "site.kept", Payload: json.RawMessage(`1`)}})
		return err == nil && verdicts[0].Status == "buffered"
	}, 30*time.Second, 10*time.Millisecond)
	response, err := http.Get(s.url[0] + "/api/v1/pop/queue/site.kept")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	require.NotEmpty(t, response.Header.Get("Retry-After"))
}

// requireKept fails unless everything that was kept is stored.
func (s *site) requireKept(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		var status struct {
			PendingCount, FailedCount int
		}
		_, err := s.clients[0].Do(t.Context(), http.MethodGet, "/api/v1/status/buffers", nil, &status)
		return err == nil && status.PendingCount == 0 && status.FailedCount == 0
	}, 30*time.Second, 20*time.Millisecond)
}

// The network to the database swallows packets, or forgets connections: once it is whole both brokers serve within seconds.
func TestNetworkComesBack(t *testing.T) {
	t.Parallel()
	s := newSite(t, false)
	s.data[0].Cut()
	s.requireAway(t)
	require.NoError(t, drain(t.Context(), s.clients[1], "site.1"), "the other broker has its own network")
	s.requireRecovery(t, s.data[0].Heal)

	t.Log("connections that went silent for good")
	s.requireRecovery(t, func() {
		for _, proxy := range s.data {
			require.Positive(t, proxy.Open())
			proxy.Lose()
		}
	})
	s.requireKept(t)
}

// The session that listens dies, in silence or not: hints arrive again within seconds, and everything works meanwhile.
func TestListeningSessionComesBack(t *testing.T) {
	t.Parallel()
	s := newSite(t, true)
	for _, fault := range []struct {
		name   string
		strike func()
	}{
		{"silence", s.listen.Lose},
		{"reset", s.listen.Reset},
		{"terminated", func() {
			s.do(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '% listen'")
		}},
	} {
		t.Log(fault.name)
		sessions, slowness, struck := s.sessions(t), stack.MeasureSlowness(), time.Now()
		s.requireRecovery(t, fault.strike)
		require.Eventually(t, func() bool { return s.sessions(t) > sessions && s.hears(t) }, time.Minute, 10*time.Millisecond)
		took, slower := time.Since(struck), slowness.End()
		t.Logf("hints arrive again after %.2f s", took.Seconds())
		require.LessOrEqual(t, took, time.Duration(min(slower, slowest)*float64(recovery)))
	}
}

// sessions is how often the first broker began to listen.
func (s *site) sessions(t *testing.T) int { return s.figure(t, "queen_mesh_sessions_total") }

// hears says whether heartbeats of the first broker come back to it.
func (s *site) hears(t *testing.T) bool { return s.figure(t, "queen_mesh_listening") == 1 }

// figure reads one figure of the first broker.
func (s *site) figure(t *testing.T, name string) int {
	t.Helper()
	response, err := http.Get(s.url[0] + "/metrics/prometheus")
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			var n float64
			_, err := fmt.Sscan(value, &n)
			require.NoError(t, err, line)
			return int(n)
		}
	}
	t.Fatalf("no figure %s", name)
	return 0
}
