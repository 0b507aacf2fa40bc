package streams

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A windowOperator keeps the open windows of a query, those of each partition in its shard.
type windowOperator[T, A any] struct {
	windows   Windows
	config    windowConfig
	lateness  int64 // ms
	aggregate Aggregator[T, A]
	next      step[Window[A]]
}

// An openWindow is a window that still takes records.
type openWindow[A any] struct {
	span
	key    string
	acc    A
	stored string // the state key of its row, "" when it has none
	dirty  bool
	closed bool
}

// openWindows are those of one partition.
type openWindows[A any] struct {
	byKey   map[string][]*openWindow[A]
	ends    endHeap[A]
	dirty   []*openWindow[A]
	deleted []string // state keys of rows that are no longer wanted
	spans   []span   // scratch
}

// An endHeap orders windows by end, then start, then key, so that windows are emitted in one order whatever the batches were. An entry
// whose end has changed since it was entered is entered again and skipped when it comes up.
type endHeap[A any] []endEntry[A]

type endEntry[A any] struct {
	end    int64
	window *openWindow[A]
}

func (h endHeap[A]) Len() int { return len(h) }
func (h endHeap[A]) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].end, h[j].end), cmp.Compare(h[i].window.start, h[j].window.start), strings.Compare(h[i].window.key, h[j].window.key)) < 0
}
func (h endHeap[A]) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

// Push and Pop are for container/heap.
func (h *endHeap[A]) Push(x any) { *h = append(*h, x.(endEntry[A])) }

func (h *endHeap[A]) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// of returns the windows of a shard.
func (op *windowOperator[T, A]) of(s *shard) *openWindows[A] {
	if s.windows == nil {
		s.windows = &openWindows[A]{byKey: make(map[string][]*openWindow[A])}
	}
	return s.windows.(*openWindows[A])
}

// add takes a record: it moves the watermark, closes what that ends, and puts the record into its windows.
func (op *windowOperator[T, A]) add(c *cycle, r record[T]) error {
	at := r.at.UnixMilli()
	control := &c.shard.control
	if control.Watermark == nil || at > *control.Watermark {
		control.Watermark = &at
	}
	open := op.of(c.shard)
	limit := *control.Watermark - op.lateness
	if err := op.close(c, open, limit); err != nil {
		return err
	}
	if op.windows.gap > 0 {
		return op.addToSession(c, open, r, at, limit)
	}
	open.spans = op.windows.assign(open.spans[:0], at)
	late := true
	for _, s := range open.spans {
		if s.end <= limit {
			continue
		}
		late = false
		if err := op.put(c, open, s, r); err != nil {
			return err
		}
	}
	if late {
		return op.late(c, r, open.spans)
	}
	return nil
}

// put adds a record to one window.
func (op *windowOperator[T, A]) put(c *cycle, open *openWindows[A], s span, r record[T]) error {
	c.touched = true
	w := open.find(r.key, s)
	if w == nil {
		w = &openWindow[A]{span: s, key: r.key, acc: op.aggregate.New()}
		open.enter(w)
	}
	acc, err := op.aggregate.Add(w.acc, r.value)
	if err != nil {
		return err
	}
	w.acc = acc
	open.mark(w)
	return nil
}

// addToSession adds a record to the sessions of its key that it touches, which makes one of them all.
func (op *windowOperator[T, A]) addToSession(c *cycle, open *openWindows[A], r record[T], at, limit int64) error {
	end := at + op.windows.gap
	var touching []*openWindow[A]
	for _, w := range open.byKey[r.key] {
		if w.start < end && at < w.end {
			touching = append(touching, w)
		}
	}
	if len(touching) == 0 {
		if end <= limit {
			return op.late(c, r, []span{{at, end}})
		}
		return op.put(c, open, span{at, end}, r)
	}
	c.touched = true
	slices.SortFunc(touching, func(a, b *openWindow[A]) int { return cmp.Compare(a.start, b.start) })
	first := touching[0]
	for _, w := range touching[1:] {
		acc, err := op.aggregate.Merge(first.acc, w.acc)
		if err != nil {
			return err
		}
		first.acc, first.end = acc, max(first.end, w.end)
		open.remove(w)
	}
	acc, err := op.aggregate.Add(first.acc, r.value)
	if err != nil {
		return err
	}
	first.acc = acc
	if at < first.start { // its row is named after its start
		if first.stored != "" {
			open.deleted = append(open.deleted, first.stored)
			first.stored = ""
		}
		first.start = at
	}
	first.end = max(first.end, end)
	heap.Push(&open.ends, endEntry[A]{first.end, first})
	open.mark(first)
	return nil
}

// late deals with a record whose windows are closed.
func (op *windowOperator[T, A]) late(c *cycle, r record[T], spans []span) error {
	c.shard.control.Late++
	switch op.config.late {
	case lateInclude:
		for _, s := range spans {
			acc, err := op.aggregate.Add(op.aggregate.New(), r.value)
			if err != nil {
				return err
			}
			c.touched = true
			if err := op.emit(c, &openWindow[A]{span: s, key: r.key, acc: acc}, true); err != nil {
				return err
			}
		}
	case lateAside:
		value, err := encode(r.value)
		if err != nil {
			return fmt.Errorf("encode a late record for %s: %w", op.config.lateTo, err)
		}
		payload, err := json.Marshal(struct {
			Key   string          `json:"key"`
			At    time.Time       `json:"at"`
			Value json.RawMessage `json:"value"`
		}{r.key, r.at.UTC(), value})
		if err != nil {
			return err
		}
		c.push(op.config.lateTo, c.shard.name, r.from, payload)
	}
	return nil
}

// emit hands the result of a window on.
func (op *windowOperator[T, A]) emit(c *cycle, w *openWindow[A], late bool) error {
	c.emitted++
	return op.next(c, record[Window[A]]{
		key: w.key, at: time.UnixMilli(w.end - 1).UTC(),
		value: Window[A]{Key: w.key, Start: time.UnixMilli(w.start).UTC(), End: time.UnixMilli(w.end).UTC(), Value: w.acc, Late: late},
	})
}

// close emits and forgets the windows that end at or before a time. It stops with errMore when the cycle has enough to commit; what was
// closed until then stays closed, whatever becomes of the message that moved the watermark.
func (op *windowOperator[T, A]) close(c *cycle, open *openWindows[A], limit int64) error {
	for len(open.ends) > 0 && open.ends[0].end <= limit {
		w := open.ends[0].window
		if w.closed || w.end != open.ends[0].end {
			heap.Pop(&open.ends)
			continue
		}
		if c.full() && !c.touched {
			return errMore
		}
		touched, items := c.touched, len(c.items)
		if err := op.emit(c, w, false); err != nil {
			c.items = c.items[:items]
			return err
		}
		c.touched = touched
		heap.Pop(&open.ends)
		open.remove(w)
	}
	return nil
}

// flush closes windows because nothing comes any more: the watermark moves as if a record had come.
func (op *windowOperator[T, A]) flush(c *cycle, end int64) error {
	watermark := end + op.lateness
	if c.shard.control.Watermark == nil || watermark > *c.shard.control.Watermark {
		c.shard.control.Watermark = &watermark
	}
	return op.close(c, op.of(c.shard), end)
}

func (o *openWindows[A]) find(key string, s span) *openWindow[A] {
	for _, w := range o.byKey[key] {
		if w.span == s {
			return w
		}
	}
	return nil
}

func (o *openWindows[A]) enter(w *openWindow[A]) {
	o.byKey[w.key] = append(o.byKey[w.key], w)
	heap.Push(&o.ends, endEntry[A]{w.end, w})
}

func (o *openWindows[A]) mark(w *openWindow[A]) {
	if !w.dirty {
		w.dirty = true
		o.dirty = append(o.dirty, w)
	}
}

// remove forgets a window and its row.
func (o *openWindows[A]) remove(w *openWindow[A]) {
	w.closed = true
	if w.stored != "" {
		o.deleted = append(o.deleted, w.stored)
	}
	rest := slices.DeleteFunc(o.byKey[w.key], func(other *openWindow[A]) bool { return other == w })
	if len(rest) == 0 {
		delete(o.byKey, w.key)
	} else {
		o.byKey[w.key] = rest
	}
}

// A windowRow is the value of a window's state row.
type windowRow[A any] struct {
	Acc   A     `json:"acc"`
	Start int64 `json:"windowStart"`
	End   int64 `json:"windowEnd"`
}

// separator stands between the parts of a state key.
const separator = "\x1f"

func (op *windowOperator[T, A]) stateKey(w *openWindow[A]) string {
	return op.windows.tag + separator + time.UnixMilli(w.start).UTC().Format("2006-01-02T15:04:05.000Z") + separator + w.key
}

// load takes the rows of the windows.
func (op *windowOperator[T, A]) load(s *shard) error {
	open := op.of(s)
	for stored, raw := range s.rows {
		rest, ours := strings.CutPrefix(stored, op.windows.tag+separator)
		if !ours {
			continue
		}
		_, key, _ := strings.Cut(rest, separator)
		var row windowRow[A]
		if err := json.Unmarshal(raw, &row); err != nil {
			return fmt.Errorf("streams: the state row %q does not fit the query; give the query another Version, or Reset: %w", stored, err)
		}
		open.enter(&openWindow[A]{span: span{row.Start, row.End}, key: key, acc: row.Acc, stored: stored})
	}
	return nil
}

// collect writes the changed windows. Deletions come first: a session may have been stored under the key of one that is gone.
func (op *windowOperator[T, A]) collect(c *cycle) error {
	open := op.of(c.shard)
	for _, key := range open.deleted {
		c.ops = append(c.ops, stateOp{Type: "delete", Key: key})
	}
	open.deleted = open.deleted[:0]
	for _, w := range open.dirty {
		w.dirty = false
		if w.closed {
			continue
		}
		value, err := json.Marshal(windowRow[A]{w.acc, w.start, w.end})
		if err != nil {
			return fmt.Errorf("encode the value of a window: %w", err)
		}
		w.stored = op.stateKey(w)
		c.ops = append(c.ops, stateOp{Type: "upsert", Key: w.stored, Value: value})
	}
	open.dirty = open.dirty[:0]
	return nil
}

// changes counts the operations that collect would write.
func (o *openWindows[A]) changes() int { return len(o.dirty) + len(o.deleted) }
