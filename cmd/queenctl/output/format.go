package output

import (
	"bytes"
	"encoding/json"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"
)

// A Format is how answers are shown; see [ParseFormat].
type Format struct {
	name     string
	template *template.Template
	path     []pathStep
}

// Formats are the names that ParseFormat takes, for help texts and completion.
var Formats = []string{"table", "wide", "json", "ndjson", "yaml", "template=", "jsonpath="}

// ParseFormat reads the value of -o: table, wide, json, ndjson, yaml, template=TEXT, a Go template that is applied to each
// item, or jsonpath=PATH, which is applied to the whole answer.
func ParseFormat(text string) (Format, error) {
	if body, ok := strings.CutPrefix(text, "template="); ok {
		t, err := template.New("output").Option("missingkey=zero").Funcs(template.FuncMap{"json": compactJSON}).Parse(body)
		if err != nil {
			return Format{}, fmt.Errorf("output template: %w", err)
		}
		return Format{name: "template", template: t}, nil
	}
	if path, ok := strings.CutPrefix(text, "jsonpath="); ok {
		steps, err := parsePath(path)
		return Format{name: "jsonpath", path: steps}, err
	}
	switch text {
	case "table", "wide", "json", "ndjson", "yaml":
		return Format{name: text}, nil
	}
	return Format{}, fmt.Errorf("unknown output format %q: choose table, wide, json, ndjson, yaml, template=TEXT or jsonpath=PATH", text)
}

// Table reports whether the format is for people.
func (f Format) Table() bool { return f.name == "table" || f.name == "wide" }

// A Printer shows answers in one format.
type Printer struct {
	Out    io.Writer
	Format Format
}

// List shows the items of a list. In JSON and YAML they stand below key as the broker sends them; key "" is a bare array.
func (p *Printer) List(key string, items []json.RawMessage, columns []Column) error {
	switch p.Format.name {
	case "table", "wide":
		return p.table(items, columns)
	case "json", "yaml":
		return p.document(join(key, items))
	case "jsonpath":
		return p.path(join(key, items))
	}
	for _, item := range items {
		if err := p.line(item); err != nil {
			return err
		}
	}
	return nil
}

// Item shows one answer. A table has a line for each member of the object.
func (p *Printer) Item(item json.RawMessage) error {
	switch p.Format.name {
	case "table", "wide":
		return p.members(item)
	case "json", "yaml":
		return p.document(item)
	case "jsonpath":
		return p.path(item)
	}
	return p.line(item)
}

// Each shows one item of an endless list: a line in every format but YAML, which separates documents.
func (p *Printer) Each(item json.RawMessage, columns []Column) error {
	switch p.Format.name {
	case "table", "wide":
		cells, err := row(item, p.visible(columns))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(p.Out, strings.Join(cells, "  "))
		return err
	case "jsonpath":
		return p.path(item)
	case "yaml":
		if _, err := io.WriteString(p.Out, "---\n"); err != nil {
			return err
		}
		return p.document(item)
	}
	return p.line(item)
}

// document shows a value in several lines.
func (p *Printer) document(value json.RawMessage) error {
	if p.Format.name == "yaml" {
		text, err := YAML(value)
		if err != nil {
			return err
		}
		_, err = p.Out.Write(text)
		return err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, value, "", "  "); err != nil {
		return fmt.Errorf("the answer is no JSON: %w", err)
	}
	indented.WriteByte('\n')
	_, err := p.Out.Write(indented.Bytes())
	return err
}

// line shows a value in one line: NDJSON, or what the template makes of it.
func (p *Printer) line(value json.RawMessage) error {
	if p.Format.name == "template" {
		decoded, err := Decode(value)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := p.Format.template.Execute(&text, decoded); err != nil {
			return fmt.Errorf("output template: %w", err)
		}
		text.WriteByte('\n')
		_, err = p.Out.Write(text.Bytes())
		return err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, value); err != nil {
		return fmt.Errorf("the answer is no JSON: %w", err)
	}
	compact.WriteByte('\n')
	_, err := p.Out.Write(compact.Bytes())
	return err
}

func join(key string, items []json.RawMessage) json.RawMessage {
	array := append([]byte{'['}, bytes.Join(rawSlices(items), []byte{','})...)
	array = append(array, ']')
	if key == "" {
		return array
	}
	return fmt.Appendf(nil, `{%q:%s}`, key, array)
}

func rawSlices(items []json.RawMessage) [][]byte {
	slices := make([][]byte, len(items))
	for i, item := range items {
		slices[i] = item
	}
	return slices
}

// Decode reads JSON for templates and tables; numbers keep their text.
func Decode(value json.RawMessage) (any, error) {
	var decoded any
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	if err := decoder.Decode(&decoded); err != nil {
		return nil, fmt.Errorf("the answer is no JSON: %w", err)
	}
	return decoded, nil
}

func compactJSON(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}

// YAML writes a JSON value as YAML, members in the same order and numbers with the same digits.
func YAML(value json.RawMessage) ([]byte, error) {
	node, err := nodeOf(jsontext.NewDecoder(bytes.NewReader(value), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)))
	if err != nil {
		return nil, fmt.Errorf("the answer is no JSON: %w", err)
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := errors.Join(encoder.Encode(node), encoder.Close()); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}

func nodeOf(decoder *jsontext.Decoder) (*yaml.Node, error) {
	token, err := decoder.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{', '[':
		node := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		if token.Kind() == '[' {
			node = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		}
		for decoder.PeekKind() != '}' && decoder.PeekKind() != ']' {
			child, err := nodeOf(decoder)
			if err != nil {
				return nil, err
			}
			node.Content = append(node.Content, child)
		}
		if len(node.Content) == 0 {
			node.Style = yaml.FlowStyle
		}
		_, err := decoder.ReadToken()
		return node, err
	case '"':
		node := new(yaml.Node)
		node.SetString(token.String())
		return node, nil
	case '0':
		tag := "!!int"
		if strings.ContainsAny(token.String(), ".eE") {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: token.String()}, nil
	case 't', 'f':
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: token.String()}, nil
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}, nil
}

// Whole reports whether the format shows answers as documents, with what stands beside a list.
func (f Format) Whole() bool { return f.name == "json" || f.name == "yaml" || f.name == "jsonpath" }
