// Package stream commits the cycles of streaming queries: state, sink pushes and the ack of the source batch together, in one
// database transaction, or none of them.
//
// # Concurrency
//
// A [Server] is safe for concurrent use and has no goroutines. Cycles of one (query, partition) commit one after the other; the
// database sees to that.
package stream
