package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"queenmq/cmd/queenctl/output"
)

// atPath returns the text of a member inside a JSON payload: "customer.id", "items.0.sku". A leading "$." or "." is allowed. Texts come
// without quotes, numbers with the digits they were written with; anything else has no text.
func atPath(payload json.RawMessage, path string) (string, error) {
	value, err := output.Decode(payload)
	if err != nil {
		return "", err
	}
	walked := strings.TrimPrefix(strings.TrimPrefix(path, "$"), ".")
	for name := range strings.SplitSeq(walked, ".") {
		switch inner := value.(type) {
		case map[string]any:
			var ok bool
			if value, ok = inner[name]; !ok {
				return "", fmt.Errorf("there is no %q on the path %s", name, path)
			}
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(inner) {
				return "", fmt.Errorf("there is no element %q on the path %s", name, path)
			}
			value = inner[i]
		default:
			return "", fmt.Errorf("there is no %q on the path %s", name, path)
		}
	}
	switch v := value.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool:
		return strconv.FormatBool(v), nil
	}
	return "", fmt.Errorf("the value at %s is neither a text nor a number", path)
}
