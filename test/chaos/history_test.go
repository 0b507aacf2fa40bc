package chaos

import (
	"fmt"
	"sync"
	"time"
)

// A lane is one partition of one queue.
type lane struct{ Queue, Partition string }

// A view is a lane as one consumer group sees it.
type view struct {
	lane
	Group string
}

// accepted is what a producer was told of one message.
type accepted struct {
	Status string // queued, duplicate or buffered
	Broker int    // who said so
}

// A delivery is one batch of one lane in the hands of one consumer.
type delivery struct {
	view
	Sequences []int
	// Asked and Got bracket the claim. Until Held, nobody else may get anything of this view: it is when the consumer began to give the lease
	// back, or when the lease ended at the earliest.
	Asked, Got, Held time.Time
	// Order is the moment of asking in the count of moments that acknowledgments are noted in.
	Order int64
}

// A settlement is one message whose acknowledgment was confirmed.
type settlement struct {
	view
	Sequence int
	Order    int64
}

// A history is what all clients of one run saw, and what was stored at its end. Methods may be called concurrently.
type history struct {
	mu      sync.Mutex
	moments int64

	// Pushed are, per lane, the answers by sequence number. Every sequence number below the length was pushed; one without a status was never
	// accepted.
	Pushed map[lane][]accepted
	// Sticky are lanes whose producer stays with one broker. In the others it goes to any.
	Sticky     map[lane]bool
	Deliveries []delivery
	Settled    []settlement
	// Moved are the messages of lane From that a committed transaction acknowledged for Group "pipe" and pushed to the lane To.
	Moved map[lane]lane
	// Stored are the sequence numbers of every lane in the order of their offsets, read at the end.
	Stored map[lane][]int
	// Dead are the dead letters.
	Dead map[view][]int
	// Groups are those that must have seen every message of a queue.
	Groups map[string][]string
	// Strange are answers and contents that no client should ever get.
	Strange []string
	// Answers counts failed calls by what was said.
	Answers map[string]int
}

func newHistory() *history {
	return &history{
		Pushed: map[lane][]accepted{}, Sticky: map[lane]bool{}, Moved: map[lane]lane{}, Stored: map[lane][]int{}, Dead: map[view][]int{},
		Groups: map[string][]string{}, Answers: map[string]int{},
	}
}

// moment returns a number that is greater than all earlier ones.
func (h *history) moment() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moments++
	return h.moments
}

func (h *history) pushing(l lane, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.Pushed[l]) < n {
		h.Pushed[l] = append(h.Pushed[l], accepted{})
	}
}

func (h *history) pushed(l lane, sequence int, a accepted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Pushed[l][sequence] = a
}

func (h *history) delivered(d delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Deliveries = append(h.Deliveries, d)
}

func (h *history) settled(v view, sequence int, order int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Settled = append(h.Settled, settlement{v, sequence, order})
}

// maxStrange bounds what one kind of mistake says.
const maxStrange = 40

func (h *history) strange(format string, arguments ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.Strange) < maxStrange {
		h.Strange = append(h.Strange, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, arguments...))
	}
}

func (h *history) answered(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Answers[what]++
}
