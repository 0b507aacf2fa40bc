// Package streams runs streaming queries over Queen queues: records are filtered, mapped and keyed, counted in windows and written to
// other queues, each result exactly once.
//
//	orders := streams.From[Order]("orders").EventTime(func(o Order) time.Time { return o.At }).KeyBy(func(o Order) string { return o.Shop })
//	totals := streams.Sum(orders.Window(streams.Tumbling(time.Minute)), func(o Order) float64 { return o.Total })
//	runner, err := streams.NewRunner(client, "totals-per-minute", totals.To("totals"))
//	err = runner.Run(ctx)
//
// # Exactly once
//
// A runner works on one batch of one partition at a time. What the batch leads to - changed windows, messages for other queues, and the
// acknowledgment of the batch itself - is committed by the broker in one database transaction, a cycle. A runner that dies between two
// cycles has done nothing that anyone can see; the batch is delivered again. Only what a function does by itself ([Stream.Foreach])
// happens at least once.
//
// Every decision depends on the order of the messages of a partition and on their event times, never on when or how fast they are
// processed: a query that is slowed down, killed, or run again from the start over the same messages gives the same windows. The
// exceptions are rate limits ([Stream.Gate]), which are about real time by nature, and the closing of windows of partitions that have
// been idle for a while (see [IdleAfter]).
//
// # State, partitions and keys
//
// State belongs to a source partition. [Stream.KeyBy] splits a partition's records by a key of yours; records of one key in two
// partitions are never combined, so push what belongs together into one partition. Any number of runners may run one query: a
// partition is worked on by one of them at a time, and a cycle that was computed from state that has changed meanwhile is refused by the
// broker and computed again. All open windows of a partition are held in memory while the partition is worked on.
//
// # Event time
//
// The event time of a record is the time when its message was stored, or what [Stream.EventTime] says. The watermark of a partition is
// the latest event time seen in it. A window is closed and emitted when the watermark passes its end by the allowed lateness; what
// belongs to a closed window after that is late, is counted, and is dropped unless an option says otherwise.
//
// # Changed queries
//
// A query is registered under its name with a description of its operators. Stored state of other operators makes no sense to a query:
// [Runner.Run] then ends with [ErrQueryChanged], and [Reset] throws the state away. Functions cannot be compared; change [Version] when
// one of them changes what stored state means.
package streams
