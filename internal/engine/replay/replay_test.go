package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
	"queenmq/internal/testdb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wakes counts what was woken.
type wakes struct {
	mu    sync.Mutex
	names []string
}

func (w *wakes) Wake(_ uuid.UUID, queue, partition string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names = append(w.names, queue+"/"+partition)
}

// A bench is a database with dead letters in it.
type bench struct {
	t     *testing.T
	db    *pg.DB
	conn  *pgx.Conn
	slots *admission.Controller
	wakes wakes
	dead  int
}

func newBench(t *testing.T) *bench {
	t.Helper()
	database := testdb.New(t)
	db, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 8})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	conn, err := pgx.Connect(t.Context(), database.ConnString())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &bench{t: t, db: db, conn: conn, slots: admission.New(admission.Config{PoolSize: 8, Reserve: 2})}
}

func (b *bench) runner(holder string, db TaskStore) *Runner {
	return NewRunner(holder, nil, db, &b.wakes, b.slots, nil, Keys{})
}

// file stores n messages in a partition and dead-letters all of them for a group, without a consumer: the row is what counts.
func (b *bench) file(queue, partition, group string, n int) {
	b.t.Helper()
	var frames []segment.Frame
	for i := range n {
		frames = append(frames, segment.Frame{ID: segment.NewID(), TransactionID: fmt.Sprintf("%s-%d", partition, i), Payload: fmt.Appendf(nil, `{ "p":%q,"n":%d }`, partition, i)})
	}
	blob, hashes, err := segment.Pack(frames)
	require.NoError(b.t, err)
	verdicts, err := b.db.PushMulti(b.t.Context(), []pg.Segment{{Tenant: pg.DefaultTenant, Queue: queue, Partition: partition, Count: n, Hashes: hashes, Verified: -1, Blob: blob, Plain: true}}, pg.PushOptions{})
	require.NoError(b.t, err)
	for i, frame := range frames {
		_, err := b.conn.Exec(b.t.Context(), `INSERT INTO queen.log_dlq (partition_id, consumer_group, "offset", message_id, transaction_id, payload, error, retry_count, payload_raw)
VALUES ($1::uuid, $2, $3, $4::uuid, $5, $6::jsonb, 'printer offline', 3, $7::bytea)`,
			verdicts[0].PartitionID.String(), group, verdicts[0].BaseOffset+int64(i), frame.ID.String(), frame.TransactionID, string(frame.Payload), frame.Payload)
		require.NoError(b.t, err)
		b.dead++
	}
}

// stored returns the payloads of a partition after its first n messages.
func (b *bench) stored(queue, partition string, n int) []string {
	b.t.Helper()
	rows, err := b.conn.Query(b.t.Context(), `SELECT s.blob FROM queen.log_segments s JOIN queen.log_partitions p ON p.id = s.partition_id JOIN queen.queues q ON q.id = p.queue_id
WHERE q.name = $1 AND p.name = $2 ORDER BY s.base_offset`, queue, partition)
	require.NoError(b.t, err)
	blobs, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	require.NoError(b.t, err)
	var payloads []string
	for _, blob := range blobs {
		frames, err := segment.Unpack(blob)
		require.NoError(b.t, err)
		for i := range frames.Len() {
			payloads = append(payloads, string(frames.At(i).Payload))
		}
		frames.Release()
	}
	require.GreaterOrEqual(b.t, len(payloads), n)
	return payloads[n:]
}

func (b *bench) left() int64 {
	b.t.Helper()
	n, err := b.db.CountDeadLetters(b.t.Context(), pg.DefaultTenant, pg.DeadLetterFilter{})
	require.NoError(b.t, err)
	return n
}

func (b *bench) start(task pg.NewTask) pg.Task {
	b.t.Helper()
	started, err := b.db.CreateTask(b.t.Context(), pg.DefaultTenant, task)
	require.NoError(b.t, err)
	return started
}

// finish makes steps until the task ends.
func (b *bench) finish(id uuid.UUID, step func() error) pg.Task {
	b.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		task, found, err := b.db.Task(b.t.Context(), pg.DefaultTenant, id)
		require.NoError(b.t, err)
		require.True(b.t, found)
		if !task.FinishedAt.IsZero() {
			return task
		}
		require.True(b.t, time.Now().Before(deadline), "the task does not end: %+v", task)
		_ = step() // what a failed step leaves behind is what the tests look at
	}
}

func expected(partition string, n int) []string {
	var payloads []string
	for i := range n {
		payloads = append(payloads, fmt.Sprintf(`{ "p":%q,"n":%d }`, partition, i))
	}
	return payloads
}

func TestRedriveMovesEverythingOnceAndInOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.file("q", "a", "g", 250)
	b.file("q", "b", "g", 30)
	b.file("other", "a", "g", 5)
	task := b.start(pg.NewTask{Kind: pg.TaskRedrive, Filter: pg.DeadLetterFilter{Queue: "q"}})
	require.EqualValues(t, 280, task.Total)
	runner := b.runner("one", b.db)
	done := b.finish(task.ID, func() error { _, _, err := runner.Step(t.Context()); return err })
	require.Equal(t, []any{"done", int64(280), int64(0)}, []any{done.State, done.Moved, done.Duplicate + done.Skipped})
	require.Equal(t, expected("a", 250), b.stored("q", "a", 250))
	require.Equal(t, expected("b", 30), b.stored("q", "b", 30))
	require.EqualValues(t, 5, b.left(), "the filter chose one queue")
	require.Contains(t, b.wakes.names, "q/a")
	busy, _, err := runner.Step(t.Context())
	require.NoError(t, err)
	require.False(t, busy)
}

// crashing loses the answer of every second step that was committed, as a broker does that dies between the two.
type crashing struct {
	*pg.DB
	steps int
}

var errCrash = errors.New("crashed after the commit")

func (c *crashing) RedriveStep(ctx context.Context, s pg.RedriveStep) (pg.TaskStep, error) {
	c.steps++
	done, err := c.DB.RedriveStep(ctx, s)
	if c.steps%2 == 0 {
		return pg.TaskStep{}, errCrash
	}
	return done, err
}

func TestRedriveGoesOnAfterACrash(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.file("q", "a", "g", 900)
	task := b.start(pg.NewTask{Kind: pg.TaskRedrive})
	store := &crashing{DB: b.db}
	broker := 0
	runner := b.runner("broker 0", store)
	done := b.finish(task.ID, func() error {
		_, _, err := runner.Step(t.Context())
		if errors.Is(err, errCrash) {
			// Another broker takes over once the lease has run out.
			broker++
			runner = b.runner(fmt.Sprint("broker ", broker), store)
			_, err := b.conn.Exec(t.Context(), `UPDATE queen.tasks SET lease_until = clock_timestamp() - interval '1 second'`)
			require.NoError(t, err)
		}
		return err
	})
	require.Positive(t, broker, "nothing crashed")
	require.Equal(t, []any{"done", int64(900)}, []any{done.State, done.Moved})
	require.Equal(t, expected("a", 900), b.stored("q", "a", 900))
	require.Zero(t, b.left())
}

func TestTwoBrokersDoNotShareATask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.file("q", "a", "g", 500)
	task := b.start(pg.NewTask{Kind: pg.TaskRedrive})
	one, two := b.runner("one", b.db), b.runner("two", b.db)
	busy, _, err := one.Step(t.Context())
	require.NoError(t, err)
	require.True(t, busy)
	busy, _, err = two.Step(t.Context())
	require.NoError(t, err)
	require.False(t, busy, "the task is taken")
	b.finish(task.ID, func() error { _, _, err := one.Step(t.Context()); return err })
	require.Equal(t, expected("a", 500), b.stored("q", "a", 500))
}

func TestRedriveElsewhereKeepsTheOrderOfEachSource(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.file("q", "a", "g", 40)
	b.file("q", "b", "g", 40)
	queue, partition := "repair", "all"
	task := b.start(pg.NewTask{Kind: pg.TaskRedrive, Queue: &queue, Partition: &partition})
	runner := b.runner("one", b.db)
	b.finish(task.ID, func() error { _, _, err := runner.Step(t.Context()); return err })
	all := b.stored("repair", "all", 0)
	require.Len(t, all, 80)
	for _, source := range []string{"a", "b"} {
		var of []string
		for _, payload := range all {
			if strings.Contains(payload, `"p":"`+source+`"`) {
				of = append(of, payload)
			}
		}
		require.Equal(t, expected(source, 40), of)
	}
}

func TestPurgeDeletesWhatTheFilterChose(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.file("q", "a", "g", 450)
	b.file("q", "b", "h", 3)
	task := b.start(pg.NewTask{Kind: pg.TaskPurge, Filter: pg.DeadLetterFilter{Group: "g"}})
	runner := b.runner("one", b.db)
	done := b.finish(task.ID, func() error { _, _, err := runner.Step(t.Context()); return err })
	require.Equal(t, []any{"done", int64(450)}, []any{done.State, done.Deleted})
	require.EqualValues(t, 3, b.left())
	require.Empty(t, b.stored("q", "a", 450), "a purge pushes nothing")
}

func TestCancelledTaskStops(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.file("q", "a", "g", 500)
	task := b.start(pg.NewTask{Kind: pg.TaskRedrive})
	runner := b.runner("one", b.db)
	_, _, err := runner.Step(t.Context())
	require.NoError(t, err)
	_, _, err = b.db.CancelTask(t.Context(), pg.DefaultTenant, task.ID)
	require.NoError(t, err)
	busy, _, err := runner.Step(t.Context())
	require.NoError(t, err)
	require.False(t, busy)
	require.EqualValues(t, 500-batchRows, b.left(), "what it has done stays done")
}

func TestRateIsAskedForAsAPause(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.file("q", "a", "g", 20)
	b.start(pg.NewTask{Kind: pg.TaskRedrive, Rate: 5})
	busy, pause, err := b.runner("one", b.db).Step(t.Context())
	require.NoError(t, err)
	require.True(t, busy)
	require.Equal(t, time.Second, pause, "five messages at five a second")
	require.EqualValues(t, 15, b.left())
	// The pause is in the database, too: no broker goes on before.
	busy, _, err = b.runner("one", b.db).Step(t.Context())
	require.NoError(t, err)
	require.False(t, busy)
}

func TestReplayOfOneLetterHappensOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.file("q", "a", "g", 1)
	b.file("q", "b", "g", 1)
	page, err := b.db.ListDeadLetters(t.Context(), pg.DefaultTenant, pg.DeadLetterFilter{Partition: "a", Limit: 1})
	require.NoError(t, err)
	server := New(nil, b.db, &b.wakes, b.slots, Keys{})
	const callers = 8
	outcomes := make([]Outcome, callers)
	var running sync.WaitGroup
	for i := range callers {
		running.Go(func() {
			outcome, err := server.ByID(t.Context(), pg.DefaultTenant, page.Rows[0].ID, Destination{})
			if err == nil {
				outcomes[i] = outcome
			}
		})
	}
	running.Wait()
	moved := 0
	for _, outcome := range outcomes {
		if outcome.Found && outcome.Move.Status == Moved {
			moved++
		}
	}
	require.Equal(t, 1, moved)
	require.Equal(t, expected("a", 1), b.stored("q", "a", 1))
	outcome, err := server.ByID(t.Context(), uuid.New(), page.Rows[0].ID, Destination{})
	require.NoError(t, err)
	require.False(t, outcome.Found, "another tenant sees nothing")
}

func TestReplayToAFullQueueKeepsTheLetter(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.file("q", "a", "g", 2)
	_, err := b.db.Configure(t.Context(), pg.DefaultTenant, "q", "", "", []byte(`{"maxSize":2}`))
	require.NoError(t, err)
	server := New(nil, b.db, &b.wakes, b.slots, Keys{})
	page, err := b.db.ListDeadLetters(t.Context(), pg.DefaultTenant, pg.DeadLetterFilter{Limit: 1})
	require.NoError(t, err)
	outcome, err := server.ByAddress(t.Context(), pg.DefaultTenant, page.Rows[0].PartitionID, page.Rows[0].TransactionID, "")
	require.NoError(t, err)
	require.Equal(t, Full, outcome.Move.Status)
	require.EqualValues(t, 2, b.left())
}
