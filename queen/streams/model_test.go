package streams

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"queenmq/queen"
)

// An event is a message of these tests.
type event struct {
	Key string `json:"k"`
	At  int64  `json:"at"`
	N   int64  `json:"n"`
}

// shape is one kind of windows with the plain description that the reference computes from.
type shape struct {
	name      string
	windows   Windows
	size, hop int64 // ms; a hop of 0 is a session whose gap is size
}

func shapes() []shape {
	return []shape{
		{"Tumbling", Tumbling(100 * time.Millisecond), 100, 100},
		{"Sliding", Sliding(100*time.Millisecond, 30*time.Millisecond), 100, 30},
		{"Session", Session(40 * time.Millisecond), 40, 0},
		{"Cron", Cron("* * * * *", "UTC"), 60_000, 60_000},
	}
}

// reference computes what a query must emit, from its definition and nothing of its code: record by record, with all windows ever opened
// in one list.
func reference(events []event, s shape, lateness int64) (emitted []Window[int64], late int64) {
	type open struct {
		Window[int64]
		start, end int64
		closed     bool
	}
	var all []*open
	watermark := int64(-1 << 62)
	finish := func(limit int64) {
		slices.SortStableFunc(all, func(a, b *open) int {
			return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.start, b.start), cmp.Compare(a.Key, b.Key))
		})
		for _, w := range all {
			if !w.closed && w.end <= limit {
				w.closed = true
				emitted = append(emitted, Window[int64]{Key: w.Key, Start: time.UnixMilli(w.start).UTC(), End: time.UnixMilli(w.end).UTC(), Value: w.Value})
			}
		}
	}
	for _, e := range events {
		watermark = max(watermark, e.At)
		finish(watermark - lateness)
		var spans []span
		if s.hop == 0 {
			joined := span{e.At, e.At + s.size}
			value, found := e.N, false
			for _, w := range all {
				if !w.closed && w.Key == e.Key && w.start < e.At+s.size && e.At < w.end {
					joined = span{min(joined.start, w.start), max(joined.end, w.end)}
					value += w.Value
					w.closed, found = true, true // replaced by the joined one, never emitted
				}
			}
			if !found && joined.end <= watermark-lateness {
				late++
				continue
			}
			all = append(all, &open{Window: Window[int64]{Key: e.Key, Value: value}, start: joined.start, end: joined.end})
			continue
		}
		for start := (e.At/s.hop - s.size/s.hop - 2) * s.hop; start <= e.At; start += s.hop {
			if start+s.size > e.At {
				spans = append(spans, span{start, start + s.size})
			}
		}
		taken := false
		for _, sp := range spans {
			if sp.end <= watermark-lateness {
				continue
			}
			taken = true
			i := slices.IndexFunc(all, func(w *open) bool { return !w.closed && w.Key == e.Key && w.start == sp.start && w.end == sp.end })
			if i < 0 {
				all = append(all, &open{Window: Window[int64]{Key: e.Key}, start: sp.start, end: sp.end})
				i = len(all) - 1
			}
			all[i].Value += e.N
		}
		if !taken {
			late++
		}
	}
	finish(1 << 60)
	return emitted, late
}

// A store stands for the broker: it keeps the state rows and what the sinks were given.
type store struct {
	rows  map[string]json.RawMessage
	items []sinkItem
}

// apply commits a cycle.
func (s *store) apply(t require.TestingT, p *program, c *cycle) {
	_, err := c.finish(p)
	require.NoError(t, err)
	c.shard.control.Version++
	for _, op := range c.ops {
		if op.Type == "delete" {
			delete(s.rows, op.Key)
			continue
		}
		// What the database gives back is equal, not the same bytes.
		var value any
		require.NoError(t, json.Unmarshal(op.Value, &value))
		text, err := json.Marshal(value)
		require.NoError(t, err)
		s.rows[op.Key] = text
	}
	s.items = append(s.items, c.items...)
}

func messagesOf(events []event) []queen.Message {
	messages := make([]queen.Message, len(events))
	for i, e := range events {
		payload, _ := json.Marshal(e)
		messages[i] = queen.Message{Payload: payload, Partition: "p", PartitionID: "id", TransactionID: fmt.Sprint(i)}
	}
	return messages
}

// However the messages of a partition are cut into batches, whenever the state is read back, and whatever work is thrown away before it
// is committed, a query emits the same windows in the same order, and leaves no row of a closed window behind.
func TestWindowsDoNotDependOnBatchesOrCrashes(t *testing.T) {
	t.Parallel()
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				lateness := rapid.Int64Range(0, 80).Draw(t, "lateness")
				jitter := rapid.Int64Range(1, 200).Draw(t, "jitter")
				if s.size > 1000 {
					lateness, jitter = lateness*500, jitter*500
				}
				events := make([]event, rapid.IntRange(1, 80).Draw(t, "events"))
				at := int64(1_000_000_000_000)
				for i := range events {
					at += rapid.Int64Range(0, jitter).Draw(t, "step")
					events[i] = event{
						Key: rapid.SampledFrom([]string{"a", "b", "c" + separator + "ü"}).Draw(t, "key"),
						At:  at - rapid.Int64Range(0, 2*jitter).Draw(t, "back"), N: rapid.Int64Range(-5, 1<<40).Draw(t, "n"),
					}
				}
				stream := From[event]("q").KeyBy(func(e event) string { return e.Key }).EventTime(func(e event) time.Time { return time.UnixMilli(e.At) })
				query := Sum(stream.Window(s.windows, AllowedLateness(time.Duration(lateness)*time.Millisecond)), func(e event) int64 { return e.N }).To("out")
				require.NoError(t, query.def.err)
				p := query.build()
				db := &store{rows: make(map[string]json.RawMessage)}
				part := &shard{id: "id", name: "p"}
				messages := messagesOf(events)
				for len(messages) > 0 {
					if rapid.Bool().Draw(t, "reload") {
						part = &shard{id: "id", name: "p"}
						require.NoError(t, part.adopt(&p, db.rows))
					}
					n := rapid.IntRange(1, min(20, len(messages))).Draw(t, "batch")
					c := &cycle{ctx: context.Background(), now: time.Now, shard: part}
					settled, why := c.run(&p, messages[:n])
					require.Equal(t, stop{}, why)
					require.Equal(t, n, settled)
					if rapid.IntRange(0, 4).Draw(t, "crash") == 0 {
						part = &shard{id: "id", name: "p"}
						require.NoError(t, part.adopt(&p, db.rows))
						continue
					}
					db.apply(t, &p, c)
					messages = messages[n:]
				}
				c := &cycle{ctx: context.Background(), now: time.Now, shard: part}
				require.NoError(t, p.flush(c, 1<<60))
				db.apply(t, &p, c)

				want, late := reference(events, s, lateness)
				got := make([]Window[int64], len(db.items))
				for i, item := range db.items {
					require.NoError(t, json.Unmarshal(item.Payload, &got[i]))
				}
				require.Equal(t, want, append(got[:0:0], got...))
				require.Equal(t, late, part.control.Late)
				require.Len(t, db.rows, 1, "only the control row is left")
			})
		})
	}
}
