package pg_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func TestPop(t *testing.T) {
	t.Parallel()
	// Every kind of pop delivers the same batch.
	kinds := map[string]func(*pg.DB, context.Context, pg.PopRequest) (pg.Claim, error){
		"Wildcard": (*pg.DB).PopWildcard, "Specific": (*pg.DB).PopSpecific, "Discover": (*pg.DB).PopDiscover, "List": (*pg.DB).PopList, "Ready": (*pg.DB).PopReady,
	}
	request := func() pg.PopRequest {
		r := popRequest("orders.new", "w")
		r.Partition, r.Namespace, r.Task, r.Candidates = "p", "orders", "new", []string{"p"}
		return r
	}
	for name, pop := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _ := setup(t)
			first := push(t, db, segment("orders.new", "p", "1", "2"))
			second := push(t, db, segment("orders.new", "p", "3", "4", "5"))
			r := request()
			r.Budget = 4
			claim, err := pop(db, t.Context(), r)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff([]pg.ClaimedPartition{{Queue: "orders.new", Partition: "p", PartitionID: first.PartitionID, Segments: []pg.ClaimedSegment{
				{Base: 0, StartIndex: 0, Take: 2, CreatedAt: first.CreatedAt, Blob: []byte("blob of 1,2")},
				{Base: 2, StartIndex: 0, Take: 2, CreatedAt: second.CreatedAt, Blob: []byte("blob of 3,4,5")},
			}}}, claim.Partitions))

			again, err := pop(db, t.Context(), r)
			require.NoError(t, err)
			require.Empty(t, again.Partitions, "a leased batch was given out twice")
			require.NoError(t, db.ReleaseLease(t.Context(), first.PartitionID, "g", "w"))
			r.Worker, r.AutoAck, r.Budget = "w2", true, 3
			claim, err = pop(db, t.Context(), r)
			require.NoError(t, err)
			require.Len(t, claim.Partitions, 1)
			require.Equal(t, 1, claim.Partitions[0].Segments[1].Take)
			claim, err = pop(db, t.Context(), r)
			require.NoError(t, err)
			require.Equal(t, pg.ClaimedSegment{Base: 2, StartIndex: 1, Take: 2, CreatedAt: second.CreatedAt, Blob: []byte("blob of 3,4,5")}, claim.Partitions[0].Segments[0])
			claim, err = pop(db, t.Context(), r)
			require.NoError(t, err)
			require.Empty(t, claim.Partitions)
		})
		t.Run(name+"OfNothing", func(t *testing.T) {
			t.Parallel()
			db, _ := setup(t)
			claim, err := pop(db, t.Context(), request())
			require.NoError(t, err)
			require.Empty(t, claim.Partitions)
		})
		t.Run(name+"RefusesImpossibleNames", func(t *testing.T) {
			t.Parallel()
			db, _ := setup(t)
			r := request()
			r.Queue, r.Namespace = "a\x00b", "a\x00b"
			_, err := pop(db, t.Context(), r)
			require.ErrorIs(t, err, pg.ErrBadData)
		})
		t.Run(name+"AsksBeforeItAcknowledges", func(t *testing.T) {
			t.Parallel()
			db, _ := setup(t)
			push(t, db, segment("orders.new", "p", "1", "2"))
			r := request()
			r.AutoAck = true
			unreadable := errors.New("cannot be decoded")
			r.Accept = func(c pg.Claim) error {
				require.Len(t, c.Partitions, 1)
				return unreadable
			}
			_, err := pop(db, t.Context(), r)
			require.ErrorIs(t, err, unreadable)
			require.Equal(t, 0, db.Stats().InUse)

			ctx, leave := context.WithCancel(t.Context())
			r.Accept = func(pg.Claim) error { leave(); return nil }
			_, err = pop(db, ctx, r)
			require.ErrorIs(t, err, context.Canceled, "the caller left before the commit")

			r.Accept = func(pg.Claim) error { return nil }
			claim, err := pop(db, t.Context(), r)
			require.NoError(t, err)
			require.Len(t, claim.Partitions, 1, "the messages of a claim that was not accepted are gone")
			r.Accept = func(pg.Claim) error { t.Error("an empty claim was shown"); return nil }
			claim, err = pop(db, t.Context(), r)
			require.NoError(t, err)
			require.Empty(t, claim.Partitions)
		})
	}
}

func TestPopListSaysWhatItFound(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	for _, partition := range []string{"held", "ready", "done"} {
		push(t, db, segment("q", partition, "1", "2"))
	}
	for partition, autoAck := range map[string]bool{"held": false, "done": true} {
		r := popRequest("q", "other")
		r.Partition, r.AutoAck = partition, autoAck
		_, err := db.PopSpecific(t.Context(), r)
		require.NoError(t, err)
	}
	r := popRequest("q", "w")
	r.Candidates = []string{"unknown", "held", "done", "ready", "never reached"}
	r.MaxPartitions = 1
	claim, err := db.PopList(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, claim.Partitions, 1)
	require.Len(t, claim.States, 4)
	verdicts := map[string]pg.CandidateState{}
	for _, state := range claim.States {
		verdicts[state.Partition] = state
	}
	require.Equal(t, pg.CandidateState{Partition: "unknown", Verdict: pg.CandidateEmpty}, verdicts["unknown"])
	require.Equal(t, pg.CandidateState{Partition: "done", Verdict: pg.CandidateEmpty}, verdicts["done"])
	require.Equal(t, pg.CandidateState{Partition: "ready", Verdict: pg.CandidateTook, LastOffset: 1}, verdicts["ready"])
	require.Equal(t, pg.CandidateLeased, verdicts["held"].Verdict)
	require.WithinDuration(t, time.Now().Add(time.Minute), verdicts["held"].Until, 30*time.Second)

	r.Candidates = nil
	claim, err = db.PopList(t.Context(), r)
	require.NoError(t, err)
	require.Empty(t, claim.States)
}

func TestPopAcrossPartitions(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	for _, partition := range strings.Split("abcdef", "") {
		push(t, db, segment("q", partition, "1"))
	}
	r := popRequest("q", "w")
	r.MaxPartitions = 4
	claim, err := db.PopWildcard(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, claim.Partitions, 4)
	r.MaxPartitions, r.Worker = 0, "w2" // no cap
	claim, err = db.PopWildcard(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, claim.Partitions, 2)
}

func TestHasPending(t *testing.T) {
	t.Parallel()
	db, _ := setup(t)
	pending := func(tenant uuid.UUID, queue string) bool {
		t.Helper()
		yes, err := db.HasPending(t.Context(), tenant, queue, "g")
		require.NoError(t, err)
		return yes
	}
	require.False(t, pending(pg.DefaultTenant, "q"))
	push(t, db, segment("q", "p", "1"))
	require.True(t, pending(pg.DefaultTenant, "q"))
	require.False(t, pending(uuid.New(), "q"))
	r := popRequest("q", "w")
	r.AutoAck = true
	_, err := db.PopWildcard(t.Context(), r)
	require.NoError(t, err)
	require.False(t, pending(pg.DefaultTenant, "q"))
}

// A queue that is deleted while a pop registers with it is no reason to refuse the pop: it looks again.
func TestPopOutlivesTheDeletionOfItsQueue(t *testing.T) {
	t.Parallel()
	for name, pop := range map[string]func(*pg.DB, context.Context, pg.PopRequest) (pg.Claim, error){
		"Wildcard": (*pg.DB).PopWildcard, "Discover": (*pg.DB).PopDiscover,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, database := setup(t)
			push(t, db, segment("orders.new", "p", "1"))
			pool := database.Pool(t)
			deleter, err := pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = deleter.Exec(t.Context(), `SELECT queen.delete_queue_v1('orders.new')`)
			require.NoError(t, err)

			request := popRequest("orders.new", "w")
			request.Namespace = "orders"
			popped := make(chan error, 1)
			go func() {
				_, err := pop(db, context.WithoutCancel(t.Context()), request)
				popped <- err
			}()
			eventually(t, "the pop waits for the deleter", func() bool {
				var waits bool
				err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0)`).Scan(&waits)
				return err == nil && waits
			})
			require.NoError(t, deleter.Commit(t.Context()))
			require.NoError(t, <-popped)
		})
	}
}
