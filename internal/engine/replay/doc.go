// Package replay brings dead letters back: one of them, or all that a filter chooses as a tracked task.
//
// A replay is a move. One database transaction pushes the message and deletes its dead letter; the transaction id of the new
// message is "dlq:" and the id of the dead letter, so that a repetition after a lost answer is recognised. A replayed message is
// a new message of its partition: every consumer group of the destination queue receives it.
//
// A task keeps its filter and its progress in the database. Any broker may work on it; each step is one transaction, so that a
// task whose broker died goes on where it stopped, and no message is moved twice or left out. Within a partition messages keep
// their order.
//
// # Concurrency
//
// A [Server] and a [Runner] are safe for concurrent use and have no goroutines; a loop in upkeep calls [Runner.Step].
package replay
