package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"

	"github.com/google/uuid"
)

// maxPooledBytes is the largest buffer kept for reuse: one huge answer must not pin its memory.
const maxPooledBytes = 1 << 20

// buffers holds the memory that answers are written in.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func getBuffer() *[]byte { return buffers.Get().(*[]byte) } //nolint:forcetypeassert // the pool holds nothing else

func putBuffer(b *[]byte) {
	if cap(*b) <= maxPooledBytes {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}

var jsonContentType = []string{"application/json"}

// writeJSON sends a whole JSON body. The length is always announced, so that clients can tell a cut answer from a short one.
func writeJSON(w http.ResponseWriter, status int, body []byte) error {
	header := w.Header()
	header["Content-Type"] = jsonContentType
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, err := w.Write(body)
	return err
}

// writeValue sends a management answer.
func writeValue(w http.ResponseWriter, status int, value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_ = writeJSON(w, status, body) // the client is gone; nothing is left to tell it
	return nil
}

const hexDigits = "0123456789abcdef"

// appendString appends text, which must be valid UTF-8, as a JSON string. Only what JSON demands is escaped.
func appendString(dst []byte, text string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, text[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		start = i + 1
	}
	dst = append(dst, text[start:]...)
	return append(dst, '"')
}

// appendStringOrNull appends null for the empty text.
func appendStringOrNull(dst []byte, text string) []byte {
	if text == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, text)
}

// appendUUID appends id in its text form of 36 characters, quoted.
func appendUUID(dst []byte, id uuid.UUID) []byte {
	dst = append(dst, '"')
	for i, b := range id {
		switch i {
		case 4, 6, 8, 10:
			dst = append(dst, '-')
		}
		dst = append(dst, hexDigits[b>>4], hexDigits[b&15])
	}
	return append(dst, '"')
}

// appendError appends the error object every client knows.
func appendError(dst []byte, text string, c code) []byte {
	dst = append(dst, `{"error":`...)
	dst = appendString(dst, text)
	dst = append(dst, `,"code":`...)
	dst = appendString(dst, string(c))
	return append(dst, '}')
}
