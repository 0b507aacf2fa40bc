package push

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/admission"
	"queenmq/internal/pg"
)

// fused pushes the given requests so that all of them share one flush, and returns their verdicts in order.
func (f *fixture) fused(t *testing.T, requests ...[]Item) [][]Verdict {
	t.Helper()
	var held []*admission.Slot
	for s, ok := f.slots.TryAcquire(admission.Push); ok; s, ok = f.slots.TryAcquire(admission.Push) {
		held = append(held, s)
	}
	verdicts := make([][]Verdict, len(requests))
	var wg sync.WaitGroup
	for i, items := range requests {
		wg.Go(func() {
			<-time.After(time.Duration(i) * time.Nanosecond) // arrival in order
			verdicts[i] = f.push(t, items...)
		})
	}
	<-time.After(time.Microsecond)
	synctest.Wait()
	for _, s := range held {
		s.Release()
	}
	wg.Wait()
	return verdicts
}

func oneShard() Config { return Config{Shards: 1, Hold: time.Hour} }

func TestPush_DuplicateInSameRequestKeepsFirst(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{})
	v := f.push(t, item("p", "a", "first"), item("p", "a", "second"), item("q", "a", "elsewhere"), item("p", "a", "third"))
	require.Equal(t, []Status{StatusQueued, StatusDuplicate, StatusQueued, StatusDuplicate}, statuses(v))
	require.Equal(t, v[0].MessageID, v[1].MessageID)
	require.Equal(t, v[0].MessageID, v[3].MessageID)
	require.Equal(t, v[0].PartitionID, v[3].PartitionID)
	require.NotEqual(t, v[0].MessageID, v[2].MessageID, "another partition is another place")
	frames := f.store.stored("orders", "p")
	require.Len(t, frames, 1)
	require.Equal(t, "first", string(frames[0].Payload))
}

func TestPush_RepeatAcrossFusedRequestsKeepsFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, oneShard())
		v := f.fused(t,
			[]Item{item("p", "a", "1"), item("p", "b", "1")},
			[]Item{item("p", "b", "2"), item("p", "c", "2"), item("p", "b", "2")},
		)
		require.Equal(t, 1, f.store.callCount())
		require.Equal(t, []Status{StatusQueued, StatusQueued}, statuses(v[0]))
		require.Equal(t, []Status{StatusDuplicate, StatusQueued, StatusDuplicate}, statuses(v[1]))
		require.Equal(t, v[0][1].MessageID, v[1][0].MessageID)
		require.Equal(t, v[0][1].MessageID, v[1][2].MessageID, "a repeat of a repeat")
		require.Len(t, f.store.stored("orders", "p"), 3)
	})
}

func TestPush_RepeatsFailWithTheirLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, oneShard(), func(f *fixture) {
			f.store.before = func(int, []pg.Segment) error { return fmt.Errorf("refused: %w", pg.ErrUnavailable) }
		})
		v := f.fused(t, []Item{item("p", "a", "1"), item("p", "a", "2")}, []Item{item("p", "a", "3")})
		require.Equal(t, 1, f.store.callCount(), "an outage is not tried again here")
		for _, verdicts := range v {
			for _, verdict := range verdicts {
				require.Equal(t, StatusFailed, verdict.Status)
				require.ErrorIs(t, verdict.Err, pg.ErrUnavailable)
				require.Equal(t, v[0][0].MessageID, verdict.MessageID)
			}
		}
	})
}

func TestPush_StoredDuplicatesAreTakenOutAndTheRestIsStored(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, oneShard())
		before := f.push(t, item("p", "id-10", "1"), item("p", "id-50", "1"))
		var first, second []Item
		for i := range 100 {
			it := item("p", fmt.Sprintf("id-%d", i), fmt.Sprint(i))
			if i < 30 {
				first = append(first, it)
			} else {
				second = append(second, it)
			}
		}
		v := f.fused(t, first, second)
		all := append(append([]Verdict(nil), v[0]...), v[1]...)
		queued := 0
		for i, verdict := range all {
			switch i {
			case 10:
				require.Equal(t, StatusDuplicate, verdict.Status)
				require.Equal(t, before[0].MessageID, verdict.MessageID)
			case 50:
				require.Equal(t, StatusDuplicate, verdict.Status)
				require.Equal(t, before[1].MessageID, verdict.MessageID)
			default:
				require.Equal(t, StatusQueued, verdict.Status)
				queued++
			}
			require.Equal(t, before[0].PartitionID, verdict.PartitionID)
		}
		require.Equal(t, 98, queued)
		require.Equal(t, 3, f.store.callCount(), "the first push, the refused segment, the survivors")
		require.Equal(t, 1, f.store.segmentRead, "both originals lie in one segment, read once")
		frames := f.store.stored("orders", "p")
		require.Len(t, frames, 100)
		next := 2
		for i := range 100 {
			if i != 10 && i != 50 {
				require.Equal(t, fmt.Sprintf("id-%d", i), frames[next].TransactionID)
				require.Equal(t, fmt.Sprint(i), string(frames[next].Payload))
				next++
			}
		}
	})
}

func TestPush_OnlyDuplicatesWriteNothing(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{})
	first := f.push(t, item("p", "a", "1"), item("p", "b", "1"))
	again := f.push(t, item("p", "a", "2"), item("p", "b", "2"), item("p", "a", "3"))
	require.Equal(t, []Status{StatusDuplicate, StatusDuplicate, StatusDuplicate}, statuses(again))
	require.Equal(t, first[0].MessageID, again[0].MessageID)
	require.Equal(t, first[1].MessageID, again[1].MessageID)
	require.Equal(t, first[0].MessageID, again[2].MessageID)
	require.Equal(t, 2, f.store.callCount())
	require.Len(t, f.store.stored("orders", "p"), 2)
}

func TestPush_DuplicateWhoseOriginalIsGoneHasTheNilID(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{})
	f.push(t, item("p", "a", "1"))
	f.store.mu.Lock()
	for _, p := range f.store.parts {
		p.segments = nil // retention
	}
	f.store.mu.Unlock()
	v := f.push(t, item("p", "a", "2"))
	require.Equal(t, StatusDuplicate, v[0].Status)
	require.Equal(t, uuid.Nil, v[0].MessageID)
}

func TestPush_SenselessVerdictsFailInsteadOfLooping(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func([]pg.Segment) []pg.PushVerdict{
		"DuplicateWithoutFrames": func([]pg.Segment) []pg.PushVerdict { return []pg.PushVerdict{{Status: pg.PushDuplicate}} },
		"DuplicateFrameOutOfRange": func([]pg.Segment) []pg.PushVerdict {
			return []pg.PushVerdict{{Status: pg.PushDuplicate, Duplicates: []pg.Duplicate{{Frame: 1}, {Frame: -1}}}}
		},
		"UnknownStatus":   func([]pg.Segment) []pg.PushVerdict { return []pg.PushVerdict{{Status: "maybe"}} },
		"NoVerdict":       func([]pg.Segment) []pg.PushVerdict { return []pg.PushVerdict{} },
		"TooManyVerdicts": func([]pg.Segment) []pg.PushVerdict { return make([]pg.PushVerdict, 2) },
		"HeldForEver":     func([]pg.Segment) []pg.PushVerdict { return []pg.PushVerdict{{Status: pg.PushHeld}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, Config{}, func(f *fixture) {
				f.store.answer = func(_ int, s []pg.Segment) []pg.PushVerdict { return answer(s) }
			})
			v := f.push(t, item("p", "a", "1"))
			require.Equal(t, StatusFailed, v[0].Status)
			require.ErrorIs(t, v[0].Err, ErrInternal)
			require.LessOrEqual(t, f.store.callCount(), 3)
		})
	}
}

func TestPush_EncryptedQueueIsNeverWrittenInPlainText(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{}, func(f *fixture) {
		f.store.answer = func(int, []pg.Segment) []pg.PushVerdict { return []pg.PushVerdict{{Status: pg.PushConfig}} }
	})
	v := f.push(t, item("p", "a", "1"))
	require.ErrorIs(t, v[0].Err, ErrEncryptionRequired)
	require.Equal(t, 1, f.store.callCount())
}

func partitions(n int) [][]Item {
	requests := make([][]Item, n)
	for i := range requests {
		requests[i] = []Item{item(fmt.Sprintf("p-%d", i), "", "1")}
	}
	return requests
}

func TestPush_PoisonSegmentFailsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, oneShard(), func(f *fixture) {
			f.store.before = func(_ int, segments []pg.Segment) error {
				for _, s := range segments {
					if s.Partition == "p-5" {
						return fmt.Errorf("%w: value too long", pg.ErrBadData)
					}
				}
				return nil
			}
		})
		for i, v := range f.fused(t, partitions(16)...) {
			if i == 5 {
				require.ErrorIs(t, v[0].Err, pg.ErrBadData)
			} else {
				require.Equal(t, StatusQueued, v[0].Status, "partition %d", i)
			}
		}
		require.Equal(t, 17, f.store.callCount(), "the bundle, then each segment")
		require.EqualValues(t, 1, f.Stats().Isolations)
	})
}

func TestPush_OutageDuringIsolationFailsTheRestWithoutTrying(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, oneShard(), func(f *fixture) {
			f.store.before = func(call int, _ []pg.Segment) error {
				return []error{pg.ErrBadData, nil, pg.ErrUnavailable}[call]
			}
		})
		v := f.fused(t, partitions(6)...)
		require.Equal(t, StatusQueued, v[0][0].Status)
		for i := 1; i < 6; i++ {
			require.ErrorIs(t, v[i][0].Err, pg.ErrUnavailable)
		}
		require.Equal(t, 3, f.store.callCount())
	})
}

func TestPush_VanishedPartitionIsCreatedAgain(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{}, func(f *fixture) {
		f.store.before = func(call int, _ []pg.Segment) error {
			if call == 0 {
				return pg.ErrVanished
			}
			return nil
		}
	})
	require.Equal(t, StatusQueued, f.push(t, item("p", "a", "1"))[0].Status)
	require.Equal(t, 2, f.store.callCount())
}

func TestPush_VanishingOverAndOverIsIsolated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, oneShard(), func(f *fixture) {
			f.store.before = func(_ int, segments []pg.Segment) error {
				for _, s := range segments {
					if s.Partition == "p-1" {
						return pg.ErrVanished
					}
				}
				return nil
			}
		})
		v := f.fused(t, partitions(3)...)
		require.Equal(t, StatusQueued, v[0][0].Status)
		require.ErrorIs(t, v[1][0].Err, pg.ErrVanished)
		require.Equal(t, StatusQueued, v[2][0].Status)
	})
}

func TestPush_PanicInAFlushFailsItsItemsAndFreesThePartition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, oneShard(), func(f *fixture) {
			f.store.before = func(call int, _ []pg.Segment) error {
				if call == 0 {
					panic("injected")
				}
				return nil
			}
		})
		v := f.fused(t, []Item{item("p", "a", "1"), item("p", "a", "2")}, []Item{item("p", "a", "3")}, []Item{item("q", "", "1")})
		for _, verdicts := range v {
			for _, verdict := range verdicts {
				require.ErrorIs(t, verdict.Err, ErrInternal)
			}
		}
		require.EqualValues(t, 1, f.Stats().Panics)
		require.Zero(t, f.slots.Stats().InFlight)
		require.Equal(t, StatusQueued, f.push(t, item("p", "a", "1"))[0].Status, "the partition is free again")
	})
}

// The commit is a fact: what goes wrong after it must not turn it into a failure.
func TestPush_PanicAfterTheCommitLeavesItQueued(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{})
	f.onStored = func(uuid.UUID, string, string, uuid.UUID, int) { panic("injected") }
	require.Equal(t, StatusQueued, f.push(t, item("p", "a", "1"))[0].Status)
}

// claims is a Verifier that always claims the same offset and remembers what it heard.
type claims struct {
	mu       sync.Mutex
	verified int64
	stored   []int64
}

func (c *claims) Verify(s *pg.Segment) { s.Verified = c.verified }

func (c *claims) Stored(_ *pg.Segment, v *pg.PushVerdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stored = append(c.stored, v.BaseOffset)
}

func TestPush_VerifierIsAskedAndTold(t *testing.T) {
	t.Parallel()
	for _, claimed := range []int64{-1, 41} {
		c := &claims{verified: claimed}
		f := setup(t, Config{Verifier: c})
		f.push(t, item("p", "a", "1"), item("p", "b", "1"))
		f.push(t, item("p", "a", "1"), item("p", "c", "1"))
		require.Equal(t, claimed, f.store.calls[0][0].Verified)
		require.Equal(t, []int64{0, 2}, c.stored, "only commits are told")
	}
}

func bounded(limit int) func(*fixture) {
	return func(f *fixture) { f.store.limits["orders"] = limit }
}

func TestBounded_RequestIsAcceptedOrRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{}, bounded(10))
		v := f.push(t, item("a", "", "1"), item("b", "", "1"), item("c", "", "1"))
		for _, verdict := range v {
			require.Equal(t, StatusQueued, verdict.Status)
			require.EqualValues(t, 3, verdict.Depth)
			require.EqualValues(t, 10, verdict.Limit)
			require.EqualValues(t, 7, verdict.Remaining)
		}
		other := Item{Queue: "free", Partition: "x", Payload: []byte("1")}
		items := []Item{other}
		for i := range 8 {
			items = append(items, item(fmt.Sprint(i), "", "1"))
		}
		v = f.push(t, items...)
		require.Equal(t, StatusQueued, v[0].Status, "other queues of the request are not affected")
		for _, verdict := range v[1:] {
			require.ErrorIs(t, verdict.Err, ErrQueueFull)
			require.EqualError(t, verdict.Err, "Queue 'orders' is full. Max capacity reached.")
			var full *QueueFullError
			require.True(t, errors.As(verdict.Err, &full))
			require.Equal(t, &QueueFullError{Queue: "orders", Depth: 3, Limit: 10, Remaining: 7}, full)
		}
	})
}

func TestBounded_RequestsAreNotFusedAndKeepTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, oneShard(), bounded(10))
		v := f.fused(t,
			[]Item{item("a", "1", "1"), item("b", "2", "1")},
			[]Item{item("a", "3", "1"), item("b", "4", "1"), item("c", "5", "1"), {Queue: "free", Partition: "x", Payload: []byte("1")}},
			[]Item{item("a", "6", "1"), item("a", "7", "1"), item("a", "8", "1"), item("a", "9", "1"), item("a", "10", "1"), item("a", "11", "1")},
			[]Item{item("a", "12", "1")},
		)
		require.Equal(t, StatusQueued, v[0][0].Status)
		require.Equal(t, StatusQueued, v[1][0].Status)
		require.Equal(t, StatusFailed, v[2][0].Status, "5 + 6 > 10")
		require.Equal(t, StatusQueued, v[3][0].Status, "a small request behind a refused one has room")
		for _, call := range f.store.calls {
			queues := map[string]int{}
			for _, s := range call {
				queues[s.Queue]++
			}
			require.Len(t, queues, 1, "a bounded queue's call carries nothing else")
		}
		var ids []string
		for _, frame := range f.store.stored("orders", "a") {
			ids = append(ids, frame.TransactionID)
		}
		require.Equal(t, []string{"1", "3", "12"}, ids)
	})
}

func TestBounded_DuplicatesAreReportedOnAFullQueueAndHeldSegmentsFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{}, bounded(3))
		f.push(t, item("a", "1", "1"), item("a", "2", "1"))
		v := f.push(t, item("a", "1", "1"), item("a", "2", "1"), item("b", "3", "1"))
		require.Equal(t, []Status{StatusDuplicate, StatusDuplicate, StatusQueued}, statuses(v), "the duplicates take no room")
		v = f.push(t, item("a", "1", "1"), item("b", "3", "1"), item("a", "2", "1"))
		require.Equal(t, []Status{StatusDuplicate, StatusDuplicate, StatusDuplicate}, statuses(v), "also when the queue is full")
		v = f.push(t, item("a", "1", "1"), item("b", "4", "1"))
		require.Equal(t, []Status{StatusDuplicate, StatusFailed}, statuses(v))
	})
}

func TestSettings_AreReadSeldomAndForgottenOnRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{})
		for range 100 {
			f.push(t, item("p", "", "1"))
		}
		require.Equal(t, 1, f.store.settingsReads())
		f.ForgetQueue(testTenant, "orders")
		f.push(t, item("p", "", "1"))
		require.Equal(t, 2, f.store.settingsReads())

		<-time.After(settingsRefresh)
		f.push(t, item("p", "", "1")) // answered from memory; reads again behind its back
		synctest.Wait()
		require.Equal(t, 3, f.store.settingsReads())
		f.push(t, item("p", "", "1"))
		require.Equal(t, 3, f.store.settingsReads())

		f.store.mu.Lock()
		f.store.limits["orders"] = 1000
		f.store.mu.Unlock()
		<-time.After(settingsAge)
		is, err := f.settings.bounded(t.Context(), testTenant, "orders")
		require.NoError(t, err)
		require.True(t, is, "an answer older than five seconds is not used")
	})
}

func TestSettings_FailedReadIsNotTheCallersProblem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{}, func(f *fixture) { f.store.settingsError = pg.ErrUnavailable })
		for range 10 {
			require.Equal(t, StatusQueued, f.push(t, item("p", "", "1"))[0].Status)
		}
		require.Equal(t, 1, f.store.settingsReads(), "a failed read is not repeated at once")
		<-time.After(settingsRetry)
		f.push(t, item("p", "", "1"))
		synctest.Wait()
		require.Equal(t, 2, f.store.settingsReads())
	})
}

func TestSettings_StaleAnswerCostsOnlyTheSeparation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{})
		f.push(t, item("p", "", "1"))
		bounded(2)(f)
		require.Equal(t, StatusQueued, f.push(t, item("p", "", "1"))[0].Status)
		require.ErrorIs(t, f.push(t, item("p", "", "1"))[0].Err, ErrQueueFull)
		require.Equal(t, 2, f.store.settingsReads(), "the verdict's limit made the pusher look again")
	})
}

// A request for one partition that takes several segments fails from the first failed one on: what a later segment stored would stand before
// the messages of the earlier one, which come again or are kept on disk.
func TestVerdict_NothingOvertakesAFailedSegmentOfItsRequest(t *testing.T) {
	t.Parallel()
	const n = 2*MaxSegmentMessages + 500
	for failing := range 3 {
		t.Run(fmt.Sprint("segment ", failing), func(t *testing.T) {
			t.Parallel()
			f := setup(t, Config{}, func(f *fixture) {
				f.store.before = func(call int, _ []pg.Segment) error {
					if call == failing {
						return fmt.Errorf("store: %w", pg.ErrUnavailable)
					}
					return nil
				}
			})
			items := make([]Item, n+1)
			for i := range items {
				items[i] = item("p", "", fmt.Sprint(i))
			}
			items[n] = item("other", "", "0")
			verdicts := f.push(t, items...)
			good := failing * MaxSegmentMessages
			for i, v := range verdicts[:n] {
				if i < good {
					require.Equal(t, StatusQueued, v.Status, i)
				} else {
					require.ErrorIs(t, v.Err, pg.ErrUnavailable, i)
				}
			}
			require.Len(t, f.store.stored("orders", "p"), good)
			require.Equal(t, StatusQueued, f.push(t, item("p", "", "again"))[0].Status, "the partition goes on")
			require.Equal(t, StatusQueued, f.push(t, item("other", "", "again"))[0].Status)
			f.stop()
			require.Zero(t, f.shards[0].arrivals.bytes)
		})
	}
}

// A segment that the database refuses for what is in it never will be stored: the rest of its request is.
func TestVerdict_BadSegmentFailsAlone(t *testing.T) {
	t.Parallel()
	f := setup(t, Config{}, func(f *fixture) {
		f.store.before = func(call int, _ []pg.Segment) error {
			if call == 0 {
				return fmt.Errorf("store: %w", pg.ErrBadData)
			}
			return nil
		}
	})
	items := make([]Item, MaxSegmentMessages+1)
	for i := range items {
		items[i] = item("p", "", fmt.Sprint(i))
	}
	verdicts := f.push(t, items...)
	require.ErrorIs(t, verdicts[0].Err, pg.ErrBadData)
	require.Equal(t, StatusQueued, verdicts[MaxSegmentMessages].Status)
}
