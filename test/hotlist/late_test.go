package hotlist

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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

// A place is one database with the broker under test and another that it does not hear of.
type place struct {
	t           *testing.T
	db          *pgxpool.Pool
	near, other node
}

// A node is one broker.
type node struct {
	*wire.Client
	url string
}

// newPlace starts both brokers. A second after a message is pending at the latest the near one asks the database; it asks about old
// partitions, and a parked pop looks by itself, later than any of these tests wait.
func newPlace(t *testing.T) place {
	t.Helper()
	database := testdb.New(t)
	settings := map[string]string{
		"QUEEN_HOTLIST_RESEED_MS": "1000", "QUEEN_HOTLIST_RESEED_WINDOW_MS": "60000", "QUEEN_HOTLIST_RESEED_FULL_MS": "3600000",
		"QUEEN_CACHE_REFRESH_INTERVAL_MS": "500",
	}
	start := func() node {
		url := stack.Serve(t, database.ConnString(), settings)
		c := wire.NewClient(url, 8)
		t.Cleanup(c.Close)
		return node{c, url}
	}
	return place{t: t, db: database.Pool(t), near: start(), other: start()}
}

func (p place) push(c node, partition string, names ...string) {
	p.t.Helper()
	for _, name := range names { // one segment each
		verdicts, err := c.Push(p.t.Context(), []wire.PushItem{{Queue: "orders", Partition: partition, TransactionID: name, Payload: json.RawMessage(`1`)}})
		require.NoError(p.t, err)
		require.Equal(p.t, "queued", verdicts[0].Status)
	}
}

// longest is how long pops wait: as long as a slow machine may need, and not so long that a parked pop looks by itself.
const longest = 25 * time.Second

// pop waits and returns the transaction ids.
func (p place) pop(c node, lease int) (names []string, batch *wire.Batch) {
	p.t.Helper()
	batch, err := c.Pop(p.t.Context(), wire.PopRequest{
		Queue: "orders", AnyPartition: true, Group: "g", Batch: 100, Wait: true, Timeout: longest, LeaseSeconds: lease,
	})
	require.NoError(p.t, err)
	if batch != nil {
		for _, m := range batch.Messages {
			names = append(names, m.TransactionID)
		}
	}
	return names, batch
}

func (p place) ack(c node, batch *wire.Batch) {
	p.t.Helper()
	items := make([]wire.AckItem, len(batch.Messages))
	for i, m := range batch.Messages {
		items[i] = wire.AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Status: "completed"}
	}
	results, err := c.Ack(p.t.Context(), "g", items)
	require.NoError(p.t, err)
	for _, r := range results {
		require.True(p.t, r.Success)
	}
}

// settle delivers and completes one message through the near broker, which from then on remembers that nothing is left.
func (p place) settle(partition, name string) {
	p.t.Helper()
	p.push(p.near, partition, name)
	names, batch := p.pop(p.near, 60)
	require.Equal(p.t, []string{name}, names)
	p.ack(p.near, batch)
}

// parked starts a pop and returns once it has had time to park: what it gets comes on the channel.
func (p place) parked(c node) <-chan []string {
	got := make(chan []string, 1)
	go func() {
		batch, err := c.Pop(context.WithoutCancel(p.t.Context()), wire.PopRequest{
			Queue: "orders", AnyPartition: true, Group: "g", Batch: 100, Wait: true, Timeout: longest, LeaseSeconds: 60,
		})
		names := []string{fmt.Sprint(err)}
		if err == nil {
			names = nil
		}
		if batch != nil {
			for _, m := range batch.Messages {
				names = append(names, m.TransactionID)
			}
		}
		got <- names
	}()
	require.Eventually(p.t, func() bool { return p.hasParked(c) }, longest, 5*time.Millisecond)
	return got
}

// hasParked tells whether the broker counts a pop that waits for the queue.
func (p place) hasParked(c node) bool {
	answer, err := http.Get(c.url + "/metrics/prometheus")
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return err == nil && strings.Contains(string(text), `queen_parked_long_polls{queue="orders"} 1`)
}

func TestPushThroughAnotherBrokerIsDelivered(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.settle("eu", "first")
	got := p.parked(p.near)
	p.push(p.other, "eu", "second")
	require.Equal(t, []string{"second"}, <-got)
}

func TestSeekBackwardsIsDelivered(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.settle("eu", "first")
	_, err := p.db.Exec(t.Context(), `UPDATE queen.log_partitions SET last_write_at = now() - interval '1 day'`) // so that no window finds it
	require.NoError(t, err)
	got := p.parked(p.near)
	_, err = p.db.Exec(t.Context(), `SELECT queen.log_seek_partition_v1('g', 'orders', 'eu', FALSE, now() - interval '1 hour')`)
	require.NoError(t, err)
	require.Equal(t, []string{"first"}, <-got)
}

func TestDeletedGroupStartsAnew(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.settle("eu", "first")
	_, err := p.db.Exec(t.Context(), `UPDATE queen.log_partitions SET last_write_at = now() - interval '1 day'`)
	require.NoError(t, err)
	got := p.parked(p.near)
	_, err = p.db.Exec(t.Context(), `SELECT queen.log_delete_consumer_group_for_queue_v1('g', 'orders', TRUE)`)
	require.NoError(t, err)
	require.Equal(t, []string{"first"}, <-got)
}

func TestExpiredLeaseIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.push(p.near, "eu", "first")
	names, _ := p.pop(p.near, 1)
	require.Equal(t, []string{"first"}, names) // and its consumer dies
	names, _ = p.pop(p.near, 60)
	require.Equal(t, []string{"first"}, names)

	// The same when the dead consumer was another broker's.
	p.push(p.near, "us", "second")
	names, _ = p.pop(p.other, 1)
	require.Equal(t, []string{"second"}, names)
	names, _ = p.pop(p.near, 60)
	require.Equal(t, []string{"second"}, names)
}

// TestAutoAckPopAfterAnExpiredLeaseLeavesTheRestToAll: what a pop that acknowledges at once leaves in a partition is nobody's, also when the list
// was waiting for the end of a lease there.
func TestAutoAckPopAfterAnExpiredLeaseLeavesTheRestToAll(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.settle("eu", "first")
	p.push(p.near, "eu", "second", "third", "fourth")
	names, batch := p.pop(p.near, 60)
	require.Equal(t, []string{"second", "third", "fourth"}, names)
	_, err := p.db.Exec(t.Context(), `UPDATE queen.log_consumers SET lease_expires_at = clock_timestamp() - interval '1 second' WHERE worker_id = $1`, batch.LeaseID)
	require.NoError(t, err)
	batch, err = p.near.Pop(t.Context(), wire.PopRequest{Queue: "orders", Partition: "eu", Group: "g", Batch: 1, AutoAck: true})
	require.NoError(t, err)
	require.Len(t, batch.Messages, 1)
	batch, err = p.near.Pop(t.Context(), wire.PopRequest{Queue: "orders", AnyPartition: true, Group: "g", Batch: 100}) // does not wait
	require.NoError(t, err)
	require.NotNil(t, batch, "the rest is kept back for a lease that is over")
	require.Len(t, batch.Messages, 2)
}

func TestLeaseEndedThroughAnotherBrokerIsNoticed(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.push(p.near, "eu", "first")
	_, batch := p.pop(p.near, 60)
	p.push(p.near, "eu", "second") // behind the lease
	p.ack(p.other, batch)
	names, _ := p.pop(p.near, 60)
	require.Equal(t, []string{"second"}, names)
}

func TestTailBehindARemovedHeadIsDelivered(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.settle("eu", "first")
	p.push(p.other, "eu", "second", "third")
	_, err := p.db.Exec(t.Context(), `DELETE FROM queen.log_segments WHERE base_offset < 2`)
	require.NoError(t, err)
	_, err = p.db.Exec(t.Context(), `UPDATE queen.log_partitions SET log_start = 2`)
	require.NoError(t, err)
	names, _ := p.pop(p.near, 60)
	require.Equal(t, []string{"third"}, names)
}

func TestRecreatedPartitionIsDelivered(t *testing.T) {
	t.Parallel()
	for name, pusher := range map[string]func(place) node{
		"same broker":    func(p place) node { return p.near },
		"another broker": func(p place) node { return p.other },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.settle("eu", "first")
			_, err := p.db.Exec(t.Context(), `DELETE FROM queen.log_partitions`) // as the clean-up of empty partitions does
			require.NoError(t, err)
			_, err = p.db.Exec(t.Context(), `DELETE FROM queen.log_txns`)
			require.NoError(t, err)
			got := p.parked(p.near)
			p.push(pusher(p), "eu", "second")
			require.Equal(t, []string{"second"}, <-got)
		})
	}
}

func TestDeletedQueueStartsAnew(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.settle("eu", "first")
	_, err := p.db.Exec(t.Context(), `SELECT queen.delete_queue_v1('orders')`) // through another broker
	require.NoError(t, err)
	got := p.parked(p.near)
	p.push(p.other, "eu", "second")
	require.Equal(t, []string{"second"}, <-got)
}

func TestDelayedMessagesComeWhenTheyAreVisible(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.NoError(t, p.near.Configure(t.Context(), "orders", map[string]any{"delayedProcessing": 2}))
	got := p.parked(p.near)
	began := time.Now()
	p.push(p.near, "eu", "first")
	require.Equal(t, []string{"first"}, <-got)
	require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
}

func TestWindowDeliversTogether(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	require.NoError(t, p.near.Configure(t.Context(), "orders", map[string]any{"windowBuffer": 2}))
	got := p.parked(p.near)
	began := time.Now()
	p.push(p.near, "eu", "first", "second", "third")
	require.Equal(t, []string{"first", "second", "third"}, <-got)
	require.GreaterOrEqual(t, time.Since(began), 2*time.Second)
}
