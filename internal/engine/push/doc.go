// Package push turns many push requests into few commits and tells every item what became of it.
//
// A request is split by (queue, partition); repeats of a transaction id inside it never leave the caller. Each part goes to
// the shard that owns its partition. A shard is one goroutine: it mints message ids in order of arrival, and whenever it
// has a partition with waiting messages, nothing under way and a free slot, it commits at once. Everything that arrives
// meanwhile waits and becomes the next bundle, which starts when a commit ends, or beside it as soon as it is large enough
// to pay for a commit of its own. So an idle broker commits a lone push immediately, a busy one packs what came in during
// the last commit, and no timer decides either.
//
// One flush is one call of log_push_multi_v1 with a segment for each of up to [Config.BundleMax] partitions. Repeats of ids
// that are already stored come back as duplicates: they are resolved to the original message, taken out, and the rest is
// sent again, until nothing is left.
//
// # Guarantees
//
// An item is queued only after its commit. At most one flush per partition is in flight in this broker, so that offsets,
// message ids and arrival have one order; across brokers the partition's row lock orders. A request is atomic per
// partition at most, unless it passes the segment cap. A caller that leaves does not cancel a flush that others share.
// Whatever happens inside a flush, all of its items get a verdict.
//
// Bounded queues (maxSize) are decided per request: their requests are flushed one by one, all partitions in one call.
//
// # Concurrency
//
// Groups belong to their shard's goroutine, a flush's segments to the flush until it hands them back. Order of resources:
// admission slot, then connection. On completion: slot, then the partition's mark, then the callers.
package push
