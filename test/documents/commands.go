// Package documents reads what the project's documents show: commands, Go code, names of settings. Tests hold it against the programs.
package documents

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A Command is one command of a shell line in a document.
type Command struct {
	// Document is the path of the file below the root.
	Document string
	// Dir is where it is run: the argument of the last cd of its lines, else the directory of the document.
	Dir string
	// Words are the command and its arguments without quotes. Assignments before it and redirections are left out.
	Words []string
}

// String shows the command as a fault of its document.
func (c Command) String() string {
	return fmt.Sprintf("%s: %s", c.Document, strings.Join(c.Words, " "))
}

// Args returns the arguments when one of the programs is called, by that name or as bin/name.
func (c Command) Args(programs ...string) ([]string, bool) {
	for _, program := range programs {
		if c.Words[0] == program || c.Words[0] == "bin/"+program {
			return c.Words[1:], true
		}
	}
	return nil, false
}

var (
	fenced   = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	inline   = regexp.MustCompile("`([^`]+)`")
	indented = regexp.MustCompile(`(?m)^ {4}(\S.*)$`)
	prompt   = regexp.MustCompile(`(?m)^\$ (.*)$`)
)

// Paths lists the documents below root: every Markdown file but those of installed packages.
func Paths(root string) ([]string, error) {
	var paths []string
	for _, pattern := range []string{"*.md", "*/*.md", "*/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	return paths, nil
}

// Commands finds the commands in all documents below root: in blocks of sh, after the prompts of blocks of console, in indented lines and
// between backticks, where also everything else stands that is worth marking.
func Commands(root string) ([]Command, error) {
	paths, err := Paths(root)
	if err != nil {
		return nil, err
	}
	var all []Command
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return nil, err
		}
		for _, script := range scripts(text) {
			dir := filepath.Dir(name)
			for _, words := range split(script) {
				if words[0] == "cd" && len(words) == 2 {
					dir = words[1]
				}
				all = append(all, Command{name, dir, words})
			}
		}
	}
	return all, nil
}

// scripts are the pieces of a document that may be shell.
func scripts(text []byte) []string {
	var found []string
	for _, block := range fenced.FindAllSubmatch(text, -1) {
		switch string(block[1]) {
		case "sh":
			found = append(found, string(block[2]))
		case "console":
			for _, line := range prompt.FindAllSubmatch(block[2], -1) {
				found = append(found, string(line[1]))
			}
		}
	}
	prose := fenced.ReplaceAll(text, nil)
	for _, line := range indented.FindAllSubmatch(prose, -1) {
		found = append(found, string(line[1]))
	}
	for _, span := range inline.FindAllSubmatch(prose, -1) {
		found = append(found, string(bytes.ReplaceAll(span[1], []byte("\n"), []byte(" "))))
	}
	return found
}
