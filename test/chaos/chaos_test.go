package chaos

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"queenmq/test/stack"
	"queenmq/test/wire"
)

var (
	duration = flag.Duration("chaos.duration", 2*time.Minute, "how long things are broken")
	seed     = flag.Uint64("chaos.seed", 0, "what is broken when; 0 draws one")
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	stack.RemoveShiftedClock()
	os.Exit(code)
}

// healing is how long the cluster may take to deliver everything after the last fault, on a loaded machine.
const healing = 2 * time.Minute

// TestChaos breaks brokers, database, network and disk while clients work, then holds what the clients saw against the promises.
func TestChaos(t *testing.T) {
	t.Parallel()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("repeat with: go test ./test/chaos -run 'TestChaos$' -args -chaos.duration=%s -chaos.seed=%d", *duration, *seed)
	c := newCluster(t)
	if c.nodes[0].disk == nil {
		t.Log("no file systems of their own for the brokers here: full disks are small buffers instead")
	}
	h := newHistory()
	w := &workload{history: h, seed: *seed}
	for _, n := range c.nodes {
		client := wire.NewClient(n.URL, 64)
		t.Cleanup(client.Close)
		w.brokers = append(w.brokers, client)
	}
	ctx, cancel := context.WithTimeout(t.Context(), *duration+2*healing)
	defer cancel()
	require.NoError(t, w.brokers[0].Configure(ctx, sourceQueue, map[string]any{"retryLimit": 1}))
	endProducers, endConsumers := w.start(ctx)
	strike(ctx, c, *seed, *duration)

	healed := time.Now()
	endProducers()
	h.awaitEnd(ctx, t, c)
	endConsumers()
	h.read(ctx, t, c)
	broken := h.violations()
	slices.Sort(broken)
	for _, line := range broken[:min(len(broken), 50)] {
		t.Error(line)
	}
	if len(broken) > 50 {
		t.Errorf("and %d more", len(broken)-50)
	}
	for i, n := range c.nodes {
		for _, line := range regexp.MustCompile(`(?m)^.*(panicked|^panic:|fatal error:).*$`).FindAllString(n.Log(), 5) {
			t.Errorf("log of broker %d: %s", i, line)
		}
	}
	h.report(t, time.Since(healed))
}

// awaitEnd waits until every group has everything.
func (h *history) awaitEnd(ctx context.Context, t *testing.T, c *cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, healing)
	defer cancel()
	var stuck string
	for {
		stuck = h.stuck(ctx, c)
		if stuck == "" {
			return
		}
		if ctx.Err() != nil {
			t.Errorf("%s after everything is whole again: %s", healing, stuck)
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// stuck says what is not done yet, "" when everything is.
func (h *history) stuck(ctx context.Context, c *cluster) string {
	// First what is buffered: until it is stored, cursors at the end are not there for good.
	for i, n := range c.nodes {
		var status struct {
			PendingCount int `json:"pendingCount"`
		}
		client := wire.NewClient(n.URL, 1)
		_, err := client.Do(ctx, "GET", "/api/v1/status/buffers", nil, &status)
		client.Close()
		if err != nil || status.PendingCount > 0 {
			return fmt.Sprintf("broker %d holds %d messages (%v)", i, status.PendingCount, err)
		}
	}
	conn, err := pgx.Connect(ctx, c.server.ConnString("postgres"))
	if err != nil {
		return err.Error()
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for queue, groups := range h.Groups {
		var lanes int
		for l := range h.Moved {
			if l.Queue == queue || h.Moved[l].Queue == queue {
				lanes++
			}
		}
		var behind, waiting int
		err := conn.QueryRow(ctx, `
			SELECT count(*) FILTER (WHERE c.committed = p.last_offset), COALESCE(sum(p.last_offset - COALESCE(c.committed, -1)), 0)
			FROM queen.queues q JOIN queen.log_partitions p ON p.queue_id = q.id CROSS JOIN unnest($2::text[]) AS g (name)
			LEFT JOIN queen.log_consumers c ON c.partition_id = p.id AND c.consumer_group = g.name WHERE q.name = $1`, queue, groups).Scan(&behind, &waiting)
		if err != nil {
			return err.Error()
		}
		if want := lanes * len(groups); behind != want {
			return fmt.Sprintf("%d of %d cursors of %s are at the end, %d messages wait", behind, want, queue, waiting)
		}
	}
	return ""
}

// read notes what is stored and what is dead.
func (h *history) read(ctx context.Context, t *testing.T, c *cluster) {
	t.Helper()
	client := wire.NewClient(c.nodes[0].URL, 4)
	defer client.Close()
	judge := &workload{history: h}
	transactions := map[lane]map[string]int{}
	for _, queue := range []string{sourceQueue, sinkQueue} {
		for {
			batch, err := client.Pop(ctx, wire.PopRequest{Queue: queue, AnyPartition: true, Group: "audit", Batch: 5000, Partitions: 20, AutoAck: true, Mode: "all"})
			require.NoError(t, err)
			if batch == nil {
				break
			}
			for _, m := range batch.Messages {
				l := lane{queue, m.Partition}
				if transactions[l] == nil {
					transactions[l] = map[string]int{}
				}
				s := judge.sequence(m)
				transactions[l][m.TransactionID] = s
				h.Stored[l] = append(h.Stored[l], s)
			}
		}
	}
	conn, err := pgx.Connect(ctx, c.server.ConnString("postgres"))
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, `SELECT q.name, p.name, d.consumer_group, d.transaction_id
		FROM queen.log_dlq d JOIN queen.log_partitions p ON p.id = d.partition_id JOIN queen.queues q ON q.id = p.queue_id`)
	require.NoError(t, err)
	var v view
	var transaction string
	_, err = pgx.ForEachRow(rows, []any{&v.Queue, &v.Partition, &v.Group, &transaction}, func() error {
		s, known := transactions[v.lane][transaction]
		if !known {
			h.strange("a dead letter of %v is %q", v, transaction)
		}
		h.Dead[v] = append(h.Dead[v], s)
		return nil
	})
	require.NoError(t, err)
}

// report says how much of everything there was, so that a run that proved little is seen.
func (h *history) report(t *testing.T, healing time.Duration) {
	t.Helper()
	stored, dead := 0, 0
	for _, sequences := range h.Stored {
		stored += len(sequences)
	}
	for _, sequences := range h.Dead {
		dead += len(sequences)
	}
	t.Logf("%d messages stored, %d batches delivered, %d acknowledgments confirmed, %d dead letters; done %.1f s after the last fault",
		stored, len(h.Deliveries), len(h.Settled), dead, healing.Seconds())
	var answers []string
	for what, n := range h.Answers {
		answers = append(answers, fmt.Sprintf("%7d %s", n, what))
	}
	slices.Sort(answers)
	for _, line := range answers {
		t.Log(line)
	}
	require.NotEmpty(t, h.Settled)
	require.Positive(t, h.Answers["push queued"])
}
