package ack

import (
	"errors"
	"strings"
	"unicode/utf8"

	"queenmq/internal/pg"
)

// MaxErrorBytes is the most of an error text that is kept with a dead letter.
const MaxErrorBytes = 8 << 10

// CleanError makes an error text storable: bytes that are not UTF-8 and NUL, which a database text cannot hold, become U+FFFD, and
// the text is cut to MaxErrorBytes at a character. A failure report must never fail because of its own words.
func CleanError(text string) string {
	if len(text) <= MaxErrorBytes && utf8.ValidString(text) && strings.IndexByte(text, 0) < 0 {
		return text
	}
	clean := make([]byte, 0, min(len(text), MaxErrorBytes))
	for _, r := range text { // yields U+FFFD for every byte that is not UTF-8
		if r == 0 {
			r = utf8.RuneError
		}
		if len(clean)+utf8.RuneLen(r) > MaxErrorBytes {
			break
		}
		clean = utf8.AppendRune(clean, r)
	}
	return string(clean)
}

// storable says that PostgreSQL can take the text at all. A lease id or group that it cannot take was never stored.
func storable(text string) bool {
	return utf8.ValidString(text) && strings.IndexByte(text, 0) < 0
}

func isPoolTimeout(err error) bool { return errors.Is(err, pg.ErrPoolTimeout) }
