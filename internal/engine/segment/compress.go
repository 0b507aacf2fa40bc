package segment

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Bounds of the compression level, as the zstd command line numbers them.
const (
	MinLevel     = 1
	MaxLevel     = 22
	DefaultLevel = 3
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
	return zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)),
		zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
		// PostgreSQL guards its pages; the frame parser checks the structure. A second checksum buys nothing.
		zstd.WithEncoderCRC(false))
}

var defaultPacker = sync.OnceValues(func() (*Packer, error) { return NewPacker(DefaultLevel) })

// decoders are single-threaded and bounded: parallelism comes from the requests, and a blob cannot ask for more memory
// than MaxRawBytes whatever its header says.
var decoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxRawBytes))
	if err != nil {
		panic("segment: zstd decoder options are constants and must be valid: " + err.Error())
	}
	return d
}}

// decompress appends the content of blob to dst. Every failure is an [ErrMalformed].
func decompress(dst, blob []byte) ([]byte, error) {
	if len(blob) == 0 {
		return dst, fmt.Errorf("%w: empty blob", ErrMalformed)
	}
	d := decoders.Get().(*zstd.Decoder) //nolint:forcetypeassert // the pool holds nothing else
	defer decoders.Put(d)
	out, err := d.DecodeAll(blob, dst)
	if err != nil {
		if errors.Is(err, zstd.ErrDecoderSizeExceeded) {
			return dst, fmt.Errorf("%w: more than %d bytes of content", ErrMalformed, MaxRawBytes)
		}
		return dst, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return out, nil
}
