package api

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxJSONDepth is the most arrays and objects that may be open at once in a request body, the limit of encoding/json. It
// bounds the memory of the scanner and keeps stored payloads readable by other parsers.
const maxJSONDepth = 10000

// A jsonScanner walks one JSON document from front to back and hands out slices of it. It accepts exactly the JSON grammar
// of RFC 8259: what it has passed is valid JSON. Whether the bytes are valid UTF-8 is checked beforehand, once, for the whole
// document (newJSONScanner). Its errors are of type *syntaxError and name the byte where the document stopped making sense.
type jsonScanner struct {
	data []byte
	pos  int
	// depth counts the open containers; kind holds one bit for each of them, set for objects.
	depth int
	kind  [maxJSONDepth/64 + 1]uint64
}

// A syntaxError is a fault of the document at one byte offset.
type syntaxError struct {
	offset int
	text   string
}

func (e *syntaxError) Error() string { return e.text }

// reset starts a new document. It refuses bytes that are not UTF-8 and a byte order mark, which JSON does not allow.
func (s *jsonScanner) reset(data []byte) error {
	s.data, s.pos, s.depth = data, 0, 0
	if !utf8.Valid(data) {
		return &syntaxError{invalidUTF8Offset(data), "invalid UTF-8"}
	}
	if bytes.HasPrefix(data, []byte("\uFEFF")) {
		return &syntaxError{0, "unexpected byte order mark"}
	}
	return nil
}

func invalidUTF8Offset(data []byte) int {
	offset := 0
	for offset < len(data) {
		r, size := utf8.DecodeRune(data[offset:])
		if r == utf8.RuneError && size <= 1 {
			break
		}
		offset += size
	}
	return offset
}

// space moves over white space.
func (s *jsonScanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// peek returns the next byte after white space without taking it; 0 at the end, which no JSON token starts with.
func (s *jsonScanner) peek() byte {
	s.space()
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *jsonScanner) fail(text string) error {
	if s.pos >= len(s.data) {
		text = "unexpected end of the body"
	}
	return &syntaxError{s.pos, text}
}

// end accepts nothing but white space up to the end of the document.
func (s *jsonScanner) end() error {
	if s.space(); s.pos < len(s.data) {
		return s.fail("trailing characters")
	}
	return nil
}

// open takes '{' or '[', whichever the caller has peeked, and reports whether the container has members.
func (s *jsonScanner) open() (more bool, err error) {
	if s.depth == maxJSONDepth {
		return false, s.fail(fmt.Sprintf("nested deeper than %d levels", maxJSONDepth))
	}
	bit := uint64(1) << (s.depth & 63)
	closing := byte(']')
	if s.data[s.pos] == '{' {
		s.kind[s.depth>>6] |= bit
		closing = '}'
	} else {
		s.kind[s.depth>>6] &^= bit
	}
	s.depth++
	s.pos++
	if s.peek() == closing {
		s.pos++
		s.depth--
		return false, nil
	}
	return true, nil
}

// next moves past what follows a member of the innermost container: a comma (true) or its end (false).
func (s *jsonScanner) next() (more bool, err error) {
	closing, want := byte(']'), "expected `,` or `]`"
	if top := s.depth - 1; s.kind[top>>6]&(1<<(top&63)) != 0 {
		closing, want = '}', "expected `,` or `}`"
	}
	switch s.peek() {
	case ',':
		s.pos++
		return true, nil
	case closing:
		s.pos++
		s.depth--
		return false, nil
	}
	return false, s.fail(want)
}

// key takes a member name and its colon. The slice is what stands between the quotes, escapes untouched.
func (s *jsonScanner) key() (raw []byte, escaped bool, err error) {
	if s.peek() != '"' {
		return nil, false, s.fail("key must be a string")
	}
	if raw, escaped, err = s.str(); err != nil {
		return nil, false, err
	}
	if s.peek() != ':' {
		return nil, false, s.fail("expected `:`")
	}
	s.pos++
	return raw, escaped, nil
}

// value takes one whole value and returns its bytes without surrounding white space.
func (s *jsonScanner) value() ([]byte, error) {
	c := s.peek()
	start := s.pos
	if c == '"' { // the most frequent kinds first, without the loop
		if _, _, err := s.str(); err != nil {
			return nil, err
		}
		return s.data[start:s.pos], nil
	}
	if err := s.skip(); err != nil {
		return nil, err
	}
	return s.data[start:s.pos], nil
}

// skip moves over one value of any kind. It keeps its own stack, so that a deeply nested body cannot grow the goroutine's.
func (s *jsonScanner) skip() error {
	base := s.depth
	for {
		// A value starts here.
		switch c := s.peek(); {
		case c == '"':
			if _, _, err := s.str(); err != nil {
				return err
			}
		case c == '{' || c == '[':
			more, err := s.open()
			if err != nil {
				return err
			}
			if more {
				if c == '{' {
					if _, _, err := s.key(); err != nil {
						return err
					}
				}
				continue
			}
		case c == '-' || '0' <= c && c <= '9':
			if err := s.number(); err != nil {
				return err
			}
		default:
			if err := s.literal(c); err != nil {
				return err
			}
		}
		// A value ended here: leave the containers that end with it, or go on to the next member.
		for {
			if s.depth == base {
				return nil
			}
			more, err := s.next()
			if err != nil {
				return err
			}
			if more {
				break
			}
		}
		if top := s.depth - 1; s.kind[top>>6]&(1<<(top&63)) != 0 {
			if _, _, err := s.key(); err != nil {
				return err
			}
		}
	}
}

func (s *jsonScanner) literal(first byte) error {
	word := ""
	switch first {
	case 't':
		word = "true"
	case 'f':
		word = "false"
	case 'n':
		word = "null"
	default:
		return s.fail("expected value")
	}
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		return s.fail("expected value")
	}
	s.pos += len(word)
	return nil
}

// number takes a number of the JSON grammar. Its size does not matter: numbers are never converted.
func (s *jsonScanner) number() error {
	if s.data[s.pos] == '-' {
		s.pos++
	}
	if s.pos < len(s.data) && s.data[s.pos] == '0' {
		s.pos++
	} else if !s.digits() {
		return s.fail("invalid number")
	}
	if s.pos < len(s.data) && s.data[s.pos] == '.' {
		if s.pos++; !s.digits() {
			return s.fail("invalid number")
		}
	}
	if s.pos < len(s.data) && (s.data[s.pos] == 'e' || s.data[s.pos] == 'E') {
		s.pos++
		if s.pos < len(s.data) && (s.data[s.pos] == '+' || s.data[s.pos] == '-') {
			s.pos++
		}
		if !s.digits() {
			return s.fail("invalid number")
		}
	}
	return nil
}

func (s *jsonScanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && '0' <= s.data[s.pos] && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}

// str takes a string, whose opening quote the caller has peeked, and returns what stands between the quotes.
func (s *jsonScanner) str() (raw []byte, escaped bool, err error) {
	start := s.pos + 1
	pos := start
	data := s.data
	for {
		pos = plainRun(data, pos)
		if pos >= len(data) {
			s.pos = pos
			return nil, false, s.fail("")
		}
		switch c := data[pos]; {
		case c == '"':
			s.pos = pos + 1
			return data[start:pos], escaped, nil
		case c != '\\':
			s.pos = pos
			return nil, false, s.fail("control character in a string must be escaped")
		}
		escaped = true
		if pos+1 >= len(data) {
			s.pos = len(data)
			return nil, false, s.fail("")
		}
		switch data[pos+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			pos += 2
		case 'u':
			if pos+6 > len(data) || !isHex(data[pos+2:pos+6]) {
				s.pos = pos
				return nil, false, s.fail("invalid escape")
			}
			pos += 6
		default:
			s.pos = pos
			return nil, false, s.fail("invalid escape")
		}
	}
}

// plainRun returns the first position at or after pos whose byte is a quote, a backslash or below 0x20, or len(data). It
// looks at eight bytes at a time: the low bit of each 0x80 in the mask marks a byte that is one of these; borrow between
// bytes can only raise false marks above the first true one.
func plainRun(data []byte, pos int) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	for pos+8 <= len(data) {
		x := binary.LittleEndian.Uint64(data[pos:])
		quote, slash := x^(ones*'"'), x^(ones*'\\')
		mask := ((x - ones*0x20) &^ x) | ((quote - ones) &^ quote) | ((slash - ones) &^ slash)
		if mask &= highs; mask != 0 {
			return pos + bits.TrailingZeros64(mask)>>3
		}
		pos += 8
	}
	for pos < len(data) {
		if c := data[pos]; c < 0x20 || c == '"' || c == '\\' {
			break
		}
		pos++
	}
	return pos
}

func isHex(b []byte) bool {
	for _, c := range b {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
			return false
		}
	}
	return true
}

// appendUnescaped appends the text of a string that the scanner has passed. Lone surrogates, which no UTF-8 text can hold,
// become U+FFFD and are reported.
func appendUnescaped(dst, raw []byte) (text []byte, loneSurrogate bool) {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...), loneSurrogate
		}
		dst = append(dst, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hexRune(raw)
			raw = raw[4:]
			if utf16.IsSurrogate(r) {
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					r = utf16.DecodeRune(r, hexRune(raw[2:]))
				} else {
					r = utf8.RuneError
				}
				if r == utf8.RuneError {
					loneSurrogate = true
				} else {
					raw = raw[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
		default: // quote, backslash, slash
			dst = append(dst, c)
		}
	}
}

func hexRune(raw []byte) rune {
	var r rune
	for _, c := range raw[:4] {
		r <<= 4
		switch {
		case c <= '9':
			r |= rune(c - '0')
		default:
			r |= rune(c|0x20-'a') + 10
		}
	}
	return r
}

// lineColumn converts a byte offset into the line and column (in bytes) that editors show, both from 1.
func lineColumn(data []byte, offset int) (line, column int) {
	offset = min(offset, len(data))
	before := data[:offset]
	return bytes.Count(before, []byte{'\n'}) + 1, offset - bytes.LastIndexByte(before, '\n')
}

// unexpected reports a value of another type than wanted. Where there is no value at all, that is the fault reported.
func (s *jsonScanner) unexpected(want string) error {
	c := s.peek()
	at := s.pos
	kind := ""
	switch {
	case c == '{':
		kind = "an object"
	case c == '[':
		kind = "an array"
	case c == '"':
		kind = "a string"
	case c == 't' || c == 'f':
		kind = "a boolean"
	case c == 'n':
		kind = "null"
	case c == '-' || '0' <= c && c <= '9':
		kind = "a number"
	default:
		return s.fail("expected value")
	}
	return &syntaxError{at, fmt.Sprintf("invalid type: %s, expected %s", kind, want)}
}
