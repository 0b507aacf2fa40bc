package documents

import (
	"bytes"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// A Snippet is a piece of Go that a document or a package comment shows.
type Snippet struct {
	// Source is the path of the file below the root.
	Source string
	// Line is where Code begins in a document; in a package comment it is 1.
	Line int
	Code string
}

// Snippets finds the blocks of go in the documents below root, and the code in the comments of the packages in dirs.
func Snippets(root string, dirs ...string) ([]Snippet, error) {
	paths, err := Paths(root)
	if err != nil {
		return nil, err
	}
	var all []Snippet
	add := func(path string, line int, code string) error {
		name, err := filepath.Rel(root, path)
		all = append(all, Snippet{name, line, code})
		return err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, at := range fenced.FindAllSubmatchIndex(text, -1) {
			if string(text[at[2]:at[3]]) == "go" {
				if err := add(path, 1+bytes.Count(text[:at[4]], []byte("\n")), string(text[at[4]:at[5]])); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, dir := range dirs {
		sources, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			return nil, err
		}
		for _, path := range sources {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				return nil, err
			}
			if file.Doc == nil || strings.HasSuffix(path, "_test.go") {
				continue
			}
			var p comment.Parser
			for _, block := range p.Parse(file.Doc.Text()).Content {
				if code, isCode := block.(*comment.Code); isCode && !strings.HasPrefix(code.Text, "GRANT ") {
					if err := add(path, 1, code.Text); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return all, nil
}
