package pg_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

func TestPushKnowsPartitionsAgain(t *testing.T) {
	t.Parallel()
	t.Run("VerdictsInInputOrder", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		const partitions = 20
		bundle := func(round int) []pg.Segment {
			segments := make([]pg.Segment, partitions)
			for i := range segments {
				segments[i] = segment("q", fmt.Sprint("p", (i+7*round)%partitions), fmt.Sprint(round, "a"), fmt.Sprint(round, "b"))
				segments[i].Count = 1 + i%2
				segments[i].Hashes = segments[i].Hashes[:16*segments[i].Count]
			}
			return segments
		}
		next := map[string]int64{}
		for round := range 4 {
			segments := bundle(round)
			if round == 3 {
				segments[5].Hashes = append(hash("new"), hash("0a")...) // stored in the first round
			}
			verdicts, err := db.PushMulti(t.Context(), segments, pg.PushOptions{})
			require.NoError(t, err)
			for i, s := range segments {
				if round == 3 && i == 5 {
					require.Equal(t, pg.PushDuplicate, verdicts[i].Status)
					continue
				}
				require.Equal(t, pg.PushQueued, verdicts[i].Status)
				require.Equal(t, next[s.Partition], verdicts[i].BaseOffset)
				stored, found, err := db.SegmentAt(t.Context(), verdicts[i].PartitionID, verdicts[i].BaseOffset)
				require.NoError(t, err)
				require.True(t, found)
				require.Equal(t, stored.CreatedAt, verdicts[i].CreatedAt)
				require.Equal(t, string(s.Blob), string(stored.Blob))
				next[s.Partition] += int64(s.Count)
			}
			require.Equal(t, partitions, db.Remembered())
		}
	})
	t.Run("DeletedAndCreatedAgain", func(t *testing.T) {
		t.Parallel()
		db, database := setup(t)
		first := push(t, db, segment("q", "p", "1"))
		_, err := database.Pool(t).Exec(t.Context(), `DELETE FROM queen.queues`)
		require.NoError(t, err)
		again := push(t, db, segment("q", "p", "1"))
		require.NotEqual(t, first.PartitionID, again.PartitionID)
		require.Zero(t, again.BaseOffset)
		require.EqualValues(t, 1, push(t, db, segment("q", "p", "2")).BaseOffset)
	})
	t.Run("BoundedMeanwhile", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		push(t, db, segment("q", "p", "1"))
		configure(t, db, "q", `{"maxSize":3}`)
		require.EqualValues(t, 2, push(t, db, segment("q", "p", "2")).Depth)
		require.Zero(t, db.Remembered(), "every push would ask twice")
		configure(t, db, "q", `{"maxSize":0}`)
		push(t, db, segment("q", "p", "3"))
		require.Equal(t, 1, db.Remembered())
	})
	t.Run("OfAnotherIncarnation", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		other := push(t, db, segment("q", "o", "1"))
		push(t, db, segment("q", "p", "1"))
		s := segment("q", "p", "1")
		s.Verified, s.VerifiedPartition = 0, other.PartitionID
		verdicts, err := db.PushMulti(t.Context(), []pg.Segment{s}, pg.PushOptions{})
		require.NoError(t, err)
		require.Equal(t, pg.PushDuplicate, verdicts[0].Status, "what was vouched for another partition was believed")
	})
	t.Run("ManyAtOnceInAnyOrder", func(t *testing.T) {
		t.Parallel()
		db, database := setup(t)
		other, err := pg.Open(t.Context(), pg.Options{ConnString: database.ConnString(), MaxConns: 4})
		require.NoError(t, err)
		defer other.Close()
		const pushers, rounds, partitions = 6, 20, 8
		var stored [pushers]map[string][]int64
		var running sync.WaitGroup
		for n := range pushers {
			stored[n] = map[string][]int64{}
			running.Go(func() {
				through := []*pg.DB{db, other}[n%2]
				for round := range rounds {
					segments := make([]pg.Segment, partitions)
					for i, at := range rand.Perm(partitions) {
						segments[i] = segment("q", fmt.Sprint("p", at), fmt.Sprint(n, "-", round))
					}
					verdicts, err := through.PushMulti(t.Context(), segments[:1+round%partitions], pg.PushOptions{})
					if !assert.NoError(t, err) { // a deadlock is an error after three attempts, and a slow test after one
						return
					}
					for i, v := range verdicts {
						assert.Equal(t, pg.PushQueued, v.Status)
						stored[n][segments[i].Partition] = append(stored[n][segments[i].Partition], v.BaseOffset)
					}
				}
			})
		}
		running.Wait()
		for at := range partitions {
			name := fmt.Sprint("p", at)
			var all []int64
			for n := range pushers {
				require.True(t, slices.IsSorted(stored[n][name]), "offsets of one pusher out of order")
				all = append(all, stored[n][name]...)
			}
			slices.Sort(all)
			for i, offset := range all {
				require.EqualValues(t, i, offset, "offsets of %s", name)
			}
		}
		var deadlocks int
		require.NoError(t, database.Pool(t).QueryRow(t.Context(), `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&deadlocks))
		require.Zero(t, deadlocks)
	})
	t.Run("NotMoreThanItMayRemember", func(t *testing.T) {
		t.Parallel()
		db, _ := setup(t)
		for n := range 50_000 {
			db.Remember(segment("q", fmt.Sprint(n), "1"), pg.PushVerdict{Status: pg.PushQueued})
		}
		require.LessOrEqual(t, db.Remembered(), 2*16_384)
		require.GreaterOrEqual(t, db.Remembered(), 16_384)
	})
}
