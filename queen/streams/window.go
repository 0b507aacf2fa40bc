package streams

import (
	"fmt"
	"strconv"
	"time"
)

// Windows says which stretches of event time records are gathered in. All times are whole milliseconds.
type Windows struct {
	tag string // what the state keys begin with
	// assign appends the windows that a time belongs to. nil for sessions.
	assign func(into []span, at int64) []span
	gap    int64 // of sessions
	err    error
}

// A span is a window from start up to, not including, end (epoch ms).
type span struct{ start, end int64 }

// Tumbling windows follow each other without gap or overlap; one of them begins at 1970-01-01T00:00:00Z.
func Tumbling(size time.Duration) Windows {
	w := Windows{tag: "tumb:" + seconds(size), err: wholeMilliseconds("size", size)}
	ms := size.Milliseconds()
	w.assign = func(into []span, at int64) []span {
		start := floor(at, ms)
		return append(into, span{start, start + ms})
	}
	return w
}

// maxOverlap bounds how many windows one record may belong to.
const maxOverlap = 1000

// Sliding windows of a size begin every step; a record belongs to size/step of them, at most 1,000.
func Sliding(size, step time.Duration) Windows {
	w := Windows{tag: "slide:" + seconds(size) + ":" + seconds(step), err: wholeMilliseconds("size", size)}
	if err := wholeMilliseconds("step", step); w.err == nil {
		w.err = err
	}
	if w.err == nil && (step > size || size/step > maxOverlap) {
		w.err = fmt.Errorf("streams: the step %v of sliding windows must be from 1/%d of their size %v to the size", step, maxOverlap, size)
	}
	ms, every := size.Milliseconds(), step.Milliseconds()
	w.assign = func(into []span, at int64) []span {
		for start := floor(at-ms, every) + every; start <= at; start += every {
			into = append(into, span{start, start + ms})
		}
		return into
	}
	return w
}

// Session windows last as long as records of a key come, and end when none came for gap. Two sessions that a record in between connects
// become one.
func Session(gap time.Duration) Windows {
	return Windows{tag: "sess:" + seconds(gap), gap: gap.Milliseconds(), err: wholeMilliseconds("gap", gap)}
}

// Cron windows begin and end at the times of a cron expression ("0 6 * * 1-5": minute, hour, day of month, month, day of week) in a time
// zone, for example "Europe/Rome". When clocks go forward, a time that does not exist counts at the jump; when they go back, a time that
// happens twice counts once, the first time - unless the expression takes every hour ("*" or "*/n" as the hour), whose windows are
// as many as hours really pass.
func Cron(expression, zone string) Windows {
	w := Windows{tag: "cron:" + expression + "@" + zone}
	boundaries, err := newCron(expression, zone)
	if err != nil {
		w.err = fmt.Errorf("streams: cron windows %q in zone %q: %w", expression, zone, err)
		return w
	}
	w.assign = func(into []span, at int64) []span { return append(into, boundaries.around(at)) }
	return w
}

func wholeMilliseconds(what string, d time.Duration) error {
	if d < time.Millisecond || d%time.Millisecond != 0 {
		return fmt.Errorf("streams: the %s %v of windows must be a positive number of whole milliseconds", what, d)
	}
	return nil
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

// floor returns the largest multiple of step that is not above at, also before 1970. A step of 0 belongs to a description that was
// refused; it must not make its construction panic.
func floor(at, step int64) int64 {
	if step <= 0 {
		return at
	}
	rest := at % step
	if rest < 0 {
		rest += step
	}
	return at - rest
}

// A WindowOption changes how windows treat time.
type WindowOption func(*windowConfig)

type windowConfig struct {
	lateness time.Duration
	idle     time.Duration
	late     latePolicy
	lateTo   string
}

type latePolicy int

const (
	lateDrop latePolicy = iota
	lateInclude
	lateAside
)

// DefaultIdleAfter is how long a partition must be idle before its ended windows are closed.
const DefaultIdleAfter = 10 * time.Second

// AllowedLateness keeps windows open until the watermark is this far beyond their end, for records that come out of order.
func AllowedLateness(d time.Duration) WindowOption { return func(w *windowConfig) { w.lateness = d } }

// IdleAfter closes windows of partitions that nothing was pushed to for this long, by the database's clock, once everything in them has
// been read and the windows' end and allowed lateness have passed. Default [DefaultIdleAfter]; a negative value leaves them open until
// the next record. When old events are pushed with pauses, choose it longer than the pauses: what comes after the closing is late.
func IdleAfter(d time.Duration) WindowOption { return func(w *windowConfig) { w.idle = d } }

// IncludeLate emits every late record at once as a window of its own, marked Late, beside the window that was emitted before.
func IncludeLate() WindowOption { return func(w *windowConfig) { w.late = lateInclude } }

// LateTo writes late records to a queue, in the partition with the name of the source partition, as {"key","at","value"}.
func LateTo(queue string) WindowOption {
	return func(w *windowConfig) { w.late, w.lateTo = lateAside, queue }
}

// A Windowed is a stream cut into windows, waiting to be aggregated.
type Windowed[T any] struct {
	stream  Stream[T]
	windows Windows
	config  windowConfig
}

// Window cuts a stream into windows. A query has at most one; write the results to a queue and start another query from there for more.
func (s Stream[T]) Window(w Windows, options ...WindowOption) Windowed[T] {
	config := windowConfig{idle: DefaultIdleAfter}
	for _, option := range options {
		option(&config)
	}
	if w.err != nil {
		s.def = s.def.failed("%w", w.err)
	}
	switch {
	case w.tag == "":
		s.def = s.def.failed("streams: Window needs Tumbling, Sliding, Session or Cron windows")
	case s.def.windowed:
		s.def = s.def.failed("streams: a query has one Window; write the results to a queue and start another query there")
	case config.lateness < 0 || config.lateness%time.Millisecond != 0:
		s.def = s.def.failed("streams: the allowed lateness %v must be whole milliseconds, not negative", config.lateness)
	case config.late == lateAside && config.lateTo == "":
		s.def = s.def.failed("streams: LateTo needs the name of a queue")
	}
	s.def.windowed, s.def.grace, s.def.idle = true, config.lateness, config.idle
	s.def = s.def.with(fmt.Sprintf("window:%s:lateness=%d:late=%d:%s", w.tag, config.lateness.Milliseconds(), config.late, config.lateTo))
	return Windowed[T]{stream: s, windows: w, config: config}
}

// A Window is the result of one window of one key.
type Window[A any] struct {
	Key string `json:"key"`
	// Start is inside the window, End is not.
	Start time.Time `json:"windowStart"`
	End   time.Time `json:"windowEnd"`
	Value A         `json:"value"`
	// Late marks the window of one late record, see [IncludeLate].
	Late bool `json:"late,omitempty"`
}
