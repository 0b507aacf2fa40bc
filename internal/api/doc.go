// Package api is the HTTP face of the broker: one table of routes, the decoding of requests, the call into the engine, and the
// encoding of answers and errors.
//
// The hot routes (push, pop, ack, transaction) use no reflection: bodies are walked once by a scanner that keeps payload bytes
// as slices of the request, and answers are appended byte by byte. Management routes use encoding/json.
//
// # Errors
//
// Handlers return an error; one place (serve.go) writes it. Every kind of error is one row of the table in errors.go, from
// which docs/errors.md is made. A client always reads {"error": text, "code": code}.
//
// # Concurrency
//
// A [Server] is safe for any number of concurrent requests and starts no goroutines of its own.
package api
