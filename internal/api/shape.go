package api

import (
	"encoding/json"
	"fmt"
	"strings"
)

// A shape is a JSON document in which texts are the names of types: it says what a body looks like in the form of one.
//
// The types are string, int, number, bool, uuid, time and any; "|null" behind a type allows null. A member whose name ends
// in "?" may be missing, one whose name ends in "|null" may be null, and the member "*" stands for any others. An array has
// one element, the shape of all of them. Objects may have members that their shape does not name: answers gain fields.
type shape string

// schema turns a shape into a JSON schema of OpenAPI 3.1. It fails for what is no shape, which tests find.
func (s shape) schema() (map[string]any, error) {
	var document any
	if err := json.Unmarshal([]byte(s), &document); err != nil {
		return nil, fmt.Errorf("shape %s: %w", s, err)
	}
	return schemaOf(document, false)
}

func schemaOf(document any, nullable bool) (map[string]any, error) {
	switch document := document.(type) {
	case string:
		return typeSchema(document)
	case []any:
		if len(document) != 1 {
			return nil, fmt.Errorf("an array of a shape has one element, not %d", len(document))
		}
		items, err := schemaOf(document[0], false)
		return map[string]any{"type": nullableType("array", nullable), "items": items}, err
	case map[string]any:
		return objectSchema(document, nullable)
	}
	return nil, fmt.Errorf("%v is no shape", document)
}

func objectSchema(document map[string]any, nullable bool) (map[string]any, error) {
	schema := map[string]any{"type": nullableType("object", nullable)}
	properties := map[string]any{}
	required := []string{}
	for name, inner := range document {
		name, isOptional := strings.CutSuffix(name, "?")
		name, isNullable := strings.CutSuffix(name, "|null")
		member, err := schemaOf(inner, isNullable)
		if err != nil {
			return nil, err
		}
		if name == "*" {
			schema["additionalProperties"] = member
			continue
		}
		properties[name] = member
		if !isOptional {
			required = append(required, name)
		}
	}
	if len(properties) > 0 {
		schema["properties"] = properties
	}
	if len(required) > 0 {
		schema["required"] = sorted(required)
	}
	return schema, nil
}

// typeSchema is the schema of one named type.
func typeSchema(name string) (map[string]any, error) {
	name, nullable := strings.CutSuffix(name, "|null")
	switch name {
	case "any":
		return map[string]any{}, nil
	case "string":
		return map[string]any{"type": nullableType("string", nullable)}, nil
	case "uuid":
		return map[string]any{"type": nullableType("string", nullable), "format": "uuid"}, nil
	case "time":
		return map[string]any{"type": nullableType("string", nullable), "format": "date-time"}, nil
	case "int":
		return map[string]any{"type": nullableType("integer", nullable)}, nil
	case "number":
		return map[string]any{"type": nullableType("number", nullable)}, nil
	case "bool":
		return map[string]any{"type": nullableType("boolean", nullable)}, nil
	}
	return nil, fmt.Errorf("%q is no type of a shape", name)
}

func nullableType(name string, nullable bool) any {
	if nullable {
		return []string{name, "null"}
	}
	return name
}
