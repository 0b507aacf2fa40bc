package segment

import "encoding/hex"

// A TraceContext is the place in a distributed trace that a message was pushed from: trace id, span id and flags of a W3C
// traceparent. The zero value is none; the standard forbids ids of zeros.
type TraceContext [16 + 8 + 1]byte

// traceparentBytes is the length of the text form of version 00: "00-<trace id>-<span id>-<flags>".
const traceparentBytes = 2 + 1 + 32 + 1 + 16 + 1 + 2

// ParseTraceparent reads the text form. Whatever is none is the zero value: a bad traceparent must not cost the message.
func ParseTraceparent(text []byte) TraceContext {
	var c TraceContext
	if len(text) != traceparentBytes || string(text[:3]) != "00-" || text[35] != '-' || text[52] != '-' {
		return TraceContext{}
	}
	for _, part := range [...]struct{ to, from []byte }{{c[:16], text[3:35]}, {c[16:24], text[36:52]}, {c[24:], text[53:]}} {
		if _, err := hex.Decode(part.to, part.from); err != nil {
			return TraceContext{}
		}
	}
	if [16]byte(c[:16]) == [16]byte{} || [8]byte(c[16:24]) == [8]byte{} {
		return TraceContext{}
	}
	return c
}

// AppendTraceparent appends the text form of a context that is not zero.
func (c *TraceContext) AppendTraceparent(dst []byte) []byte {
	dst = append(dst, "00-"...)
	dst = hex.AppendEncode(dst, c[:16])
	dst = append(dst, '-')
	dst = hex.AppendEncode(dst, c[16:24])
	dst = append(dst, '-')
	return hex.AppendEncode(dst, c[24:])
}
