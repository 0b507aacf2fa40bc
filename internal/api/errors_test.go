package api

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// Every exported error of the rooms below must have an answer: a new one fails here until somebody decides.
func TestEveryErrorBelowHasARow(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, s := range sentinels {
		known[s.name] = true
		require.Contains(t, errorRows, s.code, s.name)
		require.Equal(t, s.code, classify(fmt.Errorf("wrapped: %w", s.err), "").code, s.name)
	}
	for _, name := range typedErrors {
		known[name] = true
	}
	rooms, err := filepath.Glob("../engine/*")
	require.NoError(t, err)
	found := 0
	for _, room := range append(rooms, "../pg", "../auth", "../tenant") {
		for _, name := range exportedErrors(t, room) {
			found++
			require.True(t, known[name], "%s has no row: add it to sentinels or typedErrors", name)
			delete(known, name)
		}
	}
	require.Empty(t, known, "the tables name errors that do not exist")
	require.Greater(t, found, 10)
}

// exportedErrors lists the exported Err variables and Error types of a package, as package.Name.
func exportedErrors(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	var names []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, declaration := range parsed.Decls {
			general, ok := declaration.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						if general.Tok == token.VAR && strings.HasPrefix(name.Name, "Err") && ast.IsExported(name.Name) {
							names = append(names, parsed.Name.Name+"."+name.Name)
						}
					}
				case *ast.TypeSpec:
					if strings.HasSuffix(spec.Name.Name, "Error") && ast.IsExported(spec.Name.Name) {
						names = append(names, parsed.Name.Name+"."+spec.Name.Name)
					}
				}
			}
		}
	}
	return names
}

func TestErrorTableIsSound(t *testing.T) {
	t.Parallel()
	require.Len(t, errorRows, len(errorTable), "a code stands twice")
	for _, row := range errorTable {
		require.NotEmpty(t, row.text, row.code)
		require.Regexp(t, `^[A-Z\x60].*\.$`, row.remedy, row.code)
		require.NotEmpty(t, http.StatusText(row.status), row.code)
		if row.status >= 500 {
			require.True(t, row.retryable, "%s: clients repeat every 5xx", row.code)
		}
	}
}

// No handler may answer with a code that has no row: the constants of this package and the table are the same set.
func TestEveryCodeHasARow(t *testing.T) {
	t.Parallel()
	source, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	require.NoError(t, err)
	codes := 0
	ast.Inspect(source, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Names) == 0 || !strings.HasPrefix(spec.Names[0].Name, "code") {
			return true
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		require.True(t, ok)
		codes++
		require.Contains(t, errorRows, code(strings.Trim(literal.Value, `"`)))
		return true
	})
	require.Equal(t, len(errorTable), codes)
}

func TestFaultsAreLoggedOncePerMinuteWithTheirCause(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var faults faultLog
	for range 5 {
		faults.log(context.Background(), log, classify(wrapped(errSecret), "pop failed"), "GET /x") // internal: every time
		faults.log(context.Background(), log, newError(codeTimeout, "slow"), "GET /x")
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.Contains(l, "internal_error") }), 5)
	require.Len(t, slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.Contains(l, "code=timeout") }), 1)
	require.Contains(t, out.String(), "hunter2", "the log must hold the cause")
}

var update = flag.Bool("update", false, "rewrite docs/http.md and docs/errors.md")

// golden compares a generated document with the committed one.
func golden(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644)) //nolint:gosec // a document for everybody
	}
	committed, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(text, string(committed)), "%s is stale: run go test ./internal/api -update", path)
}
