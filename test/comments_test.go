package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every exported name of every package says what it is. Fields and the methods of an interface may be left to their type's comment.
func TestExportedNamesAreExplained(t *testing.T) {
	t.Parallel()
	explained := 0
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, declaration := range file.Decls {
				for _, name := range unexplained(declaration) {
					t.Errorf("%s: %s is exported and has no comment", files.Position(name.Pos()), name.Name)
				}
			}
			explained += len(file.Decls)
		}
	}
	require.Greater(t, explained, 1000)
}

// unexplained lists the exported names of a declaration that no comment stands at.
func unexplained(declaration ast.Decl) []*ast.Ident {
	var names []*ast.Ident
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && (d.Recv == nil || ast.IsExported(receiver(d))) {
			names = append(names, d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if d.Doc == nil && s.Doc == nil && s.Comment == nil {
					names = append(names, s.Name)
				}
			case *ast.ValueSpec:
				if d.Doc == nil && s.Doc == nil && s.Comment == nil {
					names = append(names, s.Names...)
				}
			}
		}
	}
	return slices.DeleteFunc(names, func(name *ast.Ident) bool { return !name.IsExported() })
}

// receiver is the name of the type that a method belongs to.
func receiver(method *ast.FuncDecl) string {
	of := method.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.IndexListExpr:
			of = t.X
		case *ast.Ident:
			return t.Name
		default:
			return ""
		}
	}
}

// Every SQL function has a comment right above it that names it and says what it locks, or that it locks nothing. A function that is
// immutable reads no table, and one comment may stand above several functions when it names them.
func TestProceduresAreExplained(t *testing.T) {
	t.Parallel()
	create := regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?FUNCTION (?:queen|queen_streams)\.(\w+)`)
	locks := regexp.MustCompile(`(?i)\block(s|ed|ing)?\b`)
	functions := 0
	for _, path := range glob(t, "../sql/procedures/*.sql") {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		at := create.FindAllSubmatchIndex(text, -1)
		header := ""
		for i, match := range at {
			functions++
			name := string(text[match[2]:match[3]])
			end := len(text)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			if own := commentAbove(string(text[:match[0]])); own != "" {
				header = own
			}
			signature, _, _ := strings.Cut(string(text[match[0]:end]), "$$")
			switch {
			case !regexp.MustCompile(`\b` + name + `\b`).MatchString(header):
				t.Errorf("%s: no comment above %s names it", path, name)
			case !locks.MatchString(header) && !strings.Contains(signature, "IMMUTABLE"):
				t.Errorf("%s: the comment of %s does not say what it locks", path, name)
			}
		}
	}
	require.Greater(t, functions, 150)
}

// commentAbove is the comment at the end of a text, statements of one line between it and the end left aside.
func commentAbove(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for len(lines) > 0 && strings.HasSuffix(lines[len(lines)-1], ";") && !strings.HasPrefix(lines[len(lines)-1], "--") && !strings.HasPrefix(lines[len(lines)-1], "END") {
		lines = lines[:len(lines)-1]
	}
	first := len(lines)
	for first > 0 && strings.HasPrefix(lines[first-1], "--") {
		first--
	}
	return strings.Join(lines[first:], "\n")
}
