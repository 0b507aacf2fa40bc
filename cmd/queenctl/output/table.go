package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Column is one column of a table.
type Column struct {
	// Header stands above the column, in capitals.
	Header string
	// Paths are the members that may hold the value, as in "messages.pending"; the first one that is there counts. Brokers of
	// different versions name some things differently.
	Paths []string
	// Wide columns are shown with -o wide only.
	Wide bool
	// Right aligns to the right, for numbers.
	Right bool
	// Most is the most characters that are shown; 0 is any number. Wide tables show everything.
	Most int
}

// Col is a column of text.
func Col(header string, paths ...string) Column { return Column{Header: header, Paths: paths} }

// Num is a column of numbers.
func Num(header string, paths ...string) Column {
	return Column{Header: header, Paths: paths, Right: true}
}

// InWide returns the column for wide tables only.
func (c Column) InWide() Column { c.Wide = true; return c }

// AtMost returns the column cut to some characters.
func (c Column) AtMost(characters int) Column { c.Most = characters; return c }

// visible are the columns that the format shows.
func (p *Printer) visible(columns []Column) []Column {
	var shown []Column
	for _, c := range columns {
		if p.Format.name == "wide" {
			c.Most = 0
		} else if c.Wide {
			continue
		}
		shown = append(shown, c)
	}
	return shown
}

func (p *Printer) table(items []json.RawMessage, columns []Column) error {
	columns = p.visible(columns)
	rows := [][]string{make([]string, len(columns))}
	for i, c := range columns {
		rows[0][i] = c.Header
	}
	for _, item := range items {
		cells, err := row(item, columns)
		if err != nil {
			return err
		}
		rows = append(rows, cells)
	}
	right := make([]bool, len(columns))
	for i, c := range columns {
		right[i] = c.Right
	}
	return writeRows(p.Out, rows, right)
}

// Rows writes a table of ready cells; the first row is the header.
func (p *Printer) Rows(rows [][]string, right ...int) error {
	align := make([]bool, len(rows[0]))
	for _, i := range right {
		align[i] = true
	}
	for _, cells := range rows {
		for i, cell := range cells {
			cells[i] = Clean(cell)
		}
	}
	return writeRows(p.Out, rows, align)
}

func writeRows(to io.Writer, rows [][]string, right []bool) error {
	widths := make([]int, len(right))
	for _, cells := range rows {
		for i, cell := range cells {
			widths[i] = max(widths[i], width(cell))
		}
	}
	var b strings.Builder
	for _, cells := range rows {
		var line strings.Builder
		for i, cell := range cells {
			if i > 0 {
				line.WriteString("  ")
			}
			pad := strings.Repeat(" ", widths[i]-width(cell))
			if right[i] {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " "))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// width is how many columns a text takes: wide characters of East Asia take two, combining ones none.
func width(text string) int {
	n := 0
	for _, r := range text {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me):
		case r >= 0x1100 && (r <= 0x115f || r >= 0x2e80 && r <= 0xa4cf || r >= 0xac00 && r <= 0xd7a3 || r >= 0xf900 && r <= 0xfaff ||
			r >= 0xfe30 && r <= 0xfe6f || r >= 0xff00 && r <= 0xff60 || r >= 0xffe0 && r <= 0xffe6 || r >= 0x1f300 && r <= 0x1faff || r >= 0x20000 && r <= 0x3fffd):
			n += 2
		default:
			n++
		}
	}
	return n
}

// row makes the cells of one item.
func row(item json.RawMessage, columns []Column) ([]string, error) {
	if _, err := Decode(item); err != nil {
		return nil, err
	}
	cells := make([]string, len(columns))
	for i, c := range columns {
		cells[i] = cut(rawCell(item, c.Paths), c.Most)
	}
	return cells, nil
}

// rawCell is Cell for bytes: objects and arrays keep the order and the digits that they came with.
func rawCell(item json.RawMessage, paths []string) string {
	for _, path := range paths {
		value := item
		for name := range strings.SplitSeq(path, ".") {
			var object map[string]json.RawMessage
			if path != "" {
				if json.Unmarshal(value, &object) != nil {
					value = nil
					break
				}
				value = object[name]
			}
		}
		if len(value) == 0 || string(value) == "null" {
			continue
		}
		if value[0] == '{' || value[0] == '[' {
			if decoded, err := Decode(value); err == nil {
				if list, is := decoded.([]any); is {
					if texts, ok := textsOf(list); ok && len(texts) > 0 {
						return Clean(strings.Join(texts, ","))
					}
				}
			}
			var compact bytes.Buffer
			if json.Compact(&compact, value) == nil {
				return Clean(compact.String())
			}
		}
		if decoded, err := Decode(value); err == nil {
			return cellOf(decoded)
		}
	}
	return "-"
}

func cut(text string, most int) string {
	if most <= 0 || utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

// Cell is the text of the first of the paths that a decoded value has, "-" for none: unknown is not zero and not empty.
func Cell(decoded any, paths ...string) string {
	for _, path := range paths {
		if value, ok := At(decoded, path); ok && value != nil {
			return cellOf(value)
		}
	}
	return "-"
}

// At follows a path like "messages.pending" into a decoded value; the empty path is the value itself.
func At(decoded any, path string) (any, bool) {
	if path == "" {
		return decoded, true
	}
	for name := range strings.SplitSeq(path, ".") {
		object, ok := decoded.(map[string]any)
		if !ok {
			return nil, false
		}
		if decoded, ok = object[name]; !ok {
			return nil, false
		}
	}
	return decoded, true
}

func cellOf(value any) string {
	switch v := value.(type) {
	case string:
		if v == "" {
			return `""`
		}
		return Clean(v)
	case json.Number:
		return v.String()
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case []any:
		if texts, ok := textsOf(v); ok {
			return Clean(strings.Join(texts, ","))
		}
	}
	text, err := json.Marshal(value)
	if err != nil {
		return "-"
	}
	return Clean(string(text))
}

func textsOf(values []any) ([]string, bool) {
	texts := make([]string, len(values))
	for i, v := range values {
		text, ok := v.(string)
		if !ok {
			return nil, false
		}
		texts[i] = text
	}
	return texts, true
}

// members shows an object line by line, the members of inner objects with their path.
func (p *Printer) members(item json.RawMessage) error {
	var rows [][]string
	if err := flatten(item, "", &rows); err != nil {
		return err
	}
	if len(rows) == 0 {
		return nil
	}
	return writeRows(p.Out, rows, []bool{false, false})
}

func flatten(item json.RawMessage, prefix string, rows *[][]string) error {
	var names []string
	values, err := ordered(item, &names)
	if err != nil {
		return err
	}
	if values == nil || prefix == "data" || prefix == "payload" { // a payload is shown as it is
		*rows = append(*rows, []string{Clean(prefix), rawCell(item, []string{""})})
		return nil
	}
	for i, name := range names {
		path := name
		if prefix != "" {
			path = prefix + "." + name
		}
		if err := flatten(values[i], path, rows); err != nil {
			return err
		}
	}
	return nil
}

// ordered returns the members of a JSON object in their order, nil for anything else.
func ordered(item json.RawMessage, names *[]string) ([]json.RawMessage, error) {
	decoder := json.NewDecoder(strings.NewReader(string(item)))
	token, err := decoder.Token()
	if err != nil {
		return nil, fmt.Errorf("the answer is no JSON: %w", err)
	}
	if token != json.Delim('{') {
		return nil, nil
	}
	values := []json.RawMessage{}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		*names = append(*names, name.(string))
		values = append(values, value)
	}
	return values, nil
}

// Without returns a JSON object without one of its members; the bytes of the others stay.
func Without(item json.RawMessage, member string) (json.RawMessage, error) {
	var names []string
	values, err := ordered(item, &names)
	if err != nil || values == nil {
		return item, err
	}
	kept := []byte{'{'}
	for i, name := range names {
		if name == member {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		text, err := json.Marshal(name)
		if err != nil {
			return item, err
		}
		kept = append(append(append(kept, text...), ':'), values[i]...)
	}
	return append(kept, '}'), nil
}

// Members returns the members of a JSON object in their order.
func Members(item json.RawMessage) (names []string, values []json.RawMessage, err error) {
	values, err = ordered(item, &names)
	if err == nil && values == nil {
		err = fmt.Errorf("%.40q is no object", item)
	}
	return names, values, err
}

// Fit cuts a text to the lines and columns of a terminal.
func Fit(text string, columns, lines int) string {
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(all) > lines {
		all = all[:max(lines, 0)]
	}
	for i, line := range all {
		for width(line) > columns && line != "" {
			_, size := utf8.DecodeLastRuneInString(line)
			line = line[:len(line)-size]
		}
		all[i] = line
	}
	return strings.Join(all, "\n") + "\n"
}
