package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

const (
	backedUpLanes    = 4
	backedUpMessages = 400 // of each lane
)

// A backedUpLane is what its one producer and the one worker of each group know of a partition.
type backedUpLane struct {
	name                  string
	pushed, billed, moved atomic.Int64 // answered: numbers of messages from the beginning
	before                struct{ pushed, billed, moved int64 }
}

// produce pushes the rest of the messages, in order.
func (l *backedUpLane) produce(ctx context.Context, client *wire.Client) error {
	for n := l.pushed.Load(); n < backedUpMessages; n = l.pushed.Load() {
		verdicts, err := client.Push(ctx, []wire.PushItem{{Queue: "orders", Partition: l.name, TransactionID: fmt.Sprint(n), Payload: json.RawMessage(fmt.Sprint(n))}})
		if err != nil {
			return err
		}
		if s := verdicts[0].Status; s != "queued" && s != "duplicate" {
			return fmt.Errorf("%s/%d is %s", l.name, n, s)
		}
		l.pushed.Add(1)
	}
	return nil
}

// consume works as a group until ctx ends or everything is done: bill acknowledges, move acknowledges and pushes in one transaction.
func (l *backedUpLane) consume(ctx context.Context, client *wire.Client, group string, done *atomic.Int64) error {
	for ctx.Err() == nil && done.Load() < backedUpMessages {
		batch, err := client.Pop(ctx, wire.PopRequest{Queue: "orders", Partition: l.name, Group: group, Batch: 7, LeaseSeconds: 2, Mode: "all", Wait: true, Timeout: time.Second})
		if err != nil {
			return err
		}
		if batch == nil {
			continue
		}
		var operations []wire.Operation
		var acks []wire.AckItem
		for i, m := range batch.Messages {
			if m.TransactionID != fmt.Sprint(done.Load()+int64(i)) {
				return fmt.Errorf("%s got %s/%s after %d messages", group, l.name, m.TransactionID, done.Load()+int64(i))
			}
			acks = append(acks, wire.AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID})
			operations = append(operations,
				wire.Operation{Type: "ack", TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, ConsumerGroup: group, Status: "completed"},
				wire.Operation{Type: "push", Items: []wire.PushItem{{Queue: "moved", Partition: l.name, TransactionID: m.TransactionID, Payload: m.Data}}})
		}
		if group == "move" {
			answer, err := client.Transaction(ctx, operations)
			if err != nil || !answer.Success {
				return fmt.Errorf("move: %+v, %w", answer, err)
			}
		} else if results, err := client.Ack(ctx, group, acks); err != nil || !results[len(results)-1].Success {
			return fmt.Errorf("acknowledge: %+v, %w", results, err)
		}
		done.Add(int64(len(batch.Messages)))
	}
	return nil
}

// A backup that is taken while producers, consumers and transactions are at work is of one moment after it began: what was answered before is
// in it, every partition is a whole beginning of what was pushed, every cursor is one that its group had, and a transaction is there wholly or
// not. On another server everybody goes on: producers repeat what they are not sure of, groups continue where they were, nothing is lost and
// nothing stored twice.
func TestBackupUnderLoadIsOfOneMoment(t *testing.T) {
	t.Parallel()
	s := stack.Start(t)
	lanes := make([]*backedUpLane, backedUpLanes)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var working sync.WaitGroup
	run := func(work func() error) {
		working.Go(func() {
			if err := work(); err != nil && ctx.Err() == nil {
				assert.NoError(t, err)
			}
		})
	}
	for i := range lanes {
		l := &backedUpLane{name: fmt.Sprint("lane-", i)}
		lanes[i] = l
		run(func() error { return l.produce(ctx, s.Client) })
		run(func() error { return l.consume(ctx, s.Client, "bill", &l.billed) })
		run(func() error { return l.consume(ctx, s.Client, "move", &l.moved) })
	}
	require.Eventually(t, func() bool {
		for _, l := range lanes {
			if l.moved.Load() < backedUpMessages/10 || l.billed.Load() < backedUpMessages/10 {
				return false
			}
		}
		return true
	}, time.Minute, time.Millisecond)
	for _, l := range lanes {
		l.before.pushed, l.before.billed, l.before.moved = l.pushed.Load(), l.billed.Load(), l.moved.Load()
	}
	dump := filepath.Join(t.TempDir(), "queen.dump")
	script(t, []string{"DATABASE_URL=" + s.DB.Config().ConnString(), "PG_DUMP=" + program(t, "pg_dump")}, "../../deploy/backup.sh", dump)
	after := make([]int64, len(lanes))
	for i, l := range lanes {
		after[i] = l.pushed.Load() + 1 // one may be stored whose answer is under way
	}
	stop() // the old database is lost
	working.Wait()

	server := testdb.StartServer(t, testdb.ServerOptions{Settings: map[string]string{"fsync": "off"}})
	script(t, []string{"DATABASE_URL=" + server.ConnString("postgres"), "PG_RESTORE=" + program(t, "pg_restore")}, "../../deploy/restore.sh", dump)
	conn, err := pgx.Connect(t.Context(), server.ConnString("postgres"))
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	number := func(query string, arguments ...any) (n int64) {
		require.NoError(t, conn.QueryRow(t.Context(), query, arguments...).Scan(&n))
		return n
	}
	const stored = `SELECT COALESCE(max(p.last_offset) + 1, 0) FROM queen.log_partitions p JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = $1 AND p.name = $2`
	const cursor = `SELECT COALESCE(max(c.committed) + 1, 0) FROM queen.log_consumers c JOIN queen.log_partitions p ON p.id = c.partition_id
		JOIN queen.queues q ON q.id = p.queue_id WHERE q.name = 'orders' AND p.name = $1 AND c.consumer_group = $2`
	for i, l := range lanes {
		pushed, billed, moved := number(stored, "orders", l.name), number(cursor, l.name, "bill"), number(cursor, l.name, "move")
		t.Logf("%s: %d messages (%d when the backup began, %d when it ended), %d billed, %d moved", l.name, pushed, l.before.pushed, after[i], billed, moved)
		require.GreaterOrEqual(t, pushed, l.before.pushed, "what was answered before the backup is in it")
		require.LessOrEqual(t, pushed, after[i])
		require.GreaterOrEqual(t, billed, l.before.billed, "what was acknowledged before the backup does not come again")
		require.GreaterOrEqual(t, moved, l.before.moved)
		require.LessOrEqual(t, max(billed, moved), pushed)
		require.Equal(t, moved, number(stored, "moved", l.name), "transactions are there wholly or not")
		// Everybody goes on from what they know: the producer from the last answer, a group from wherever the database says.
		l.pushed.Store(l.before.pushed)
		l.billed.Store(billed)
		l.moved.Store(moved)
	}
	t.Logf("%d leases were under way", number(`SELECT count(*) FROM queen.log_consumers WHERE worker_id IS NOT NULL`))

	client := wire.NewClient(stack.Serve(t, server.ConnString("postgres")), 64)
	defer client.Close()
	ctx, stop = context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	for _, l := range lanes {
		run(func() error { return l.produce(ctx, client) })
		run(func() error { return l.consume(ctx, client, "bill", &l.billed) })
		run(func() error { return l.consume(ctx, client, "move", &l.moved) })
	}
	working.Wait()
	require.NoError(t, ctx.Err(), "everything was done in time")
	for _, queue := range []string{"orders", "moved"} {
		next := map[string]int64{}
		for {
			batch, err := client.Pop(ctx, wire.PopRequest{Queue: queue, AnyPartition: true, Group: "audit", Batch: 1000, Partitions: 10, AutoAck: true, Mode: "all"})
			require.NoError(t, err)
			if batch == nil {
				break
			}
			for _, m := range batch.Messages {
				n, err := strconv.ParseInt(string(m.Data), 10, 64)
				require.NoError(t, err)
				require.Equal(t, next[m.Partition], n, "%s/%s: each once and in order", queue, m.Partition)
				next[m.Partition]++
			}
		}
		for _, l := range lanes {
			require.EqualValues(t, backedUpMessages, next[l.name], "%s/%s", queue, l.name)
		}
	}
}
