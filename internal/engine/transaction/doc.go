// Package transaction commits pushes and acks together or not at all, which is what a consumer that transforms messages and
// produces others needs to do each exactly once. It is a room of its own beside push and ack, because it is built from both.
//
// Everything happens in one call of one stored procedure, in one database transaction: this package only prepares it (packs the
// pushes, merges the acks, finds the lease that each ack acts under) and words the outcome. What follows the commit, dead letters
// and wakes, may fail without breaking the promise: a dead letter that was not filed is redelivered when its lease expires.
//
// # Concurrency
//
// A [Server] is safe for concurrent use and starts no goroutines.
package transaction
