package ready

import (
	"context"
	"log/slog"
)

// outcome is what became of one partition of a check-out, for the trace.
type outcome uint8

const (
	outcomeReturned outcome = iota // nothing was reported about it
	outcomeLeased
	outcomeConsumed
	outcomeHeld
	outcomeRaced
	outcomeDeferred
	outcomeEmpty
	outcomeNotReached
	outcomeCount
)

var outcomeNames = [outcomeCount]string{
	outcomeReturned: "returned", outcomeLeased: "leased", outcomeConsumed: "consumed", outcomeHeld: "held_by_others",
	outcomeDeferred: "deferred", outcomeEmpty: "empty", outcomeNotReached: "not_reached",
}

// trace logs what the list does with a ring, where HotConfig.Trace asks for it.
func (r *Ring) trace(event string, attributes ...slog.Attr) {
	cfg := &r.list.cfg
	if !cfg.Trace {
		return
	}
	cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "hot list: "+event, append([]slog.Attr{
		slog.String("tenant", r.key.tenant.String()), slog.String("queue", r.key.queue), slog.String("group", r.group),
		slog.Int64("listed", r.ready.Load()), slog.Int64("taken", r.flying.Load()), slog.Int("parked", r.crowd.size()),
	}, attributes...)...)
}

// trace logs what a claim found in the partitions it took.
func (c *CheckOut) trace() {
	if c.ring == nil || !c.ring.list.cfg.Trace || len(c.handles) == 0 {
		return
	}
	var attributes []slog.Attr
	for i, n := range c.outcomes {
		if n > 0 {
			attributes = append(attributes, slog.Int(outcomeNames[i], int(n)))
		}
	}
	c.ring.trace("claim", attributes...)
}
