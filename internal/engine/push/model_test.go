package push

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/internal/engine/admission"
	"queenmq/internal/engine/push/dedup"
	"queenmq/internal/pg"
)

// Concurrent requests with repeated ids, several shards, small bundles and failing calls, against the plain rules: every
// queued id is stored exactly once, a duplicate names the stored message, what failed is not stored, and the items of one
// request keep their order inside a partition.
func TestModel_FusionKeepsThePlainRules(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "failures")
		failing := rapid.IntRange(0, 4).Draw(rt, "failing")
		cfg := Config{
			Shards:      rapid.IntRange(1, 3).Draw(rt, "shards"),
			BundleMax:   rapid.IntRange(1, 4).Draw(rt, "bundle"),
			MaxInFlight: rapid.IntRange(1, 3).Draw(rt, "in flight"),
		}
		requests := rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Item {
			id := ""
			if rapid.IntRange(0, 5).Draw(t, "named") > 0 {
				id = fmt.Sprintf("t-%d", rapid.IntRange(0, 12).Draw(t, "id"))
			}
			return item(fmt.Sprintf("p-%d", rapid.IntRange(0, 3).Draw(t, "partition")), id, fmt.Sprint(rapid.Int().Draw(t, "payload")))
		}), 1, 8), 1, 12).Draw(rt, "requests")
		limit := rapid.SampledFrom([]int{0, 0, 20}).Draw(rt, "limit")

		cached := rapid.Bool().Draw(rt, "cached")
		var claims *dedup.Cache
		store := newMemoryStore()
		if cached {
			claims = dedup.New(dedup.Config{}, store)
			defer claims.Close()
			cfg.Verifier = claims
		}
		f := setup(t, cfg, func(f *fixture) {
			f.store = store
			f.slots = admission.New(admission.Config{PoolSize: 8})
			f.store.latency = 50 * time.Microsecond
			if limit > 0 {
				bounded(limit)(f)
			}
			f.store.before = func(call int, segments []pg.Segment) error {
				switch (seed >> (call % 32) & 7) + uint64(failing) {
				case 9:
					return pg.ErrVanished
				case 10:
					return pg.ErrBadData
				case 11:
					return pg.ErrUnavailable
				}
				return nil
			}
		})
		defer f.stop()
		verdicts := make([][]Verdict, len(requests))
		var wg sync.WaitGroup
		for i, items := range requests {
			wg.Go(func() { verdicts[i] = f.push(t, items...) })
		}
		wg.Wait()

		for i := range verdicts {
			for _, v := range verdicts[i] {
				require.NotErrorIs(t, v.Err, errClaim)
			}
		}
		if cached && len(requests) > 4 && failing == 0 {
			s := claims.Stats()
			require.Positive(t, s.Vouched+s.Suspected+s.Unknown, "the cache was never asked")
		}

		type place struct{ partition, id string }
		offsets := map[place]int{}
		byID := map[place]uuid.UUID{}
		stored := 0
		for p := range 4 {
			name := fmt.Sprintf("p-%d", p)
			for off, frame := range f.store.stored("orders", name) {
				k := place{name, frame.TransactionID}
				require.NotContains(t, offsets, k, "stored twice")
				offsets[k], byID[k] = off, frame.ID
				stored++
			}
		}
		if limit > 0 {
			require.LessOrEqual(t, stored, limit)
		}
		queued := 0
		for i, items := range requests {
			last := map[string]int{}
			for n, it := range items {
				v := verdicts[i][n]
				k := place{it.Partition, v.TransactionID}
				switch v.Status {
				case StatusQueued:
					queued++
					require.Equal(t, byID[k], v.MessageID)
					frame := f.store.stored("orders", it.Partition)[offsets[k]]
					require.Equal(t, string(it.Payload), string(frame.Payload))
					before, any := last[it.Partition]
					require.True(t, !any || before < offsets[k], "order inside the request")
					last[it.Partition] = offsets[k]
				case StatusDuplicate:
					require.Contains(t, byID, k)
					require.Equal(t, byID[k], v.MessageID)
				case StatusFailed:
					require.Error(t, v.Err)
					if it.TransactionID == "" {
						require.NotContains(t, byID, k)
					}
				default:
					t.Fatalf("status %q", v.Status)
				}
			}
		}
		require.Equal(t, stored, queued, "every stored message was reported queued exactly once")
		if failing == 0 && limit == 0 {
			for i := range verdicts {
				require.NotContains(t, statuses(verdicts[i]), StatusFailed)
			}
		}
	})
}
