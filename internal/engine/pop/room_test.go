package pop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/segment"
	"queenmq/internal/pg"
)

func TestRoom_NeverGivesMoreThanThereIs(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	r := newRoom(size, 1<<20)
	var taken, most atomic.Int64
	note := func(h *hold, before int64) {
		if now := taken.Add(h.bytes - before); now > most.Load() {
			most.Store(now)
		}
	}
	var working sync.WaitGroup
	for w := range 16 {
		working.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			key := queueKey{queue: fmt.Sprint(w % 4)}
			for range 300 {
				var h hold
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(3)+1)*time.Millisecond)
				entered := r.enter(&h, key) || r.wait(ctx, &h, random.Int64N(2*size)) == nil
				cancel()
				if !entered {
					require.Zero(t, h.bytes)
					continue
				}
				note(&h, 0)
				before := h.bytes
				need := random.Int64N(size)
				r.learn(key, need)
				// What is given up is counted before it is, so that the count never lags behind.
				if need < before {
					taken.Add(need - before)
					require.True(t, h.resize(need))
				} else if h.resize(need) {
					note(&h, before)
				} else {
					require.Equal(t, before, h.bytes)
				}
				taken.Add(-h.bytes)
				h.release()
				h.release()
			}
		})
	}
	working.Wait()
	require.LessOrEqual(t, most.Load(), int64(size))
	require.Positive(t, most.Load())
	require.Zero(t, r.inUse())
}

func TestRoom_IsGenerousAtRestAndSmallAnswersPassLargeOnes(t *testing.T) {
	t.Parallel()
	r := newRoom(64<<20, 16<<20)
	var first, second, large, small hold
	key, other := queueKey{queue: "large"}, queueKey{queue: "small"}
	require.True(t, r.enter(&first, key))
	require.EqualValues(t, 24<<20, first.bytes, "half of what is free")
	require.True(t, r.enter(&second, key))
	require.EqualValues(t, 12<<20, second.bytes)
	require.True(t, second.resize(24<<20), "it may grow as long as there is room")
	require.False(t, second.resize(24<<20+1))

	r.learn(key, 10<<20)
	require.False(t, r.enter(&large, key), "what the queue's answers usually need is not there")
	require.True(t, r.enter(&small, other), "small ones have a part of their own")
	require.EqualValues(t, leastExpected, small.bytes)
	require.False(t, small.resize(leastExpected+1), "which is for small ones")

	waited := make(chan error)
	go func() { waited <- r.wait(t.Context(), &large, r.expects(key)) }()
	require.Eventually(t, func() bool { return r.waits.Load() == 1 }, 10*time.Second, time.Millisecond)
	require.False(t, second.resize(24<<20+1), "who came first is served first")
	first.release()
	require.NoError(t, <-waited)
	require.EqualValues(t, 10<<20, large.bytes)
	for range 40 {
		r.learn(key, 0)
	}
	require.Less(t, r.expects(key), int64(leastExpected), "a queue whose answers become small")
	for _, h := range []*hold{&second, &large, &small} {
		h.release()
	}
	require.Zero(t, r.inUse())
}

// segmentOfBytes is a claimed partition whose one message is that large, of content that is not stored much smaller.
func segmentOfBytes(t *testing.T, bytes int) pg.ClaimedPartition {
	t.Helper()
	var text strings.Builder
	for text.Len() < bytes {
		fmt.Fprintf(&text, "%016x", rand.Uint64())
	}
	frame := segment.Frame{ID: segment.NewID(), TransactionID: "t", Payload: []byte(`"` + text.String()[:bytes] + `"`)}
	blob, _, err := segment.Pack([]segment.Frame{frame})
	require.NoError(t, err)
	return pg.ClaimedPartition{
		Queue: "orders", Partition: "eu", PartitionID: uuid.New(),
		Segments: []pg.ClaimedSegment{{Take: 1, CreatedAt: time.Unix(1, 0), Blob: blob}},
	}
}

func TestPop_WaitsForRoomWithNothingInHand(t *testing.T) {
	t.Parallel()
	for _, autoAck := range []bool{false, true} {
		server, db, _ := setup(t, Config{MaxInflightBytes: 1 << 20})
		large := segmentOfBytes(t, 200<<10)
		var claims atomic.Int64
		db.claim = func(_ context.Context, _ string, r pg.PopRequest) (pg.Claim, error) {
			claims.Add(1)
			claim := pg.Claim{Partitions: []pg.ClaimedPartition{large}}
			if r.AutoAck && r.Accept != nil {
				if err := r.Accept(claim); err != nil {
					return pg.Claim{}, err
				}
			}
			return claim, nil
		}
		ask := func(ctx context.Context) (*Result, error) {
			req := partitionPop()
			req.AutoAck, req.Wait, req.Timeout = autoAck, true, 30*time.Second
			return server.Pop(ctx, req)
		}
		first, err := ask(t.Context())
		require.NoError(t, err)
		require.Positive(t, server.Stats().InflightBytes)

		answers := make(chan error)
		go func() {
			second, err := ask(t.Context())
			if err == nil {
				second.Abandon(t.Context())
			}
			answers <- err
		}()
		require.Eventually(t, func() bool { return server.Stats().RoomWaits > 0 }, 10*time.Second, time.Millisecond)
		require.Zero(t, server.slots.Stats().InFlight, "neither a slot")
		select {
		case err := <-answers:
			require.FailNow(t, "answered beyond the bound", "%v", err)
		default:
		}
		before := first.room.bytes
		body := first.AppendJSON(nil)
		first.Release()
		require.LessOrEqual(t, first.room.bytes, before)
		require.EqualValues(t, len(body), first.room.bytes, "what is rendered is still in memory")
		first.Done()
		require.NoError(t, <-answers)
		require.Zero(t, server.Stats().InflightBytes)
		require.GreaterOrEqual(t, claims.Load(), int64(2))
	}
}

func TestPop_WithoutRoomIsRefusedAfterAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server, db, _ := setup(t, Config{MaxInflightBytes: 1 << 20})
		large := segmentOfBytes(t, 200<<10)
		db.claim = func(context.Context, string, pg.PopRequest) (pg.Claim, error) {
			return pg.Claim{Partitions: []pg.ClaimedPartition{large}}, nil
		}
		first, err := server.Pop(t.Context(), partitionPop())
		require.NoError(t, err)
		began := time.Now()
		_, err = server.Pop(t.Context(), partitionPop())
		require.ErrorIs(t, err, ErrNoRoom)
		require.Equal(t, roomWait, time.Since(began))
		gone, leave := context.WithCancelCause(t.Context())
		leave(errors.New("left"))
		_, err = server.Pop(gone, partitionPop())
		require.Error(t, err)
		first.Done()
		require.Zero(t, server.Stats().InflightBytes)
	})
}

// partitionPop asks for a named partition, which is claimed without asking first whether there is anything.
func partitionPop() Request {
	req := quick(2)
	req.Kind, req.Partition = Partition, "eu"
	return req
}

// What a pop took of the room must come back also when it claimed something and has nothing to answer: a broker on which that happens for
// hours would serve nobody any more.
func TestPop_GivesTheRoomBackWhenNothingOfAClaimIsAnswered(t *testing.T) {
	t.Parallel()
	poison := claimOf(framesOf(t, false, `"poison"`))
	poison.Partitions[0].Poison = true
	damaged := claimOf(pg.ClaimedSegment{Take: 1, CreatedAt: createdAt, Blob: []byte("damaged")})
	for name, row := range map[string]struct {
		cfg   Config
		claim pg.Claim
		err   error
	}{
		"EncryptedWithoutAnyKey": {Config{}, claimOf(framesOf(t, true, `"a"`)), ErrKeyMissing},
		"EncryptedUnderAKeyOfOthers": {
			Config{Opener: upper, KeyMissing: func(context.Context, error) bool { return true }}, claimOf(framesOf(t, true, `"foreign"`)), ErrKeyMissing,
		},
		"UndecryptableAndFiled": {
			Config{Opener: upper, DeadLetter: func(context.Context, DeadLetter) bool { return true }}, claimOf(framesOf(t, true, `"foreign"`)), nil,
		},
		"DeliveredTooOften": {Config{DeadLetter: func(context.Context, DeadLetter) bool { return true }}, poison, nil},
		"Damaged":           {Config{}, damaged, nil},
	} {
		for _, kind := range []Kind{Queue, Partition} {
			t.Run(fmt.Sprint(name, kind), func(t *testing.T) {
				t.Parallel()
				server, db, _ := setup(t, row.cfg)
				db.claim = oneByOne(row.claim)
				result, err := server.Pop(t.Context(), Request{Tenant: tenant, Kind: kind, Queue: "orders", Partition: "eu", Group: "g"})
				require.ErrorIs(t, err, row.err)
				require.Nil(t, result)
				require.Zero(t, server.Stats().InflightBytes)
			})
		}
	}
}
