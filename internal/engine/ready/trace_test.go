package ready

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestTraceTellsWhatEveryClaimFound(t *testing.T) {
	t.Parallel()
	for _, traced := range []bool{true, false} {
		var lines bytes.Buffer
		list := NewHotList(HotConfig{Trace: traced, Log: slog.New(slog.NewTextHandler(&lines, nil))})
		ring := list.Ring(tenant, "q", "g")
		walk, _ := ring.BeginWalk()
		walk.Page([]string{"a", "b"}, []int64{1, 1}, time.Now(), uuid.New())
		walk.End(true, false)
		list.mark(testKey, "c", 1, false)
		taken := ring.Take(3, 10)
		taken.Leased(0, "lease", time.Minute, 0)
		taken.Empty(1)
		taken.Return()
		list.forgetQueue(testKey)
		if !traced {
			require.Empty(t, lines.String())
			continue
		}
		for _, event := range []string{
			`"hot list: ring made" tenant=` + tenant.String() + ` queue=q group=g listed=0 taken=0 parked=0`,
			`"hot list: walk" .* listed=2 .* window=0s pending=2 found=2 complete=true failed=false`,
			`"hot list: claim" .* listed=1 taken=0 parked=0 returned=1 leased=1 empty=1`,
			`"hot list: ring dropped"`,
		} {
			require.Regexp(t, event, lines.String())
		}
	}
}
