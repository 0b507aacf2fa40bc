// Package http1 serves plain HTTP/1.1 requests of a few busy routes with little time and memory, and gives every connection on which
// anything else arrives to net/http, together with the bytes read so far.
//
// It reads a deliberately small part of the protocol: GET and POST with a path, "HTTP/1.1", one Host, at most one Content-Length of digits,
// printable ASCII in every line, lines that end in CRLF, a header of at most 8 KiB, and no Transfer-Encoding, Expect, Upgrade, Trailer,
// Pragma or unusual Connection. What is not of this form, be it older, newer, rare or wrong, is answered by net/http exactly as without
// this package; a request is either understood here in the one way it can be read or not at all. Handlers are those of net/http.
//
// # Memory
//
// A connection is one goroutine; a handler that waits can suspend itself (the writer's method Suspend), and goes on in another one that has
// waited with a small stack. It has a buffer only from the first byte of a header until the body has been read, so that idle connections and
// requests that wait for long have none. There is no goroutine that looks for clients that leave: one epoll instance
// watches all connections for the end of their input and ends the context of the request under way.
//
// # Concurrency
//
// All methods of [Server] may be called at any time from any goroutine.
package http1
