package pop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

// kilobyte is a message of a little more than 1 KiB that compresses to almost nothing.
func kilobyte(n int) segment.Frame {
	return segment.Frame{ID: segment.NewID(), TransactionID: fmt.Sprintf("txn-%d", n), Payload: fmt.Appendf(nil, "%q", strings.Repeat("x", 1<<10))}
}

var otherPartition = uuid.MustParse("0199b0c4-6a11-7f3e-8c55-41d0e9a7b2f7")

// threeOfTwo is a claim of three segments of two messages, 2 KiB each, in two partitions; a budget cuts it like the database does.
func threeOfTwo(t *testing.T, r pg.PopRequest) pg.Claim {
	t.Helper()
	claim := claimOf(stored(t, 0, kilobyte(0), kilobyte(1)), stored(t, 2, kilobyte(2), kilobyte(3)))
	claim.Partitions = append(claim.Partitions, pg.ClaimedPartition{
		Queue: "orders", Partition: "us", PartitionID: otherPartition, Segments: []pg.ClaimedSegment{stored(t, 7, kilobyte(4), kilobyte(5))},
	})
	left := r.Budget
	for i := range claim.Partitions {
		part := &claim.Partitions[i]
		for j := range part.Segments {
			part.Segments[j].Take = min(part.Segments[j].Take, left)
			left -= part.Segments[j].Take
			if part.Segments[j].Take == 0 {
				part.Segments = part.Segments[:j]
				break
			}
		}
		if len(part.Segments) == 0 {
			claim.Partitions = claim.Partitions[:i]
			break
		}
	}
	return claim
}

func TestLargeClaimIsShortenedBeforeItIsAnswered(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		limit    int64
		messages int
		cuts     []pg.LeaseCut
	}{
		{"all fits", 64 << 10, 6, nil},
		{"the last partition does not", 5 << 10, 4, []pg.LeaseCut{{PartitionID: otherPartition, End: -1}}},
		{"half a partition does not", 3 << 10, 2, []pg.LeaseCut{{PartitionID: partitionID, End: 1}, {PartitionID: otherPartition, End: -1}}},
		{"one segment is always delivered", 1, 2, []pg.LeaseCut{{PartitionID: partitionID, End: 1}, {PartitionID: otherPartition, End: -1}}},
	} {
		for name, setUp := range map[string]func(*testing.T, Config) (*Server, *fakeStore){
			"searched": func(t *testing.T, cfg Config) (*Server, *fakeStore) {
				server, db, _ := setup(t, cfg)
				return server, db
			},
			"hot list": func(t *testing.T, cfg Config) (*Server, *fakeStore) {
				server, db, gates := setupHot(t, cfg)
				warm(t, server, db)
				gates.Stored(tenant, "orders", "eu", 4)
				gates.Stored(tenant, "orders", "us", 2)
				return server, db
			},
		} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				var announced []Delivery
				server, db := setUp(t, Config{MaxAnswerBytes: c.limit, Delivered: func(d Delivery) { announced = append(announced, d) }})
				db.claim = func(_ context.Context, call string, r pg.PopRequest) (pg.Claim, error) {
					claim := threeOfTwo(t, r)
					if call == "ready" {
						for i, p := range claim.Partitions {
							claim.States = append(claim.States, pg.CandidateState{Partition: p.Partition, Verdict: pg.CandidateTook, LastOffset: 100, Index: i})
						}
					}
					return claim, nil
				}
				req := quick(2)
				result, err := server.Pop(t.Context(), req)
				require.NoError(t, err)
				defer result.Release()
				require.Equal(t, c.messages, result.Messages())
				require.Equal(t, c.cuts, db.cuts)
				require.Empty(t, db.released)
				require.Len(t, announced, len(result.Partitions), "what is announced is what is leased")
				for i, d := range announced {
					require.Equal(t, result.Partitions[i].End, d.End)
					require.Len(t, d.Hashes, result.Partitions[i].Messages*segment.HashBytes)
				}
				if name == "hot list" && len(result.Partitions) == 1 {
					require.True(t, server.hot.Ring(tenant, "orders", "billing").HasReady(), "what was given back is served next")
				}
				require.Zero(t, server.slots.Stats().InFlight)
			})
		}
	}
}

func TestBatchWhoseLeaseEndedMeanwhileIsNotAnswered(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{MaxAnswerBytes: 3 << 10})
	db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) { return threeOfTwo(t, r), nil }
	db.leaseLost = true
	result, err := server.Pop(t.Context(), quick(2))
	require.NoError(t, err)
	require.Nil(t, result)
}

func TestClaimThatCannotBeShortenedIsGivenBack(t *testing.T) {
	t.Parallel()
	server, db, _ := setup(t, Config{MaxAnswerBytes: 3 << 10})
	db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) { return threeOfTwo(t, r), nil }
	db.failShorten = errors.New("gone")
	_, err := server.Pop(t.Context(), quick(2))
	require.ErrorIs(t, err, db.failShorten)
	require.Len(t, db.released, 2)
	require.Zero(t, server.slots.Stats().InFlight)
}

func TestLargeAutoAckClaimIsRolledBackAndRepeatedSmaller(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		grows    bool // every claim finds larger segments than the one before
		messages int
		budgets  []int
	}{
		{"the prefix fits", false, 2, []int{10, 2}},
		{"what it finds keeps growing", true, 1, []int{10, 2, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, _ := setup(t, Config{MaxAnswerBytes: 3 << 10})
			db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
				if c.grows && r.Budget == 2 {
					return claimOf(stored(t, 0, kilobyte(0)), stored(t, 1, kilobyte(1), kilobyte(2), kilobyte(3))), nil
				}
				return threeOfTwo(t, r), nil
			}
			req := quick(2)
			req.AutoAck = true
			result, err := server.Pop(t.Context(), req)
			require.NoError(t, err)
			defer result.Release()
			require.Equal(t, c.messages, result.Messages())
			var budgets []int
			for _, r := range db.requests {
				budgets = append(budgets, r.Budget)
			}
			require.Equal(t, c.budgets, budgets)
			require.Empty(t, db.cuts)
			require.EqualValues(t, 1, server.Stats().Shortened)
		})
	}
}

// In a common claim every pop has a partition and an answer of its own.
func TestCommonClaimIsShortenedForEachPop(t *testing.T) {
	t.Parallel()
	for _, fails := range []error{nil, errors.New("gone")} {
		t.Run(fmt.Sprint(fails), func(t *testing.T) {
			t.Parallel()
			server, db, gates := setupHot(t, Config{MaxAnswerBytes: 3 << 10})
			ring := warm(t, server, db)
			gates.Stored(tenant, "orders", "eu", 4)
			db.failShorten = fails
			db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
				return took(r, 3, stored(t, 0, kilobyte(0), kilobyte(1)), stored(t, 2, kilobyte(2), kilobyte(3))), nil
			}
			result, err := server.Pop(t.Context(), quick(1))
			require.Equal(t, []pg.LeaseCut{{PartitionID: partitionID, End: 1}}, db.cuts)
			require.Zero(t, server.slots.Stats().InFlight)
			if fails != nil {
				require.ErrorIs(t, err, fails)
				require.Len(t, db.released, 1)
				require.True(t, ring.HasReady())
				return
			}
			require.NoError(t, err)
			defer result.Release()
			require.Equal(t, 2, result.Messages())
			require.False(t, ring.HasReady(), "leased")
			gates.Released(tenant, "orders", "eu", "billing", result.LeaseID)
			require.True(t, ring.HasReady(), "the ring knows that two messages were left")
		})
	}
}

// A pop of several partitions has one answer, whatever became of the partitions in between.
func TestCommonClaimIsShortenedOnceForAPopOfManyPartitions(t *testing.T) {
	t.Parallel()
	claim := func(t *testing.T) pg.Claim {
		two := threeOfTwo(t, pg.PopRequest{Budget: 10})
		two.States = []pg.CandidateState{
			{Partition: "eu", Verdict: pg.CandidateTook, Index: 0},
			{Partition: "asia", Verdict: pg.CandidateEmpty, Index: 1},
			{Partition: "us", Verdict: pg.CandidateTook, Index: 2},
		}
		return two
	}
	owners := []int{0, 0, 0}
	asked := func(server *Server) []*fusedPop {
		request := quick(3)
		return []*fusedPop{{look: server.newLook(&request)}}
	}

	t.Run("AnswerIsBounded", func(t *testing.T) {
		t.Parallel()
		server, db, _ := setup(t, Config{MaxAnswerBytes: 5 << 10})
		pops, claimed := asked(server), claim(t)
		require.True(t, server.room.enter(&pops[0].look.room, queueKey{tenant, "orders"}))
		server.shortenEach(t.Context(), pops, owners, &claimed)
		require.NoError(t, pops[0].err)
		require.Equal(t, []pg.LeaseCut{{PartitionID: otherPartition, End: -1}}, db.cuts, "both partitions together have 6 KiB")
		require.Len(t, claimed.Partitions, 1)
		require.Len(t, claimed.States, 2, "what was given back was not reached")
	})

	t.Run("RoomIsCounted", func(t *testing.T) {
		t.Parallel()
		server, _, _ := setup(t, Config{})
		pops, claimed := asked(server), claim(t)
		require.True(t, server.room.enter(&pops[0].look.room, queueKey{tenant, "orders"}))
		server.shortenEach(t.Context(), pops, owners, &claimed)
		require.NoError(t, pops[0].err)
		require.Len(t, claimed.Partitions, 2)
		want := prefixWithin(claimed.Partitions, 1<<20, 1<<20).needs
		require.Equal(t, want, server.Stats().InflightBytes)
	})

	t.Run("NothingStaysLeasedOfAPopThatFails", func(t *testing.T) {
		t.Parallel()
		server, db, _ := setup(t, Config{MaxAnswerBytes: 3 << 10})
		db.failShorten = errors.New("gone")
		pops, claimed := asked(server), claim(t)
		server.shortenEach(t.Context(), pops, owners, &claimed)
		require.ErrorIs(t, pops[0].err, db.failShorten)
		require.Len(t, db.released, 2)
		require.Empty(t, claimed.Partitions)
		require.Len(t, claimed.States, 1)
	})
}
