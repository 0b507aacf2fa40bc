package documents

import (
	"regexp"
	"strings"
)

var assignment = regexp.MustCompile(`^[A-Za-z_]\w*=`)

// split takes a script apart into simple commands and these into words. It knows quotes, backslashes, comments, redirections and what
// stands between commands; substitutions stay in the word in which they stand.
func split(script string) [][]string {
	var commands [][]string
	var words []string
	for _, p := range pieces(script) {
		switch {
		case p.separates:
			if len(words) > 0 {
				commands = append(commands, words)
			}
			words = nil
		case len(words) == 0 && assignment.MatchString(p.text):
		default:
			words = append(words, p.text)
		}
	}
	return commands
}

// A piece is a word, or what ends a command.
type piece struct {
	text      string
	separates bool
}

// pieces ends with one that separates. Redirections and what they lead to are left out.
func pieces(script string) []piece {
	var all []piece
	var word strings.Builder
	inWord, redirected := false, false
	end := func() {
		if inWord && !redirected {
			all = append(all, piece{text: word.String()})
		}
		if inWord {
			redirected = false
		}
		inWord = false
		word.Reset()
	}
	for i := 0; i < len(script); i++ {
		c := script[i]
		switch {
		case c == '\'' || c == '"':
			inWord = true
			length := strings.IndexByte(script[i+1:], c)
			if length < 0 {
				length = len(script) - i - 1
			}
			word.WriteString(script[i+1 : i+1+length])
			i += length + 1
		case c == '\\' && i+1 < len(script):
			i++
			if script[i] != '\n' {
				inWord = true
				word.WriteByte(script[i])
			}
		case c == '$' && strings.HasPrefix(script[i:], "$("):
			inWord = true
			length := max(strings.IndexByte(script[i:], ')'), 1)
			word.WriteString(script[i : i+length+1])
			i += length
		case c == '#' && !inWord:
			for i+1 < len(script) && script[i+1] != '\n' {
				i++
			}
		case c == ' ' || c == '\t':
			end()
		case c == '>' || c == '<':
			end()
			redirected = true
		case strings.IndexByte("\n;|&(){}", c) >= 0 && (c != '{' && c != '}' || !inWord):
			end()
			all = append(all, piece{separates: true})
		default:
			inWord = true
			word.WriteByte(c)
		}
	}
	end()
	return append(all, piece{separates: true})
}
