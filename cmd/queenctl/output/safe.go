package output

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// dangerous reports whether a character can move the cursor, change how the rest of a line is shown, or hide.
func dangerous(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r <= 0x9f: // C0, DEL, C1
		return true
	case r == 0x61c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069: // directions
		return true
	case r == 0x2028, r == 0x2029, r == 0xfeff, r >= 0x200b && r <= 0x200d, r >= 0xe0000 && r <= 0xe007f: // separators, invisible
		return true
	}
	return false
}

// appendEscaped writes one character as JSON would escape it, so that an escaped JSON text stays the same JSON text.
func appendEscaped(dst []byte, r rune) []byte {
	switch r {
	case '\n':
		return append(dst, `\n`...)
	case '\t':
		return append(dst, `\t`...)
	case '\r':
		return append(dst, `\r`...)
	}
	if r > 0xffff {
		r -= 0x10000
		return fmt.Appendf(dst, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
	}
	return fmt.Appendf(dst, `\u%04x`, r)
}

// Clean returns a text that is one line and safe on a terminal: what [SafeWriter] escapes, and line breaks and tabs too.
func Clean(text string) string {
	clean := true
	for _, r := range text {
		if dangerous(r) || r == utf8.RuneError {
			clean = false
			break
		}
	}
	if clean {
		return text
	}
	dst := make([]byte, 0, len(text)+16)
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(dst, `\ufffd`...)
		case dangerous(r):
			dst = appendEscaped(dst, r)
		default:
			dst = append(dst, text[:size]...)
		}
		text = text[size:]
	}
	return string(dst)
}

// CleanLines is Clean for texts of several lines: line breaks and tabs stay.
func CleanLines(text string) string {
	var b strings.Builder
	w := SafeWriter{To: &b}
	_, _ = w.Write([]byte(text)) // a strings.Builder takes everything
	_ = w.Close()
	return b.String()
}

// A SafeWriter passes text on to a terminal with everything escaped that could act there; line breaks and tabs pass. The escapes
// are those of JSON strings, so that a JSON text that went through it means the same. It is for one goroutine at a time.
type SafeWriter struct {
	To   io.Writer
	rest []byte // the start of a character whose end has not come yet
	out  []byte
}

// Write escapes and passes on. A character cut by the end of p waits for the next Write.
func (w *SafeWriter) Write(p []byte) (int, error) {
	text := p
	if len(w.rest) > 0 {
		text = append(w.rest, p...)
		w.rest = nil
	}
	w.out = w.out[:0]
	for len(text) > 0 {
		if !utf8.FullRune(text) {
			w.rest = append([]byte(nil), text...)
			break
		}
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			w.out = append(w.out, `\ufffd`...)
		case r != '\n' && r != '\t' && dangerous(r):
			w.out = appendEscaped(w.out, r)
		default:
			w.out = append(w.out, text[:size]...)
		}
		text = text[size:]
	}
	if _, err := w.To.Write(w.out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close writes what is left of a character that never ended.
func (w *SafeWriter) Close() error {
	if len(w.rest) == 0 {
		return nil
	}
	text := strings.Repeat(`\ufffd`, len(w.rest))
	w.rest = nil
	_, err := io.WriteString(w.To, text)
	return err
}
