// Package dedup remembers which transaction ids are stored, so that the database need not look for repeats among all of
// them at every push: the probe reads every hash of the window, under the lock of the partition.
//
// A [Cache] never finds a duplicate. It only vouches: "none of these ids is among the messages of partition P up to offset
// V that were stored at or after time S". The database trusts that sentence where it applies and looks at the rest itself;
// where the name of the queue now stands for another partition, or the window reaches further back than S, it looks at
// everything. An id that the cache may know, it does not vouch for. So every verdict is the database's, and is the same
// with the cache and without it.
//
// The sentence stays true whatever happens meanwhile, as long as what was committed stays committed: a database that was
// set back to an older state (a standby that lost commits) must not be served by a broker that ran before.
//
// # What is kept
//
// Of each id four bytes of its hash in an open-addressing table, about eight bytes in all. Two ids that look alike cost one
// full probe: with a million ids in the window that happens to one new id in about ten million. A partition's tables are
// in order of time; they are dropped whole when their newest id has left the window, by the database's clock.
//
// A partition is followed from its first message on, or, when it has messages already, once it is pushed to for the second
// time: then its window is read in the background. What other brokers store leaves a gap, which the database looks at;
// when it has grown, it is read too.
//
// # Concurrency
//
// All methods are safe for concurrent use. The cache's mutex guards the map, the order of use and the sizes; each entry has
// one of its own for its history. An entry's mutex is taken before the cache's, never after it, and none is held across a
// read of the database.
package dedup
