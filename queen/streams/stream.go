package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"queenmq/queen"
)

// A Stream describes records of type T on their way through a query. It is a value: its methods return new streams and change
// nothing, and nothing runs before [Runner.Run]. Functions that are given to it may be called by several goroutines at once, for
// records of different partitions.
type Stream[T any] struct {
	def    definition
	attach func(next step[T]) program
}

// A record is a value with what windows and sinks need to know about it.
type record[T any] struct {
	value T
	key   string
	at    time.Time // event time
	from  origin
}

// An origin is what follows the message that a record was made of into the sinks: its trace id, and the traceparent of the span that pushed
// it. Windows are made of many messages and have none.
type origin struct{ trace, parent string }

// A step takes records; it returns errStop for "not now", and any other error for "this message fails".
type step[T any] func(c *cycle, r record[T]) error

// A program is a query put together: what becomes of a message, and of windows that ended.
type program struct {
	message func(c *cycle, m *queen.Message) error
	// load reads the rows of a partition's state, collect writes what has changed. Several operators may each have theirs.
	load    []func(s *shard) error
	collect []func(c *cycle) error
	// flush closes windows that end at or before a time (epoch ms). nil without windows.
	flush func(c *cycle, end int64) error
}

// A definition is what can be known about a query without running it.
type definition struct {
	queue    string
	ops      []string // one for each operator, in order: what the configuration hash is made of
	windowed bool
	gates    int
	grace    time.Duration // of its windows
	idle     time.Duration
	err      error // the first mistake in building it
}

func (d definition) with(op string) definition {
	d.ops = append(slices.Clip(d.ops), op)
	return d
}

func (d definition) failed(format string, args ...any) definition {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
	return d
}

// From is the stream of a queue's messages with their payloads decoded into T as encoding/json does. With T = [json.RawMessage] a value
// is the payload byte for byte, with T = [queen.Message] the whole message. A payload that cannot be decoded makes its message fail, see
// [OnFailure].
func From[T any](queue string) Stream[T] {
	def := definition{queue: queue, ops: []string{"from:" + queue}}
	if queue == "" {
		def = def.failed("streams: From needs the name of a queue")
	}
	return Stream[T]{def: def, attach: func(next step[T]) program {
		return program{message: func(c *cycle, m *queen.Message) error {
			value, err := decode[T](m)
			if err != nil {
				return fmt.Errorf("decode the payload: %w", err)
			}
			return next(c, record[T]{value: value, key: m.Partition, at: m.CreatedAt, from: origin{m.TraceID, m.Traceparent}})
		}}
	}}
}

func decode[T any](m *queen.Message) (value T, err error) {
	switch into := any(&value).(type) {
	case *queen.Message:
		*into = *m
	case *json.RawMessage:
		*into = m.Payload
	default:
		err = json.Unmarshal(m.Payload, &value)
	}
	return value, err
}

// then appends an operator that turns one record into any number of records.
func then[T, U any](s Stream[T], op string, apply func(c *cycle, r record[T], next step[U]) error) Stream[U] {
	return Stream[U]{def: s.def.with(op), attach: func(next step[U]) program {
		return s.attach(func(c *cycle, r record[T]) error { return apply(c, r, next) })
	}}
}

// Filter keeps the records that keep returns true for.
func (s Stream[T]) Filter(keep func(T) bool) Stream[T] {
	return then(s, "filter", func(c *cycle, r record[T], next step[T]) error {
		if !keep(r.value) {
			return nil
		}
		return next(c, r)
	})
}

// maxKeyBytes is what a state key can hold beside the window's name: an index entry of PostgreSQL has less than 2,700 bytes.
const maxKeyBytes = 1024

// KeyBy gives records a key; windows and rate limits are kept for each key of a partition by itself. Without it the key is the name of
// the partition. A key of more than 1,024 bytes, or one that is not UTF-8 or holds a NUL, makes its message fail.
func (s Stream[T]) KeyBy(key func(T) string) Stream[T] {
	return then(s, "keyBy", func(c *cycle, r record[T], next step[T]) error {
		r.key = key(r.value)
		if len(r.key) > maxKeyBytes || !utf8.ValidString(r.key) || strings.ContainsRune(r.key, 0) {
			return fmt.Errorf("the key %.40q has more than %d bytes, is not UTF-8 or holds a NUL", r.key, maxKeyBytes)
		}
		return next(c, r)
	})
}

// EventTime gives records a time of their own instead of when they were stored. It is cut to milliseconds. A message whose record is
// more than a day ahead of the runner's clock fails: it would close every window of its partition.
func (s Stream[T]) EventTime(at func(T) time.Time) Stream[T] {
	return then(s, "eventTime", func(c *cycle, r record[T], next step[T]) error {
		r.at = at(r.value)
		if r.at.After(c.now().Add(farAhead)) {
			return fmt.Errorf("the event time %s is more than %v ahead", r.at.UTC().Format(time.RFC3339), farAhead)
		}
		return next(c, r)
	})
}

// farAhead is how far an event time may lie in the future. A day covers every confusion of time zones.
const farAhead = 24 * time.Hour

// Map turns every record into another one. An error makes the message fail, see [OnFailure].
func Map[T, U any](s Stream[T], f func(T) (U, error)) Stream[U] {
	return then(s, "map", func(c *cycle, r record[T], next step[U]) error {
		value, err := f(r.value)
		if err != nil {
			return err
		}
		return next(c, record[U]{value: value, key: r.key, at: r.at, from: r.from})
	})
}

// FlatMap turns every record into any number of records.
func FlatMap[T, U any](s Stream[T], f func(T) ([]U, error)) Stream[U] {
	return then(s, "flatMap", func(c *cycle, r record[T], next step[U]) error {
		values, err := f(r.value)
		if err != nil {
			return err
		}
		for _, value := range values {
			if err := next(c, record[U]{value: value, key: r.key, at: r.at, from: r.from}); err != nil {
				return err
			}
		}
		return nil
	})
}

// A Query is a stream with an end. Run it with [NewRunner].
type Query struct {
	def   definition
	sink  string // the queue of To, "" otherwise
	build func() program
}

// To writes every record as a message to a queue, with its value encoded as JSON ([json.RawMessage] byte for byte, [queen.Message] by its
// payload), into the partition with the name of the source partition. A queue that is full holds the query up.
func (s Stream[T]) To(queue string) Query { return s.ToPartition(queue, nil) }

// ToPartition is To with a partition for each record.
func (s Stream[T]) ToPartition(queue string, partition func(T) string) Query {
	def := s.def.with("to:" + queue)
	if queue == "" {
		def = def.failed("streams: To needs the name of a queue")
	}
	return Query{def: def, sink: queue, build: func() program {
		return s.attach(func(c *cycle, r record[T]) error {
			payload, err := encode(r.value)
			if err != nil {
				return fmt.Errorf("encode a message for %s: %w", queue, err)
			}
			lane := c.shard.name
			if partition != nil {
				lane = partition(r.value)
			}
			c.push(queue, lane, r.from, payload)
			return nil
		})
	}}
}

func encode[T any](value T) (json.RawMessage, error) {
	switch v := any(value).(type) {
	case queen.Message:
		return v.Payload, nil
	case json.RawMessage:
		if !json.Valid(v) {
			return nil, errors.New("the value is not valid JSON")
		}
		return v, nil
	}
	return json.Marshal(value)
}

// Foreach ends a query with a function. It runs before the batch is committed, so that it happens at least once for every record: again
// after a failure or a crash. An error makes the message fail, see [OnFailure]. ctx ends when the lease of the batch is lost.
func (s Stream[T]) Foreach(f func(ctx context.Context, value T) error) Query {
	return Query{def: s.def.with("foreach"), build: func() program {
		return s.attach(func(c *cycle, r record[T]) error { return f(c.ctx, r.value) })
	}}
}
