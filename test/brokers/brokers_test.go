package brokers

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// soon is far below the slow ways of slowFloors and far above what a hint takes on a loaded machine.
	soon = 20 * time.Second
	// limit ends a test that waits for what does not come.
	limit = time.Minute
)

// slowFloors makes a broker that is told nothing find out late.
var slowFloors = map[string]string{
	"POP_WAIT_INITIAL_INTERVAL_MS": "60000", "POP_WAIT_MAX_INTERVAL_MS": "60000",
	"QUEEN_HOTLIST_RESEED_MS": "600000", "QUEEN_CACHE_REFRESH_INTERVAL_MS": "600000",
}

// pair is two brokers on one database.
type pair struct {
	a, b       *wire.Client
	urlA, urlB string
	db         *pgxpool.Pool
}

func setup(t *testing.T) *pair {
	t.Helper()
	database := testdb.New(t)
	p := &pair{db: database.Pool(t)}
	p.urlA = stack.Serve(t, database.ConnString(), slowFloors, map[string]string{"QUEEN_SERVER_ID": "broker-a"})
	p.urlB = stack.Serve(t, database.ConnString(), slowFloors, map[string]string{"QUEEN_SERVER_ID": "broker-b"})
	p.a, p.b = wire.NewClient(p.urlA, 16), wire.NewClient(p.urlB, 16)
	t.Cleanup(p.a.Close)
	t.Cleanup(p.b.Close)
	for _, url := range []string{p.urlA, p.urlB} {
		p.eventually(t, url, "queen_mesh_listening", 1)
		p.eventually(t, url, `queen_mesh_peers{state="alive"}`, 1)
	}
	return p
}

// metric reads one figure of a broker; absent is 0.
func metric(t *testing.T, url, name string) float64 {
	t.Helper()
	response, err := http.Get(url + "/metrics/prometheus")
	require.NoError(t, err)
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if text, found := strings.CutPrefix(lines.Text(), name+" "); found {
			value, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err)
			return value
		}
	}
	return 0
}

func (p *pair) eventually(t *testing.T, url, name string, want float64) {
	t.Helper()
	require.Eventually(t, func() bool { return metric(t, url, name) >= want }, limit, 20*time.Millisecond, "%s of %s", name, url)
}

type popped struct {
	batch *wire.Batch
	err   error
	after time.Duration
}

// park begins a long poll at B and returns when it waits.
func (p *pair) park(t *testing.T, r wire.PopRequest) <-chan popped {
	t.Helper()
	r.Wait, r.Timeout = true, limit
	answer := make(chan popped, 1)
	began := time.Now()
	go func() {
		batch, err := p.b.Pop(context.WithoutCancel(t.Context()), r)
		answer <- popped{batch, err, time.Since(began)}
	}()
	p.eventually(t, p.urlB, fmt.Sprintf("queen_parked_long_polls{queue=%q}", r.Queue), 1)
	// It is counted before it looks the last time; from the moment that its look is over, only a hint can wake it.
	claims := func() float64 {
		return metric(t, p.urlB, "queen_pop_targeted_total") + metric(t, p.urlB, "queen_pop_wildcard_total")
	}
	last := claims()
	require.Eventually(t, func() bool {
		now := claims()
		quiet := now == last
		last = now
		return quiet
	}, limit, 100*time.Millisecond)
	return answer
}

// woken waits for the answer of a long poll and asks that it came soon after the call.
func woken(t *testing.T, answer <-chan popped, act func()) *wire.Batch {
	t.Helper()
	began := time.Now()
	act()
	got := <-answer
	require.NoError(t, got.err)
	require.NotNil(t, got.batch, "the long poll ended with nothing")
	require.Less(t, time.Since(began), soon)
	t.Logf("answered %s after the call began", time.Since(began))
	return got.batch
}

func push(t *testing.T, c *wire.Client, queue, partition, payload string) {
	t.Helper()
	verdicts, err := c.Push(t.Context(), []wire.PushItem{{Queue: queue, Partition: partition, Payload: json.RawMessage(payload)}})
	require.NoError(t, err)
	require.Equal(t, "queued", verdicts[0].Status)
}

func post(t *testing.T, c *wire.Client, method, path, body string) {
	t.Helper()
	status, err := c.Do(t.Context(), method, path, []byte(body), nil)
	require.NoError(t, err)
	require.Less(t, status, 300)
}

func payloads(b *wire.Batch) []string {
	var all []string
	for _, m := range b.Messages {
		all = append(all, string(m.Data))
	}
	return all
}

func TestPushOnOneBrokerWakesLongPollsOnTheOther(t *testing.T) {
	t.Parallel()
	p := setup(t)
	for name, request := range map[string]wire.PopRequest{
		"Queue":     {AnyPartition: true, Queue: "wake.queue", Batch: 10},
		"Group":     {AnyPartition: true, Queue: "wake.group", Group: "billing", Batch: 10},
		"Partition": {Queue: "wake.partition", Partition: "p1", Batch: 10},
	} {
		t.Run(name, func(t *testing.T) {
			// The second message meets a partition that exists and has been popped from.
			for i := range 2 {
				answer := p.park(t, request)
				batch := woken(t, answer, func() { push(t, p.a, request.Queue, "p1", fmt.Sprint(i)) })
				require.Equal(t, []string{fmt.Sprint(i)}, payloads(batch))
				complete(t, p.b, request.Group, batch)
			}
		})
	}
}

func complete(t *testing.T, c *wire.Client, group string, b *wire.Batch) {
	t.Helper()
	var items []wire.AckItem
	for _, m := range b.Messages {
		items = append(items, wire.AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Status: "completed"})
	}
	results, err := c.Ack(t.Context(), group, items)
	require.NoError(t, err)
	for _, r := range results {
		require.True(t, r.Success, r.Error)
	}
}

func TestTransactionsAndNacksOnOneBrokerWakeTheOther(t *testing.T) {
	t.Parallel()
	p := setup(t)
	request := wire.PopRequest{AnyPartition: true, Queue: "wake.transaction", Batch: 10}
	answer := p.park(t, request)
	batch := woken(t, answer, func() {
		post(t, p.a, "POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[{"queue":"wake.transaction","partition":"p1","payload":1}]}]}`)
	})
	complete(t, p.b, "", batch)

	push(t, p.a, "wake.nack", "p1", "2")
	held, err := p.a.Pop(t.Context(), wire.PopRequest{AnyPartition: true, Queue: "wake.nack", Batch: 1})
	require.NoError(t, err)
	require.Len(t, held.Messages, 1)
	answer = p.park(t, wire.PopRequest{AnyPartition: true, Queue: "wake.nack", Batch: 1})
	m := held.Messages[0]
	batch = woken(t, answer, func() {
		_, err := p.a.Ack(t.Context(), "", []wire.AckItem{{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Status: "retry"}})
		require.NoError(t, err)
	})
	require.Equal(t, []string{"2"}, payloads(batch))
}

func TestConfigureOnOneBrokerTakesEffectOnTheOther(t *testing.T) {
	t.Parallel()
	p := setup(t)
	require.NoError(t, p.a.Configure(t.Context(), "late", map[string]any{"delayedProcessing": 3600}))
	push(t, p.a, "late", "p1", "1")
	answer := p.park(t, wire.PopRequest{AnyPartition: true, Queue: "late", Batch: 1})
	batch := woken(t, answer, func() {
		require.NoError(t, p.a.Configure(t.Context(), "late", map[string]any{"delayedProcessing": 0}))
	})
	require.Equal(t, []string{"1"}, payloads(batch))
}

func TestDeletedQueueIsForgottenByTheOther(t *testing.T) {
	t.Parallel()
	p := setup(t)
	push(t, p.a, "gone", "p1", "1")
	answer := p.park(t, wire.PopRequest{Queue: "gone", Partition: "p2", Batch: 1})
	post(t, p.a, "DELETE", "/api/v1/resources/queues/gone", "")
	batch := woken(t, answer, func() { push(t, p.a, "gone", "p2", "2") })
	require.Equal(t, []string{"2"}, payloads(batch))
}

func TestSeekOnOneBrokerWakesTheOther(t *testing.T) {
	t.Parallel()
	p := setup(t)
	push(t, p.a, "again", "p1", "1")
	first, err := p.b.Pop(t.Context(), wire.PopRequest{AnyPartition: true, Queue: "again", Group: "billing", Batch: 1})
	require.NoError(t, err)
	complete(t, p.b, "billing", first)
	answer := p.park(t, wire.PopRequest{AnyPartition: true, Queue: "again", Group: "billing", Batch: 1})
	batch := woken(t, answer, func() {
		post(t, p.a, "POST", "/api/v1/consumer-groups/billing/queues/again/seek", `{"timestamp":"2020-01-01T00:00:00Z"}`)
	})
	require.Equal(t, []string{"1"}, payloads(batch))
}

func TestMaintenanceOnOneBrokerReachesTheOther(t *testing.T) {
	t.Parallel()
	p := setup(t)
	paused := func() bool {
		var state struct{ PopMaintenanceMode bool }
		_, err := p.b.Do(t.Context(), "GET", "/api/v1/system/maintenance/pop", nil, &state)
		return err == nil && state.PopMaintenanceMode
	}
	require.False(t, paused())
	post(t, p.a, "POST", "/api/v1/system/maintenance/pop", `{"enabled":true}`)
	require.Eventually(t, paused, soon, 10*time.Millisecond)
	push(t, p.a, "paused", "p1", "1")
	batch, err := p.b.Pop(t.Context(), wire.PopRequest{AnyPartition: true, Queue: "paused", Batch: 1, Wait: true, Timeout: limit})
	require.NoError(t, err)
	require.Nil(t, batch)
	post(t, p.a, "POST", "/api/v1/system/maintenance/pop", `{"enabled":false}`)
	require.Eventually(t, func() bool {
		batch, err := p.b.Pop(t.Context(), wire.PopRequest{AnyPartition: true, Queue: "paused", Batch: 1})
		return err == nil && batch != nil
	}, soon, 10*time.Millisecond)
}

// A hint about the switches carries no value: whoever forges one makes brokers read the row, and nothing else.
func TestForgedMaintenanceChangesNothing(t *testing.T) {
	t.Parallel()
	p := setup(t)
	push(t, p.a, "open", "p1", "1")
	before := metric(t, p.urlB, "queen_mesh_payloads_received_total")
	for _, text := range []string{
		`{"v":1,"s":"broker-a","b":"00000000-0000-7000-8000-00000000000a","t":"f","enabled":true}`, `{"v":1`, `maintenance`,
	} {
		_, err := p.db.Exec(t.Context(), `SELECT pg_notify('queen_mesh', $1)`, text)
		require.NoError(t, err)
	}
	p.eventually(t, p.urlB, "queen_mesh_payloads_received_total", before+3)
	p.eventually(t, p.urlB, `queen_mesh_payloads_dropped_total{reason="malformed"}`, 2)
	batch, err := p.b.Pop(t.Context(), wire.PopRequest{AnyPartition: true, Queue: "open", Batch: 1})
	require.NoError(t, err)
	require.NotNil(t, batch)
}

func TestTerminatedSessionsRecover(t *testing.T) {
	t.Parallel()
	p := setup(t)
	sessions := map[string]float64{}
	for _, url := range []string{p.urlA, p.urlB} {
		sessions[url] = metric(t, url, "queen_mesh_sessions_total")
	}
	answer := p.park(t, wire.PopRequest{AnyPartition: true, Queue: "broken", Batch: 1})
	began := time.Now()
	var ended int
	require.NoError(t, p.db.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND (application_name LIKE '% listen' OR application_name LIKE '% notify')`).Scan(&ended))
	require.GreaterOrEqual(t, ended, 3, "both listen, and who has sent something has a session for that")
	for url, before := range sessions {
		p.eventually(t, url, "queen_mesh_sessions_total", before+1)
		p.eventually(t, url, "queen_mesh_listening", 1)
	}
	require.Less(t, time.Since(began), 5*time.Second+soon/2)
	batch := woken(t, answer, func() { push(t, p.a, "broken", "p1", "1") })
	require.Equal(t, []string{"1"}, payloads(batch))
}

func TestBrokersAreListed(t *testing.T) {
	t.Parallel()
	p := setup(t)
	type listed struct {
		ID, Version, Address, StartedAt, LastSeen string
		Alive, Self                               bool
	}
	list := func(c *wire.Client) []listed {
		var answer struct{ Brokers []listed }
		_, err := c.Do(t.Context(), "GET", "/api/v1/system/brokers", nil, &answer)
		require.NoError(t, err)
		return answer.Brokers
	}
	require.Eventually(t, func() bool { return len(list(p.a)) == 2 }, limit, 20*time.Millisecond)
	for self, c := range map[string]*wire.Client{"broker-a": p.a, "broker-b": p.b} {
		brokers := list(c)
		require.Len(t, brokers, 2)
		for _, b := range brokers {
			require.True(t, b.Alive)
			require.Equal(t, b.ID == self, b.Self)
			require.NotEmpty(t, b.Address)
		}
		require.True(t, slices.IsSortedFunc(brokers, func(x, y listed) int { return strings.Compare(x.StartedAt, y.StartedAt) }))
	}
	var stats struct {
		Enabled, Running bool
		PeerCount        int `json:"peer_count"`
	}
	_, err := p.a.Do(t.Context(), "GET", "/internal/api/inter-instance/stats", nil, &stats)
	require.NoError(t, err)
	require.True(t, stats.Enabled && stats.Running)
	require.Equal(t, 1, stats.PeerCount)
}

func TestStoppedBrokerLeavesTheList(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	pool := database.Pool(t)
	count := func() (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM queen.brokers`).Scan(&n))
		return n
	}
	t.Run("Running", func(t *testing.T) {
		stack.Serve(t, database.ConnString())
		require.Eventually(t, func() bool { return count() == 1 }, limit, 10*time.Millisecond)
	})
	require.Zero(t, count())
}

// A direct address for the two sessions is used, and one that cannot be reached costs latency only.
func TestListenURLOutranksTheDatabase(t *testing.T) {
	t.Parallel()
	database := testdb.New(t)
	url := stack.Serve(t, database.ConnString(), map[string]string{"QUEEN_LISTEN_URL": "postgres://postgres@127.0.0.1:1/nowhere"})
	client := wire.NewClient(url, 4)
	defer client.Close()
	push(t, client, "alone", "p1", "1")
	batch, err := client.Pop(t.Context(), wire.PopRequest{AnyPartition: true, Queue: "alone", Batch: 1, Wait: true, Timeout: limit})
	require.NoError(t, err)
	require.Equal(t, []string{"1"}, payloads(batch))
	require.Zero(t, metric(t, url, "queen_mesh_listening"))
}
