package pop

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
)

// A claimsGate holds claims until the test lets them go.
type claimsGate struct {
	mu      sync.Mutex
	open    chan struct{}
	answer  func(pg.PopRequest) (pg.Claim, error)
	claimed []pg.PopRequest
}

func (g *claimsGate) claim(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
	g.mu.Lock()
	g.claimed = append(g.claimed, r)
	g.mu.Unlock()
	<-g.open
	return g.answer(r)
}

// emptyAll answers common claims with no messages, and ends pops that claim alone.
func emptyAll(r pg.PopRequest) (pg.Claim, error) {
	if len(r.Candidates) == 1 {
		return pg.Claim{}, errServed
	}
	return mustClaim(verdicts(pg.CandidateEmpty, 0), r), nil
}

// crowded starts pops one after the other while claims are held, and returns when all of them claim or wait.
func crowded(t *testing.T, server *Server, gates *ready.Gates, db *fakeStore, gate *claimsGate, pops []Request, ctxs []context.Context, partitions int) (wait func() []error) {
	t.Helper()
	warm(t, server, db)
	for i := range partitions {
		gates.Stored(tenant, "orders", fmt.Sprintf("p%d", i), 1)
	}
	db.claim = gate.claim
	errs := make([]error, len(pops))
	var running sync.WaitGroup
	for i, req := range pops {
		running.Go(func() { _, errs[i] = server.Pop(ctxs[i], req) })
		synctest.Wait()
	}
	return func() []error { running.Wait(); return errs }
}

func same(n int, ctx context.Context) (pops []Request, ctxs []context.Context) {
	for i := range n {
		req := quick(1)
		req.Batch, req.LeaseSeconds = i+1, 10*(i+1)
		pops, ctxs = append(pops, req), append(ctxs, ctx)
	}
	return pops, ctxs
}

func TestPopsThatComeMeanwhileClaimTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, gates := setupHot(t, Config{FusedClaims: 1})
		gate := &claimsGate{open: make(chan struct{}), answer: emptyAll}
		pops, ctxs := same(6, t.Context())
		wait := crowded(t, server, gates, db, gate, pops, ctxs, len(pops))
		require.Len(t, gate.claimed, 1, "the others wait for it")
		require.Len(t, gate.claimed[0].Candidates, 1)
		require.Nil(t, gate.claimed[0].Workers)
		close(gate.open)
		wait()
		common := gate.claimed[1]
		require.Len(t, common.Candidates, 5)
		require.Equal(t, []int32{2, 3, 4, 5, 6}, common.Budgets)
		require.Equal(t, []int32{20, 30, 40, 50, 60}, common.Leases)
		require.Equal(t, 2+3+4+5+6, common.Budget)
		require.Len(t, common.Workers, 5)
		seen := map[string]bool{}
		for _, worker := range common.Workers {
			require.NoError(t, uuid.Validate(worker))
			require.False(t, seen[worker], "every pop has a lease of its own")
			seen[worker] = true
		}
		require.Zero(t, server.hot.Stats().InFlight)
		require.Empty(t, server.fuser.groups)
	})
}

func TestPopsThatDifferClaimApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, gates := setupHot(t, Config{})
		gate := &claimsGate{open: make(chan struct{}), answer: emptyAll}
		pops, ctxs := same(4, t.Context())
		pops[1].AutoAck = true
		pops[2].SubMode = "new"
		pops[3].SubFrom = "now"
		wait := crowded(t, server, gates, db, gate, pops, ctxs, 10) // for pops that take spare ones
		require.Len(t, gate.claimed, 4, "nobody waits for a claim that cannot be shared")
		close(gate.open)
		wait()
	})
}

// A pop that may take several partitions takes as many as fill it, and the next pop the next ones.
func TestPopsOfManyPartitionsClaimTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, gates := setupHot(t, Config{FusedClaims: 1})
		gate := &claimsGate{open: make(chan struct{}), answer: emptyAll}
		pops, ctxs := same(5, t.Context())
		for i, p := range []struct{ partitions, batch int }{{1, 1}, {3, 100}, {3, 2}, {1, 100}, {0, 100}} {
			pops[i].MaxPartitions, pops[i].Batch = p.partitions, p.batch
		}
		wait := crowded(t, server, gates, db, gate, pops, ctxs, 10) // the first pop's comes back
		close(gate.open)
		wait()
		common := gate.claimed[1]
		require.Equal(t, []int32{100, 100, 100, 2, 2, 100, 100, 100, 100, 100}, common.Budgets)
		require.Equal(t, []int32{20, 20, 20, 30, 30, 40, 50, 50, 50, 50}, common.Leases)
		require.Equal(t, 100+2+100+100, common.Budget, "each pop's budget counts once")
		require.Zero(t, common.MaxPartitions)
		require.Equal(t, common.Workers[0], common.Workers[2])
		require.NotEqual(t, common.Workers[2], common.Workers[3])
		require.Zero(t, server.hot.Stats().InFlight)
	})
}

// Beside another claim one starts when the pops that wait will take enough partitions, or when the other one takes too long.
func TestClaimsBesideEachOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		waiting, each, listed int
		pause                 time.Duration
		want                  bool
	}{
		"FewPops":       {waiting: worthwhilePartitions - 1, each: 1, listed: 1000},
		"ManyPops":      {waiting: worthwhilePartitions, each: 1, listed: 1000, want: true},
		"FewWidePops":   {waiting: 3, each: 10, listed: 1000},
		"WidePops":      {waiting: 4, each: 10, listed: 1000, want: true},
		"FewPartitions": {waiting: 4, each: 10, listed: worthwhilePartitions - 1},
		"Slow":          {waiting: 1, each: 1, listed: 1, pause: 2 * claimPatience, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f, key := &fuser{}, fusionKey{queue: "orders"}
				first, second := &fusedPop{turn: make(chan struct{}, 1)}, &fusedPop{turn: make(chan struct{}, 1)}
				require.True(t, f.enter(key, first, 2, c.listed))
				require.False(t, f.enter(key, second, 2, c.listed))
				f.finish(key, c.listed, c.each) // the second goes on, and how much each pop takes is known
				<-second.turn
				for range c.waiting - 1 {
					require.False(t, f.enter(key, &fusedPop{turn: make(chan struct{}, 1)}, 2, c.listed))
				}
				time.Sleep(c.pause)
				require.Equal(t, c.want, f.enter(key, &fusedPop{turn: make(chan struct{}, 1)}, 2, c.listed))
			})
		})
	}
}

// The end of one of two claims starts the next one by the same rule.
func TestClaimBehindOneOfTwo(t *testing.T) {
	t.Parallel()
	for waiting, want := range map[int]int{3: 0, 4: 1} {
		synctest.Test(t, func(t *testing.T) {
			f, key := &fuser{}, fusionKey{queue: "orders"}
			f.groups = map[fusionKey]*fusedGroup{key: {running: 2, newest: time.Now(), each: 10}}
			turn := make(chan struct{}, 1)
			for range waiting {
				f.groups[key].waiting = append(f.groups[key].waiting, &fusedPop{turn: turn})
			}
			f.finish(key, 1000, 0)
			require.Len(t, turn, want)
			require.Equal(t, 1+want, f.groups[key].running)
		})
	}
}

// What a claim found says how much the pops behind it will take.
func TestClaimTellsHowMuchEachPopTook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, gates := setupHot(t, Config{})
		gate := &claimsGate{open: make(chan struct{}), answer: func(r pg.PopRequest) (pg.Claim, error) {
			var claim pg.Claim
			for i, name := range r.Candidates {
				claim.States = append(claim.States, pg.CandidateState{Partition: name, Verdict: pg.CandidateTook, Index: i, LastOffset: 0})
				claim.Partitions = append(claim.Partitions, pg.ClaimedPartition{
					Queue: "orders", Partition: name, PartitionID: uuid.New(), Segments: []pg.ClaimedSegment{stored(t, 0, message(i))},
				})
			}
			return claim, nil
		}}
		pops, ctxs := same(2, t.Context())
		pops[0].MaxPartitions, pops[1].MaxPartitions = 7, 7
		pops[0].Batch, pops[1].Batch = 100, 100
		wait := crowded(t, server, gates, db, gate, pops, ctxs, 20)
		gate.open <- struct{}{}
		synctest.Wait()
		require.Len(t, gate.claimed, 2)
		for _, g := range server.fuser.groups {
			require.Equal(t, 7, g.each)
		}
		require.Len(t, server.fuser.groups, 1)
		close(gate.open)
		wait()
	})
}

func TestCommonClaim(t *testing.T) {
	t.Parallel()
	t.Run("WhoeverLeavesWhileWaitingIsLeftOut", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, db, gates := setupHot(t, Config{FusedClaims: 1})
			gate := &claimsGate{open: make(chan struct{}), answer: emptyAll}
			pops, ctxs := same(5, t.Context())
			leaving, leave := context.WithCancel(t.Context())
			ctxs[3] = leaving
			wait := crowded(t, server, gates, db, gate, pops, ctxs, len(pops))
			leave()
			synctest.Wait()
			close(gate.open)
			errs := wait()
			require.ErrorIs(t, errs[3], context.Canceled)
			require.NotErrorIs(t, errs[4], context.Canceled)
			require.Equal(t, []int32{2, 3, 5}, gate.claimed[1].Budgets)
			require.Zero(t, server.hot.Stats().InFlight)
		})
	})
	t.Run("ErrorsReachEverybody", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, db, gates := setupHot(t, Config{})
			gate := &claimsGate{open: make(chan struct{}), answer: func(pg.PopRequest) (pg.Claim, error) { return pg.Claim{}, pg.ErrUnavailable }}
			pops, ctxs := same(5, t.Context())
			wait := crowded(t, server, gates, db, gate, pops, ctxs, len(pops))
			close(gate.open)
			for _, err := range wait() {
				require.ErrorIs(t, err, pg.ErrUnavailable)
			}
			require.Zero(t, server.hot.Stats().InFlight)
			require.Empty(t, server.fuser.groups)
		})
	})
	t.Run("TheLeaderMayLeaveWhileItClaims", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, db, gates := setupHot(t, Config{FusedClaims: 1})
			gate := &claimsGate{open: make(chan struct{}), answer: emptyAll}
			pops, ctxs := same(4, t.Context())
			leaving, leave := context.WithCancel(t.Context())
			ctxs[1] = leaving // runs the second claim, for itself and the last two
			wait := crowded(t, server, gates, db, gate, pops, ctxs, len(pops))
			gate.open <- struct{}{}
			synctest.Wait()
			require.Len(t, gate.claimed, 2)
			leave()
			close(gate.open)
			errs := wait()
			require.NotErrorIs(t, errs[2], context.Canceled)
			require.NotErrorIs(t, errs[3], context.Canceled)
			require.Len(t, gate.claimed[1].Candidates, 3)
			require.Zero(t, server.hot.Stats().InFlight)
		})
	})
	t.Run("APanicBreaksNothingElse", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			server, db, gates := setupHot(t, Config{FusedClaims: 1})
			gate := &claimsGate{open: make(chan struct{}), answer: func(r pg.PopRequest) (pg.Claim, error) {
				if len(r.Candidates) > 1 {
					panic("bug")
				}
				return emptyAll(r)
			}}
			warm(t, server, db)
			for i := range 3 {
				gates.Stored(tenant, "orders", fmt.Sprintf("p%d", i), 1)
			}
			db.claim = gate.claim
			var running sync.WaitGroup
			outcomes := make([]string, 3)
			for i := range 3 {
				running.Go(func() {
					defer func() {
						if cause := recover(); cause != nil {
							outcomes[i] = "panic"
						}
					}()
					if _, err := server.Pop(t.Context(), quick(1)); err != nil {
						outcomes[i] = err.Error()
					}
				})
				synctest.Wait()
			}
			close(gate.open)
			running.Wait()
			require.Equal(t, []string{errServed.Error(), "panic", errClaimBroke.Error()}, outcomes)
			require.Zero(t, server.hot.Stats().InFlight)
			require.Empty(t, server.fuser.groups)
		})
	})
}

// Each pop gets its own messages under its own lease.
func TestCommonClaimIsSharedOut(t *testing.T) {
	t.Parallel()
	server, db, gates := setupHot(t, Config{FusedClaims: 1})
	warm(t, server, db)
	const pops = 8
	for i := range pops {
		gates.Stored(tenant, "orders", fmt.Sprintf("p%d", i), 1)
	}
	first := make(chan struct{})
	var once sync.Once
	db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
		once.Do(func() { <-first })
		var claim pg.Claim
		for i, name := range r.Candidates {
			claim.States = append(claim.States, pg.CandidateState{Partition: name, Verdict: pg.CandidateTook, Index: i, LastOffset: 0})
			worker := r.Worker
			if r.Workers != nil {
				worker = r.Workers[i]
			}
			frame := message(i)
			frame.TransactionID = name + "/" + worker
			claim.Partitions = append(claim.Partitions, pg.ClaimedPartition{Queue: "orders", Partition: name, PartitionID: uuid.New(), Segments: []pg.ClaimedSegment{stored(t, 0, frame)}})
		}
		return claim, nil
	}
	var running sync.WaitGroup
	seen := make(chan string, pops)
	for range pops {
		running.Go(func() {
			result, err := server.Pop(t.Context(), quick(1))
			if err != nil || result == nil || len(result.Partitions) != 1 {
				t.Errorf("got %v, %v", result, err)
				return
			}
			body := string(result.AppendJSON(nil))
			name := result.Partitions[0].Partition
			if !strings.Contains(body, `"transactionId":"`+name+"/"+result.LeaseID+`"`) {
				t.Errorf("%s is not the batch of lease %s", body, result.LeaseID)
			}
			seen <- name
			result.Release()
		})
	}
	require.Eventually(t, func() bool {
		server.fuser.mu.Lock()
		defer server.fuser.mu.Unlock()
		for _, g := range server.fuser.groups {
			return len(g.waiting) == pops-1
		}
		return false
	}, 10*time.Second, time.Millisecond)
	close(first)
	running.Wait()
	close(seen)
	names := map[string]bool{}
	for name := range seen {
		names[name] = true
	}
	require.Len(t, names, pops)
	require.EqualValues(t, 2, server.Stats().Targeted)
	require.EqualValues(t, pops, server.Stats().Fused)
}
