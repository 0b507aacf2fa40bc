package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/test/stack"
	"queenmq/test/wire"
)

// soon is how long anything here may take on a loaded machine.
const soon = time.Minute

// A keeper is a broker in a process of its own, whose server comes and goes, and what it was given.
type keeper struct {
	t      *testing.T
	server *testdb.Server
	broker *stack.Process
	client *wire.Client
	// pushed are the message ids that were answered, by partition and number.
	pushed map[string][]string
}

func newKeeper(t *testing.T, options stack.ProcessOptions) *keeper {
	t.Helper()
	server := testdb.StartServer(t, testdb.ServerOptions{})
	k := &keeper{t: t, server: server, pushed: map[string][]string{}}
	k.broker = stack.NewProcess(t, testdb.OnServer(server, "postgres").ConnString(), options)
	k.broker.Start(t)
	k.client = wire.NewClient(k.broker.URL, 16)
	t.Cleanup(k.client.Close)
	return k
}

// items are the next n messages of a partition.
func (k *keeper) items(partition string, n int) []wire.PushItem {
	items := make([]wire.PushItem, n)
	for i := range items {
		number := len(k.pushed[partition]) + i
		items[i] = wire.PushItem{
			Queue: "kept", Partition: partition, TransactionID: fmt.Sprint(partition, "/", number), Payload: json.RawMessage(strconv.Itoa(number)),
		}
	}
	return items
}

// push sends the next n messages of a partition, which must be answered with the status.
func (k *keeper) push(partition string, n int, status string) {
	k.t.Helper()
	verdicts, err := k.client.Push(k.t.Context(), k.items(partition, n))
	require.NoError(k.t, err)
	for _, v := range verdicts {
		require.Equal(k.t, status, v.Status, v.Error)
		k.pushed[partition] = append(k.pushed[partition], v.MessageID)
	}
}

// switches turns push maintenance on or off.
func (k *keeper) switches(on bool) {
	k.t.Helper()
	_, err := k.client.Do(k.t.Context(), http.MethodPost, "/api/v1/system/maintenance", fmt.Appendf(nil, `{"enabled":%t}`, on), nil)
	require.NoError(k.t, err)
}

// looks returns the switch and how many messages wait.
func (k *keeper) looks() (on bool, waiting int) {
	k.t.Helper()
	var state struct {
		MaintenanceMode  bool
		BufferedMessages int
	}
	_, err := k.client.Do(k.t.Context(), http.MethodGet, "/api/v1/system/maintenance", nil, &state)
	require.NoError(k.t, err)
	return state.MaintenanceMode, state.BufferedMessages
}

func (k *keeper) waiting() int {
	_, waiting := k.looks()
	return waiting
}

// storedSwitch is what the database says about push maintenance.
func (k *keeper) storedSwitch() bool {
	conn, err := pgx.Connect(k.t.Context(), k.server.ConnString("postgres"))
	if err != nil {
		return false
	}
	defer conn.Close(context.WithoutCancel(k.t.Context()))
	var on bool
	_ = conn.QueryRow(k.t.Context(), `SELECT value ->> 'enabled' = 'true' FROM queen.system_state WHERE key = 'maintenance_mode'`).Scan(&on)
	return on
}

// again kills the broker and starts it.
func (k *keeper) again() {
	k.broker.Kill()
	k.broker.Start(k.t)
}

// requireStored waits until nothing waits and holds what is stored against what was answered: everything, once, in order, under the ids that
// were answered.
func (k *keeper) requireStored() {
	k.t.Helper()
	require.EventuallyWithT(k.t, func(c *assert.CollectT) { assert.Zero(c, k.waiting()) }, soon, 20*time.Millisecond)
	got := map[string][]string{}
	for {
		batch, err := k.client.Pop(k.t.Context(), wire.PopRequest{
			Queue: "kept", AnyPartition: true, Group: fmt.Sprint("audit-", k.total()), Batch: 10_000, Partitions: 20, AutoAck: true, Mode: "all",
		})
		require.NoError(k.t, err)
		if batch == nil {
			break
		}
		for _, m := range batch.Messages {
			require.Equal(k.t, strconv.Itoa(len(got[m.Partition])), string(m.Data), "partition %s", m.Partition)
			got[m.Partition] = append(got[m.Partition], m.ID)
		}
	}
	require.Equal(k.t, k.pushed, got)
}

func (k *keeper) total() (n int) {
	for _, ids := range k.pushed {
		n += len(ids)
	}
	return n
}

// What an operator keeps out of the database stays out, whatever comes and goes meanwhile, until the switch is turned back.
func TestSwitchOutlivesOutagesAndRestarts(t *testing.T) {
	t.Parallel()
	k := newKeeper(t, stack.ProcessOptions{})
	k.push("p", 3, "queued")
	k.switches(true)
	k.push("p", 4, "buffered")
	k.server.Stop(t, "immediate")
	k.push("p", 5, "buffered")
	k.broker.Kill()
	k.broker.Launch(t) // waits for its database
	require.Eventually(t, func() bool {
		_, err := k.client.Push(t.Context(), k.items("p", 1))
		status, answered := err.(*wire.StatusError) //nolint:errorlint // the client returns it bare
		return answered && status.Status == http.StatusServiceUnavailable
	}, soon, 20*time.Millisecond, "nothing is taken before the switches are known")
	k.server.Start(t)
	require.Eventually(t, k.broker.IsReady, soon, 20*time.Millisecond)
	for range 3 {
		on, waiting := k.looks()
		require.True(t, on)
		require.Equal(t, k.total()-3, waiting, "nothing is stored")
		k.push("p", 2, "buffered")
		k.again()
	}
	k.switches(false)
	k.requireStored()
	k.push("p", 1, "queued")
	k.requireStored()
}

// A switch that is turned while the database is away counts at once for the broker that was asked, and for all when the database is back, also
// when that broker is killed before.
func TestSwitchTurnedWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	k := newKeeper(t, stack.ProcessOptions{})
	k.push("p", 1, "queued")
	k.server.Stop(t, "immediate")
	k.switches(true)
	k.push("p", 2, "buffered")
	k.server.Start(t)
	require.Eventually(t, k.storedSwitch, soon, 20*time.Millisecond, "the database was not told")
	on, waiting := k.looks()
	require.True(t, on)
	require.Equal(t, 2, waiting)
	k.push("p", 2, "buffered")

	k.server.Stop(t, "immediate")
	k.switches(false)
	k.push("p", 2, "buffered") // there is no database
	k.server.Start(t)
	require.Eventually(t, func() bool { return !k.storedSwitch() }, soon, 20*time.Millisecond)
	k.requireStored()

	k.server.Stop(t, "immediate")
	k.switches(true)
	k.push("p", 2, "buffered")
	k.broker.Kill()
	k.server.Start(t)
	k.broker.Start(t)
	on, waiting = k.looks()
	require.True(t, on)
	require.Equal(t, 2, waiting, "nothing is stored")
	require.True(t, k.storedSwitch())
	k.push("p", 2, "buffered")

	k.switches(false)
	k.again() // what was noted then is not brought up again
	on, _ = k.looks()
	require.False(t, on)
	k.requireStored()
}

// A broker that is killed again and again, while it keeps what comes and while it stores what it kept, neither loses nor repeats nor reorders
// anything, and a client that repeats its pushes meanwhile is answered the ids of the first time.
func TestBrokerKilledWhileItStoresWhatItKept(t *testing.T) {
	t.Parallel()
	k := newKeeper(t, stack.ProcessOptions{Env: []string{"FILE_BUFFER_EVENTS_PER_FILE=3000", "DB_POOL_SIZE=10"}})
	const partitions, size = 4, 2500
	k.push("p0", 1, "queued")
	k.server.Stop(t, "immediate")
	for range 4 {
		for p := range partitions {
			k.push(fmt.Sprint("p", p), size, "buffered")
		}
	}
	kept := k.waiting()
	require.Equal(t, k.total()-1, kept)
	k.broker.Kill()
	k.server.Start(t)
	for round, seen := 0, kept; round < 6; round++ {
		k.broker.Start(t)
		// The first kills come as soon as something is stored, later ones may find everything done.
		require.Eventually(t, func() bool { return k.waiting() < seen || seen == 0 }, soon, time.Millisecond)
		seen = k.waiting()
		if round == 2 {
			for p := range partitions {
				partition := fmt.Sprint("p", p)
				k.repeat(partition, size)
				k.pushMore(partition, 7)
			}
			seen = k.waiting()
		}
		k.broker.Kill()
	}
	k.broker.Start(t)
	k.requireStored()
}

// repeat pushes the last n messages of a partition once more. Whatever became of them, they are who they were.
func (k *keeper) repeat(partition string, n int) {
	k.t.Helper()
	ids := k.pushed[partition]
	k.pushed[partition] = ids[:len(ids)-n]
	items := k.items(partition, n)
	k.pushed[partition] = ids
	verdicts, err := k.client.Push(k.t.Context(), items)
	require.NoError(k.t, err)
	for i, v := range verdicts {
		require.Contains(k.t, []string{"buffered", "duplicate"}, v.Status, v.Error)
		require.Equal(k.t, ids[len(ids)-n+i], v.MessageID, "%s/%d %s", partition, i, v.Status)
	}
}

// pushMore pushes to a partition that may or may not be stored by now.
func (k *keeper) pushMore(partition string, n int) {
	k.t.Helper()
	verdicts, err := k.client.Push(k.t.Context(), k.items(partition, n))
	require.NoError(k.t, err)
	for _, v := range verdicts {
		require.Contains(k.t, []string{"buffered", "queued"}, v.Status, v.Error)
		k.pushed[partition] = append(k.pushed[partition], v.MessageID)
	}
}

// A full disk under the file buffer fails the messages it has no room for, each with the reason, keeps nothing of them, and is over when there
// is room again; what was kept before is stored also by a broker that starts while the disk is full.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	t.Run("file system", func(t *testing.T) {
		t.Parallel()
		disk := stack.NewSmallDisk(t, 256<<10)
		if disk == nil {
			t.Log("no file systems can be made here; the limit on the size of files stands for the full disk")
			return
		}
		fullDisk(t, stack.ProcessOptions{Around: disk.Around, Env: []string{"FILE_BUFFER_DIR=" + disk.Dir}}, func(_ *keeper, full bool) {
			if full {
				require.NoError(t, disk.Fill())
			} else {
				require.NoError(t, disk.Empty())
			}
		})
	})
	// The kernel refuses what goes beyond the limit, as it does on a full disk: part of a write succeeds.
	t.Run("limit on the size of files", func(t *testing.T) {
		t.Parallel()
		fullDisk(t, stack.ProcessOptions{}, func(k *keeper, full bool) {
			limit := "unlimited:"
			if full {
				limit = "30000:" // that of the moment; it may be raised again
			}
			out, err := exec.Command("prlimit", "--pid", strconv.Itoa(k.broker.PID()), "--fsize="+limit).CombinedOutput()
			require.NoError(t, err, string(out))
		})
	})
}

func fullDisk(t *testing.T, options stack.ProcessOptions, set func(k *keeper, full bool)) {
	t.Helper()
	k := newKeeper(t, options)
	k.push("p", 1, "queued")
	k.server.Stop(t, "immediate")
	k.push("p", 2, "buffered")
	set(k, true)
	var refused *wire.StatusError
	for tries := 0; refused == nil; tries++ {
		require.Less(t, tries, 1000, "the disk is not full")
		verdicts, err := k.client.Push(t.Context(), k.items("p", 10))
		if err != nil {
			require.ErrorAs(t, err, &refused)
			break
		}
		for _, v := range verdicts {
			require.Equal(t, "buffered", v.Status, v.Error)
			k.pushed["p"] = append(k.pushed["p"], v.MessageID)
		}
	}
	require.Equal(t, http.StatusServiceUnavailable, refused.Status)
	require.Contains(t, refused.Body, `"code":"buffer_unwritable"`)
	// Item by item: what waits already is there, what is new is not.
	last := len(k.pushed["p"]) - 1
	items := k.items("p", 300)
	items[0] = wire.PushItem{Queue: "kept", Partition: "p", TransactionID: fmt.Sprint("p/", last), Payload: json.RawMessage(strconv.Itoa(last))}
	verdicts, err := k.client.Push(t.Context(), items)
	require.NoError(t, err)
	require.Equal(t, "buffered", verdicts[0].Status)
	require.Equal(t, k.pushed["p"][last], verdicts[0].MessageID)
	for _, v := range verdicts[1:] {
		require.Equal(t, "failed", v.Status)
		require.Equal(t, "buffer_unwritable", v.Code)
		require.NotEmpty(t, v.Error)
	}
	require.Equal(t, k.total()-1, k.waiting(), "nothing half-written counts")

	set(k, false)
	k.push("p", 20, "buffered")
	k.push("other", 3, "buffered")
	if options.Around != nil { // the disk is full for the next broker, too
		set(k, true)
	}
	k.broker.Kill()
	k.server.Start(t)
	k.broker.Start(t)
	k.requireStored()
	if options.Around != nil {
		set(k, false)
	}
	k.push("p", 1, "queued")
	k.requireStored()
}
