package sql_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An ackModel is one (partition, group) and the rules of an ack by transaction id, written message by message: slow, in memory,
// and without a thought taken from the procedure.
type ackModel struct {
	messages   map[int64]string // offset to transaction id
	lastOffset int64
	txnsStart  int64
	retryLimit int
	deadLetter bool
	row        cursor
}

// ack applies one call and returns the expected answer.
func (m *ackModel) ack(worker string, items []item) ackAnswer {
	if worker != "" && (m.row.Worker != worker || m.row.Lease != "live") {
		return ackAnswer{Error: "invalid or expired lease"}
	}
	leased := m.row.BatchEnd != nil
	answer := ackAnswer{OK: true, LeaseReleased: new(false), SignalIgnored: new(false), Noop: []string{}, Stale: []string{}, Unresolved: []string{}}

	// Where does each item point?
	strength := map[string]int{"dlq": 3, "failed": 2, "retry": 1}
	success := []string{"", "completed", "success", "acked", "ok"}
	asked := map[string]int{}
	poison, strongest, word := int64(-1), 0, ""
	completed := map[int64]bool{}
	for _, it := range items {
		asked[it.id]++
		switch off, found := m.occurrence(it.id, asked[it.id]); {
		case found && strength[it.status] > 0:
			if poison < 0 || off < poison || off == poison && strength[it.status] > strongest {
				poison, strongest, word = off, strength[it.status], it.status
			}
		case found && slices.Contains(success, it.status):
			completed[off] = true
		case found:
		case !m.committedBefore(it.id):
			answer.Unresolved = append(answer.Unresolved, it.id)
		case strength[it.status] > 0:
			answer.Stale = append(answer.Stale, it.id)
		case slices.Contains(success, it.status):
			answer.Noop = append(answer.Noop, it.id)
		}
	}
	to := m.row.Committed
	for off := range completed {
		if off > to && (poison < 0 || off < poison) {
			to = off
		}
	}
	answer.Acked, answer.Off = to-m.row.Committed, new(to)
	m.row.Consumed += answer.Acked

	switch {
	case !leased || poison < 0:
		*answer.SignalIgnored = poison >= 0
		m.advance(to)
		if leased && poison < 0 && to >= *m.row.BatchEnd {
			*answer.LeaseReleased = true
			m.release()
			m.reset()
		}
	case word == "retry", word == "failed" && m.row.Retries < m.retryLimit:
		if word == "failed" {
			m.row.Retries++
		}
		*answer.LeaseReleased = true
		m.advance(to)
		m.release()
	case word == "dlq" || m.deadLetter:
		answer.DLQ, answer.Worker, answer.Group, answer.Off = true, m.row.Worker, "g", new(poison)
		m.advance(to)
	default:
		answer.Dropped, answer.Off = true, new(poison)
		*answer.LeaseReleased = true
		m.row.Consumed++
		m.row.Committed = poison
		m.release()
		m.reset()
	}
	return answer
}

// occurrence is the k-th offset of id that an ack may act on, or the last one when there are fewer.
func (m *ackModel) occurrence(id string, k int) (found int64, ok bool) {
	for off := max(m.row.Committed+1, m.txnsStart); off <= m.lastOffset && k > 0; off++ {
		if m.messages[off] == id && (m.row.BatchEnd == nil || off <= *m.row.BatchEnd) {
			found, ok = off, true
			k--
		}
	}
	return found, ok
}

func (m *ackModel) committedBefore(id string) bool {
	for off, stored := range m.messages {
		if stored == id && off <= m.row.Committed {
			return true
		}
	}
	return false
}

func (m *ackModel) advance(to int64) {
	if m.row.AttemptOffset != nil && *m.row.AttemptOffset <= to && to > m.row.Committed {
		m.row.AttemptOffset = new(to + 1)
	}
	m.row.Committed = to
}

func (m *ackModel) release() { m.row.BatchEnd, m.row.Worker, m.row.Lease = nil, "", "" }

func (m *ackModel) reset() { m.row.Retries, m.row.AttemptOffset, m.row.Attempts = 0, nil, 0 }

func TestAckByHashAgreesWithTheModel(t *testing.T) {
	t.Parallel()
	log := newAckLog(t)
	queues := 0
	rapid.Check(t, func(rt *rapid.T) {
		queues++
		queue := log.queue(rt, defaultTenant, fmt.Sprintf("q-%d", queues))
		m := &ackModel{
			messages:   map[int64]string{},
			retryLimit: rapid.IntRange(0, 3).Draw(rt, "retry limit"),
		}
		flags := rapid.SliceOfN(rapid.Bool(), 2, 2).Draw(rt, "dead-letter flags")
		m.deadLetter = flags[0] || flags[1]
		_, err := log.Exec(context.Background(), `UPDATE queen.queues SET retry_limit = $2, dead_letter_queue = $3, dlq_after_max_retries = $4
			WHERE id = $1`, queue, m.retryLimit, flags[0], flags[1])
		require.NoError(rt, err)

		// Few ids, so that they repeat; sometimes more than a byte search is used for.
		ids := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"})
		next := rapid.Int64Range(0, 3).Draw(rt, "first offset")
		var segments []stretch
		for range rapid.IntRange(1, 5).Draw(rt, "segments") {
			s := stretch{next, rapid.SliceOfN(ids, 1, 6).Draw(rt, "messages")}
			for i, id := range s.ids {
				m.messages[s.base+int64(i)] = id
			}
			m.lastOffset = s.base + int64(len(s.ids)) - 1
			next = m.lastOffset + 1 + rapid.SampledFrom([]int64{0, 0, 0, 4}).Draw(rt, "gap")
			segments = append(segments, s)
		}
		partition := log.partition(rt, queue, segments...)
		m.txnsStart = rapid.SampledFrom([]int64{segments[0].base, segments[len(segments)/2].base}).Draw(rt, "txns_start")
		_, err = log.Exec(context.Background(), `UPDATE queen.log_partitions SET txns_start = $2 WHERE id = $1`, partition, m.txnsStart)
		require.NoError(rt, err)
		m.row = cursor{
			Committed: rapid.Int64Range(-1, m.lastOffset).Draw(rt, "committed"),
			Retries:   rapid.IntRange(0, 3).Draw(rt, "retries"),
			Attempts:  rapid.IntRange(0, 3).Draw(rt, "attempts"),
			Consumed:  5,
		}

		for range rapid.IntRange(1, 5).Draw(rt, "calls") {
			if lease := rapid.SampledFrom([]string{"live", "live", "expired", ""}).Draw(rt, "lease"); lease != "" && m.row.BatchEnd == nil && m.row.Committed < m.lastOffset {
				m.row.BatchEnd = new(rapid.Int64Range(m.row.Committed+1, m.lastOffset).Draw(rt, "batch end"))
				m.row.Worker, m.row.Lease = "w", lease
				m.row.AttemptOffset = new(rapid.Int64Range(0, m.lastOffset).Draw(rt, "attempt offset"))
			}
			log.setCursor(rt, partition, "g", m.row)
			items := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) item {
				return item{
					rapid.OneOf(ids, rapid.Just("unknown")).Draw(rt, "id"),
					rapid.SampledFrom([]string{"completed", "completed", "completed", "", "ok", "failed", "retry", "dlq", "other"}).Draw(rt, "status"),
				}
			}), 0, 14).Draw(rt, "items")
			worker := rapid.SampledFrom([]string{"w", "w", "w", "", "stranger"}).Draw(rt, "worker")

			want := m.ack(worker, items)
			if want.DLQ {
				want.PartitionID = partition.String()
			}
			got := log.ackByHash(rt, partition, "g", worker, items...)
			if diff := cmp.Diff(want, got); diff != "" {
				rt.Fatalf("answer (-model +procedure):\n%s", diff)
			}
			if diff := cmp.Diff(m.row, log.cursor(rt, partition, "g")); diff != "" {
				rt.Fatalf("row (-model +procedure):\n%s", diff)
			}
		}
	})
}
