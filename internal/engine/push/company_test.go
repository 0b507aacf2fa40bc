package push

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

// A slow partition's calls take as long as it says, the others commitTime.
func withSlow(partition string, d time.Duration) func(*fixture) {
	return func(f *fixture) {
		f.store.before = func(_ int, segments []pg.Segment) error {
			wait := commitTime
			for _, s := range segments {
				if s.Partition == partition {
					wait = d
				}
			}
			f.store.mu.Unlock()
			defer f.store.mu.Lock()
			<-time.After(wait)
			return nil
		}
	}
}

func TestCompany_SmallBundleWaitsForTheCommitUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{}, slow)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				<-time.After(time.Duration(i) * commitTime / 50)
				f.push(t, item(fmt.Sprint("p-", i), "", "1"))
				require.LessOrEqual(t, time.Since(start), 2*commitTime)
			})
		}
		wg.Wait()
		require.Equal(t, 2, f.store.callCount(), "the first alone, the 19 others together when it has ended")
	})
}

func TestCompany_LargeBundleGoesBesideTheCommitUnderWay(t *testing.T) {
	t.Parallel()
	for name, load := range map[string]func(*fixture, *sync.WaitGroup, testing.TB){
		"Segments": func(f *fixture, wg *sync.WaitGroup, t testing.TB) {
			for i := range worthwhileSegments {
				wg.Go(func() { f.push(t, item(fmt.Sprint("p-", i), "", "1")) })
			}
		},
		"Bytes": func(f *fixture, wg *sync.WaitGroup, t testing.TB) {
			wg.Go(func() { f.push(t, item("p", "", fmt.Sprintf("%0*d", worthwhileBytes, 7))) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := setup(t, Config{}, slow)
				var wg sync.WaitGroup
				wg.Go(func() { f.push(t, item("first", "", "1")) })
				<-time.After(commitTime / 2)
				start := time.Now()
				load(f, &wg, t)
				wg.Wait()
				require.Equal(t, commitTime, time.Since(start), "without waiting for the first")
				require.Equal(t, 2, f.store.callCount())
			})
		})
	}
}

func TestCompany_NobodyWaitsLongForASlowCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, Config{Hold: 3 * time.Millisecond}, withSlow("stuck", time.Minute))
		var wg sync.WaitGroup
		wg.Go(func() { f.push(t, item("stuck", "", "1")) })
		synctest.Wait()
		start := time.Now()
		for i := range 10 {
			f.push(t, item(fmt.Sprint("p-", i), "", "1"))
		}
		require.LessOrEqual(t, time.Since(start), 10*commitTime+2*3*time.Millisecond, "at most the hold time in all")
		wg.Wait()
		// One slow commit must not make the shard patient with the next one for long.
		wg.Go(func() { f.push(t, item("stuck", "", "1")) })
		synctest.Wait()
		start = time.Now()
		f.push(t, item("p", "", "1"))
		require.LessOrEqual(t, time.Since(start), mostUsual)
		wg.Wait()
	})
}
