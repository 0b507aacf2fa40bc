// Package ack takes acknowledgements to the database and tells every item's honest outcome.
//
// An ack names messages by transaction id. The database resolves the ids, moves the cursor and decides about redelivery and dead
// letters under the row lock of (partition, group); this package groups the items, checks that the partition belongs to the tenant,
// words the outcomes, files dead letters that the database asks for, and wakes long polls when a lease ended.
//
// Most acks complete exactly the batch that a pop of the same broker delivered. The registry remembers what was delivered and
// recognises them: their cursor then moves by position, without resolving ids, and the moves of many requests share one commit. It is
// the cheap way to the same outcome: the database still checks the lease and the end of the leased batch, and what it refuses is
// resolved by ids after all.
//
// An ack is never cancelled by its caller's disconnect: its effect is wanted, and a consumer that hears nothing repeats it.
//
// # Concurrency
//
// A [Server] is safe for concurrent use. Ack and Extend return when everything they started has ended. The loops of the shared
// commits belong to Run.
package ack
