package pg

import (
	"errors"
	"fmt"
	"strings"
)

// A statement is one SQL statement of a file.
type statement struct {
	// Offset is where Text lies in the file; Line is the line of its first token, from 1.
	Offset, Line int
	Text         string
}

// splitStatements cuts SQL text at the semicolons that end statements: those outside of strings, quoted names, dollar quotes,
// comments (which nest) and parentheses. Comments before a statement belong to it; pieces that hold only comments are dropped.
// Function bodies in the form BEGIN ATOMIC ... END are not understood and not used.
func splitStatements(text string) ([]statement, error) {
	var out []statement
	start, depth := 0, 0
	code := -1 // where the first token of the current statement lies
	flush := func(end int) {
		if code >= 0 {
			piece := strings.TrimLeft(text[start:end], spaces)
			out = append(out, statement{
				Offset: end - len(piece), Line: 1 + strings.Count(text[:code], "\n"), Text: strings.TrimRight(piece, spaces),
			})
		}
		start, code, depth = end+1, -1, 0
	}
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == ';' && depth == 0:
			flush(i)
			i++
			continue
		case isSpace(c):
			i++
			continue
		case strings.HasPrefix(text[i:], "--"):
			i += lineCommentLen(text[i:])
			continue
		case strings.HasPrefix(text[i:], "/*"):
			n := blockCommentLen(text[i:])
			if n < 0 {
				return nil, unterminated(text, i, "comment")
			}
			i += n
			continue
		}
		if code < 0 {
			code = i
		}
		n, err := tokenLen(text, i)
		if err != nil {
			return nil, err
		}
		switch text[i] {
		case '(':
			depth++
		case ')':
			depth = max(depth-1, 0)
		}
		i += n
	}
	if depth > 0 && code >= 0 {
		return nil, unterminated(text, code, "parenthesis in the statement")
	}
	flush(len(text))
	return out, nil
}

// tokenLen returns the length of the token at position i, which begins neither a comment nor white space.
func tokenLen(text string, i int) (int, error) {
	rest := text[i:]
	n, what := 1, ""
	switch c := rest[0]; {
	case c == '\'':
		n, what = quotedLen(rest, '\'', false), "string"
	case c == '"':
		n, what = quotedLen(rest, '"', false), "quoted name"
	case (c == 'e' || c == 'E') && len(rest) > 1 && rest[1] == '\'':
		if n = quotedLen(rest[1:], '\'', true); n >= 0 {
			n++
		}
		what = "string"
	case c == '$':
		if tag := dollarTag(rest); tag != "" {
			n, what = dollarLen(rest, tag), "dollar quote "+tag
		}
	case isNameStart(c):
		// A name is read as a whole, for it may contain a dollar sign and may end in a letter E.
		for n < len(rest) && isNamePart(rest[n]) {
			n++
		}
	case c >= '0' && c <= '9':
		for n < len(rest) && isNamePart(rest[n]) && rest[n] != '$' {
			n++
		}
	}
	if n < 0 {
		return 0, unterminated(text, i, what)
	}
	return n, nil
}

// quotedLen returns the length of a quoted token; a doubled quote stands for itself, and so does any character after a
// backslash when the string knows escapes. -1 when it does not end.
func quotedLen(s string, quote byte, escapes bool) int {
	for i := 1; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case s[i] == quote:
			if i+1 < len(s) && s[i+1] == quote {
				i++
				continue
			}
			return i + 1
		}
	}
	return -1
}

// dollarTag returns the opening of a dollar quote ("$$", "$body$"), or nothing when the dollar sign is something else.
func dollarTag(s string) string {
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '$':
			return s[:i+1]
		case i == 1 && !isNameStart(c), !isNamePart(c):
			return ""
		}
	}
	return ""
}

func dollarLen(s, tag string) int {
	end := strings.Index(s[len(tag):], tag)
	if end < 0 {
		return -1
	}
	return end + 2*len(tag)
}

func lineCommentLen(s string) int {
	if end := strings.IndexByte(s, '\n'); end >= 0 {
		return end
	}
	return len(s)
}

// blockCommentLen returns the length of a comment, which may contain others; -1 when it does not end.
func blockCommentLen(s string) int {
	depth := 0
	for i := 0; i+1 < len(s); {
		switch s[i : i+2] {
		case "/*":
			depth++
			i += 2
		case "*/":
			depth--
			i += 2
			if depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return -1
}

// spaces are PostgreSQL's, which are fewer than Unicode's.
const spaces = " \t\n\r\f\v"

func isSpace(c byte) bool { return strings.IndexByte(spaces, c) >= 0 }

func isNameStart(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

func isNamePart(c byte) bool { return isNameStart(c) || c >= '0' && c <= '9' || c == '$' }

var errUnterminated = errors.New("does not end")

func unterminated(text string, at int, what string) error {
	return fmt.Errorf("line %d: %s %w", 1+strings.Count(text[:at], "\n"), what, errUnterminated)
}
