package dedup

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"queenmq/internal/engine/segment"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func hashOf(id string) []byte {
	h := segment.Hash(id)
	return h[:]
}

// Whatever comes and goes, an id that was stored at or after since is known, and what lies before it needs no memory for
// long.
func TestHistory_KnowsEverythingSinceItsStart(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type stored struct {
			hash    []byte
			created time.Time
		}
		var (
			h     = history{upto: -1}
			all   []stored
			clock = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				window := time.Duration(rapid.IntRange(1, 100).Draw(t, "window")) * time.Second
				// The database's times may step back by a second.
				created := clock.Add(-time.Duration(rapid.IntRange(0, 1000).Draw(t, "back")) * time.Millisecond)
				n := rapid.IntRange(1, 60).Draw(t, "n")
				var hashes []byte
				for range n {
					hash := hashOf(fmt.Sprint(len(all)))
					hashes = append(hashes, hash...)
					all = append(all, stored{hash, created})
				}
				h.add(h.upto+int64(n), created, window, hashes)
			},
			"pass": func(t *rapid.T) {
				clock = clock.Add(time.Duration(rapid.IntRange(0, 60_000).Draw(t, "milliseconds")) * time.Millisecond)
				h.expire(clock, time.Duration(rapid.IntRange(1, 100).Draw(t, "window"))*time.Second)
			},
			"": func(t *rapid.T) {
				require.EqualValues(t, len(all)-1, h.upto)
				for i, s := range all {
					if !s.created.Before(h.since) {
						require.True(t, h.has(s.hash), "id %d is forgotten", i)
					}
				}
				for i := range h.tables {
					require.Less(t, h.tables[i].used, len(h.tables[i].slots), "a full table would be searched for ever")
				}
			},
		})
	})
}

func TestHistory_ForgetsWithTheWindowAndStaysSmall(t *testing.T) {
	t.Parallel()
	const window, perSecond = time.Minute, 2000
	h := history{upto: -1}
	clock := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	n := 0
	for second := range 300 {
		clock = clock.Add(time.Second)
		h.expire(clock, window)
		for range perSecond / 100 {
			hashes := make([]byte, 0, 100*hashBytes)
			for range 100 {
				hashes = append(hashes, hashOf(fmt.Sprint(n))...)
				n++
			}
			h.add(int64(n-1), clock, window, hashes)
		}
		if second < 150 {
			continue
		}
		inWindow := perSecond * int((window+margin)/time.Second)
		require.LessOrEqual(t, h.size(), 9*inWindow, "bytes for %d ids", inWindow)
		require.LessOrEqual(t, len(h.tables), 3*slices)
		require.False(t, h.since.Before(clock.Add(-window*2)), "the start follows the window")
		require.False(t, h.since.After(clock.Add(-window)), "and never enters it")
	}
}

// A partition that grows fast takes little more than its ids need at any moment: all partitions of a queue may open a table together.
func TestHistory_GrowsWithWhatItHolds(t *testing.T) {
	t.Parallel()
	h := history{upto: -1}
	now := time.Now()
	for i := range 100_000 {
		h.add(int64(i), now, time.Hour, hashOf(fmt.Sprint(i)))
		if i > smallSlots {
			require.LessOrEqual(t, h.size(), 14*(i+1), "%d ids", i+1)
		}
	}
}

func TestHistory_RarelySuspectsWhatIsNew(t *testing.T) {
	t.Parallel()
	h := history{upto: -1}
	const n = 300_000
	hash := make([]byte, hashBytes)
	spread := func(i uint64) []byte { // splitmix64, twice
		for half := range 2 {
			z := (2*i + uint64(half) + 1) * 0x9e3779b97f4a7c15
			z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
			z = (z ^ z>>27) * 0x94d049bb133111eb
			binary.LittleEndian.PutUint64(hash[8*half:], z^z>>31)
		}
		return hash
	}
	now := time.Now()
	for i := range n {
		h.add(int64(i), now, time.Hour, spread(uint64(i)))
	}
	suspected := 0
	for i := range n {
		require.True(t, h.has(spread(uint64(i))))
		if h.has(spread(uint64(i + n))) {
			suspected++
		}
	}
	require.LessOrEqual(t, suspected, 3)
}

func BenchmarkHistory(b *testing.B) {
	for _, n := range []int{1_000, 1_000_000} {
		h := history{upto: -1}
		now := time.Now()
		for i := range n {
			h.add(int64(i), now, time.Hour, hashOf(fmt.Sprint(i)))
		}
		fresh := make([][]byte, 1024)
		for i := range fresh {
			fresh[i] = hashOf(fmt.Sprint("new", i))
		}
		b.Run(fmt.Sprintf("has/%d", n), func(b *testing.B) {
			i := 0
			for b.Loop() {
				h.has(fresh[i%len(fresh)])
				i++
			}
			b.ReportMetric(float64(h.size())/float64(n), "bytes/id")
		})
	}
}
