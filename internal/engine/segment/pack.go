package segment

import (
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// A Packer builds segment blobs at one compression level. It is safe for concurrent use and has nothing to close.
type Packer struct {
	encoder *zstd.Encoder
}

// NewPacker returns a packer for a zstd level of [MinLevel] to [MaxLevel]. The encoder has four speeds, so that levels are
// mapped: 1-2 fastest, 3-5 default, 6-9 better, 10 and above best.
func NewPacker(level int) (*Packer, error) {
	if level < MinLevel || level > MaxLevel {
		return nil, fmt.Errorf("zstd level %d is outside %d..%d", level, MinLevel, MaxLevel)
	}
	encoder, err := newEncoder(level)
	if err != nil {
		return nil, fmt.Errorf("zstd encoder: %w", err)
	}
	return &Packer{encoder: encoder}, nil
}

// Pack encodes frames at [DefaultLevel]; see [Packer.Pack].
func Pack(frames []Frame) (blob, hashes []byte, err error) {
	p, err := defaultPacker()
	if err != nil {
		return nil, nil, err
	}
	return p.Pack(frames)
}

// Pack encodes frames into one blob and returns it with their transaction-id hashes, [HashBytes] each, in frame order.
// It fails with [ErrEmpty] or [ErrTooLarge]; it does not look for repeated transaction ids.
func (p *Packer) Pack(frames []Frame) (blob, hashes []byte, err error) {
	if blob, err = p.Encode(frames); err != nil {
		return nil, nil, err
	}
	hashes = make([]byte, 0, HashBytes*len(frames))
	for i := range frames {
		h := Hash(frames[i].TransactionID)
		hashes = append(hashes, h[:]...)
	}
	return blob, hashes, nil
}

// Encode is Pack for callers that already have the hashes.
func (p *Packer) Encode(frames []Frame) ([]byte, error) {
	if len(frames) == 0 {
		return nil, ErrEmpty
	}
	total := 0
	for i := range frames {
		total += frames[i].EncodedLen()
	}
	if total > MaxRawBytes {
		return nil, fmt.Errorf("%w: %d bytes of frames, at most %d", ErrTooLarge, total, MaxRawBytes)
	}
	buf := getBuffer()
	defer putBuffer(buf)
	raw := (*buf)[:0]
	if cap(raw) < total {
		raw = make([]byte, 0, total)
	}
	var err error
	for i := range frames {
		if raw, err = AppendFrame(raw, &frames[i]); err != nil {
			return nil, fmt.Errorf("frame %d: %w", i, err)
		}
	}
	*buf = raw
	return p.encoder.EncodeAll(raw, nil), nil
}
