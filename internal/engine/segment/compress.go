package segment

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Bounds of the compression level, as the zstd command line numbers them. Level 1 is the default because it is up to
// three times as fast as level 3 and packs messages as small: docs/performance.md.
const (
	MinLevel     = 1
	MaxLevel     = 22
	DefaultLevel = 1
)

// maxPooledBytes is the largest buffer kept for reuse. A segment is normally at most 16 MiB raw, but typical ones are far
// below 1 MiB: one huge message must not pin its memory for the rest of the process.
const maxPooledBytes = 4 << 20

// buffers holds raw (uncompressed) segment buffers.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func getBuffer() *[]byte { return buffers.Get().(*[]byte) } //nolint:forcetypeassert // the pool holds nothing else

func putBuffer(b *[]byte) {
	if cap(*b) > maxPooledBytes {
		return
	}
	*b = (*b)[:0]
	buffers.Put(b)
}

// newEncoder builds an encoder for EncodeAll, which is safe for concurrent use and reuses its state internally: one state
// for every processor, since compression does nothing but compute.
func newEncoder(level int) (*zstd.Encoder, error) {
	e, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)),
		zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
		// A flipped byte inside a payload would decode and be delivered. PostgreSQL's page checksums are off by default,
		// so that these four bytes are the only guard; readers check them when they are there.
		zstd.WithEncoderCRC(true))
	if err != nil {
		return nil, err
	}
	// The encoder builds its list of states on first use. Doing it here keeps the first push as fast as the second, and
	// ties the list to nobody's test bubble.
	e.EncodeAll([]byte{0}, nil)
	return e, nil
}

// The shared codec is made when the program starts (half a millisecond), not on first use: see newEncoder.
var (
	defaultPacker = mustPacker(DefaultLevel)
	decoder       = mustDecoder()
)

func mustPacker(level int) *Packer {
	p, err := NewPacker(level)
	if err != nil {
		panic("segment: the default level is a constant and must be valid: " + err.Error())
	}
	return p
}

// mustDecoder builds the decoder for DecodeAll, which runs in the caller's goroutine. It is bounded: a blob cannot ask for
// more memory than MaxRawBytes, whatever its header says, and no more blobs are decoded at once than there are processors.
func mustDecoder() *zstd.Decoder {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxRawBytes))
	if err != nil {
		panic("segment: the decoder's options are constants and must be valid: " + err.Error())
	}
	return d
}

// decompress appends the content of blob to dst. Every failure is an [ErrMalformed].
func decompress(dst, blob []byte) ([]byte, error) {
	if len(blob) == 0 {
		return dst, fmt.Errorf("%w: empty blob", ErrMalformed)
	}
	out, err := decoder.DecodeAll(blob, dst)
	if err != nil {
		if errors.Is(err, zstd.ErrDecoderSizeExceeded) {
			return dst, fmt.Errorf("%w: more than %d bytes of content", ErrMalformed, MaxRawBytes)
		}
		return dst, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return out, nil
}
