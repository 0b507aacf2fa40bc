// Package segment turns messages into the bytes of one stored segment and back: frames, compression, transaction-id hashes
// and message ids. Bytes in, bytes out; it knows neither SQL nor HTTP.
//
// # Layout
//
// A segment blob is the zstd compression of frames in offset order. The position of a message is the segment's base offset
// plus the index of its frame; the blob itself holds no offsets. One frame, little-endian:
//
//	body_len   u32       bytes that follow, not counting itself
//	flags      u8        1: trace id present, 2: producer sub present, 4: payload is an encryption envelope
//	message_id 16        UUID in RFC order
//	trace_id   16        with flag 1
//	txn_len    u16
//	txn        txn_len   transaction id, UTF-8
//	psub_len   u16       with flag 2
//	psub       psub_len  authenticated subject of the pusher
//	payload    the rest  JSON text exactly as received, or the envelope
//
// One bad frame makes the whole segment malformed ([ErrMalformed]): the reader has no way to find the next one.
//
// # Concurrency
//
// All functions are safe for concurrent use. A [Frames] belongs to one goroutine at a time.
package segment
