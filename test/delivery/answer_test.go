package delivery

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/pop"
	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// storeKilobytes stores one segment for each name, with a message of a little more than 1 KiB.
func (e *engine) storeKilobytes(partition string, names ...string) {
	e.t.Helper()
	for _, name := range names {
		e.store(partition, segment.Frame{ID: segment.NewID(), TransactionID: name, Payload: fmt.Appendf(nil, "%q", strings.Repeat("x", 1<<10))})
	}
}

// consumer is what the database holds about a partition of the group.
type consumer struct {
	Committed, End int64
	Leased         bool
	Attempts       int
}

func (e *engine) consumer(partition string) (c consumer) {
	e.t.Helper()
	require.NoError(e.t, e.sql.QueryRow(e.t.Context(), `SELECT c.committed, COALESCE(c.batch_end, -1), c.worker_id IS NOT NULL, c.attempt_count
FROM queen.log_consumers AS c JOIN queen.log_partitions AS p ON p.id = c.partition_id WHERE p.name = $1`, partition).
		Scan(&c.Committed, &c.End, &c.Leased, &c.Attempts))
	return c
}

// What an answer has no room for is neither leased nor counted as delivered, and what is answered is a whole batch.
func TestAnswerThatIsFullEndsTheBatchInTheDatabase(t *testing.T) {
	t.Parallel()
	e := setupWith(t, pop.Config{Backoff: pop.Backoff{Initial: time.Hour}, MaxAnswerBytes: 3 << 10})
	e.storeKilobytes("a", "a0", "a1", "a2")
	e.storeKilobytes("b", "b0")
	req := queuePop()
	req.MaxPartitions = 2
	first := e.pop(req)
	full, spare := "a", "b"
	if len(first.names()) > 0 && first.names()[0] == "b0" { // the database may begin with either
		full, spare = "b", "a"
	}
	require.Len(t, first.names(), 2)
	if full == "a" {
		require.Equal(t, []string{"a0", "a1"}, first.names())
		require.Equal(t, consumer{Committed: -1, End: 1, Leased: true, Attempts: 1}, e.consumer("a"))
		require.Equal(t, consumer{Committed: -1, End: -1}, e.consumer(spare), "given back, not delivered")
	} else {
		require.Equal(t, []string{"b0", "a0"}, first.names())
		require.Equal(t, consumer{Committed: -1, End: 0, Leased: true, Attempts: 1}, e.consumer("a"))
	}
	for _, result := range e.acked(first.all("completed")...) {
		require.True(t, result.LeaseReleased, "the batch was acknowledged as a whole")
	}
	seen := first.names()
	for range 10 {
		next := e.pop(req)
		if len(next.names()) == 0 {
			break
		}
		seen = append(seen, next.names()...)
		e.acked(next.all("completed")...)
	}
	require.ElementsMatch(t, []string{"a0", "a1", "a2", "b0"}, seen)
}

func TestFullAnswerOfAnAutoAckPopCommitsWhatItDelivers(t *testing.T) {
	t.Parallel()
	e := setupWith(t, pop.Config{Backoff: pop.Backoff{Initial: time.Hour}, MaxAnswerBytes: 3 << 10})
	e.storeKilobytes("a", "a0", "a1", "a2", "a3", "a4")
	req := queuePop()
	req.AutoAck = true
	require.Equal(t, []string{"a0", "a1"}, e.pop(req).names())
	require.Equal(t, int64(1), e.consumer("a").Committed)
	require.Equal(t, []string{"a2", "a3"}, e.pop(req).names())
	require.Equal(t, []string{"a4"}, e.pop(req).names())
}

// Only its holder can shorten a lease, only to a place inside the batch, and not after its end.
func TestShortenLeasesTouchesOnlyItsOwnClaim(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.storeKilobytes("a", "a0", "a1", "a2")
	held := e.pop(queuePop())
	require.Len(t, held.Messages, 3)
	partition := uuid.MustParse(held.Messages[0].PartitionID)
	before := e.consumer("a")
	shorten := func(worker string, end int64) []uuid.UUID {
		kept, err := e.db.ShortenLeases(t.Context(), "billing", worker, []pg.LeaseCut{{PartitionID: partition, End: end}})
		require.NoError(t, err)
		return kept
	}
	require.Empty(t, shorten("somebody", 1))
	require.Empty(t, shorten("somebody", -1))
	require.Empty(t, shorten(held.LeaseID, 3), "beyond the batch")
	require.Equal(t, before, e.consumer("a"))
	require.Equal(t, []uuid.UUID{partition}, shorten(held.LeaseID, 1))
	require.Equal(t, []uuid.UUID{partition}, shorten(held.LeaseID, 1), "repeating it changes nothing")
	require.Equal(t, consumer{Committed: -1, End: 1, Leased: true, Attempts: 1}, e.consumer("a"))
	e.expire()
	require.Empty(t, shorten(held.LeaseID, 0))
}
