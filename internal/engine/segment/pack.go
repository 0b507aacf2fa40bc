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

// DefaultPacker returns the shared packer of [DefaultLevel].
func DefaultPacker() *Packer { return defaultPacker }

// Pack encodes frames at [DefaultLevel]; see [Packer.Pack].
func Pack(frames []Frame) (blob, hashes []byte, err error) {
	return DefaultPacker().Pack(frames)
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
	b := p.Build()
	defer b.Discard()
	for i := range frames {
		if err := b.Append(&frames[i]); err != nil {
			return nil, fmt.Errorf("frame %d: %w", i, err)
		}
	}
	return b.Finish()
}

// A Builder collects the frames of one segment in a pooled buffer. It belongs to one goroutine, which ends it with Finish
// or Discard.
type Builder struct {
	packer *Packer
	buf    *[]byte
}

// Build starts a segment.
func (p *Packer) Build() Builder { return Builder{packer: p, buf: getBuffer()} }

// Append adds f, or adds nothing and returns [ErrTooLarge]: then the segment goes on without it.
func (b *Builder) Append(f *Frame) error {
	if n := len(*b.buf) + f.EncodedLen(); n > MaxRawBytes {
		return fmt.Errorf("%w: %d bytes of frames, at most %d", ErrTooLarge, n, MaxRawBytes)
	}
	var err error
	*b.buf, err = AppendFrame(*b.buf, f)
	return err
}

// Finish compresses the frames, unless they are too few for that, and ends the builder. Without frames it returns [ErrEmpty].
func (b *Builder) Finish() ([]byte, error) {
	defer b.Discard()
	if len(*b.buf) == 0 {
		return nil, ErrEmpty
	}
	if len(*b.buf) < storedBytes {
		return appendStored(make([]byte, 0, len(*b.buf)+16), *b.buf), nil
	}
	return b.packer.encoder.EncodeAll(*b.buf, nil), nil
}

// Discard ends the builder without a segment. After Finish it does nothing.
func (b *Builder) Discard() {
	if b.buf != nil {
		putBuffer(b.buf)
		b.buf = nil
	}
}
