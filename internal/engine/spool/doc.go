// Package spool keeps pushes on the broker's disk while PostgreSQL is away, or while maintenance keeps pushes out of it, and stores them
// later. It is the only durable state of a broker.
//
// # Promises
//
// A push is answered "buffered" after its record is on disk (see [Sync] for what that means). Buffered messages are stored with the message
// ids that were answered, oldest first. Once a partition has buffered messages, later pushes of it through this broker are buffered
// behind them, so that none overtakes another; other brokers do not know of them. Storing them again is harmless within the
// de-duplication window of the queue: a crash while a file is being stored repeats what was under way, up to 1,000 messages, and a power cut
// up to the whole file. Outside the window, or with de-duplication off, such a repeat stores messages twice. A stop repeats nothing.
//
// A push that repeats a transaction id which waits, in its queue and partition, is answered "buffered" with the message id of the one that
// waits, also after a restart, and is not kept again. The ids are in memory, 262,144 to 524,288 of the newest (up to 50 MB): a repeat of an
// older one is kept again, with another id, and dropped when it comes to be stored. Queues without de-duplication keep every push; of queues
// whose settings nobody has read yet a repeat is kept again under the same id, and the database decides.
//
// # Files
//
// A directory belongs to one broker at a time, by a lock on its file "lock", and to one database, by the identity in its file "database"
// ([Spool.Tie]). Records are appended to one open file, named queen-<epoch ms>-<sequence>.tmp. A file that is complete is renamed to .buf, and
// deleted when all its records are stored; how far it is stored stands in a file .pos beside it. What cannot be read, and what the database
// refuses for good, moves to the directory "failed" beside a text that says why; nothing there is ever deleted. A .buf file moved back from
// there is stored at the next start. Files that end in .new are replacements that never became whole; those in .note are what the broker itself
// must not forget ([Spool.SetNote]).
//
// A file begins with QSP1. A record is the length of its JSON (u32, little-endian), the JSON, and the CRC-32C of both (u32,
// little-endian). A .pos file is an offset (u64) and the CRC-32C of it (u32), both little-endian. The file "database" is the identity and,
// on a second line, how people found the database.
//
// # Concurrency
//
// One goroutine writes, several callers share its commits. One caller drains at a time. The mutex guards the account of what is pending and
// is held across neither a file operation nor a database call.
package spool
