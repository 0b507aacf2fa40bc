package test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/test/documents"
)

// snippetSurroundings are what the text around a snippet says is there.
const snippetSurroundings = `
import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"queenmq/broker"
	"queenmq/queen"
	"queenmq/queen/pgtx"
	"queenmq/queen/queenotel"
	"queenmq/queen/streams"
)

type Order struct {
	Shop  string
	Total float64
	At    time.Time
}

var (
	ctx      context.Context
	client   *queen.Client
	pool     *pgxpool.Pool
	q        *pgtx.Client
	receipt  json.RawMessage
	logger   *slog.Logger
	url      string
	provider trace.TracerProvider

	_ pgx.Tx
	_ = os.Args
	_ = broker.New
	_ = queenotel.New
	_ = streams.Count[Order]
)

func bill(context.Context, Order) error { return nil }
`

// The Go that documents and package comments show compiles.
func TestSnippetsCompile(t *testing.T) {
	t.Parallel()
	snippets, err := documents.Snippets("..", "broker", "queen", "queen/pgtx", "queen/queenotel", "queen/streams")
	require.NoError(t, err)
	require.Greater(t, len(snippets), 5)
	// The files exist in this overlay of the module alone.
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	build := exec.CommandContext(t.Context(), "go", "build")
	dir := t.TempDir()
	for i, snippet := range snippets {
		name := fmt.Sprintf("snippet%d", i)
		file := filepath.Join(dir, name+".go")
		require.NoError(t, os.WriteFile(file, []byte(program(t, snippet)), 0o600))
		place, err := filepath.Abs(filepath.Join(name, name+".go"))
		require.NoError(t, err)
		overlay.Replace[place] = file
		build.Args = append(build.Args, "./"+name)
	}
	text, err := json.Marshal(overlay)
	require.NoError(t, err)
	list := filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(list, text, 0o600))
	build.Args = append(build.Args[:2:2], append([]string{"-overlay", list}, build.Args[2:]...)...)
	said, err := build.CombinedOutput()
	require.NoError(t, err, "%s", said)
}

// program is a package around a snippet, in which whatever the snippet declares is used.
func program(t *testing.T, snippet documents.Snippet) string {
	t.Helper()
	head := "package snippet\n" + snippetSurroundings + "\nfunc _() {\n" + fmt.Sprintf("//line %s:%d\n", snippet.Source, snippet.Line)
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, snippet.Source, head+snippet.Code+"\n}\n", parser.SkipObjectResolution)
	require.NoError(t, err)
	uses := map[string]bool{}
	body := file.Decls[len(file.Decls)-1].(*ast.FuncDecl).Body
	for _, statement := range body.List {
		if assignment, isAssignment := statement.(*ast.AssignStmt); isAssignment && assignment.Tok == token.DEFINE {
			for _, name := range assignment.Lhs {
				uses[name.(*ast.Ident).Name] = true
			}
		}
	}
	var used strings.Builder
	for name := range uses {
		if name != "_" {
			fmt.Fprintf(&used, "_ = %s\n", name)
		}
	}
	return head + snippet.Code + "\n" + used.String() + "}\n"
}
