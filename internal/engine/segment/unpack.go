package segment

import "fmt"

// Frames are the decoded messages of one segment. Their bytes lie in one pooled buffer, which Release gives back: nothing
// taken from At or View may be used after that, except the strings of At.
type Frames struct {
	buf  *[]byte
	raw  []byte
	ends []uint32 // ends[i] is where frame i ends inside raw; MaxRawBytes keeps it in 32 bits
	// encrypted says that at least one frame is.
	encrypted bool
}

// Unpack decompresses and checks blob. Every failure is an [ErrMalformed]; then nothing needs to be released.
func Unpack(blob []byte) (*Frames, error) {
	buf := getBuffer()
	raw, err := decompress((*buf)[:0], blob)
	*buf = raw
	if err != nil {
		putBuffer(buf)
		return nil, err
	}
	ends, encrypted, err := frameEnds(raw)
	if err != nil {
		putBuffer(buf)
		return nil, err
	}
	return &Frames{buf: buf, raw: raw, ends: ends, encrypted: encrypted}, nil
}

// frameEnds walks over raw, checks every frame and returns where each ends, and whether one is encrypted.
func frameEnds(raw []byte) (ends []uint32, encrypted bool, err error) {
	if len(raw) == 0 {
		return nil, false, fmt.Errorf("%w: no frames", ErrMalformed)
	}
	for at := 0; at < len(raw); {
		v, n, err := parseFrame(raw[at:])
		if err != nil {
			return nil, false, err
		}
		encrypted = encrypted || v.Encrypted
		if ends == nil {
			ends = make([]uint32, 0, len(raw)/n+1) // messages of one partition are alike in size
		}
		at += n
		ends = append(ends, uint32(at)) //nolint:gosec // at most MaxRawBytes
	}
	return ends, encrypted, nil
}

// Len is the number of messages.
func (f *Frames) Len() int { return len(f.ends) }

// Encrypted reports whether at least one message is encrypted.
func (f *Frames) Encrypted() bool { return f.encrypted }

// View returns message i without copying. It panics when i is out of range or the frames were released.
func (f *Frames) View(i int) View {
	start := uint32(0)
	if i > 0 {
		start = f.ends[i-1]
	}
	v, _, err := parseFrame(f.raw[start:f.ends[i]])
	if err != nil {
		panic("segment: a frame checked by Unpack changed: " + err.Error())
	}
	return v
}

// At returns message i with copied strings; Payload still lies in the shared buffer. It panics like View.
func (f *Frames) At(i int) Frame {
	v := f.View(i)
	return Frame{
		ID:            v.ID,
		TraceID:       v.TraceID,
		Context:       v.Context,
		TransactionID: string(v.TransactionID),
		ProducerSub:   string(v.ProducerSub),
		Encrypted:     v.Encrypted,
		Payload:       v.Payload,
	}
}

// Release gives the buffer back for reuse. Calling it again does nothing.
func (f *Frames) Release() {
	if f.buf == nil {
		return
	}
	putBuffer(f.buf)
	f.buf, f.raw, f.ends = nil, nil, nil
}
