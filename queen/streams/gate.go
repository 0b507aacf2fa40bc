package streams

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// A Rate is how many records may pass in a time.
type Rate struct {
	// Events may pass Per this time, evenly spread.
	Events int
	Per    time.Duration
	// Burst is how many may pass at once after a pause; 0 is Events.
	Burst int
}

// A bucket is what is left of a rate for one key: Tokens at a time (epoch ms).
type bucket struct {
	Tokens float64 `json:"tokens"`
	At     int64   `json:"at"`

	stored, dirty bool
}

// Gate lets records pass at most at a rate, for every key by itself. The first record that may not pass yet holds back everything behind
// it in its partition; what came before it is committed, and nothing is lost or delivered twice. It goes by the clocks of the runners.
func (s Stream[T]) Gate(rate Rate) Stream[T] {
	if rate.Burst == 0 {
		rate.Burst = rate.Events
	}
	s.def.gates++
	tag := fmt.Sprintf("gate:%d", s.def.gates)
	def := s.def.with(fmt.Sprintf("%s:%d/%v", tag, rate.Events, rate.Per)) // a change of Burst changes no meaning
	if rate.Events < 1 || rate.Per <= 0 || rate.Burst < 1 {
		def = def.failed("streams: a rate needs at least one event per a positive time, and no negative burst: %+v", rate)
	}
	g := &gate{tag: tag, rate: rate}
	return Stream[T]{def: def, attach: func(next step[T]) program {
		p := s.attach(func(c *cycle, r record[T]) error {
			if wait := g.take(c, r.key); wait > 0 {
				return &deniedError{wait: wait}
			}
			return next(c, r)
		})
		p.load = append(p.load, g.load)
		p.collect = append(p.collect, g.collect)
		return p
	}}
}

// GateFunc lets a record pass when ready says 0, and otherwise asks again after the time it says. It holds back what is behind the record
// like Gate, and is called again for the same record.
func (s Stream[T]) GateFunc(ready func(T) time.Duration) Stream[T] {
	return then(s, "gate", func(c *cycle, r record[T], next step[T]) error {
		if wait := ready(r.value); wait > 0 {
			return &deniedError{wait: wait}
		}
		return next(c, r)
	})
}

// A deniedError says that a record may pass later.
type deniedError struct{ wait time.Duration }

func (e *deniedError) Error() string { return fmt.Sprintf("held back for %v", e.wait) }

type gate struct {
	tag  string
	rate Rate
}

// buckets returns those of one partition.
func (g *gate) buckets(s *shard) map[string]*bucket {
	if s.buckets[g.tag] == nil {
		if s.buckets == nil {
			s.buckets = make(map[string]map[string]*bucket)
		}
		s.buckets[g.tag] = make(map[string]*bucket)
	}
	return s.buckets[g.tag]
}

// perMs is how many tokens come in a millisecond.
func (g *gate) perMs() float64 {
	return float64(g.rate.Events) / (float64(g.rate.Per) / float64(time.Millisecond))
}

// take takes a token, or says how long to wait for one.
func (g *gate) take(c *cycle, key string) time.Duration {
	buckets, now := g.buckets(c.shard), c.now().UnixMilli()
	b := buckets[key]
	if b == nil {
		b = &bucket{Tokens: float64(g.rate.Burst), At: now}
		buckets[key] = b
	}
	if elapsed := now - b.At; elapsed > 0 { // a clock that went back brings no tokens and takes none
		b.Tokens = min(b.Tokens+float64(elapsed)*g.perMs(), float64(g.rate.Burst))
		b.At = now
	}
	if b.Tokens < 1 {
		return time.Duration((1-b.Tokens)/g.perMs()*float64(time.Millisecond)).Truncate(time.Millisecond) + time.Millisecond
	}
	b.Tokens--
	if !b.dirty {
		b.dirty = true
		c.shard.dirtyBuckets++
	}
	c.touched = true
	return 0
}

func (g *gate) load(s *shard) error {
	for stored, raw := range s.rows {
		key, ours := strings.CutPrefix(stored, g.tag+separator)
		if !ours {
			continue
		}
		b := &bucket{stored: true}
		if err := json.Unmarshal(raw, b); err != nil {
			return fmt.Errorf("streams: the state row %q does not fit the query; give the query another Version, or Reset: %w", stored, err)
		}
		g.buckets(s)[key] = b
	}
	return nil
}

// collect writes the changed buckets and removes the rows of those that are full again: a key that is not heard of any more must leave
// nothing behind.
func (g *gate) collect(c *cycle) error {
	now := c.now().UnixMilli()
	for key, b := range g.buckets(c.shard) {
		full := b.Tokens+float64(max(now-b.At, 0))*g.perMs() >= float64(g.rate.Burst)
		switch {
		case full && !b.dirty && len(c.ops) < maxOps:
			if b.stored {
				c.ops = append(c.ops, stateOp{Type: "delete", Key: g.tag + separator + key})
			}
			delete(g.buckets(c.shard), key)
		case b.dirty:
			value, err := json.Marshal(b)
			if err != nil {
				return err
			}
			c.ops = append(c.ops, stateOp{Type: "upsert", Key: g.tag + separator + key, Value: value})
			b.stored = true
		}
		b.dirty = false
	}
	c.shard.dirtyBuckets = 0
	return nil
}
