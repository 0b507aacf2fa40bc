package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// A pathStep goes from a value to those below it.
type pathStep struct {
	name  string // member of an object
	index int    // element of an array, from the end below 0, when name is "" and not all
	all   bool   // every element or member
}

// parsePath reads the part of JSONPath that scripts use: {.queues[*].name}, $.messages[0].data, .totals['dead letter'].
func parsePath(text string) ([]pathStep, error) {
	rest := strings.TrimSpace(text)
	if inner, ok := strings.CutPrefix(rest, "{"); ok {
		if rest, ok = strings.CutSuffix(inner, "}"); !ok {
			return nil, fmt.Errorf("jsonpath %q: the brace is not closed", text)
		}
	}
	rest = strings.TrimPrefix(rest, "$")
	var steps []pathStep
	for rest != "" && rest != "." {
		var step pathStep
		switch {
		case strings.HasPrefix(rest, ".."), strings.HasPrefix(rest, "[?"):
			return nil, fmt.Errorf("jsonpath %q: there are no filters and no recursion here; use -o template or jq", text)
		case rest[0] == '.':
			end := strings.IndexAny(rest[1:], ".[") + 1
			if end == 0 {
				end = len(rest)
			}
			step.name, rest = rest[1:end], rest[end:]
		case rest[0] == '[':
			end := strings.IndexByte(rest, ']')
			if end < 0 {
				return nil, fmt.Errorf("jsonpath %q: a bracket is not closed", text)
			}
			inner := rest[1:end]
			rest = rest[end+1:]
			if n := len(inner); n >= 2 && strings.ContainsRune(`'"`, rune(inner[0])) && inner[n-1] == inner[0] {
				step.name = inner[1 : n-1]
			} else if inner != "*" {
				i, err := strconv.Atoi(inner)
				if err != nil {
					return nil, fmt.Errorf("jsonpath %q: [%s] is neither a number, a quoted name nor *", text, inner)
				}
				steps = append(steps, pathStep{index: i})
				continue
			} else {
				step.name = "*"
			}
		default:
			return nil, fmt.Errorf("jsonpath %q: a path starts with a dot or a bracket", text)
		}
		if step.name == "*" {
			step = pathStep{all: true}
		} else if step.name == "" {
			return nil, fmt.Errorf("jsonpath %q: a name is missing", text)
		}
		steps = append(steps, step)
	}
	return steps, nil
}

// follow returns the values that a path leads to; what is not there leads nowhere.
func follow(value json.RawMessage, steps []pathStep) ([]json.RawMessage, error) {
	if len(steps) == 0 {
		return []json.RawMessage{value}, nil
	}
	var below []json.RawMessage
	switch step := steps[0]; bytes.TrimSpace(value)[0] {
	case '{':
		names, values, err := Members(value)
		if err != nil {
			return nil, err
		}
		for i, name := range names {
			if step.all || name == step.name {
				below = append(below, values[i])
			}
		}
	case '[':
		var elements []json.RawMessage
		if err := json.Unmarshal(value, &elements); err != nil {
			return nil, err
		}
		if step.all {
			below = elements
		} else if i := step.index; step.name == "" {
			if i < 0 {
				i += len(elements)
			}
			if i >= 0 && i < len(elements) {
				below = elements[i : i+1]
			}
		}
	}
	var found []json.RawMessage
	for _, v := range below {
		deeper, err := follow(v, steps[1:])
		if err != nil {
			return nil, err
		}
		found = append(found, deeper...)
	}
	return found, nil
}

// path shows what a JSONPath leads to, a value a line; texts come without quotes.
func (p *Printer) path(value json.RawMessage) error {
	found, err := follow(value, p.Format.path)
	if err != nil {
		return err
	}
	for _, v := range found {
		var text string
		if json.Unmarshal(v, &text) != nil || v[0] != '"' {
			var compact bytes.Buffer
			if err := json.Compact(&compact, v); err != nil {
				return err
			}
			text = compact.String()
		}
		if _, err := fmt.Fprintln(p.Out, text); err != nil {
			return err
		}
	}
	return nil
}
