package ack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
)

// running starts the server's loops until the test ends.
func running(t *testing.T, server *Server) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(server.fuser.shards, func(s *fusionShard) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return !s.open
		})
	}, 10*time.Second, time.Millisecond)
}

// whole acknowledges a, b and c of one partition under one lease.
func whole(id uuid.UUID, lease string) []Item {
	var items []Item
	for _, transactionID := range []string{"a", "b", "c"} {
		items = append(items, Item{TransactionID: transactionID, PartitionID: id.String(), Status: "completed", LeaseID: lease})
	}
	return items
}

func deliver(server *Server, id uuid.UUID, lease string) {
	d := delivery()
	d.PartitionID, d.LeaseID = id, lease
	server.Delivered(d)
}

// released is the answer for a batch that was completed.
func released(items []Item) []Result {
	results := make([]Result, len(items))
	for i := range items {
		results[i] = Result{TransactionID: items[i].TransactionID, Success: true, LeaseReleased: true, Queue: "orders", Partition: "eu"}
	}
	return results
}

func TestWholeBatchIsCompletedByPosition(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{0, -1} {
		t.Run(fmt.Sprintf("shards %d", shards), func(t *testing.T) {
			t.Parallel()
			server, db, gates := setup(t, Config{Shards: shards})
			running(t, server)
			deliver(server, partition, "holder")
			waiter := gates.Subscribe(tenant, "orders")
			defer waiter.Release()
			opened, _ := waiter.Arm()

			items := whole(partition, "holder")
			require.Equal(t, released(items), server.Ack(t.Context(), tenant, "billing", items))

			require.Equal(t, [][]pg.PositionalAck{{{PartitionID: partition, Group: "billing", Worker: "holder", End: 12, Count: 3}}}, db.flushed)
			require.Empty(t, db.asked)
			require.Zero(t, db.lookups, "the delivery told whose partition it is")
			select {
			case <-opened:
			default:
				t.Error("a lease ended and nobody was woken")
			}
			require.Equal(t, released(items), server.Ack(t.Context(), tenant, "billing", items))
			require.Len(t, db.asked, 1, "the second time it is not a delivered batch any more")
		})
	}
}

func TestOtherAcksAreResolved(t *testing.T) {
	t.Parallel()
	change := func(change func([]Item) []Item) []Item { return change(whole(partition, "holder")) }
	for name, items := range map[string][]Item{
		"part":     whole(partition, "holder")[1:],
		"nack":     change(func(items []Item) []Item { items[1].Status = "failed"; return items }),
		"no lease": whole(partition, ""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, db, _ := setup(t, Config{})
			running(t, server)
			deliver(server, partition, "holder")
			server.Ack(t.Context(), tenant, "billing", items)
			server.Ack(t.Context(), tenant, "billing", whole(partition, "holder"))
			require.Len(t, db.asked, 2, "what is left is another batch")
			require.Empty(t, db.flushed)
		})
	}
	t.Run("another tenant", func(t *testing.T) {
		t.Parallel()
		server, db, _ := setup(t, Config{})
		running(t, server)
		deliver(server, partition, "holder")
		for _, result := range server.Ack(t.Context(), uuid.New(), "billing", whole(partition, "holder")) {
			require.Equal(t, "partition not owned by tenant", result.Error)
		}
		require.Empty(t, db.asked)
		require.Empty(t, db.flushed)
		server.Ack(t.Context(), tenant, "billing", whole(partition, "holder"))
		require.Len(t, db.flushed, 1, "its owner's batch is as it was")
	})
	t.Run("forgotten", func(t *testing.T) {
		t.Parallel()
		server, db, _ := setup(t, Config{})
		deliver(server, partition, "holder")
		server.Forget(partition, "billing", "holder")
		server.Ack(t.Context(), tenant, "billing", whole(partition, "holder"))
		require.Len(t, db.asked, 1)
	})
	t.Run("switched off", func(t *testing.T) {
		t.Parallel()
		server, db, _ := setup(t, Config{RegistryBytes: -1})
		deliver(server, partition, "holder")
		server.Ack(t.Context(), tenant, "billing", whole(partition, "holder"))
		require.Len(t, db.asked, 1)
	})
}

func TestRefusedWholeBatchGetsItsHonestAnswer(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{})
	running(t, server)
	db.multi = func(_ context.Context, acks []pg.PositionalAck) ([]pg.PositionalAckResult, error) {
		results := make([]pg.PositionalAckResult, len(acks))
		for i := range acks {
			results[i] = pg.PositionalAckResult{OK: acks[i].Worker == "holder", Error: "invalid or expired lease"}
		}
		return results, nil
	}
	db.ack = func(context.Context, pg.HashAck) (pg.HashAckResult, error) {
		return pg.HashAckResult{Error: "invalid or expired lease"}, nil
	}
	us := uuid.New()
	deliver(server, partition, "holder")
	deliver(server, us, "late")
	items := append(whole(us, "late"), whole(partition, "holder")...)
	results := server.Ack(t.Context(), tenant, "billing", items)
	for _, result := range results[:3] {
		require.Equal(t, "invalid or expired lease", result.Error)
		require.False(t, result.Success)
	}
	require.Equal(t, released(items)[3:], results[3:])
	require.Len(t, db.asked, 1)
	require.Equal(t, us, db.asked[0].PartitionID)
}

func TestFailedFlushFailsAllItsAcks(t *testing.T) {
	t.Parallel()
	for name, multi := range map[string]func(context.Context, []pg.PositionalAck) ([]pg.PositionalAckResult, error){
		"error": func(context.Context, []pg.PositionalAck) ([]pg.PositionalAckResult, error) {
			return nil, errors.New("gone")
		},
		"panic":          func(context.Context, []pg.PositionalAck) ([]pg.PositionalAckResult, error) { panic("boom") },
		"wrong verdicts": func(context.Context, []pg.PositionalAck) ([]pg.PositionalAckResult, error) { return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, db, _ := setup(t, Config{})
			running(t, server)
			db.multi = multi
			deliver(server, partition, "holder")
			for _, result := range server.Ack(t.Context(), tenant, "billing", whole(partition, "holder")) {
				require.Equal(t, "ack flush failed; lease will expire and redeliver", result.Error)
				require.False(t, result.Success)
				require.False(t, result.LeaseReleased)
			}
			require.Empty(t, db.asked, "nobody knows what happened: asking again may tell a lie")
			db.multi = nil
			deliver(server, partition, "holder")
			items := whole(partition, "holder")
			require.Equal(t, released(items), server.Ack(t.Context(), tenant, "billing", items), "the loop goes on")
		})
	}
}

// blocking lets the test hold commits open: each sends its rows, then waits to be let go.
func blocking(db *fakeStore) (rows chan []pg.PositionalAck, release chan struct{}) {
	rows, release = make(chan []pg.PositionalAck, 100), make(chan struct{})
	db.multi = func(_ context.Context, acks []pg.PositionalAck) ([]pg.PositionalAckResult, error) {
		rows <- acks
		<-release
		results := make([]pg.PositionalAckResult, len(acks))
		for i := range results {
			results[i].OK = true
		}
		return results, nil
	}
	return rows, release
}

func TestAcksGatherWhileACommitIsUnderWay(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{Shards: 1})
	running(t, server)
	rows, release := blocking(db)
	var acking sync.WaitGroup
	ack := func(id uuid.UUID) {
		deliver(server, id, "holder")
		acking.Go(func() {
			items := whole(id, "holder")
			if got := server.Ack(context.Background(), tenant, "billing", items); !slices.Equal(got, released(items)) {
				t.Errorf("%+v", got)
			}
		})
	}
	ack(uuid.New())
	require.Len(t, <-rows, 1, "an idle shard commits at once")
	for range 50 {
		ack(uuid.New())
	}
	require.Eventually(t, func() bool {
		shard := server.fuser.shards[0]
		shard.mu.Lock()
		defer shard.mu.Unlock()
		return len(shard.pending) == 50
	}, 10*time.Second, time.Millisecond)
	release <- struct{}{}
	require.Len(t, <-rows, 50)
	release <- struct{}{}
	acking.Wait()
	stats := server.Stats()
	measured := uint64(0)
	for _, n := range stats.RoundTrips {
		measured += n
	}
	require.EqualValues(t, 2, measured, "the time of both calls")
	stats.RoundTrips = pg.RoundTripCounts{}
	require.Equal(t, Stats{Hits: 51, Flushes: 2, Rows: 51}, stats)
}

func TestRequestOverManyPartitionsIsOneCommit(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{Shards: 1})
	running(t, server)
	// With the slots taken the loop waits, and everything submitted meanwhile takes part.
	var slots []*admission.Slot
	for {
		slot, ok := server.slots.TryAcquire(admission.Ack)
		if !ok {
			break
		}
		slots = append(slots, slot)
	}
	var items []Item
	for range 64 {
		id := uuid.New()
		deliver(server, id, "holder")
		items = append(items, whole(id, "holder")...)
	}
	answer := make(chan []Result)
	go func() { answer <- server.Ack(context.Background(), tenant, "billing", items) }()
	require.Eventually(t, func() bool {
		shard := server.fuser.shards[0]
		shard.mu.Lock()
		defer shard.mu.Unlock()
		return len(shard.pending) == 64
	}, 10*time.Second, time.Millisecond)
	for _, slot := range slots {
		slot.Release()
	}
	require.Equal(t, released(items), <-answer)
	require.Len(t, db.flushed, 1)
}

func TestFlushIsBounded(t *testing.T) {
	t.Parallel()
	_, db, _ := setup(t, Config{})
	f := newFuser(1, db, admission.New(admission.Config{PoolSize: 40}), time.Minute, slog.New(slog.DiscardHandler))
	shard := f.shards[0]
	shard.setOpen(true)
	var done sync.WaitGroup
	for range 2*maxFlushRows + 1 {
		done.Add(1)
		require.True(t, f.submit(&advance{PositionalAck: pg.PositionalAck{PartitionID: uuid.New(), Group: "g"}, finished: &done}))
	}
	flushes := 0
	for f.flush(t.Context(), shard) {
		flushes++
	}
	done.Wait()
	require.Equal(t, 3, flushes)
	require.Len(t, db.flushed[0], maxFlushRows)
	require.Len(t, db.flushed[2], 1)
}

func TestFoldKeepsWorkersApart(t *testing.T) {
	t.Parallel()
	us := uuid.New()
	var taken []*advance
	for _, a := range []pg.PositionalAck{
		{PartitionID: partition, Group: "g", Worker: "w", End: 5, Count: 2},
		{PartitionID: partition, Group: "g", Worker: "thief", End: 9, Count: 9},
		{PartitionID: partition, Group: "g", Worker: "w", End: 8, Count: 3},
		{PartitionID: partition, Group: "g", Worker: "w", End: 7, Count: 1},
		{PartitionID: partition, Group: "h", Worker: "w", End: 1, Count: 1},
		{PartitionID: us, Group: "g", Worker: "w", End: 2, Count: 1},
	} {
		taken = append(taken, &advance{PositionalAck: a})
	}
	rows, rowOf := fold(taken)
	require.Equal(t, []pg.PositionalAck{
		{PartitionID: partition, Group: "g", Worker: "w", End: 8, Count: 6},
		{PartitionID: partition, Group: "g", Worker: "thief", End: 9, Count: 9},
		{PartitionID: partition, Group: "h", Worker: "w", End: 1, Count: 1},
		{PartitionID: us, Group: "g", Worker: "w", End: 2, Count: 1},
	}, rows)
	require.Equal(t, []int{0, 1, 0, 0, 2, 3}, rowOf)
}

// Starts and stops under load: every ack is answered, whatever it met, and what was taken is committed.
func TestStopAnswersEverything(t *testing.T) {
	t.Parallel()
	for range 20 {
		server, _, _ := setup(t, Config{Shards: 2})
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- server.Run(ctx) }()
		var acking sync.WaitGroup
		for k := range 8 {
			acking.Go(func() {
				for i := range 20 {
					if k == 0 && i == 10 {
						stop()
					}
					id := uuid.New()
					deliver(server, id, "holder")
					items := whole(id, "holder")
					if got := server.Ack(context.Background(), tenant, "billing", items); !slices.Equal(got, released(items)) {
						t.Errorf("%+v", got)
					}
				}
			})
		}
		acking.Wait()
		stop()
		require.NoError(t, <-ended)
	}
}

func TestShardsHaveOneCommitUnderWayEach(t *testing.T) {
	t.Parallel()
	const shards = 3
	server, db, _ := setup(t, Config{Shards: shards})
	running(t, server)
	var mu sync.Mutex
	underWay, most := 0, 0
	db.multi = func(_ context.Context, acks []pg.PositionalAck) ([]pg.PositionalAckResult, error) {
		mu.Lock()
		underWay++
		most = max(most, underWay)
		mu.Unlock()
		defer func() { mu.Lock(); underWay--; mu.Unlock() }()
		results := make([]pg.PositionalAckResult, len(acks))
		for i := range results {
			results[i].OK = true
		}
		return results, nil
	}
	var acking sync.WaitGroup
	for range 500 {
		id := uuid.New()
		deliver(server, id, "holder")
		acking.Go(func() { server.Ack(context.Background(), tenant, "billing", whole(id, "holder")) })
	}
	acking.Wait()
	require.LessOrEqual(t, most, shards)
	require.EqualValues(t, 500, server.Stats().Rows)
}

// An acceptingStore completes every batch and remembers nothing.
type acceptingStore struct{ Store }

func (acceptingStore) AckMulti(_ context.Context, acks []pg.PositionalAck) ([]pg.PositionalAckResult, error) {
	results := make([]pg.PositionalAckResult, len(acks))
	for i := range results {
		results[i].OK = true
	}
	return results, nil
}

// The cost of an ack of 100 messages that is recognised, without the database.
func BenchmarkAckWholeBatch(b *testing.B) {
	server := New(Config{Shards: -1}, acceptingStore{}, ready.New(), admission.New(admission.Config{PoolSize: 40}))
	d := delivery()
	d.Hashes = nil
	var items []Item
	for range 100 {
		id := uuid.NewString()
		d.Hashes = append(d.Hashes, hashes(id)...)
		items = append(items, Item{TransactionID: id, PartitionID: partition.String(), Status: "completed", LeaseID: "holder"})
	}
	b.ReportAllocs()
	for b.Loop() {
		server.Delivered(d)
		if results := server.Ack(b.Context(), tenant, "billing", items); !results[0].Success {
			b.Fatal(results[0].Error)
		}
	}
}
