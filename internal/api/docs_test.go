package api

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"queenmq/internal/auth"
)

// The generated parts of the documents stand between these lines.
const (
	generatedFrom = "<!-- generated: go test ./internal/api -update -->\n"
	generatedTo   = "<!-- end of the generated part -->\n"
)

// withGenerated returns the committed document with its generated part replaced.
func withGenerated(t *testing.T, path, part string) string {
	t.Helper()
	document, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(document), generatedFrom)
	require.True(t, found, "%s has no line %q", path, generatedFrom)
	_, after, found := strings.Cut(rest, generatedTo)
	require.True(t, found, "%s has no line %q", path, generatedTo)
	return before + generatedFrom + part + generatedTo + after
}

func TestRouteDocumentIsCurrent(t *testing.T) {
	t.Parallel()
	var part strings.Builder
	part.WriteString("| Method | Path | Access | What it does | read-only | write-only | read-write | admin |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range routes {
		fmt.Fprintf(&part, "| %s | `%s` | %s | %s |", r.method, r.path, r.access, r.summary)
		for _, role := range []auth.Roles{auth.ReadOnly, auth.WriteOnly, auth.ReadWrite, auth.Admin} {
			part.WriteString(map[bool]string{true: " yes |", false: " - |"}[r.access == accessPublic || rolesOf[r.access].Any(role)])
		}
		part.WriteString("\n")
	}
	const path = "../../docs/http.md"
	golden(t, path, withGenerated(t, path, part.String()))
}

func TestErrorDocumentIsCurrent(t *testing.T) {
	t.Parallel()
	var part strings.Builder
	part.WriteString("| Code | Status | Repeat? | Default text | What it means and what to do |\n| --- | --- | --- | --- | --- |\n")
	for _, row := range errorTable {
		again := "no"
		if row.retryable {
			again = "yes"
		}
		fmt.Fprintf(&part, "| `%s` | %d %s | %s | %s | %s |\n", row.code, row.status, http.StatusText(row.status), again, row.text, row.remedy)
	}
	const path = "../../docs/errors.md"
	golden(t, path, withGenerated(t, path, part.String()))
}
