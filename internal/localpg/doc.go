// Package localpg runs a private PostgreSQL for a broker that was given no database.
//
// The data directory is kept between runs and belongs to one broker at a time (a file lock, so a killed broker never leaves it
// taken). The server listens on a Unix socket inside a directory that only its own account may enter, and on no network
// address. Its settings are durable: an answered commit survives a power cut.
//
// # Files below Options.DataDir
//
//	lock              held by the broker while it runs; its text is that broker's process id
//	postgres/         PostgreSQL's own data directory; queen.conf in it is rewritten at every start
//	run/              the socket (in a directory below /tmp when this path is too long for a socket)
//	binaries/         PostgreSQL's programs, only where they had to be downloaded
//
// # Failure
//
// A broker that was killed leaves its server running: the next one stops it cleanly, which also ends the statements of the
// dead broker, and starts its own. A server that ends by itself is started again; when it does not come up or keeps ending,
// Done is closed and Err says why.
package localpg
