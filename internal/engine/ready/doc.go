// Package ready knows which partitions may have work, and wakes parked pops for it.
//
// It is a hint, never an authority: who owns a message is decided by a row lock in the database. What is wrong here costs an empty claim,
// or time.
//
// # Hot list
//
// The [HotList] keeps, per (tenant, queue, group), a [Ring] of the partitions that may have undelivered messages. A pop takes a few
// ([Ring.Take]), claims them in the database and reports what it found ([CheckOut]). Every partition is in one of four states: nothing is
// known of it; it is listed, the one that waited longest first; it is timed, to be looked at at a known moment (the end of a lease, the
// end of a delay); or a pop has taken it. Marks come from pushes, transactions and hints of other brokers, promotions from acks. An epoch
// per partition decides between a mark and a verdict that cross: a push that committed after a claim's snapshot wins over the
// claim's "empty". Because hints get lost, a ring with consumers is now and then compared with the database ([Ring.BeginWalk]).
//
// A ring exists from its group's first queue pop on, and is dropped when no pop asks for it. It costs 24 bytes per partition, a queue
// some 40 bytes and the name per partition.
//
// Long polls of a ring park in its crowd ([Ring.Park]), where they cost nothing. As many are woken as there are partitions to serve, those
// that waited longest first; whoever was woken and does not use it passes it on.
//
// # Gates
//
// Pops of one partition and discovery pops, and queue pops without a hot list, wait at a gate, which opens for all of them. A lost wake
// costs latency (the pop's own back-off looks again within a second), a superfluous one costs one empty attempt. A gate exists only
// while a long poll is subscribed to it, so a wake for a queue that nobody waits for is one map lookup and a million queues
// without consumers cost nothing.
//
// # No lost wake
//
// A long poll at a gate arms its waiter before it looks for messages: [Waiter.Arm], attempt, and only then wait on the armed channel. A
// wake between the look and the wait closes the channel that was armed, so the wait ends at once. Writers call [Gates.Wake] after
// their commit; an attempt that starts later sees what they wrote. At a ring, Park itself looks at what is listed.
//
// # Concurrency
//
// Everything is safe for concurrent use, except a [CheckOut], a [Parked] and a [Walk], which belong to one goroutine each. Mutexes are
// taken in the order list, crowd or sub-ring or table, and none is held across a call that can block. A sub-ring's and a crowd's
// are never held together.
package ready
