// Package queen is the Go client of the Queen message broker.
//
//	client, err := queen.Connect("http://localhost:6632")
//	results, err := client.Push(ctx, queen.Item{Queue: "orders", Partition: "customer-7", Payload: []byte(`{"total":12.5}`)})
//	batch, err := client.Pop(ctx, "orders", queen.PopOptions{Group: "billing", Wait: 30 * time.Second})
//	_, err = client.Ack(ctx, batch.Completed()...)
//
// A queue is split into partitions that keep their order. Every consumer group reads a queue independently of the others, and
// of the workers of one group only one at a time holds messages of a partition: it has a lease until it acknowledges them, and
// when the lease ends they are delivered again. A push that is answered "queued" is committed in PostgreSQL.
//
// # Errors and repeats
//
// Whatever a broker or the way to it refuses is an [*Error]; errors.Is finds its kind, for example [ErrQueueFull] or
// [ErrLeaseLost]. Calls that may be repeated safely are repeated, with exponential back-off and jitter, on every broker that
// was named, until [WithRetryBudget] is used up or the context ends; a broker that asks for more time (Retry-After) gets it.
// Every pushed message has a transaction id, made up here when the caller gives none, so that a repeated push stores it once.
//
// # Concurrency
//
// A [Client] is safe for concurrent use and shares its connections; one for a program is enough. Every call ends with its
// context.
package queen
