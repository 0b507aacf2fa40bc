package pop

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

// parkedFor starts a long poll and waits until it is parked. Its partition has been heard of.
func parkedFor(t *testing.T, server *Server, db *fakeStore, ctx context.Context, timeout time.Duration) <-chan *Result { //nolint:revive // the test's context is another one
	t.Helper()
	return parkedWith(t, server, db, ctx, longPoll(timeout))
}

// parkedWith is parkedFor with any request.
func parkedWith(t *testing.T, server *Server, db *fakeStore, ctx context.Context, request Request) <-chan *Result { //nolint:revive // as above
	t.Helper()
	warm(t, server, db)
	db.claim = verdicts(pg.CandidateEmpty, 0)
	server.gates.Stored(tenant, "orders", "eu", 1)
	_, err := server.Pop(t.Context(), quick(1)) // finds nothing left
	require.NoError(t, err)
	db.log()
	answers := make(chan *Result, 1)
	go func() {
		result, _ := server.Pop(ctx, request)
		answers <- result
	}()
	synctest.Wait()
	return answers
}

// toStore is a segment of one message, as a push is about to store it.
func toStore(t *testing.T, partition string) []pg.Segment {
	t.Helper()
	return []pg.Segment{{Tenant: tenant, Queue: "orders", Partition: partition, Count: 1, Blob: stored(t, 0, message(1)).Blob}}
}

// queued is the verdict on a stored segment.
func queued() []pg.PushVerdict {
	return []pg.PushVerdict{{Status: pg.PushQueued, PartitionID: partitionID, BaseOffset: 7, CreatedAt: createdAt}}
}

func TestHandoverToAParkedPop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var delivery atomic.Pointer[Delivery]
		server, db, gates := setupHot(t, Config{Delivered: func(d Delivery) { delivery.Store(&d) }})
		answers := parkedFor(t, server, db, t.Context(), time.Hour)

		leases, conclude := server.Handover(toStore(t, "eu"))
		require.Len(t, leases, 1)
		require.Equal(t, pg.Handover{Take: 1, Group: "billing", Worker: leases[0].Worker, LeaseSeconds: 300}, leases[0])
		none, nothing := server.Handover(toStore(t, "eu"))
		require.Nil(t, none, "the pop is spoken for")
		require.Nil(t, nothing)
		leases[0].Leased = true
		gates.Stored(tenant, "orders", "eu", 1)
		conclude(t.Context(), queued())
		result := <-answers
		require.Equal(t, leases[0].Worker, result.LeaseID)
		require.Equal(t, 1, result.Messages())
		require.EqualValues(t, 7, delivery.Load().End)
		require.Empty(t, db.log(), "no statement")
		require.EqualValues(t, 1, server.Stats().Handed)
		result.Release()
		result.Done()

		ring := server.hot.Ring(tenant, "orders", "billing")
		require.False(t, ring.HasReady(), "the mark of the push itself is not news")
		gates.Released(tenant, "orders", "eu", "billing", result.LeaseID)
		require.False(t, ring.HasReady(), "the batch was all there was")
		require.Zero(t, server.Stats().InflightBytes)
	})
}

// A commit that fails, or leases nothing, leaves the pop waiting for the next message.
func TestHandoverThatComesToNothing(t *testing.T) {
	t.Parallel()
	for name, verdicts := range map[string][]pg.PushVerdict{"Failed": nil, "NotLeased": queued()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, db, gates := setupHot(t, Config{})
				answers := parkedFor(t, server, db, t.Context(), time.Hour)
				_, conclude := server.Handover(toStore(t, "eu"))
				require.NotNil(t, conclude)
				db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
					return took(r, 7, stored(t, 7, message(1))), nil
				}
				if verdicts != nil {
					gates.Stored(tenant, "orders", "eu", 1)
				}
				conclude(t.Context(), verdicts)
				synctest.Wait()
				if verdicts == nil {
					require.Empty(t, db.log())
					require.EqualValues(t, 1, server.Stats().Parked)
					gates.Stored(tenant, "orders", "eu", 1)
				}
				result := <-answers
				require.Equal(t, 1, result.Messages(), "claimed")
				require.Equal(t, []string{"ready"}, db.log())
				result.Release()
				result.Done()
				require.Zero(t, server.Stats().InflightBytes)
			})
		})
	}
}

// What a pop could have had from a commit that failed is not what the next one may lease to it: the room for the answer is another matter by then.
func TestHandoverNeedsRoomEachTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, gates := setupHot(t, Config{})
		request := longPoll(time.Hour)
		request.MaxPartitions = 2
		answers := parkedWith(t, server, db, t.Context(), request)
		_, conclude := server.Handover(toStore(t, "eu"))
		require.NotNil(t, conclude)
		conclude(t.Context(), nil)
		synctest.Wait()

		var large, small hold
		taken := server.room.large.take(&large, server.room.large.size, server.room.large.size) && server.room.small.take(&small, server.room.small.size, server.room.small.size)
		require.True(t, taken)
		leases, conclude := server.Handover(toStore(t, "eu"))
		require.Empty(t, leases)
		require.Nil(t, conclude)
		synctest.Wait()
		require.EqualValues(t, 1, server.Stats().Parked)

		large.release()
		small.release()
		leases, conclude = server.Handover(toStore(t, "eu"))
		require.Len(t, leases, 1)
		leases[0].Leased = true
		gates.Stored(tenant, "orders", "eu", 1)
		conclude(t.Context(), queued())
		result := <-answers
		result.Release()
		result.Done()
		require.Zero(t, server.Stats().InflightBytes)
	})
}

// A commit that failed may have leased its messages all the same. Nobody has that lease, so that it ends in time.
func TestHandoverThatMayHaveLeased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, gates := setupHot(t, Config{})
		answers := parkedFor(t, server, db, t.Context(), time.Hour)
		lost, conclude := server.Handover(toStore(t, "eu"))
		conclude(t.Context(), nil)
		synctest.Wait()
		leases, conclude := server.Handover(toStore(t, "eu"))
		require.Len(t, leases, 1)
		require.NotEqual(t, lost[0].Worker, leases[0].Worker)
		leases[0].Leased = true
		gates.Stored(tenant, "orders", "eu", 1)
		conclude(t.Context(), queued())
		result := <-answers
		require.Equal(t, leases[0].Worker, result.LeaseID)
		result.Release()
		result.Done()
	})
}

// A commit that takes long holds up no pop beyond its time, and what it leased to one that is gone is given back.
func TestHandoverThatComesTooLate(t *testing.T) {
	t.Parallel()
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server, db, gates := setupHot(t, Config{})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			began := time.Now()
			answers := parkedFor(t, server, db, ctx, 10*time.Second)
			leases, conclude := server.Handover(toStore(t, "eu"))
			if leaves {
				leave()
			}
			require.Nil(t, <-answers)
			require.LessOrEqual(t, time.Since(began), 10*time.Second+answerGrace)
			leases[0].Leased = true
			gates.Stored(tenant, "orders", "eu", 1)
			conclude(t.Context(), queued())
			require.Equal(t, []string{partitionID.String() + "/billing/" + leases[0].Worker}, db.released)
			require.True(t, server.hot.Ring(tenant, "orders", "billing").HasReady(), "for the next one")
			require.Zero(t, server.Stats().InflightBytes)
			require.Zero(t, server.Stats().Handed)
		})
	}
}

// Who is needed for what is listed already, asks for something that is decided by a claim, or is to get none at all, is not enlisted.
func TestHandoverToNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		paused := false
		server, db, _ := setupHot(t, Config{Paused: func() bool { return paused }})
		ctx, leave := context.WithCancel(t.Context())
		answers := parkedFor(t, server, db, ctx, time.Hour)
		for _, segments := range [][]pg.Segment{toStore(t, "never heard of"), nil} {
			_, conclude := server.Handover(segments)
			require.Nil(t, conclude)
		}
		traced := toStore(t, "eu")
		traced[0].Traces = []pg.FrameTrace{{ID: uuid.New()}}
		_, conclude := server.Handover(traced)
		require.Nil(t, conclude)
		paused = true
		_, conclude = server.Handover(toStore(t, "eu"))
		require.Nil(t, conclude)
		paused = false
		leave()
		<-answers
	})
	synctest.Test(t, func(t *testing.T) {
		server, db, _ := setupHot(t, Config{})
		db.settings["orders"] = pg.QueueSettings{LeaseSeconds: 300, MinPopWait: 100}
		ctx, leave := context.WithCancel(t.Context())
		answers := parkedFor(t, server, db, ctx, time.Hour)
		_, conclude := server.Handover(toStore(t, "eu"))
		require.Nil(t, conclude)
		require.EqualValues(t, 1, server.Stats().Parked)
		leave()
		<-answers
	})
}
