package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "queenmq"

// mayImport is the house: which packages of ours each package may import directly. A name that ends in /... stands for all
// below it, and "*" for everything. A new package needs a line here, which is the moment to ask where it belongs.
var mayImport = map[string][]string{
	"cmd/queen": {"broker", "internal/config"},
	"broker":    {"internal/...", "sql", "dashboard"},

	"cmd/queenctl":          {"queen", "cmd/queenctl/..."},
	"cmd/queenctl/output":   {},
	"cmd/queenctl/settings": {},
	"cmd/queenctl/manifest": {},
	"cmd/queenctl/archive":  {},

	"internal/api":    {"internal/engine/...", "internal/pg", "internal/auth", "internal/tenant"},
	"internal/upkeep": {"internal/pg", "internal/engine/ready", "internal/engine/admission", "internal/engine/spool", "internal/engine/meter"},
	"internal/mesh":   {"internal/pg"},

	"internal/engine/meter":       {"internal/engine/push", "internal/engine/pop", "internal/engine/ack", "internal/engine/transaction", "internal/pg"},
	"internal/engine/transaction": {"internal/engine/push", "internal/engine/ack", "internal/engine/segment", "internal/engine/admission", "internal/engine/ready", "internal/pg"},
	"internal/engine/push":        {"internal/engine/segment", "internal/engine/admission", "internal/engine/ready", "internal/pg"},
	"internal/engine/push/dedup":  {"internal/pg"},
	"internal/engine/pop":         {"internal/engine/segment", "internal/engine/admission", "internal/engine/ready", "internal/pg"},
	"internal/engine/ack":         {"internal/engine/segment", "internal/engine/admission", "internal/engine/ready", "internal/pg"},
	"internal/engine/rekey":       {"internal/engine/segment", "internal/engine/stream", "internal/pg", "internal/secret"},
	"internal/engine/browse":      {"internal/engine/segment", "internal/pg"},
	"internal/engine/replay":      {"internal/engine/segment", "internal/engine/admission", "internal/pg"},
	"internal/engine/stream":      {"internal/engine/push", "internal/engine/ack", "internal/engine/segment", "internal/engine/admission", "internal/pg"},
	"internal/engine/tail":        {"internal/engine/browse", "internal/pg"},
	"internal/engine/spool":       {"internal/engine/push", "internal/engine/segment", "internal/pg"},
	"internal/engine/ready":       {},
	"internal/engine/admission":   {},
	"internal/engine/segment":     {},

	"internal/http1":     {},
	"internal/auth":      {},
	"internal/tenant":    {},
	"internal/secret":    {},
	"internal/pg":        {"sql"},
	"internal/config":    {},
	"internal/telemetry": {},
	"internal/localpg":   {},
	"internal/testdb":    {"internal/localpg", "internal/pg", "sql"},
	"sql":                {},
	"dashboard":          {},

	"queen":           {},
	"queen/streams":   {"queen"},
	"queen/queenotel": {"queen"},
	"queen/pgtx":      {"queen", "internal/engine/segment", "internal/secret"},

	"bench/...":          {"*"},
	"examples/...":       {}, // plain clients of the wire
	"examples/transfers": {"broker", "queen", "queen/pgtx"},
	"test":               {},
	"test/...":           {"*"},
}

// onlyIn are imports from outside that belong to few packages; tests may use what they like.
var onlyIn = []struct {
	path     string // a package, or with /... everything below it
	packages []string
	why      string
}{
	{"github.com/jackc/pgx/v5/...", []string{"internal/pg", "internal/testdb", "queen/pgtx", "examples/...", "bench/...", "test/..."}, "only pg talks to PostgreSQL, and who works inside a caller's transaction"},
	{"database/sql", nil, "pg speaks to PostgreSQL through pgx"},
	{"net/http", []string{"internal/api", "internal/http1", "internal/auth", "broker", "queen/...", "examples/...", "bench/...", "test/...", "cmd/queenctl"}, "the engine knows no HTTP"},
	{"github.com/prometheus/...", []string{"internal/telemetry", "internal/api", "bench/...", "test/..."}, "metrics are gathered in one place"},
	{"github.com/fergusstrange/embedded-postgres", []string{"internal/localpg"}, "servers are started in one place"},
	{"testing", []string{"internal/testdb", "test/..."}, "test helpers stay out of the program"},
	{module + "/internal/testdb", []string{"bench/...", "test/..."}, "test helpers stay out of the program"},
}

// forbiddenNames say nothing about what a package owns.
var forbiddenNames = []string{"util", "utils", "common", "helper", "helpers", "model", "models", "types", "misc", "shared", "lib", "base", "core"}

type listed struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string
	Imports    []string
	// Of the test files inside and outside the package.
	TestImports, XTestImports []string
}

func (p listed) room() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// packages lists the packages of the module as the go command sees them.
func packages(t *testing.T) []listed {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Name,Dir,GoFiles,Imports,TestImports,XTestImports", "./...")
	list.Dir = ".."
	var faults bytes.Buffer
	list.Stderr = &faults
	out, err := list.Output()
	require.NoError(t, err, faults.String())
	var all []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		all = append(all, p)
	}
	require.Greater(t, len(all), 10)
	return all
}

// matches tells whether a path is the pattern or, when that ends in /..., below it.
func matches(pattern, path string) bool {
	if prefix, below := strings.CutSuffix(pattern, "/..."); below {
		return path == prefix || strings.HasPrefix(path, prefix+"/")
	}
	return pattern == "*" || pattern == path
}

func TestArchitecture(t *testing.T) {
	t.Parallel()
	all := packages(t)

	t.Run("ArrowsRunDownwards", func(t *testing.T) {
		t.Parallel()
		for _, p := range all {
			allowed, known := rule(p.room())
			if !known {
				t.Errorf("%s has no line in mayImport: decide where it belongs", p.ImportPath)
				continue
			}
			for _, imported := range p.Imports {
				room, ours := strings.CutPrefix(imported, module+"/")
				if ours && !slices.ContainsFunc(allowed, func(pattern string) bool { return matches(pattern, room) }) {
					t.Errorf("%s imports %s, which its line in mayImport does not allow", p.ImportPath, imported)
				}
			}
		}
	})

	t.Run("LibrariesStayWhereTheyBelong", func(t *testing.T) {
		t.Parallel()
		for _, p := range all {
			for _, imported := range p.Imports {
				for _, r := range onlyIn {
					if matches(r.path, imported) && !slices.ContainsFunc(r.packages, func(pattern string) bool { return matches(pattern, p.room()) }) {
						t.Errorf("%s imports %s: %s", p.ImportPath, imported, r.why)
					}
				}
			}
		}
	})

	t.Run("EveryRuleIsAboutSomething", func(t *testing.T) {
		t.Parallel()
		for pattern := range mayImport {
			if strings.HasPrefix(pattern, "bench") {
				continue // programs that come and go
			}
			if !slices.ContainsFunc(all, func(p listed) bool { return matches(pattern, p.room()) }) {
				t.Errorf("no package matches %q in mayImport", pattern)
			}
		}
	})

	t.Run("PackagesSayWhatTheyAre", func(t *testing.T) {
		t.Parallel()
		for _, p := range all {
			var documented []string
			for _, name := range p.GoFiles {
				file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
				require.NoError(t, err)
				if file.Doc != nil {
					documented = append(documented, name)
				}
			}
			if len(documented) != 1 {
				t.Errorf("%s: one file must hold the package comment, found %d %v", p.ImportPath, len(documented), documented)
			}
		}
	})

	t.Run("PackagesHaveARowInTheDocument", func(t *testing.T) {
		t.Parallel()
		text, err := os.ReadFile("../docs/architecture.md")
		require.NoError(t, err)
		rows := map[string]bool{}
		for _, row := range regexp.MustCompile("(?m)^\\| (`[a-z][^|]*`) \\|").FindAllSubmatch(text, -1) {
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllSubmatch(row[1], -1) {
				rows[string(name[1])] = true
			}
		}
		for _, p := range all {
			if !rows[p.room()] {
				t.Errorf("%s has no row in docs/architecture.md", p.ImportPath)
			}
			delete(rows, p.room())
		}
		require.Empty(t, rows, "rows of docs/architecture.md without a package")
	})

	t.Run("PackagesAreNamedAfterWhatTheyOwn", func(t *testing.T) {
		t.Parallel()
		for _, p := range all {
			if matches("test/...", p.room()) {
				continue // named after a kind of test
			}
			if slices.Contains(forbiddenNames, p.Name) || slices.Contains(forbiddenNames, path.Base(p.ImportPath)) {
				t.Errorf("%s: the name says nothing about what the package owns", p.ImportPath)
			}
		}
	})
}

// Every library has a line that says why it is here, and every line its library.
func TestDependenciesHaveReasons(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/dependencies.md")
	require.NoError(t, err)
	var reasons []string
	for _, match := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| .{10,} \\|$").FindAllSubmatch(text, -1) {
		reasons = append(reasons, string(match[1]))
	}
	used := map[string]bool{}
	for _, p := range packages(t) {
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			first, _, _ := strings.Cut(imported, "/")
			if !strings.Contains(first, ".") {
				continue // the standard library, or ours
			}
			i := slices.IndexFunc(reasons, func(module string) bool { return matches(module+"/...", imported) })
			if i < 0 {
				t.Errorf("%s imports %s, which docs/dependencies.md does not explain", p.ImportPath, imported)
				continue
			}
			used[reasons[i]] = true
		}
	}
	for _, module := range reasons {
		if !used[module] && !strings.HasPrefix(module, "mvdan.cc/") && !strings.HasPrefix(module, "honnef.co/") && module != "golang.org/x/vuln" && module != "github.com/CycloneDX/cyclonedx-gomod" { // tools
			t.Errorf("docs/dependencies.md explains %s, which nothing imports", module)
		}
	}
}

// rule finds the line of a package: its own, or the longest pattern above it.
func rule(room string) (allowed []string, known bool) {
	if allowed, known = mayImport[room]; known {
		return allowed, true
	}
	best := ""
	for pattern := range mayImport {
		if matches(pattern, room) && len(pattern) > len(best) {
			best = pattern
		}
	}
	return mayImport[best], best != ""
}
