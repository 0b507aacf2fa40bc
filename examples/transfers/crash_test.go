package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"queenmq/internal/testdb"
	"queenmq/queen"
)

// The environment of a worker that the test starts as a process of its own.
const (
	workerURL  = "TRANSFERS_TEST_URL"
	workerDies = "TRANSFERS_TEST_DIES_AT" // the number of the step at which it kills itself; 0 is never
)

func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		diesAt, err := strconv.Atoi(os.Getenv(workerDies))
		if err == nil {
			err = runWorker(context.Background(), url, diesAt)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The batch of a worker, and so how many steps it takes: popped, begun, three for each transfer, pushed, acknowledged, committed.
const (
	testBatch = 2
	testSteps = 2 + 3*testBatch + 3
)

// runWorker books until nothing is left, and kills its process at a step.
func runWorker(ctx context.Context, url string, diesAt int) error {
	db, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	b, err := openBank(ctx, db)
	if err != nil {
		return err
	}
	b.lease = time.Second
	steps := 0
	b.step = func(context.Context, string) {
		if steps++; steps == diesAt {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way
		}
	}
	for {
		n, err := b.work(ctx, testBatch)
		if err != nil {
			return err
		}
		if n == 0 && steps > 0 {
			return nil
		}
		if n == 0 { // the one that died still holds its messages
			time.Sleep(20 * time.Millisecond)
		}
	}
}

const (
	testAccounts = 3
	testOpening  = 1000
)

// testTransfers are two batches for each crash and some more, all of one account, so that there is one lane to fight for.
func testTransfers(n int) []transfer {
	all := make([]transfer, n)
	for i := range all {
		all[i] = transfer{ID: i, From: 1, To: 2 + i%2, Cents: int64(1 + i)}
	}
	return all
}

func setup(t *testing.T, transfers []transfer) (*bank, string) {
	t.Helper()
	database := testdb.New(t)
	b, err := openBank(t.Context(), database.Pool(t))
	require.NoError(t, err)
	require.NoError(t, b.create(t.Context(), testAccounts, testOpening))
	require.NoError(t, b.order(t.Context(), transfers...))
	require.NoError(t, b.order(t.Context(), transfers...), "ordered again, a transfer is a duplicate")
	return b, database.ConnString()
}

// requireBookedOnce compares balances, ledger and receipts with what was ordered.
func requireBookedOnce(t *testing.T, b *bank, transfers []transfer) {
	t.Helper()
	want := map[int]int64{1: testOpening, 2: testOpening, 3: testOpening}
	for _, tr := range transfers {
		want[tr.From] -= tr.Cents
		want[tr.To] += tr.Cents
	}
	for account, cents := range want {
		var got, booked int64
		require.NoError(t, b.db.QueryRow(t.Context(), `SELECT a.cents, (SELECT COALESCE(sum(l.cents), 0) FROM ledger l WHERE l.account = a.id) FROM accounts a WHERE a.id = $1`, account).
			Scan(&got, &booked))
		require.Equal(t, cents, got, "account %d", account)
		require.Equal(t, cents-testOpening, booked, "ledger of account %d", account)
	}
	var rows, distinct int
	require.NoError(t, b.db.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT (transfer, account)) FROM ledger`).Scan(&rows, &distinct))
	require.Equal(t, 2*len(transfers), rows, "nothing is booked twice")
	require.Equal(t, rows, distinct)

	receipts, err := b.queue.Pop(t.Context(), b.db, receiptsQueue, queen.PopOptions{Batch: 10_000})
	require.NoError(t, err)
	var ids []int
	for _, m := range receipts.Messages {
		r, err := queen.Decode[transfer](m.Payload)
		require.NoError(t, err)
		ids = append(ids, r.ID)
	}
	var ordered []int
	for _, tr := range transfers {
		ordered = append(ordered, tr.ID)
	}
	require.Equal(t, ordered, ids, "one receipt for each transfer, in order")
	n, err := b.work(t.Context(), testBatch)
	require.NoError(t, err)
	require.Zero(t, n, "nothing is delivered again")
}

// TestWorkerKilledBetweenAnyTwoSteps: a worker process kills itself (SIGKILL) at its first step, the next at its second, and so on.
func TestWorkerKilledBetweenAnyTwoSteps(t *testing.T) {
	t.Parallel()
	transfers := testTransfers(testBatch * (testSteps + 3))
	b, url := setup(t, transfers)
	executable, err := os.Executable()
	require.NoError(t, err)
	for diesAt := testSteps; diesAt >= 0; diesAt-- { // the last one lives
		worker := exec.CommandContext(t.Context(), executable)
		worker.Env = append(os.Environ(), workerURL+"="+url, workerDies+"="+strconv.Itoa(diesAt))
		out, err := worker.CombinedOutput()
		if diesAt == 0 {
			require.NoError(t, err, string(out))
			break
		}
		status, ok := worker.ProcessState.Sys().(syscall.WaitStatus)
		require.True(t, ok && status.Signaled() && status.Signal() == syscall.SIGKILL, "the worker that should die at step %d: %v %s", diesAt, err, out)
	}
	requireBookedOnce(t, b, transfers)
}

// TestConnectionLostBetweenAnyTwoSteps: the server ends the worker's sessions at its first step, then at its second, and so on; the
// worker carries on with new ones.
func TestConnectionLostBetweenAnyTwoSteps(t *testing.T) {
	t.Parallel()
	transfers := testTransfers(testBatch * (testSteps + 3))
	b, url := setup(t, transfers)
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.ConnConfig.RuntimeParams["application_name"] = "worker"
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer db.Close()
	worker, err := openBank(t.Context(), db)
	require.NoError(t, err)
	worker.lease = time.Second
	breakAt, steps := testSteps, 0
	worker.step = func(ctx context.Context, _ string) {
		if steps++; steps == breakAt {
			_, err := b.db.Exec(ctx, `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'worker' AND datname = current_database()`)
			require.NoError(t, err)
			breakAt, steps = breakAt-1, 0
		}
	}
	booked := 0
	require.Eventually(t, func() bool {
		n, _ := worker.work(t.Context(), testBatch) // the error is that of the lost connection
		booked += n
		var done bool
		require.NoError(t, b.db.QueryRow(t.Context(), `SELECT count(DISTINCT transfer) = $1 FROM ledger`, len(transfers)).Scan(&done))
		return done
	}, 2*time.Minute, time.Millisecond)
	require.LessOrEqual(t, breakAt, 0, "the session was ended at every step")
	requireBookedOnce(t, b, transfers)
}

// TestProgram runs the program as it is, with the broker that it embeds.
func TestProgram(t *testing.T) {
	database := testdb.New(t)
	t.Setenv("DATABASE_URL", database.ConnString())
	t.Setenv("PORT", "0")
	t.Setenv("QUEEN_BIND_ADDR", "127.0.0.1")
	t.Setenv("FILE_BUFFER_DIR", t.TempDir())
	require.NoError(t, run(t.Context()))
	var booked, total int64
	require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT (SELECT count(*) FROM ledger), (SELECT sum(cents) FROM accounts)`).Scan(&booked, &total))
	require.EqualValues(t, 2*transfers, booked)
	require.EqualValues(t, accounts*opening, total)
}
