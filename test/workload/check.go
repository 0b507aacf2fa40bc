package workload

import (
	"fmt"
	"sort"
	"time"
)

// Violations judges the record and returns one line per broken promise, none when all held. deadLetters lists, per group
// and partition ("group\x00partition"), the sequence numbers that ended in the dead-letter table.
func (h *History) Violations(deadLetters map[string][]int) []string {
	var out []string
	out = append(out, h.lost(deadLetters)...)
	out = append(out, h.redelivered()...)
	lanes := map[string][]delivery{}
	for _, d := range h.delivered {
		key := d.group + "\x00" + d.partition
		lanes[key] = append(lanes[key], d)
	}
	for _, lane := range lanes {
		sort.Slice(lane, func(i, j int) bool { return lane[i].got.Before(lane[j].got) })
		out = append(out, outOfOrder(lane)...)
		out = append(out, overlapping(lane)...)
	}
	return out
}

// lost finds accepted messages that a group neither saw nor got as a dead letter. An acknowledgment is not asked for: one
// whose answer was lost may have counted, and the settled function of Run already proved that the cursors are at the end.
func (h *History) lost(deadLetters map[string][]int) []string {
	var out []string
	for _, group := range h.cfg.Groups {
		for partition, count := range h.pushed {
			key := group + "\x00" + partition
			seen := make([]bool, count)
			for _, d := range h.delivered {
				if d.group != group || d.partition != partition {
					continue
				}
				for _, s := range d.sequences {
					if s >= 0 && s < count {
						seen[s] = true
					}
				}
			}
			for _, s := range deadLetters[key] {
				seen[s] = true
			}
			for s, ok := range seen {
				if !ok {
					out = append(out, fmt.Sprintf("lost: %s/%d was accepted and never reached group %q", partition, s, group))
				}
			}
		}
	}
	return out
}

// redelivered finds messages that were handed out by a pop that began after their acknowledgment had been confirmed.
func (h *History) redelivered() []string {
	var out []string
	for _, d := range h.delivered {
		for _, s := range d.sequences {
			if at, ok := h.acked[d.group+"\x00"+d.partition][s]; ok && d.askedAt > at {
				out = append(out, fmt.Sprintf("redelivered: %s/%d came again to group %q after its ack succeeded", d.partition, s, d.group))
			}
		}
	}
	return out
}

// outOfOrder finds batches that are not a run of consecutive messages, and first deliveries that skip a message.
func outOfOrder(lane []delivery) []string {
	var out []string
	next := 0
	for _, d := range lane {
		for i := 1; i < len(d.sequences); i++ {
			if d.sequences[i] != d.sequences[i-1]+1 {
				out = append(out, fmt.Sprintf("order: %s for %q delivered %v", d.partition, d.group, d.sequences))
				break
			}
		}
		if d.sequences[0] > next {
			out = append(out, fmt.Sprintf("order: %s for %q delivered %d before %d", d.partition, d.group, d.sequences[0], next))
		}
		next = max(next, d.sequences[len(d.sequences)-1]+1)
	}
	return out
}

// clockMargin absorbs the difference between the client's clock and the whole seconds of a lease.
const clockMargin = 100 * time.Millisecond

// overlapping finds two claims of one lane that were certainly alive at the same moment.
func overlapping(lane []delivery) []string {
	var out []string
	for i, a := range lane {
		end := a.settled
		if limit := a.leaseEnd.Add(-clockMargin); limit.Before(end) {
			end = limit
		}
		for j, b := range lane {
			if i != j && !b.asked.Before(a.got) && !b.got.After(end) {
				out = append(out, fmt.Sprintf("lease: %s was held twice by %q: %v and %v", a.partition, a.group, a.sequences, b.sequences))
			}
		}
	}
	return out
}
