package segment

import "github.com/zeebo/xxh3"

// HashBytes is the size of one transaction-id hash.
const HashBytes = 16

// Hash is the de-duplication key of a transaction id: xxh3-128 with seed 0, high half first. SQL compares it and never
// computes it. At 128 bits two different ids with one hash are taken for the same id.
func Hash(transactionID string) [HashBytes]byte {
	return xxh3.HashString128(transactionID).Bytes()
}

// AppendHash appends the [Hash] of a transaction id, given as the bytes of a [View], to dst.
func AppendHash(dst, transactionID []byte) []byte {
	hash := xxh3.Hash128(transactionID).Bytes()
	return append(dst, hash[:]...)
}
