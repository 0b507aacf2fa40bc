// Package ready wakes parked pops when their queue may have work.
//
// A gate is a hint, never an authority. A lost wake costs latency (the pop's own back-off looks again within a second), a
// superfluous one costs one empty attempt; who owns a message is decided by a row lock in the database.
//
// A gate exists only while a long poll is subscribed to it, so a wake for a queue that nobody waits for is one map lookup and a
// million queues without consumers cost nothing.
//
// # No lost wake
//
// A long poll arms its waiter before it looks for messages: [Waiter.Arm], attempt, and only then wait on the armed channel. A
// wake between the look and the wait closes the channel that was armed, so the wait ends at once. Writers call [Gates.Wake] after
// their commit; an attempt that starts later sees what they wrote.
//
// # Concurrency
//
// Everything is safe for concurrent use. One mutex guards the map of gates, one mutex each gate; the order is map, then gate, and
// neither is held across a call that can block.
package ready
