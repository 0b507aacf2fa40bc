package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"
)

// Flag bits of a frame. A frame with any other bit set is malformed: an unknown field would shift the payload.
const (
	flagTrace       = 1 << 0
	flagProducerSub = 1 << 1
	flagEncrypted   = 1 << 2
	flagContext     = 1 << 3
	flagsKnown      = flagTrace | flagProducerSub | flagEncrypted | flagContext
)

const (
	lengthBytes = 4
	// minBody is flags, message id and txn_len: the smallest legal body.
	minBody = 1 + 16 + 2
	// MaxTransactionIDBytes is the longest transaction id a frame can carry; its length field has 16 bits.
	MaxTransactionIDBytes = math.MaxUint16
	// MaxRawBytes bounds the uncompressed size of a segment, on write and on read: a reader must be able to hold one
	// segment in memory, and a damaged or hostile blob must not be able to ask for more.
	MaxRawBytes = 256 << 20
)

var (
	// ErrMalformed says that a blob is not a segment: damaged compression, a field that runs over its frame, an unknown
	// flag, trailing bytes, or more than [MaxRawBytes] of content. Nothing of such a segment can be delivered.
	ErrMalformed = errors.New("malformed segment")
	// ErrTooLarge says that frames do not fit into a segment: a transaction id or producer sub above 65,535 bytes, or
	// more than [MaxRawBytes] in total. It is permanent: the same frames will never fit.
	ErrTooLarge = errors.New("message too large for a segment")
	// ErrEmpty says that a segment without frames was asked for.
	ErrEmpty = errors.New("segment without messages")
)

// A Frame is one message as it is stored.
type Frame struct {
	// ID is the message id; ids grow in frame order inside a segment.
	ID uuid.UUID
	// TraceID is the pipeline the message belongs to, if any.
	TraceID uuid.NullUUID
	// Context is the span that pushed the message, zero when there was none.
	Context TraceContext
	// TransactionID is the de-duplication key, at most [MaxTransactionIDBytes].
	TransactionID string
	// ProducerSub is the authenticated subject of the pusher; empty when there was none.
	ProducerSub string
	// Encrypted says that Payload is an encryption envelope and not JSON text.
	Encrypted bool
	// Payload is the message, kept byte for byte. Readers render an empty payload as JSON null.
	Payload []byte
}

// EncodedLen is the number of bytes [AppendFrame] writes for f.
func (f *Frame) EncodedLen() int {
	n := lengthBytes + minBody + len(f.TransactionID) + len(f.Payload)
	if f.TraceID.Valid {
		n += 16
	}
	if f.Context != (TraceContext{}) {
		n += len(f.Context)
	}
	if f.ProducerSub != "" {
		n += 2 + len(f.ProducerSub)
	}
	return n
}

// AppendFrame appends the encoded form of f to dst. It returns dst unchanged and [ErrTooLarge] when a field does not fit.
func AppendFrame(dst []byte, f *Frame) ([]byte, error) {
	if n := len(f.TransactionID); n > MaxTransactionIDBytes {
		return dst, fmt.Errorf("%w: transaction id of %d bytes, at most %d", ErrTooLarge, n, MaxTransactionIDBytes)
	}
	if n := len(f.ProducerSub); n > math.MaxUint16 {
		return dst, fmt.Errorf("%w: producer subject of %d bytes, at most %d", ErrTooLarge, n, math.MaxUint16)
	}
	if n := len(f.Payload); n > MaxRawBytes {
		return dst, fmt.Errorf("%w: payload of %d bytes, at most %d", ErrTooLarge, n, MaxRawBytes)
	}
	var flags byte
	if f.TraceID.Valid {
		flags |= flagTrace
	}
	if f.ProducerSub != "" {
		flags |= flagProducerSub
	}
	if f.Encrypted {
		flags |= flagEncrypted
	}
	if f.Context != (TraceContext{}) {
		flags |= flagContext
	}
	//nolint:gosec // the three lengths were bounded above
	dst = binary.LittleEndian.AppendUint32(dst, uint32(f.EncodedLen()-lengthBytes))
	dst = append(dst, flags)
	dst = append(dst, f.ID[:]...)
	if f.TraceID.Valid {
		dst = append(dst, f.TraceID.UUID[:]...)
	}
	if flags&flagContext != 0 {
		dst = append(dst, f.Context[:]...)
	}
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(f.TransactionID))) //nolint:gosec // bounded above
	dst = append(dst, f.TransactionID...)
	if f.ProducerSub != "" {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(len(f.ProducerSub))) //nolint:gosec // bounded above
		dst = append(dst, f.ProducerSub...)
	}
	return append(dst, f.Payload...), nil
}

// A View is a decoded frame whose bytes lie inside the segment's buffer: reading it allocates nothing.
type View struct {
	ID      uuid.UUID
	TraceID uuid.NullUUID
	Context TraceContext
	// TransactionID, ProducerSub and Payload are slices of the segment's buffer: read only, valid until Release.
	TransactionID []byte
	ProducerSub   []byte
	Encrypted     bool
	Payload       []byte
}

// parseFrame reads the frame at the start of raw and returns it with the number of bytes it occupies.
func parseFrame(raw []byte) (View, int, error) {
	var v View
	if len(raw) < lengthBytes {
		return v, 0, fmt.Errorf("%w: %d trailing bytes", ErrMalformed, len(raw))
	}
	size := uint64(binary.LittleEndian.Uint32(raw))
	if size < minBody {
		return v, 0, fmt.Errorf("%w: frame body of %d bytes, at least %d", ErrMalformed, size, minBody)
	}
	if size > uint64(len(raw)-lengthBytes) {
		return v, 0, fmt.Errorf("%w: frame body of %d bytes, %d left", ErrMalformed, size, len(raw)-lengthBytes)
	}
	end := lengthBytes + int(size) //nolint:gosec // not above len(raw), checked above
	body := raw[lengthBytes:end:end]

	flags := body[0]
	if flags&^byte(flagsKnown) != 0 {
		return v, 0, fmt.Errorf("%w: unknown frame flags %#02x", ErrMalformed, flags)
	}
	v.Encrypted = flags&flagEncrypted != 0
	copy(v.ID[:], body[1:17])
	body = body[17:]
	if flags&flagTrace != 0 {
		if len(body) < 16 {
			return v, 0, fmt.Errorf("%w: trace id runs over its frame", ErrMalformed)
		}
		copy(v.TraceID.UUID[:], body)
		v.TraceID.Valid = true
		body = body[16:]
	}
	if flags&flagContext != 0 {
		if len(body) < len(v.Context) {
			return v, 0, fmt.Errorf("%w: trace context runs over its frame", ErrMalformed)
		}
		copy(v.Context[:], body)
		body = body[len(v.Context):]
	}
	var ok bool
	if v.TransactionID, body, ok = cutPrefixed(body); !ok {
		return v, 0, fmt.Errorf("%w: transaction id runs over its frame", ErrMalformed)
	}
	if flags&flagProducerSub != 0 {
		if v.ProducerSub, body, ok = cutPrefixed(body); !ok {
			return v, 0, fmt.Errorf("%w: producer subject runs over its frame", ErrMalformed)
		}
	}
	v.Payload = body
	return v, end, nil
}

// cutPrefixed splits a field with a 16-bit length off the front of body. The field's capacity ends with it, so that an
// append by a careless reader cannot write into the next field.
func cutPrefixed(body []byte) (field, rest []byte, ok bool) {
	if len(body) < 2 {
		return nil, nil, false
	}
	n := int(binary.LittleEndian.Uint16(body))
	if len(body)-2 < n {
		return nil, nil, false
	}
	return body[2 : 2+n : 2+n], body[2+n:], true
}
