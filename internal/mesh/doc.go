// Package mesh carries hints between the brokers of one database over its LISTEN/NOTIFY: where messages have become available, which
// options, groups and switches have changed.
//
// Hints carry no authority. Every role that can connect can notify, and a session that broke has lost what was sent meanwhile, so a hint
// may be lost, repeated, late, in the wrong order or forged. What a receiver does with one is always safe: it looks at the database
// earlier than it would have. Each hint has a floor that heals its loss: pops look again by themselves, the hot list is walked,
// switches and caches are read anew. With the mesh off everything works, with more latency.
//
// # Load
//
// Commits that notify wait for each other across the whole server, so there is one at most every 5 ms a broker, on a session of its own,
// never inside a transaction that writes data. Whatever gathers in between is sent once. A broker sends fewer hints than a receiver
// accepts of one sender; when more partitions are touched than that, they gather for longer, and when they no longer fit in a few
// payloads, their queues are named in their place.
package mesh
