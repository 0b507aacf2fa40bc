package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// description loads what /openapi.json answers.
func description(t *testing.T, server *httptest.Server) *openapi3.T {
	t.Helper()
	answer := call(t, server, "GET", "/openapi.json", "")
	require.Equal(t, 200, answer.status)
	document, err := openapi3.NewLoader().LoadFromData([]byte(answer.body))
	require.NoError(t, err)
	return document
}

func TestDescriptionIsValidAndComplete(t *testing.T) {
	t.Parallel()
	document := description(t, serve(t, &world{}))
	require.NoError(t, document.Validate(t.Context()))
	require.True(t, document.IsOpenAPI31OrLater())
	operations := map[string]bool{}
	for _, r := range routes {
		item := document.Paths.Value(r.path)
		require.NotNil(t, item, r.path)
		operation := item.GetOperation(r.method)
		require.NotNil(t, operation, "%s %s", r.method, r.path)
		require.False(t, operations[operation.OperationID], "%s stands twice", operation.OperationID)
		operations[operation.OperationID] = true
	}
	require.Len(t, document.Paths.Map(), len(paths()))
}

func paths() map[string]bool {
	seen := map[string]bool{}
	for _, r := range routes {
		seen[r.path] = true
	}
	return seen
}

func TestShapesAreRead(t *testing.T) {
	t.Parallel()
	schema, err := shape(`{"a":"int","b?":"string|null","c|null":[{"x":"any"}],"*":"bool"}`).schema()
	require.NoError(t, err)
	text, err := json.Marshal(schema)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"object","additionalProperties":{"type":"boolean"},"required":["a","c"],"properties":{"a":{"type":"integer"},"b":{"type":["string","null"]},
		"c":{"type":["array","null"],"items":{"type":"object","properties":{"x":{}},"required":["x"]}}}}`, string(text))
	for _, bad := range []shape{`{`, `"integer"`, `[]`, `["int","int"]`, `{"a":1}`, `{"a":"int?"}`} {
		_, err := bad.schema()
		require.Error(t, err, "%s", bad)
	}
}

// A conformance holds answers against the description and remembers which operations were seen.
type conformance struct {
	document *openapi3.T
	seen     map[string]bool
}

// check fails when a success of a route does not look as described, or its error does not.
func (c *conformance) check(t *testing.T, method, path string, answer exchange) {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	found, _ := newRouter(routes).find(request, request.URL.EscapedPath())
	require.NotNil(t, found, "%s %s", method, path)
	if answer.status == http.StatusNoContent {
		return
	}
	operation := c.document.Paths.Value(found.route.path).GetOperation(method)
	response := operation.Responses.Status(answer.status)
	if response == nil {
		require.GreaterOrEqual(t, answer.status, 400, "%s %s answers %d, which is not described", method, path, answer.status)
		response = operation.Responses.Default()
	} else {
		c.seen[method+" "+found.route.path] = true
	}
	content := response.Value.Content.Get("application/json")
	if content == nil {
		return
	}
	var value any
	require.NoError(t, json.Unmarshal([]byte(answer.body), &value), "%s %s: %s", method, path, answer.body)
	require.NoError(t, content.Schema.Value.VisitJSON(value, openapi3.EnableJSONSchema2020(), openapi3.EnableFormatValidation()),
		"%s %s: %s", method, path, answer.body)
	if answer.status < 400 { // error bodies may carry more than the description says
		assert.Empty(t, undescribed("", content.Schema.Value, value), "%s %s: what /openapi.json does not describe", method, path)
	}
}

// undescribed lists the members of an answer that its schema does not name.
func undescribed(at string, schema *openapi3.Schema, value any) (names []string) {
	switch value := value.(type) {
	case map[string]any:
		if schema.AdditionalProperties.Schema != nil || len(schema.Properties) == 0 {
			return nil // any names, or any value
		}
		for name, member := range value {
			described := schema.Properties[name]
			if described == nil {
				names = append(names, at+"."+name)
				continue
			}
			names = append(names, undescribed(at+"."+name, described.Value, member)...)
		}
	case []any:
		if schema.Items == nil {
			return nil
		}
		for _, element := range value {
			names = append(names, undescribed(at+"[]", schema.Items.Value, element)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unseen lists the routes whose success was never checked.
func (c *conformance) unseen() []string {
	missing := map[string]bool{}
	for _, r := range routes {
		if key := fmt.Sprintf("%s %s", r.method, r.path); !c.seen[key] && r.answer != "" {
			missing[key] = true
		}
	}
	return slices.Sorted(maps.Keys(missing))
}

func TestAnswersFromMemoryLookAsDescribed(t *testing.T) {
	t.Parallel()
	server := serve(t, &world{})
	c := &conformance{description(t, server), map[string]bool{}}
	for _, path := range []string{
		"/auth/me", "/health", "/livez", "/readyz", "/status", "/metrics", "/api/v1/system/maintenance", "/api/v1/system/maintenance/pop",
		"/api/v1/system/shared-state", "/internal/api/shared-state/stats", "/api/v1/status/buffers", "/api/v1/messages", "/api/v1/dlq",
		"/api/v1/messages/x/y", "/api/v1/dlq/tasks/x", "/openapi.json",
	} {
		c.check(t, "GET", path, call(t, server, "GET", path, ""))
	}
	require.False(t, strings.Contains(strings.Join(c.unseen(), " "), "GET /auth/me"))
}
