// Package browse shows stored messages to people: page by page, one by one, or along a trace. It decodes the segments that the
// database names; payloads are given byte for byte as they were pushed.
//
// # Concurrency
//
// A [Reader] is safe for concurrent use and has no goroutines.
package browse
