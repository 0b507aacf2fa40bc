package browse

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"queenmq/internal/pg"
)

// A search says at how many messages it looked and goes on where it stopped, until it has looked at every message once.
func TestASearchLooksAtEverythingStepByStep(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	const batches, each = 25, 4
	for i := range batches {
		var ids []string
		for n := range each {
			ids = append(ids, fmt.Sprintf("m-%d-%d", i, n))
		}
		s.push(pg.DefaultTenant, fmt.Sprint("p", i%3), ids...)
	}
	c, err := ParseCondition(`id ~ "-3"`) // the last of every batch, and three whole batches more
	require.NoError(t, err)
	for _, limit := range []int{1, 7, 200} {
		filter := pg.MessageFilter{Queue: "q", Limit: limit}
		seen := map[string]bool{}
		looked, steps := 0, 0
		for {
			steps++
			require.LessOrEqual(t, steps, batches*each+1, "it does not come to an end")
			page, step, err := s.searchWithin(t.Context(), pg.DefaultTenant, filter, c, 10, time.Now().Add(time.Minute))
			require.NoError(t, err)
			require.LessOrEqual(t, step.Messages, 10, "a step is bounded")
			require.LessOrEqual(t, len(page.Messages), limit)
			require.Zero(t, step.Unreadable)
			looked += step.Messages
			for _, m := range page.Messages {
				require.Contains(t, m.TransactionID, "-3")
				require.False(t, seen[m.TransactionID], "%s came twice", m.TransactionID)
				seen[m.TransactionID] = true
			}
			if page.Next == "" {
				break
			}
			filter.After = page.Next
		}
		require.Equal(t, batches*each, looked)
		require.Len(t, seen, batches+each-1)
		require.GreaterOrEqual(t, steps, batches*each/10)
	}
	// A step whose time is over still looks at one page, or it would never get on.
	page, step, err := s.searchWithin(t.Context(), pg.DefaultTenant, pg.MessageFilter{Queue: "q", Limit: 8}, c, 1000, time.Now().Add(-time.Second))
	require.NoError(t, err)
	require.Equal(t, 4, step.Messages)
	require.NotEmpty(t, page.Next)
	require.False(t, step.Until.IsZero())
}

// What cannot be read is neither found nor passed over in silence.
func TestASearchCountsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	s := newShelf(t)
	s.push(pg.DefaultTenant, "p", "a", "b")
	s.push(pg.DefaultTenant, "p", "c")
	s.exec(`UPDATE queen.log_segments SET blob = 'damaged' WHERE base_offset = 0`)
	c, err := ParseCondition("id")
	require.NoError(t, err)
	page, looked, err := s.Search(t.Context(), pg.DefaultTenant, pg.MessageFilter{Queue: "q"}, c)
	require.NoError(t, err)
	require.Len(t, page.Messages, 1)
	require.Equal(t, []int{3, 2}, []int{looked.Messages, looked.Unreadable})
	require.Empty(t, page.Next)
}
