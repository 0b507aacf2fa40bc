package dedup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

// memorySource is one partition as the database would tell it.
type memorySource struct {
	mu    sync.Mutex
	rows  []pg.WindowHashes
	reads int
	err   error
	// gate, if set, is received from before a read begins.
	gate chan struct{}
}

func (s *memorySource) WindowHashes(ctx context.Context, _ uuid.UUID, after int64, _ time.Duration, each func(*pg.WindowHashes) error) error {
	if s.gate != nil {
		select {
		case <-s.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.err != nil {
		return s.err
	}
	for i := range s.rows {
		if s.rows[i].Base > after {
			if err := each(&s.rows[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// lane is one partition that is pushed to through a cache.
type lane struct {
	*Cache
	t         *testing.T
	source    *memorySource
	partition uuid.UUID
	next      int64
	start     time.Time
}

func newLane(t *testing.T, cfg Config) *lane {
	t.Helper()
	l := &lane{t: t, source: &memorySource{}, partition: uuid.New(), start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	l.Cache = New(cfg, l.source)
	t.Cleanup(l.Close)
	return l
}

func (l *lane) segment(ids ...string) *pg.Segment {
	s := &pg.Segment{Queue: "q", Partition: "p", Count: len(ids), Verified: 77}
	for _, id := range ids {
		s.Hashes = append(s.Hashes, hashOf(id)...)
	}
	return s
}

// elsewhere stores ids without telling the cache.
func (l *lane) elsewhere(ids ...string) *pg.PushVerdict {
	v := &pg.PushVerdict{Status: pg.PushQueued, PartitionID: l.partition, BaseOffset: l.next, CreatedAt: l.start.Add(time.Duration(l.next) * time.Millisecond), Window: time.Hour}
	l.next += int64(len(ids))
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	l.source.rows = append(l.source.rows, pg.WindowHashes{Base: v.BaseOffset, End: l.next - 1, CreatedAt: v.CreatedAt, Since: l.start.Add(-time.Hour), Hashes: l.segment(ids...).Hashes})
	return v
}

func (l *lane) store(ids ...string) { l.Stored(l.segment(ids...), l.elsewhere(ids...)) }

// vouched asks for ids and returns the offset up to which the cache vouches for them.
func (l *lane) vouched(ids ...string) int64 {
	s := l.segment(ids...)
	l.Verify(s)
	if s.Verified >= 0 {
		require.Equal(l.t, l.partition, s.VerifiedPartition)
	}
	return s.Verified
}

func (l *lane) many(n int, prefix string) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(prefix, i)
	}
	return ids
}

// settle waits until nothing is read any more.
func (l *lane) settle() {
	l.t.Helper()
	require.Eventually(l.t, func() bool { return len(l.readers) == 0 }, 10*time.Second, time.Millisecond)
}

func (l *lane) reads() int {
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	return l.source.reads
}

func TestCache_NewPartitionIsFollowedFromItsFirstMessage(t *testing.T) {
	t.Parallel()
	l := newLane(t, Config{})
	require.EqualValues(t, -1, l.vouched("a"), "nothing is known yet")
	l.store("a", "b")
	require.EqualValues(t, 1, l.vouched("c", "d"))
	require.EqualValues(t, -1, l.vouched("c", "b"), "an id that may be known is the database's to judge")
	l.store("c")
	require.EqualValues(t, 2, l.vouched("d"))
	s := l.segment("d")
	l.Verify(s)
	require.True(t, s.VerifiedSince.IsZero(), "everything is known")
	l.settle()
	require.Zero(t, l.reads())
	require.Equal(t, Stats{Vouched: 3, Suspected: 1, Unknown: 1, Partitions: 1, Bytes: l.Stats().Bytes}, l.Stats())
}

func TestCache_OldPartitionIsReadWhenItIsPushedToAgain(t *testing.T) {
	t.Parallel()
	l := newLane(t, Config{})
	l.source.gate = make(chan struct{}, 1)
	l.elsewhere(l.many(100, "old-")...)
	l.store("a")
	require.EqualValues(t, -1, l.vouched("x"))
	l.store("b") // while the read is under way
	require.EqualValues(t, -1, l.vouched("x"))
	l.source.gate <- struct{}{}
	l.settle()
	require.EqualValues(t, 101, l.vouched("x"))
	for _, id := range []string{"old-0", "old-99", "a", "b"} {
		require.EqualValues(t, -1, l.vouched(id))
	}
	l.store("c")
	require.EqualValues(t, 102, l.vouched("x"))
	require.Equal(t, 1, l.reads())
}

func TestCache_FewMessagesAreNotWorthARead(t *testing.T) {
	t.Parallel()
	l := newLane(t, Config{})
	l.elsewhere("old")
	l.store("a")
	require.EqualValues(t, -1, l.vouched("x"))
	l.settle()
	require.Zero(t, l.reads())
	require.Zero(t, l.Stats().Partitions)
}

func TestCache_GapIsVouchedForUpToItsBeginningAndReadWhenLarge(t *testing.T) {
	t.Parallel()
	l := newLane(t, Config{})
	l.store("a")
	l.elsewhere("other-1")
	l.store("b")
	require.EqualValues(t, 0, l.vouched("x"), "the rest is the database's")
	l.settle()
	require.Zero(t, l.reads())
	l.elsewhere(l.many(int(usualLimits.largeGap), "other-")...)
	l.store("c")
	require.EqualValues(t, 0, l.vouched("x"), "the read has only begun")
	l.settle()
	require.Equal(t, l.next-1, l.vouched("x"))
	for _, id := range []string{"a", "b", "c", "other-1", "other-7"} {
		require.EqualValues(t, -1, l.vouched(id))
	}
	require.Equal(t, 1, l.reads())
}

func TestCache_GapThatLeftTheWindowIsReadAsAWhole(t *testing.T) {
	t.Parallel()
	l := newLane(t, Config{})
	l.store("a")
	l.elsewhere(l.many(int(usualLimits.largeGap), "other-")...)
	l.source.rows = nil // out of the window
	l.store("b")
	require.EqualValues(t, 0, l.vouched("x"))
	l.settle()
	require.EqualValues(t, -1, l.vouched("x"))
	l.settle()
	s := l.segment("x")
	l.Verify(s)
	require.Equal(t, l.next-1, s.Verified)
	require.False(t, s.VerifiedSince.IsZero())
	require.Equal(t, 2, l.reads())
}

func TestCache_StartsAnewWhenTheRulesChange(t *testing.T) {
	t.Parallel()
	t.Run("Partition", func(t *testing.T) {
		t.Parallel()
		l := newLane(t, Config{})
		l.store("a")
		l.partition, l.next, l.source.rows = uuid.New(), 0, nil
		l.store("b")
		require.EqualValues(t, 0, l.vouched("a"), "its other life does not count")
		require.EqualValues(t, -1, l.vouched("b"))
	})
	t.Run("OffsetsGivenTwice", func(t *testing.T) {
		t.Parallel()
		l := newLane(t, Config{})
		l.store("a", "b")
		l.next, l.source.rows = 0, nil
		l.store("c")
		require.EqualValues(t, -1, l.vouched("x"))
		l.settle()
		require.EqualValues(t, 0, l.vouched("x"))
	})
	t.Run("LongerWindow", func(t *testing.T) {
		t.Parallel()
		l := newLane(t, Config{})
		l.elsewhere(l.many(100, "old-")...)
		l.source.rows = nil
		l.store("a")
		l.vouched("x")
		l.settle()
		require.EqualValues(t, 100, l.vouched("x"))
		v := l.elsewhere("b")
		v.Window = 2 * time.Hour
		l.Stored(l.segment("b"), v)
		require.EqualValues(t, -1, l.vouched("x"))
		l.settle()
		require.EqualValues(t, 101, l.vouched("x"))
	})
	t.Run("NoWindow", func(t *testing.T) {
		t.Parallel()
		l := newLane(t, Config{})
		l.store("a")
		v := l.elsewhere("b")
		v.Window = 0
		l.Stored(l.segment("b"), v)
		require.EqualValues(t, -1, l.vouched("x"))
		require.Zero(t, l.Stats().Bytes)
	})
}

func TestCache_UnreadablePartitionIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*memorySource){
		"Error":  func(s *memorySource) { s.err = errors.New("no") },
		"Ragged": func(s *memorySource) { s.rows[0].Hashes = s.rows[0].Hashes[1:] },
		"Hole":   func(s *memorySource) { s.rows[1].Base++ },
		"Empty":  func(s *memorySource) { s.rows = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, Config{})
			l.elsewhere(l.many(100, "old-")...)
			l.store("a")
			spoil(l.source)
			for range 10 {
				require.EqualValues(t, -1, l.vouched("x"))
				l.settle()
			}
			require.Equal(t, 1, l.reads(), "not again and again")
			require.EqualValues(t, 1, l.Stats().Suppressions)
		})
	}
}

func TestCache_StaysWithinItsMemory(t *testing.T) {
	t.Parallel()
	t.Run("UnusedPartitionsGoFirst", func(t *testing.T) {
		t.Parallel()
		l := newLane(t, Config{MaxBytes: 5 * (entryBytes + 4*minSlots + 4)})
		for i := range 10 {
			s := l.segment("a")
			s.Partition = fmt.Sprint("p-", i)
			l.Stored(s, &pg.PushVerdict{PartitionID: uuid.New(), Window: time.Hour, CreatedAt: l.start})
			l.mu.Lock()
			for _, e := range l.entries {
				e.usedAt = e.usedAt.Add(-2 * inUse)
			}
			l.mu.Unlock()
			require.LessOrEqual(t, l.Stats().Bytes, l.cfg.MaxBytes)
		}
		require.EqualValues(t, 5, l.Stats().Evictions)
		require.Zero(t, l.Stats().Suppressions)
		for i := range 10 {
			s := l.segment("x")
			s.Partition = fmt.Sprint("p-", i)
			l.Verify(s)
			require.Equal(t, i >= 5, s.Verified >= 0, "partition %d", i)
		}
	})
	t.Run("GrowingPartitionIsLeftToTheDatabase", func(t *testing.T) {
		t.Parallel()
		l := newLane(t, Config{MaxBytes: 10_000})
		for i := range 100 {
			l.store(l.many(100, fmt.Sprint(i, "-"))...)
			require.LessOrEqual(t, l.Stats().Bytes, l.cfg.MaxBytes)
			l.vouched("x")
		}
		l.settle()
		require.EqualValues(t, -1, l.vouched("x"))
		require.EqualValues(t, 1, l.Stats().Suppressions)
		require.Zero(t, l.reads())
	})
	t.Run("TooLargeToRead", func(t *testing.T) {
		t.Parallel()
		l := newLane(t, Config{MaxBytes: 10_000})
		for i := range 100 {
			l.elsewhere(l.many(100, fmt.Sprint(i, "-"))...)
		}
		l.store("a")
		for range 10 {
			require.EqualValues(t, -1, l.vouched("x"))
			l.settle()
		}
		require.Equal(t, 1, l.reads())
		require.LessOrEqual(t, l.Stats().Bytes, 2*entryBytes)
	})
}

func TestCache_CloseEndsReads(t *testing.T) {
	t.Parallel()
	l := newLane(t, Config{})
	l.source.gate = make(chan struct{})
	l.elsewhere(l.many(100, "old-")...)
	l.store("a")
	require.EqualValues(t, -1, l.vouched("x"))
	l.Close()
	l.store("b")
	require.EqualValues(t, -1, l.vouched("x"))
	l.settle()
	require.Zero(t, l.reads())
}
