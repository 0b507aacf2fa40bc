package streams

import (
	"cmp"
)

// An Aggregator folds the records of a window into one value of type A, which is kept as JSON between batches: A must survive
// encoding/json. Add and Merge may change and return their first argument.
type Aggregator[T, A any] struct {
	// Name tells this aggregation from others in the description of the query.
	Name string
	// New returns the value of an empty window. nil is the zero value of A.
	New func() A
	// Add returns acc with one more record.
	Add func(acc A, value T) (A, error)
	// Merge returns two sessions as one, a being the earlier. Only [Session] windows need it.
	Merge func(a, b A) (A, error)
}

// Aggregate folds every window with an aggregator of yours.
func Aggregate[T, A any](w Windowed[T], a Aggregator[T, A]) Stream[Window[A]] {
	def := w.stream.def.with("aggregate:" + a.Name)
	switch {
	case a.Add == nil:
		def = def.failed("streams: the aggregator %q needs an Add function", a.Name)
	case w.windows.gap > 0 && a.Merge == nil:
		def = def.failed("streams: the aggregator %q needs a Merge function for session windows", a.Name)
	}
	if a.New == nil {
		a.New = func() (zero A) { return zero }
	}
	return Stream[Window[A]]{def: def, attach: func(next step[Window[A]]) program {
		op := &windowOperator[T, A]{windows: w.windows, config: w.config, lateness: w.config.lateness.Milliseconds(), aggregate: a, next: next}
		p := w.stream.attach(op.add)
		p.load = append(p.load, op.load)
		p.collect = append(p.collect, op.collect)
		p.flush = op.flush
		return p
	}}
}

// Reduce folds the records of every window two at a time, in order; a window of one record is that record.
func Reduce[T any](w Windowed[T], f func(a, b T) T) Stream[Window[T]] {
	return reduced(w, "reduce", func(v T) T { return v }, f)
}

// reduced keeps a pointer as the value of a window, so that a window without records differs from one with a zero value.
func reduced[T, N any](w Windowed[T], name string, of func(T) N, f func(a, b N) N) Stream[Window[N]] {
	join := func(a, b *N) (*N, error) {
		if a == nil {
			return b, nil
		}
		both := f(*a, *b)
		return &both, nil
	}
	folded := Aggregate(w, Aggregator[T, *N]{
		Name: name, Merge: join,
		Add: func(acc *N, v T) (*N, error) { n := of(v); return join(acc, &n) },
	})
	return eachValue(folded, func(v *N) N { return *v })
}

// eachValue changes the values of windows and nothing else.
func eachValue[A, B any](s Stream[Window[A]], f func(A) B) Stream[Window[B]] {
	return Map(s, func(w Window[A]) (Window[B], error) {
		return Window[B]{Key: w.Key, Start: w.Start, End: w.End, Value: f(w.Value), Late: w.Late}, nil
	})
}

// A Number can be summed up.
type Number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// Count counts the records of every window.
func Count[T any](w Windowed[T]) Stream[Window[int64]] {
	return Aggregate(w, Aggregator[T, int64]{
		Name: "count", Add: func(n int64, _ T) (int64, error) { return n + 1, nil },
		Merge: func(a, b int64) (int64, error) { return a + b, nil },
	})
}

// Sum adds up a number of every record. Integers that overflow wrap around, as in Go.
func Sum[T any, N Number](w Windowed[T], of func(T) N) Stream[Window[N]] {
	return reduced(w, "sum", of, func(a, b N) N { return a + b })
}

// Min is the smallest of the records' values.
func Min[T any, N cmp.Ordered](w Windowed[T], of func(T) N) Stream[Window[N]] {
	return reduced(w, "min", of, func(a, b N) N { return min(a, b) })
}

// Max is the largest of the records' values.
func Max[T any, N cmp.Ordered](w Windowed[T], of func(T) N) Stream[Window[N]] {
	return reduced(w, "max", of, func(a, b N) N { return max(a, b) })
}

// mean is a sum with its number of summands.
type mean struct {
	Sum   float64 `json:"sum"`
	Count int64   `json:"count"`
}

// Avg is the mean of a number of every record.
func Avg[T any, N Number](w Windowed[T], of func(T) N) Stream[Window[float64]] {
	folded := Aggregate(w, Aggregator[T, mean]{
		Name:  "avg",
		Add:   func(m mean, v T) (mean, error) { return mean{m.Sum + float64(of(v)), m.Count + 1}, nil },
		Merge: func(a, b mean) (mean, error) { return mean{a.Sum + b.Sum, a.Count + b.Count}, nil },
	})
	return eachValue(folded, func(m mean) float64 { return m.Sum / float64(m.Count) })
}
