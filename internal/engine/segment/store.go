package segment

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// storedBytes is the size below which frames are stored as they are: compressing so few bytes costs building an entropy
// table, longer than everything else that happens to a message here, and saves fifty bytes of a row that takes several
// hundred anyway. Two messages of a few hundred bytes have enough in common to be worth it. Measured in docs/performance.md.
const storedBytes = 384

// appendStored appends a zstd frame that holds raw in one raw block, with its length and its checksum (RFC 8878). raw has at
// most storedBytes.
func appendStored(dst, raw []byte) []byte {
	const (
		magic         = 0xFD2FB528
		singleSegment = 1 << 5
		checksum      = 1 << 2
		twoByteLength = 1 << 6
		lastBlock     = 1
	)
	dst = binary.LittleEndian.AppendUint32(dst, magic)
	if n := len(raw); n < 256 {
		dst = append(dst, singleSegment|checksum, byte(n))
	} else {
		dst = append(dst, twoByteLength|singleSegment|checksum)
		dst = binary.LittleEndian.AppendUint16(dst, uint16(n-256)) //nolint:gosec // at most storedBytes
	}
	block := uint32(len(raw))<<3 | lastBlock //nolint:gosec // as above
	dst = append(dst, byte(block), byte(block>>8), byte(block>>16))
	dst = append(dst, raw...)
	return binary.LittleEndian.AppendUint32(dst, uint32(xxhash.Sum64(raw))) //nolint:gosec // the low half is the checksum
}
