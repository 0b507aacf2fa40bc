package delivery

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/engine/ack"
	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/transaction"
	"queenmq/internal/pg"
)

// Whether an ack is recognised as a whole delivered batch, and whether it shares its commit, decides what it costs and nothing else.
// Random scripts run against engines with and without; every answer, every cursor row and every dead letter must be the same.
func TestRecognisedAcksActLikeResolvedOnes(t *testing.T) {
	t.Parallel()
	backoff := pop.Config{Backoff: pop.Backoff{Initial: time.Hour}}
	settings := map[string]ack.Config{
		"resolved only":           {RegistryBytes: -1},
		"recognised, own commits": {Shards: -1, RegistryBytes: 1200}, // room for three batches or so
		"recognised, with fusion": {},
	}
	engines := make(map[string]*engine)
	for name, cfg := range settings {
		e := setupAcks(t, backoff, cfg)
		e.configure(`{"retryLimit":1,"dedupWindowSeconds":0}`)
		engines[name] = e
	}
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		s := &script{engines: engines, run: run}
		rt.Repeat(map[string]func(*rapid.T){
			"push": s.push, "pop": s.pop, "ack": s.ack, "ackAll": s.ackAll, "ackTwo": s.ackTwo, "transact": s.transact, "expire": s.expire,
			"": s.compare,
		})
	})
	stats := engines["recognised, with fusion"].acks.Stats()
	require.Positive(t, stats.Hits, "the scripts met the path that they are about")
	require.Positive(t, stats.Misses)
	require.Zero(t, engines["resolved only"].acks.Stats().Hits)
}

// A script runs the same steps on several engines. Ids and leases differ between them; everything else is compared.
type script struct {
	engines map[string]*engine
	run     int
	next    int
	// popped are the batches of every pop, one delivery for each engine.
	popped []popped
}

type popped struct {
	partition, group string
	messages         []string
	of               map[string]*delivered
}

func (s *script) partition(rt *rapid.T) string {
	return fmt.Sprintf("run-%d-%s", s.run, rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "partition"))
}

func (s *script) push(rt *rapid.T) {
	partition := s.partition(rt)
	var names []string
	for range rapid.IntRange(1, 4).Draw(rt, "messages") {
		s.next++
		name := fmt.Sprintf("m-%d-%d", s.run, s.next)
		if s.next > 1 && rapid.IntRange(0, 5).Draw(rt, "repeat") == 0 {
			name = fmt.Sprintf("m-%d-%d", s.run, rapid.IntRange(1, s.next-1).Draw(rt, "repeated"))
		}
		names = append(names, name)
	}
	for _, e := range s.engines {
		e.push(partition, names...)
	}
}

func (s *script) pop(rt *rapid.T) {
	req := queuePop()
	req.Kind, req.Partition = pop.Partition, s.partition(rt)
	req.Group = rapid.SampledFrom([]string{"billing", "mail"}).Draw(rt, "group")
	req.Batch = rapid.IntRange(1, 5).Draw(rt, "batch")
	p := popped{partition: req.Partition, group: req.Group, of: make(map[string]*delivered)}
	first := true
	for name, e := range s.engines {
		d := e.pop(req)
		if first {
			p.messages, first = d.names(), false
		}
		equal(rt, p.messages, d.names(), "delivery of the engine with "+name)
		p.of[name] = d
	}
	if len(p.messages) > 0 {
		s.popped = append(s.popped, p)
	}
}

// pick draws a delivery, the latest ones more often; they may be over.
func (s *script) pick(rt *rapid.T) popped {
	if len(s.popped) == 0 {
		rt.Skip("nothing was delivered")
	}
	if back := rapid.IntRange(0, 3).Draw(rt, "back"); back < len(s.popped) && back < 3 {
		return s.popped[len(s.popped)-1-back]
	}
	return rapid.SampledFrom(s.popped).Draw(rt, "delivery")
}

// both acknowledges on every engine; items makes the items for the engine with this name.
func (s *script) both(rt *rapid.T, group string, items func(name string) []ack.Item) {
	var want []ack.Result
	first := true
	for name, e := range s.engines {
		got := e.acks.Ack(e.t.Context(), pg.DefaultTenant, group, items(name))
		if first {
			want, first = got, false
		}
		equal(rt, want, got, "answer of the engine with "+name)
	}
}

func (s *script) ack(rt *rapid.T) {
	p := s.pick(rt)
	var chosen []int
	var statuses []string
	for range rapid.IntRange(1, len(p.messages)+1).Draw(rt, "items") {
		chosen = append(chosen, rapid.IntRange(0, len(p.messages)-1).Draw(rt, "message"))
		statuses = append(statuses, rapid.SampledFrom([]string{"completed", "completed", "completed", "ok", "failed", "retry", "dlq"}).Draw(rt, "status"))
	}
	lease := rapid.SampledFrom([]string{"own", "own", "own", "none", "foreign"}).Draw(rt, "lease")
	s.both(rt, p.group, func(name string) []ack.Item {
		var items []ack.Item
		for k, i := range chosen {
			items = append(items, withLease(p.of[name].item(i, statuses[k]), lease))
		}
		return items
	})
}

func withLease(item ack.Item, lease string) ack.Item {
	switch lease {
	case "none":
		item.LeaseID = ""
	case "foreign":
		item.LeaseID = "somebody-else"
	}
	return item
}

// ackAll completes everything that was delivered, perhaps in another order.
func (s *script) ackAll(rt *rapid.T) {
	p := s.pick(rt)
	backwards := rapid.Bool().Draw(rt, "backwards")
	lease := rapid.SampledFrom([]string{"own", "own", "own", "own", "none", "foreign"}).Draw(rt, "lease")
	s.both(rt, p.group, func(name string) []ack.Item {
		items := p.of[name].all("completed")
		for i := range items {
			items[i] = withLease(items[i], lease)
		}
		if backwards {
			slices.Reverse(items)
		}
		return items
	})
}

// ackTwo completes the deliveries of two partitions in one request.
func (s *script) ackTwo(rt *rapid.T) {
	p := s.pick(rt)
	q := p
	for _, other := range s.popped {
		if other.group == p.group && other.partition != p.partition {
			q = other
		}
	}
	if q.partition == p.partition {
		rt.Skip("no second partition")
	}
	s.both(rt, p.group, func(name string) []ack.Item {
		return append(p.of[name].all("completed"), q.of[name].all("completed")...)
	})
}

// transact completes a part of a delivery in a transaction.
func (s *script) transact(rt *rapid.T) {
	p := s.pick(rt)
	at := rapid.IntRange(0, len(p.messages)-1).Draw(rt, "message")
	var want string
	first := true
	for name, e := range s.engines {
		outcome, err := e.txns.Run(e.t.Context(), pg.DefaultTenant, "", []transaction.Operation{
			{Ack: &transaction.AckOperation{Item: p.of[name].item(at, "completed"), Group: p.group}},
		}, nil)
		got := fmt.Sprintf("%+v committed: %t", outcome.Results, err == nil)
		if first {
			want, first = got, false
		}
		equal(rt, want, got, "transaction of the engine with "+name)
	}
}

func (s *script) expire(*rapid.T) {
	for _, e := range s.engines {
		e.expire()
	}
}

// compare holds the cursor rows and dead letters of the run side by side.
func (s *script) compare(rt *rapid.T) {
	const rows = `SELECT COALESCE(array_agg(format('%s %s: committed %s, batch_end %s, retries %s, attempts %s from %s, leased %s, consumed %s, dead %s',
			p.name, c.consumer_group, c.committed, c.batch_end, c.batch_retry_count, c.attempt_count, c.attempt_offset,
			c.worker_id IS NOT NULL, c.total_consumed,
			(SELECT string_agg(format('%s %s', d.transaction_id, d.error), ',' ORDER BY d."offset", d.failed_at) FROM queen.log_dlq d
			  WHERE d.partition_id = p.id AND d.consumer_group = c.consumer_group))
			ORDER BY p.name, c.consumer_group), '{}')
		FROM queen.log_consumers c JOIN queen.log_partitions p ON p.id = c.partition_id WHERE p.name LIKE $1`
	var want []string
	first := true
	for name, e := range s.engines {
		got := value[[]string](e, rows, fmt.Sprintf("run-%d-%%", s.run))
		if first {
			want, first = got, false
		}
		equal(rt, want, got, "cursors of the engine with "+name)
	}
}

func equal[T any](rt *rapid.T, want, got T, what string) {
	rt.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		rt.Fatalf("%s differs:\n%s", what, diff)
	}
}
