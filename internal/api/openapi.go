package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

// openAPI sends the description of all routes.
func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request) error {
	document, err := s.description()
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, document)
}

// describe makes an OpenAPI 3.1 document of a table of routes.
func describe(table []route) ([]byte, error) {
	paths := map[string]map[string]any{}
	for i := range table {
		r := &table[i]
		operation, err := operationOf(r)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
		}
		if paths[r.path] == nil {
			paths[r.path] = map[string]any{}
		}
		paths[r.path][strings.ToLower(r.method)] = operation
	}
	codes := make([]string, len(errorTable))
	for i := range errorTable {
		codes[i] = string(errorTable[i].code)
	}
	return json.Marshal(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "Queen", "version": "1.0.0",
			"description": "Message queues with partitions, consumer groups and transactions on PostgreSQL.",
		},
		"paths": paths,
		"components": map[string]any{"schemas": map[string]any{"Error": map[string]any{
			"type": "object", "required": []string{"error"},
			"properties": map[string]any{
				"error": map[string]any{"type": "string", "description": "What is wrong, and what to do."},
				"code":  map[string]any{"type": "string", "enum": sorted(codes)},
			},
		}}},
	})
}

func operationOf(r *route) (map[string]any, error) {
	status := r.status
	if status == 0 {
		status = http.StatusOK
	}
	success := map[string]any{"description": http.StatusText(status)}
	switch {
	case r.answer != "":
		schema, err := r.answer.schema()
		if err != nil {
			return nil, err
		}
		success["content"] = jsonContent(schema)
	case status == http.StatusOK:
		success["content"] = map[string]any{"text/plain": map[string]any{"schema": map[string]any{"type": "string"}}}
	}
	responses := map[string]any{
		strconv.Itoa(status): success,
		"default":            map[string]any{"description": "An error", "content": jsonContent(map[string]any{"$ref": "#/components/schemas/Error"})},
	}
	if strings.HasPrefix(r.path, "/api/v1/pop") {
		responses["204"] = map[string]any{"description": "No message is available"}
	}
	operation := map[string]any{
		"operationId": operationID(r), "summary": r.summary, "tags": []string{tagOf(r.path)}, "responses": responses, "x-access": string(r.access),
	}
	if parameters := parametersOf(r); len(parameters) > 0 {
		operation["parameters"] = parameters
	}
	if r.body != "" {
		schema, err := r.body.schema()
		if err != nil {
			return nil, err
		}
		operation["requestBody"] = map[string]any{"required": !r.bodyOptional, "content": jsonContent(schema)}
	}
	return operation, nil
}

func jsonContent(schema map[string]any) map[string]any {
	return map[string]any{"application/json": map[string]any{"schema": schema}}
}

// operationID makes a name that generators can use of method and path.
func operationID(r *route) string {
	id := strings.ToLower(r.method)
	if strings.Count(r.path, "/") == 1 {
		id += "Process" // not to be taken for the API's route of that name
	}
	for word := range strings.FieldsFuncSeq(r.path, func(c rune) bool { return strings.ContainsRune("/{}-.", c) }) {
		if word == "api" || word == "v1" {
			continue
		}
		id += strings.ToUpper(word[:1]) + word[1:]
	}
	return id
}

// tagOf groups the operations by the first telling word of the path.
func tagOf(path string) string {
	for word := range strings.SplitSeq(path[1:], "/") {
		if word != "api" && word != "v1" {
			return strings.TrimSuffix(word, ".json")
		}
	}
	return path
}

func parametersOf(r *route) []any {
	var parameters []any
	for segment := range strings.SplitSeq(r.path, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			parameters = append(parameters, map[string]any{
				"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true, "schema": map[string]any{"type": "string"},
			})
		}
	}
	for field := range strings.FieldsSeq(r.query) {
		name, kind, _ := strings.Cut(field, ":")
		schema := map[string]any{"type": "string"}
		switch kind {
		case "int":
			schema["type"] = "integer"
		case "bool":
			schema["type"] = "boolean"
		}
		parameters = append(parameters, map[string]any{"name": name, "in": "query", "schema": schema})
	}
	return parameters
}
