package segment

import "github.com/klauspost/compress/zstd"

// ContentSize is how many bytes [Unpack] will need for blob, from the headers of its compression and without decompressing. Where they
// do not say, which no blob of ours leaves open, it is the most that the blocks can hold, at most [MaxRawBytes]. Of a blob whose
// header cannot be read, which cannot be unpacked either, it is 0.
func ContentSize(blob []byte) int64 {
	var header zstd.Header
	switch err := header.Decode(blob); {
	case err != nil:
		return 0
	case !header.HasFCS:
		return blocksSize(blob[min(header.HeaderSize, len(blob)):])
	case header.FrameContentSize > MaxRawBytes:
		return MaxRawBytes
	}
	return int64(header.FrameContentSize) //nolint:gosec // at most MaxRawBytes
}

// blocksSize bounds the content of a run of blocks by their headers (RFC 8878, 3.1.1.2).
func blocksSize(blocks []byte) int64 {
	const (
		headerBytes = 3
		typeRaw     = 0
		typeRLE     = 1
		maxBlock    = 128 << 10
	)
	size := int64(0)
	for len(blocks) >= headerBytes && size < MaxRawBytes {
		word := uint32(blocks[0]) | uint32(blocks[1])<<8 | uint32(blocks[2])<<16
		stored := int(word >> 3)
		switch word >> 1 & 3 {
		case typeRaw:
			size += int64(stored)
		case typeRLE:
			size += int64(stored)
			stored = 1
		default:
			size += maxBlock
		}
		if word&1 != 0 { // the last one
			break
		}
		blocks = blocks[min(headerBytes+stored, len(blocks)):]
	}
	return min(size, MaxRawBytes)
}
