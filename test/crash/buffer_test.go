package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

// answers counts what producers were answered.
type answers struct {
	mu       sync.Mutex
	statuses map[string]int
}

// produce pushes numbered messages to one partition, repeating each until it is answered for, until ctx ends.
func (a *answers) produce(ctx context.Context, client *wire.Client, partition string) (n int) {
	for ; ctx.Err() == nil; n++ {
		item := wire.PushItem{
			Queue: "buffer.test", Partition: partition, TransactionID: fmt.Sprintf("%s/%d", partition, n), Payload: json.RawMessage(fmt.Sprint(n)),
		}
		for {
			verdicts, err := client.Push(context.WithoutCancel(ctx), []wire.PushItem{item})
			if err == nil && verdicts[0].Status != "failed" {
				a.mu.Lock()
				a.statuses[verdicts[0].Status]++
				a.mu.Unlock()
				break
			}
			if ctx.Err() != nil {
				return n // it may or may not be kept
			}
			time.Sleep(5 * time.Millisecond) // the broker is down
		}
	}
	return n
}

// The broker is killed again and again while the database is away, and comes back when the database does: everything that was answered is
// delivered, once, in the order of its producer.
func TestKilledBrokerKeepsWhatItBuffered(t *testing.T) {
	t.Parallel()
	server := testdb.StartServer(t, testdb.ServerOptions{})
	database := testdb.OnServer(server, "postgres")
	broker := stack.StartProcess(t, database.ConnString())
	client := wire.NewClient(broker.URL, 32)
	defer client.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	a := &answers{statuses: map[string]int{}}
	const partitions = 6
	pushed := make([]int, partitions)
	var producers sync.WaitGroup
	for i := range partitions {
		producers.Go(func() { pushed[i] = a.produce(ctx, client, fmt.Sprint("p", i)) })
	}
	count := func(status string, n int) {
		t.Helper()
		a.mu.Lock()
		want := a.statuses[status] + n
		a.mu.Unlock()
		require.Eventually(t, func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.statuses[status] >= want
		}, time.Minute, 5*time.Millisecond, status)
	}
	random := rand.New(rand.NewPCG(5, 6))
	count("queued", 50)
	for range 3 {
		server.Stop(t, "immediate")
		count("buffered", 100)
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond) // in the middle of whatever
		broker.Kill()
		server.Start(t)
		broker.Start(t) // drains what it finds, and is killed in the middle of that, too
		time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
		broker.Kill()
		broker.Start(t)
		count("queued", 20)
	}
	stop()
	producers.Wait()

	delivered := map[string][]string{}
	for deadline := time.Now().Add(time.Minute); !allDelivered(delivered, pushed) && time.Now().Before(deadline); {
		batch, err := client.Pop(t.Context(), wire.PopRequest{
			Queue: "buffer.test", AnyPartition: true, Group: "check", Batch: 500, Partitions: partitions, AutoAck: true, Wait: true, Timeout: time.Second,
		})
		require.NoError(t, err)
		if batch == nil {
			continue
		}
		for _, m := range batch.Messages {
			delivered[m.Partition] = append(delivered[m.Partition], string(m.Data))
		}
	}
	for i, n := range pushed {
		got := delivered[fmt.Sprint("p", i)]
		require.GreaterOrEqual(t, len(got), n, "partition %d", i)
		for j, payload := range got {
			require.Equal(t, fmt.Sprint(j), payload, "partition %d", i)
		}
	}
	t.Logf("answers: %v", a.statuses)
}

func allDelivered(delivered map[string][]string, pushed []int) bool {
	for i, n := range pushed {
		if len(delivered[fmt.Sprint("p", i)]) < n {
			return false
		}
	}
	return true
}
