package chaos

import (
	"fmt"
	"slices"
	"time"
)

// violations judges a history: one line per broken promise, none when all held.
func (h *history) violations() []string {
	position, out := h.positions()
	out = append(out, h.lost(position)...)
	out = append(out, h.unordered(position)...)
	out = append(out, h.unseen()...)
	out = append(out, h.redelivered()...)
	out = append(out, h.halfDone()...)
	views := map[view][]delivery{}
	for _, d := range h.Deliveries {
		views[d.view] = append(views[d.view], d)
	}
	for v, deliveries := range views {
		slices.SortFunc(deliveries, func(a, b delivery) int { return a.Got.Compare(b.Got) })
		out = append(out, skipped(v, deliveries, position[v.lane])...)
		out = append(out, heldTwice(v, deliveries)...)
	}
	for _, s := range h.Strange {
		out = append(out, "strange: "+s)
	}
	return out
}

// positions says where in its lane each message is stored, and finds those that are stored twice or were never pushed.
func (h *history) positions() (map[lane]map[int]int, []string) {
	position := map[lane]map[int]int{}
	var out []string
	for l, sequences := range h.Stored {
		position[l] = map[int]int{}
		for at, s := range sequences {
			if before, twice := position[l][s]; twice {
				out = append(out, fmt.Sprintf("twice: %v/%d is stored at %d and at %d", l, s, before, at))
				continue
			}
			position[l][s] = at
			if pushed, known := h.Pushed[l]; known && (s < 0 || s >= len(pushed)) {
				out = append(out, fmt.Sprintf("invented: %v/%d was never pushed", l, s))
			}
		}
	}
	return position, out
}

// lost finds accepted messages that are not stored.
func (h *history) lost(position map[lane]map[int]int) []string {
	var out []string
	for l, pushed := range h.Pushed {
		for s, a := range pushed {
			if _, stored := position[l][s]; a.Status != "" && !stored {
				out = append(out, fmt.Sprintf("lost: %v/%d was answered %s by broker %d and is nowhere", l, s, a.Status, a.Broker))
			}
		}
	}
	return out
}

// unordered finds messages of one producer that are stored in another order than they were accepted in. The next message was pushed when the
// one before was answered. A message that one broker keeps on its disk may be overtaken through another broker.
func (h *history) unordered(position map[lane]map[int]int) []string {
	var out []string
	for l, pushed := range h.Pushed {
		before, last := -1, -1
		for s, a := range pushed {
			at, stored := position[l][s]
			if a.Status == "" || !stored || !h.Sticky[l] && a.Status == "buffered" {
				continue
			}
			if at < before {
				out = append(out, fmt.Sprintf("order: %v/%d (%s) is stored before %d (%s)", l, s, a.Status, last, pushed[last].Status))
			}
			before, last = max(at, before), s
		}
	}
	return out
}

// unseen finds stored messages that a group got neither as a message nor as a dead letter, although it stands at the end.
func (h *history) unseen() []string {
	seen := map[view]map[int]bool{}
	note := func(v view, sequences []int) {
		if seen[v] == nil {
			seen[v] = map[int]bool{}
		}
		for _, s := range sequences {
			seen[v][s] = true
		}
	}
	for _, d := range h.Deliveries {
		note(d.view, d.Sequences)
	}
	for v, sequences := range h.Dead {
		note(v, sequences)
	}
	var out []string
	for l, sequences := range h.Stored {
		for _, group := range h.Groups[l.Queue] {
			for _, s := range sequences {
				if !seen[view{l, group}][s] {
					out = append(out, fmt.Sprintf("unseen: %v/%d never reached group %q", l, s, group))
				}
			}
		}
	}
	return out
}

// redelivered finds messages that were handed out by a pop that began after their acknowledgment had been confirmed.
func (h *history) redelivered() []string {
	type message struct {
		view
		sequence int
	}
	confirmed := map[message]int64{}
	for _, s := range h.Settled {
		m := message{s.view, s.Sequence}
		if first, known := confirmed[m]; !known || s.Order < first {
			confirmed[m] = s.Order
		}
	}
	var out []string
	for _, d := range h.Deliveries {
		for _, s := range d.Sequences {
			if at, known := confirmed[message{d.view, s}]; known && d.Order > at {
				out = append(out, fmt.Sprintf("redelivered: %v/%d came again to group %q after its acknowledgment", d.lane, s, d.Group))
			}
		}
	}
	return out
}

// halfDone finds transactions of which only one half happened: each moves a message to another lane under a name of its own, so that a push
// without its acknowledgment is there twice, and an acknowledgment without its push leaves nothing there.
func (h *history) halfDone() []string {
	var out []string
	for from, to := range h.Moved {
		copies := map[int]int{}
		for _, s := range h.Stored[to] {
			copies[s]++
		}
		for _, s := range h.Stored[from] {
			if copies[s] != 1 {
				out = append(out, fmt.Sprintf("transaction: %v/%d was moved %d times", from, s, copies[s]))
			}
			delete(copies, s)
		}
		for s := range copies {
			out = append(out, fmt.Sprintf("transaction: %v/%d was moved and is not stored", from, s))
		}
	}
	return out
}

// skipped finds batches that are not a run of neighbours, and deliveries that leave out a message that was not delivered before.
func skipped(v view, deliveries []delivery, position map[int]int) []string {
	var out []string
	next := 0
	for _, d := range deliveries {
		for i, s := range d.Sequences {
			at, stored := position[s]
			switch {
			case !stored:
				out = append(out, fmt.Sprintf("invented: %v/%d was delivered to %q and is not stored", v.lane, s, v.Group))
			case i > 0 && at != position[d.Sequences[i-1]]+1:
				out = append(out, fmt.Sprintf("order: %v for %q came as %v", v.lane, v.Group, d.Sequences))
			case at > next:
				out = append(out, fmt.Sprintf("order: %v for %q: %d came when %d messages had come", v.lane, v.Group, s, next))
			}
			next = max(next, at+1)
		}
	}
	return out
}

// clockMargin absorbs the difference between the clock of the test and the microseconds and whole seconds of the database's.
const clockMargin = 100 * time.Millisecond

// heldTwice finds two claims of one view that were certainly alive at the same moment.
func heldTwice(v view, deliveries []delivery) []string {
	var out []string
	for i, a := range deliveries {
		// Sorted by Got: those that were certainly claimed during a come behind it.
		for _, b := range deliveries[i+1:] {
			if b.Got.After(a.Held) {
				break
			}
			if !b.Asked.Before(a.Got) {
				out = append(out, fmt.Sprintf("lease: %v was held twice by %q: %v from %s to %s, %v asked %s, got %s", v.lane, v.Group, a.Sequences,
					clock(a.Got), clock(a.Held), b.Sequences, clock(b.Asked), clock(b.Got)))
			}
		}
	}
	return out
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }
