package chaos

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	source = lane{sourceQueue, "sticky-0"}
	roamed = lane{sourceQueue, "roaming-0"}
	sink   = lane{sinkQueue, "sticky-0"}
	plain  = view{source, "plain"}
)

// soundHistory is a small run in which everything went as promised: three messages, one of them after a lost answer, two batches.
func soundHistory() *history {
	h := newHistory()
	h.Groups = map[string][]string{sourceQueue: {"plain"}}
	h.Sticky[source] = true
	h.Moved[source] = sink
	h.Pushed[source] = []accepted{{"queued", 0}, {"duplicate", 0}, {"buffered", 0}, {"", 0}}
	h.Stored[source] = []int{0, 1, 2}
	h.Stored[sink] = []int{0, 1, 2}
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	h.Deliveries = []delivery{
		{view: plain, Sequences: []int{0, 1}, Asked: start, Got: start.Add(time.Second), Held: start.Add(2 * time.Second), Order: 1},
		{view: plain, Sequences: []int{2}, Asked: start.Add(3 * time.Second), Got: start.Add(4 * time.Second), Held: start.Add(5 * time.Second), Order: 3},
	}
	h.Settled = []settlement{{plain, 0, 2}, {plain, 1, 2}, {plain, 2, 4}}
	return h
}

func TestTheCheckerAcceptsASoundHistory(t *testing.T) {
	t.Parallel()
	require.Empty(t, soundHistory().violations())
}

// A checker that cannot fail proves nothing: each promise, broken in a history that is sound otherwise, is found.
func TestTheCheckerFindsEveryBrokenPromise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, finds string
		doctor      func(h *history)
	}{
		{"an answered push is not stored", "lost: ", func(h *history) {
			h.Stored[source], h.Stored[sink] = []int{0, 1}, []int{0, 1}
			h.Deliveries = h.Deliveries[:1]
		}},
		{"a buffered push never arrives", "answered buffered", func(h *history) {
			h.Stored[source], h.Stored[sink], h.Deliveries = []int{0, 1}, []int{0, 1}, h.Deliveries[:1]
		}},
		{"a message is stored twice", "twice: ", func(h *history) { h.Stored[source] = []int{0, 1, 2, 1} }},
		{"a message comes from nowhere", "invented: ", func(h *history) { h.Stored[source], h.Stored[sink] = []int{0, 1, 2, 9}, []int{0, 1, 2, 9} }},
		{"what was delivered is not stored", "invented: ", func(h *history) { h.Deliveries[1].Sequences = []int{3} }},
		{"a producer's order is not kept", "order: ", func(h *history) {
			h.Stored[source] = []int{1, 0, 2}
			h.Deliveries[0].Sequences = []int{1, 0}
		}},
		{"a buffered message is overtaken through its own broker", "order: ", func(h *history) {
			h.Pushed[source][1].Status = "buffered"
			h.Stored[source] = []int{0, 2, 1}
			h.Deliveries[0].Sequences, h.Deliveries[1].Sequences = []int{0, 2}, []int{1}
		}},
		{"a queued message of a roaming producer is overtaken", "order: ", func(h *history) {
			h.Pushed[roamed] = []accepted{{"queued", 0}, {"queued", 1}}
			h.Stored[roamed] = []int{1, 0}
			h.Deliveries = append(h.Deliveries, delivery{view: view{roamed, "plain"}, Sequences: []int{1, 0}})
		}},
		{"a group never sees a message", "unseen: ", func(h *history) { h.Deliveries = h.Deliveries[:1] }},
		{"an acknowledged message comes again", "redelivered: ", func(h *history) {
			again := h.Deliveries[0]
			again.Asked, again.Got, again.Held, again.Order = again.Held.Add(8*time.Second), again.Held.Add(9*time.Second), again.Held.Add(10*time.Second), 9
			h.Deliveries = append(h.Deliveries, again)
		}},
		{"a delivery leaves one out", "order: ", func(h *history) { h.Deliveries[0].Sequences = []int{1}; h.Dead[plain] = []int{0} }},
		{"a batch has a hole", "order: ", func(h *history) { h.Deliveries[0].Sequences = []int{0, 2} }},
		{"two workers hold one lane", "lease: ", func(h *history) { h.Deliveries[0].Held = h.Deliveries[0].Held.Add(time.Hour) }},
		{"a transaction acknowledged without its push", "moved 0 times", func(h *history) { h.Stored[sink] = []int{0, 2} }},
		{"a transaction pushed without its acknowledgment", "moved 2 times", func(h *history) { h.Stored[sink] = []int{0, 1, 2, 1} }},
		{"a copy has no original", "is not stored", func(h *history) { h.Stored[sink] = []int{0, 1, 2, 3} }},
		{"an answer that no client should get", "strange: ", func(h *history) { h.strange("push answered 500") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := soundHistory()
			c.doctor(h)
			found := h.violations()
			require.True(t, slices.ContainsFunc(found, func(line string) bool { return strings.Contains(line, c.finds) }), "found %q", found)
		})
	}
}

// What is allowed is not found: a dead letter instead of a delivery, a redelivery without an acknowledgment, a buffered message overtaken
// through another broker, and a claim after a lease that nobody gave back.
func TestTheCheckerAllowsWhatIsAllowed(t *testing.T) {
	t.Parallel()
	h := soundHistory()
	h.Settled = h.Settled[:2]
	h.Deliveries = append(h.Deliveries, delivery{
		view: plain, Sequences: []int{2}, Asked: h.Deliveries[1].Held.Add(time.Second), Got: h.Deliveries[1].Held.Add(2 * time.Second), Order: 9,
	})
	h.Pushed[roamed] = []accepted{{"buffered", 0}, {"queued", 1}}
	h.Stored[roamed] = []int{1, 0}
	h.Dead[view{roamed, "plain"}] = []int{1, 0}
	require.Empty(t, h.violations())
}
