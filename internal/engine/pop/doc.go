// Package pop serves pops: it claims messages for a consumer group, keeps long polls parked until there is work, and renders
// what was claimed.
//
// PostgreSQL decides which messages a pop gets; this package decides when it is worth asking. A long poll subscribes to its
// queue's gate before it looks, looks, and then waits for a wake, its back-off, its deadline, its caller or the stop of the
// server. While it waits it is one goroutine and a few hundred bytes: it holds neither an admission slot nor a connection.
//
// # What cannot be read is not skipped
//
// A stored segment that does not decode is never passed over. A leased pop delivers what lies before it, or gives the lease back
// when nothing does; an auto-ack pop is rolled back and fails. An operator moves past it with a seek.
//
// # Concurrency
//
// A [Server] is safe for concurrent use and starts no goroutines of its own. A [Result] belongs to one goroutine.
package pop
