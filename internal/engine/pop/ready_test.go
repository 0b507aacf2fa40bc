package pop

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/ready"
	"queenmq/internal/pg"
)

// quick is a queue pop that does not wait.
func quick(most int) Request {
	return Request{Tenant: tenant, Queue: "orders", Group: "billing", Batch: 10, MaxPartitions: most}
}

// verdicts answers every candidate with the same word.
func verdicts(verdict pg.CandidateVerdict, wait time.Duration) func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
	return func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
		var claim pg.Claim
		for i, name := range r.Candidates {
			claim.States = append(claim.States, pg.CandidateState{Partition: name, Verdict: verdict, Index: i, Wait: wait})
		}
		return claim, nil
	}
}

// took is a claim of the first candidate, whose head is at last.
func took(r pg.PopRequest, last int64, segments ...pg.ClaimedSegment) pg.Claim {
	claim := claimOf(segments...)
	claim.Partitions[0].Partition = r.Candidates[0]
	claim.States = []pg.CandidateState{{Partition: r.Candidates[0], Verdict: pg.CandidateTook, LastOffset: last}}
	return claim
}

// warm makes the ring of the group known and walked.
func warm(t *testing.T, server *Server, db *fakeStore) *ready.Ring {
	t.Helper()
	_, err := server.Pop(t.Context(), quick(1))
	require.NoError(t, err)
	db.log()
	return server.hot.Ring(tenant, "orders", "billing")
}

// Of pops that come together for a new group one registers it: all of them would search all partitions.
func TestOnePopRegistersANewGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, _ := setupHot(t, Config{})
		db.registered = false
		hold := make(chan struct{})
		db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
			<-hold
			return pg.Claim{}, nil
		}
		var pops sync.WaitGroup
		for range 8 {
			pops.Go(func() { _, _ = server.Pop(t.Context(), quick(1)) })
		}
		synctest.Wait()
		close(hold)
		pops.Wait()
		searches := 0
		for _, call := range db.log() {
			if call == "wildcard" {
				searches++
			}
		}
		require.Equal(t, 1, searches)
	})
}

// When the registration fails, the next pop tries.
func TestTheNextPopRegistersWhenTheFirstFails(t *testing.T) {
	t.Parallel()
	server, db, _ := setupHot(t, Config{})
	db.registered = false
	db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) { return pg.Claim{}, pg.ErrUnavailable }
	_, err := server.Pop(t.Context(), quick(1))
	require.ErrorIs(t, err, pg.ErrUnavailable)
	db.claim = nil
	db.log()
	_, err = server.Pop(t.Context(), quick(1))
	require.NoError(t, err)
	require.Contains(t, db.log(), "wildcard")
}

func TestFirstQueuePopAsksTheDatabaseWhatIsPending(t *testing.T) {
	t.Parallel()
	server, db, _ := setupHot(t, Config{})
	db.pages = [][]string{{"eu", "us"}}
	db.claim = verdicts(pg.CandidateEmpty, 0)
	result, err := server.Pop(t.Context(), quick(1))
	require.NoError(t, err)
	require.Nil(t, result)
	require.Equal(t, []string{"registered", "settings", "walk", "ready", "ready"}, db.log())
	require.Zero(t, db.walked[0].Window)

	_, err = server.Pop(t.Context(), quick(1))
	require.NoError(t, err)
	require.Empty(t, db.log(), "a second pop of an empty queue costs no statement")
}

func TestUnknownGroupIsRegisteredByASearch(t *testing.T) {
	t.Parallel()
	server, db, _ := setupHot(t, Config{})
	db.registered = false
	_, err := server.Pop(t.Context(), quick(1))
	require.NoError(t, err)
	require.Equal(t, []string{"registered", "settings", "wildcard", "walk"}, db.log())
}

// A claim that found nothing is followed by another while the list still names partitions: the pop answers empty only when there is nothing.
func TestStaleBeliefsDoNotHideWork(t *testing.T) {
	t.Parallel()
	server, db, gates := setupHot(t, Config{})
	warm(t, server, db)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		gates.Stored(tenant, "orders", name, 1)
	}
	db.claim = func(ctx context.Context, call string, r pg.PopRequest) (pg.Claim, error) {
		for i, name := range r.Candidates {
			if name == "e" {
				r.Candidates = r.Candidates[i:]
				claim := took(r, 0, stored(t, 0, message(1)))
				claim.States[0].Index = i
				return claim, nil
			}
		}
		return verdicts(pg.CandidateEmpty, 0)(ctx, call, r)
	}
	result, err := server.Pop(t.Context(), quick(1))
	require.NoError(t, err)
	require.Equal(t, "e", result.Partitions[0].Partition)
	result.Release()
}

func TestEveryVerdictIsCheckedIn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		autoAck bool
		claim   func(t *testing.T, r pg.PopRequest) pg.Claim
		at      time.Duration // when the partition is named again; negative: not at all
	}{
		{"empty", false, func(_ *testing.T, r pg.PopRequest) pg.Claim { return mustClaim(verdicts(pg.CandidateEmpty, 0), r) }, -1},
		{"leased", false, func(_ *testing.T, r pg.PopRequest) pg.Claim {
			return mustClaim(verdicts(pg.CandidateLeased, 100*time.Millisecond), r)
		}, 400 * time.Millisecond},
		{"raced", false, func(_ *testing.T, r pg.PopRequest) pg.Claim {
			return mustClaim(verdicts(pg.CandidateRaced, 250*time.Millisecond), r)
		}, 550 * time.Millisecond},
		{"deferred", false, func(_ *testing.T, r pg.PopRequest) pg.Claim {
			return mustClaim(verdicts(pg.CandidateDeferred, 90*time.Second), r)
		}, 90 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, db, gates := setupHot(t, Config{})
				ring := warm(t, server, db)
				gates.Stored(tenant, "orders", "eu", 1)
				db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) { return c.claim(t, r), nil }
				result, err := server.Pop(t.Context(), quick(1))
				require.NoError(t, err)
				require.Nil(t, result)
				require.Equal(t, []string{"ready"}, db.log())
				require.False(t, ring.HasReady())
				if c.at < 0 {
					time.Sleep(time.Hour)
					require.False(t, ring.HasReady())
					return
				}
				time.Sleep(c.at - time.Millisecond)
				require.False(t, ring.HasReady())
				time.Sleep(time.Millisecond)
				require.True(t, ring.HasReady())
			})
		})
	}
}

func mustClaim(answer func(context.Context, string, pg.PopRequest) (pg.Claim, error), r pg.PopRequest) pg.Claim {
	claim, _ := answer(context.Background(), "", r)
	return claim
}

func TestDeliveryIsCheckedIn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		autoAck bool
		last    int64
		covered bool
		again   bool
	}{
		{"all there was, completed", false, 1, true, false},
		{"more was left", false, 2, true, true},
		{"given back", false, 1, false, true},
		{"auto-ack of all there was", true, 1, false, false},
		{"auto-ack, more was left", true, 2, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, gates := setupHot(t, Config{})
			ring := warm(t, server, db)
			gates.Stored(tenant, "orders", "eu", 2)
			db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
				return took(r, c.last, stored(t, 0, message(1), message(2))), nil
			}
			req := quick(1)
			req.AutoAck = c.autoAck
			result, err := server.Pop(t.Context(), req)
			require.NoError(t, err)
			require.Equal(t, 2, result.Messages())
			result.Release()
			if !c.autoAck {
				require.False(t, ring.HasReady(), "leased")
				gates.Released(tenant, "orders", "eu", "billing", map[bool]string{true: result.LeaseID}[c.covered])
			}
			require.Equal(t, c.again, ring.HasReady())
		})
	}
}

// The heart of the hot list: a push that commits after the claim's snapshot and is told before the check-in.
func TestPushBetweenSnapshotAndCheckInWins(t *testing.T) {
	t.Parallel()
	server, db, gates := setupHot(t, Config{})
	ring := warm(t, server, db)
	gates.Stored(tenant, "orders", "eu", 1)
	first := true
	db.claim = func(ctx context.Context, call string, r pg.PopRequest) (pg.Claim, error) {
		if first {
			first = false
			gates.Stored(tenant, "orders", "eu", 1)
			return verdicts(pg.CandidateEmpty, 0)(ctx, call, r)
		}
		return took(r, 0, stored(t, 0, message(1))), nil
	}
	result, err := server.Pop(t.Context(), quick(1))
	require.NoError(t, err)
	require.NotNil(t, result, "the message was lost from sight")
	result.Release()
	require.Equal(t, []string{"ready", "ready"}, db.log())
	require.False(t, ring.HasReady())
}

func TestNothingStaysTaken(t *testing.T) {
	t.Parallel()
	broken := pg.ClaimedSegment{Base: 0, Take: 1, CreatedAt: createdAt, Blob: []byte("damage")}
	for _, c := range []struct {
		name    string
		autoAck bool
		claim   func(ctx context.Context, leave func(), r pg.PopRequest) (pg.Claim, error)
		fails   error
		soon    bool // named again at once
	}{
		{"database error", false, func(context.Context, func(), pg.PopRequest) (pg.Claim, error) { return pg.Claim{}, pg.ErrUnavailable }, pg.ErrUnavailable, true},
		{"caller left", false, func(ctx context.Context, leave func(), _ pg.PopRequest) (pg.Claim, error) {
			leave()
			return pg.Claim{}, ctx.Err()
		}, context.Canceled, true},
		{"nothing reached", false, func(context.Context, func(), pg.PopRequest) (pg.Claim, error) { return pg.Claim{}, nil }, nil, true},
		{"undecodable", false, func(_ context.Context, _ func(), r pg.PopRequest) (pg.Claim, error) { return took(r, 0, broken), nil }, nil, false},
		{"undecodable, auto-ack", true, func(_ context.Context, _ func(), r pg.PopRequest) (pg.Claim, error) { return took(r, 0, broken), nil }, ErrUndecodable, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server, db, gates := setupHot(t, Config{})
			ring := warm(t, server, db)
			gates.Stored(tenant, "orders", "eu", 1)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			db.claim = func(ctx context.Context, _ string, r pg.PopRequest) (pg.Claim, error) { return c.claim(ctx, leave, r) }
			req := quick(1)
			req.AutoAck = c.autoAck
			_, err := server.Pop(ctx, req)
			require.ErrorIs(t, err, c.fails)
			require.Zero(t, server.hot.Stats().InFlight)
			require.Equal(t, c.soon, ring.HasReady())
		})
	}
	t.Run("panic", func(t *testing.T) {
		t.Parallel()
		server, db, gates := setupHot(t, Config{})
		ring := warm(t, server, db)
		gates.Stored(tenant, "orders", "eu", 1)
		db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) { panic("bug") }
		require.Panics(t, func() { _, _ = server.Pop(t.Context(), quick(1)) })
		require.Zero(t, server.hot.Stats().InFlight)
		require.True(t, ring.HasReady())
	})
}

// Thousands of parked pops on an idle queue cost no statement, and a message wakes one of them.
func TestParkedPopsCostNoStatement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const parked = 2000
		server, db, gates := setupHot(t, Config{})
		warm(t, server, db)
		ctx, cancel := context.WithCancel(t.Context())
		var loops, pops sync.WaitGroup
		loops.Go(func() { _ = server.Run(ctx) })
		loops.Go(func() { _ = server.hot.Run(ctx) })
		looked := make(chan time.Time, parked)
		db.claim = func(ctx context.Context, call string, r pg.PopRequest) (pg.Claim, error) {
			looked <- time.Now()
			return verdicts(pg.CandidateEmpty, 0)(ctx, call, r)
		}
		for range parked {
			pops.Go(func() { _, _ = server.Pop(ctx, longPoll(time.Hour)) })
		}
		synctest.Wait()
		require.Equal(t, parked, gates.Waiting(tenant, "orders"))
		require.Empty(t, db.log())
		time.Sleep(10 * time.Minute)
		statements := map[string]int{}
		for _, call := range db.log() {
			statements[call]++
		}
		// The background walks up to a quarter of the interval of 30 s early, so that rings do not walk together and pops never have to.
		require.LessOrEqual(t, statements["walk"], 10*60*4/(3*30)+1, "one for all of them per reseed")
		delete(statements, "walk")
		require.LessOrEqual(t, statements["registered"]+statements["settings"], 2*(10*60/30+1), "shared caches that expired")
		delete(statements, "registered")
		delete(statements, "settings")
		require.Empty(t, statements)

		start := time.Now()
		gates.Stored(tenant, "orders", "eu", 1)
		require.LessOrEqual(t, (<-looked).Sub(start), ready.CoalesceInterval)
		synctest.Wait()
		require.Empty(t, looked, "one partition, one pop")
		cancel()
		pops.Wait()
		loops.Wait()
	})
}

func TestParkedPopEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, _ := setupHot(t, Config{})
		warm(t, server, db)
		start := time.Now()
		result, err := server.Pop(t.Context(), longPoll(70*time.Second))
		require.NoError(t, err)
		require.Nil(t, result)
		require.Equal(t, 70*time.Second, time.Since(start))
	})
}

func TestPopWaitsForAFullerBatchWhenTheQueueAsksForIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		before int // messages there when the pop comes
		later  int // messages after 20 ms
		wait   bool
		took   time.Duration
	}{
		{"not enough", 3, 1, true, 100 * time.Millisecond},
		{"enough at once", 10, 0, true, 0},
		{"enough later", 3, 7, true, 20 * time.Millisecond},
		{"pop that does not wait", 3, 0, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, db, gates := setupHot(t, Config{})
				db.settings["orders"] = pg.QueueSettings{LeaseSeconds: 300, MinPopWait: 100}
				warm(t, server, db)
				db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) { return pg.Claim{}, errServed }
				gates.Stored(tenant, "orders", "eu", c.before)
				go func() {
					time.Sleep(20 * time.Millisecond)
					if c.later > 0 {
						gates.Stored(tenant, "orders", "us", c.later)
					}
				}()
				req := longPoll(time.Minute)
				req.Wait = c.wait
				start := time.Now()
				_, err := server.Pop(t.Context(), req)
				require.ErrorIs(t, err, errServed)
				require.InDelta(t, c.took.Seconds(), time.Since(start).Seconds(), 0.006)
				time.Sleep(time.Second) // the pusher above ends
			})
		})
	}
}

func TestRepairsAreFollowedOnce(t *testing.T) {
	t.Parallel()
	server, db, _ := setupHot(t, Config{})
	ring := warm(t, server, db)
	db.repairs = []pg.HotListRepair{{ID: 7, Tenant: tenant, Queue: "orders", Group: "billing"}}
	require.NoError(t, server.Repair(t.Context()))
	require.True(t, ring.IsCold())
	_, err := server.Pop(t.Context(), quick(1))
	require.NoError(t, err)
	require.Equal(t, []string{"repairs", "registered", "walk"}, db.log(), "registration and contents are asked for again")
	require.Zero(t, db.walked[len(db.walked)-1].Window)

	require.NoError(t, server.Repair(t.Context()))
	require.False(t, ring.IsCold(), "once")
	db.repairs = append([]pg.HotListRepair{{ID: 5, Tenant: tenant}}, db.repairs...) // committed late
	require.NoError(t, server.Repair(t.Context()))
	require.True(t, ring.IsCold(), "a smaller id may come later")
}

func TestWalkThatFailsIsDoneAgain(t *testing.T) {
	t.Parallel()
	server, db, _ := setupHot(t, Config{})
	db.mu.Lock()
	db.failWalk = pg.ErrUnavailable
	db.mu.Unlock()
	_, err := server.Pop(t.Context(), quick(1))
	require.ErrorIs(t, err, pg.ErrUnavailable)
	db.mu.Lock()
	db.failWalk, db.pages = nil, [][]string{{"eu"}}
	db.mu.Unlock()
	server.WalkDue(t.Context())
	require.Equal(t, 1, server.hot.Ring(tenant, "orders", "billing").Ready())
}

// A broker that has just begun does not know for how long a message has been there. It must not count a delay or a window from its own
// beginning.
func TestColdRingAsksTheDatabaseWhetherAWaitIsOver(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]pg.QueueSettings{
		"Delay": {LeaseSeconds: 60, DelayedProcessing: 3600}, "Window": {LeaseSeconds: 60, WindowBuffer: 3600},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server, db, gates := setupHot(t, Config{})
				db.settings["orders"] = settings
				db.pages = [][]string{{"eu"}}
				db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
					require.Equal(t, []string{"eu"}, r.Candidates)
					return took(r, 0, stored(t, 0, message(1))), nil
				}
				result, err := server.Pop(t.Context(), quick(1))
				require.NoError(t, err)
				require.NotNil(t, result)
				result.Release()
				require.False(t, db.last().SkipWindow, "the list has held nothing back")

				gates.Released(tenant, "orders", "eu", "billing", result.LeaseID)
				gates.Stored(tenant, "orders", "eu", 1)
				result, err = server.Pop(t.Context(), quick(1))
				require.NoError(t, err)
				require.Nil(t, result, "held back from when the list heard of it")
				time.Sleep(time.Hour)
				result, err = server.Pop(t.Context(), quick(1))
				require.NoError(t, err)
				require.NotNil(t, result)
				result.Release()
				require.Equal(t, name == "Window", db.last().SkipWindow, "once is enough")
			})
		})
	}
}

// The pop that registers a group creates a bounded number of its cursors; the others are created behind its back.
func TestCursorsOfANewGroupAreCreatedInTheBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, _ := setupHot(t, Config{})
		db.registered = false
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.Run(ctx) }()
		_, err := server.Pop(t.Context(), quick(1))
		require.NoError(t, err)
		synctest.Wait()
		db.mu.Lock()
		require.Equal(t, 1, db.seeded)
		db.mu.Unlock()
		cancel()
		require.NoError(t, <-ended)
	})
}
