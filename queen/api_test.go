package queen_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// exported lists the exported names of a package as API.md writes them, and fails for one without a comment, and for a signature with
// an empty interface.
func exported(t *testing.T, dir, prefix string) map[string]bool {
	t.Helper()
	files := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	var parsed []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		require.NoError(t, err)
		parsed = append(parsed, file)
	}
	p, err := doc.NewFromFiles(files, parsed, "queenmq/"+dir)
	require.NoError(t, err)
	names := map[string]bool{}
	add := func(name, comment string) {
		names[prefix+name] = true
		if comment == "" {
			t.Errorf("%s%s has no comment", prefix, name)
		}
	}
	function := func(name string, f *doc.Func) {
		add(name, f.Doc)
		for _, list := range []*ast.FieldList{f.Decl.Type.Params, f.Decl.Type.Results} {
			if list == nil {
				continue
			}
			ast.Inspect(list, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && id.Name == "any" {
					t.Errorf("%s%s has an empty interface in its signature", prefix, name)
				}
				return true
			})
		}
	}
	values := func(list []*doc.Value) {
		for _, v := range list {
			for _, name := range v.Names {
				if ast.IsExported(name) {
					add(name, v.Doc)
				}
			}
		}
	}
	values(p.Consts)
	values(p.Vars)
	for _, f := range p.Funcs {
		function(f.Name, f)
	}
	for _, typ := range p.Types {
		add(typ.Name, typ.Doc)
		values(typ.Consts)
		values(typ.Vars)
		for _, f := range typ.Funcs {
			function(f.Name, f)
		}
		for _, m := range typ.Methods {
			function(typ.Name+"."+m.Name, m)
		}
	}
	return names
}

func TestEveryNameIsInTheMap(t *testing.T) {
	t.Parallel()
	names := exported(t, ".", "")
	for name := range exported(t, "pgtx", "pgtx.") {
		names[name] = true
	}
	for name := range exported(t, "queenotel", "queenotel.") {
		names[name] = true
	}
	for name := range exported(t, "streams", "streams.") {
		names[name] = true
	}
	text, err := os.ReadFile("API.md")
	require.NoError(t, err)
	listed := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|").FindAllSubmatch(text, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllSubmatch(row[1], -1) {
			listed[string(name[1])] = true
		}
	}
	require.Empty(t, cmp.Diff(listed, names), "API.md (-) and the code (+) differ")
}
