package browse

import (
	"bytes"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A Condition is what a payload must be like, such as `order.id = "7"`, `lines[*].count > 2`, `name ~ smith` or just `order.id`, which must
// be there. A path may start with "payload."; keys with dots are written ["a.b"], and of members with the same key each is looked at. The
// operators are =, !=, <, <=, >, >= and ~, which is "contains" in any case. Strings may stand without quotes. Numbers are equal when their
// texts are, or their values when neither has more digits than a double keeps. Only JSON fits. Make one with [ParseCondition].
type Condition struct {
	path               []step
	operator           string
	wanted, wantedText string
}

// A step leads from a value to those in it: to members of a name, to an element, or to all there are.
type step struct {
	name  string
	index int
	kind  stepKind
}

type stepKind int

const (
	stepMember stepKind = iota
	stepElement
	stepAll
)

// ErrCondition is what a text that is no condition fails with.
var ErrCondition = errors.New("payload")

const (
	// maxCondition bounds the text of a condition, in bytes.
	maxCondition = 4096
	// exactDigits is how many decimal digits a double keeps in any case.
	exactDigits = 15
)

var (
	conditionPattern = regexp.MustCompile(`(?s)^\s*(.+?)\s*(!=|>=|<=|=|>|<|~)\s*(.+?)\s*$`)
	stepPattern      = regexp.MustCompile(`^(?:\.?([^.\[\]\s"]+)|\[(\d{1,9})\]|\[(\*)\]|\[("(?:[^"\\]|\\.)*")\])`)
)

// ParseCondition reads a condition. Errors: ErrCondition, with words for the one who wrote it.
func ParseCondition(text string) (Condition, error) {
	if len(text) > maxCondition {
		return Condition{}, fmt.Errorf("%w: a condition has at most %d bytes", ErrCondition, maxCondition)
	}
	var c Condition
	path := strings.TrimSpace(text)
	if found := conditionPattern.FindStringSubmatch(text); found != nil {
		path, c.operator, c.wanted, c.wantedText = found[1], found[2], found[3], found[3]
		if strings.HasPrefix(c.wanted, `"`) {
			plain, err := jsontext.AppendUnquote(nil, c.wanted)
			if err != nil {
				return Condition{}, fmt.Errorf("%w: %s is a string that does not end", ErrCondition, c.wanted)
			}
			c.wantedText = string(plain)
		}
	}
	var err error
	c.path, err = parsePath(path)
	return c, err
}

// parsePath reads a path; "payload" in front of it is the whole.
func parsePath(path string) ([]step, error) {
	if rest, ok := strings.CutPrefix(path, "payload"); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
		path = strings.TrimPrefix(rest, ".")
	}
	var steps []step
	for path != "" {
		found := stepPattern.FindStringSubmatch(path)
		if found == nil {
			return nil, fmt.Errorf("%w: cannot read the path from %q on", ErrCondition, path)
		}
		one := step{name: found[1]}
		switch {
		case found[1] == "*", found[3] != "":
			one.kind = stepAll
		case found[2] != "":
			one.kind = stepElement
			one.index, _ = strconv.Atoi(found[2]) // nine digits
		case found[4] != "":
			plain, err := jsontext.AppendUnquote(nil, found[4])
			if err != nil {
				return nil, fmt.Errorf("%w: %s is no key", ErrCondition, found[4])
			}
			one.name = string(plain)
		}
		steps = append(steps, one)
		path = path[len(found[0]):]
	}
	return steps, nil
}

// Holds reports whether a value on the path is as wanted. What is no JSON never is.
func (c Condition) Holds(payload []byte) bool {
	decoder := jsontext.NewDecoder(bytes.NewReader(payload), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	held := false
	if err := c.walk(decoder, c.path, &held); err != nil {
		return false
	}
	// Behind the value there is nothing, or the whole is no JSON.
	_, err := decoder.ReadToken()
	return held && err != nil && decoder.InputOffset() > 0 && isBlank(payload[decoder.InputOffset():])
}

func isBlank(rest []byte) bool { return len(bytes.TrimSpace(rest)) == 0 }

// walk reads one value and looks at those on the path.
func (c Condition) walk(decoder *jsontext.Decoder, path []step, held *bool) error {
	if *held {
		return decoder.SkipValue()
	}
	if len(path) == 0 {
		value, err := decoder.ReadValue()
		if err == nil {
			*held = c.isWanted(value)
		}
		return err
	}
	kind := decoder.PeekKind()
	if kind != '{' && kind != '[' {
		return decoder.SkipValue()
	}
	if _, err := decoder.ReadToken(); err != nil {
		return err
	}
	for n := 0; decoder.PeekKind() != '}' && decoder.PeekKind() != ']'; n++ {
		leads := path[0].kind == stepAll || kind == '[' && path[0].kind == stepElement && path[0].index == n
		if kind == '{' {
			name, err := decoder.ReadToken()
			if err != nil {
				return err
			}
			leads = leads || path[0].kind == stepMember && name.String() == path[0].name
		}
		var err error
		if leads {
			err = c.walk(decoder, path[1:], held)
		} else {
			err = decoder.SkipValue()
		}
		if err != nil {
			return err
		}
	}
	_, err := decoder.ReadToken()
	return err
}

// isWanted compares one value.
func (c Condition) isWanted(value jsontext.Value) bool {
	if c.operator == "" {
		return true
	}
	own := string(value)
	if value.Kind() == '"' {
		if plain, err := jsontext.AppendUnquote(nil, value); err == nil {
			own = string(plain)
		}
	}
	switch c.operator {
	case "=":
		return own == c.wantedText || c.isSameNumber(value)
	case "!=":
		return own != c.wantedText && !c.isSameNumber(value)
	case "~":
		return strings.Contains(strings.ToLower(own), strings.ToLower(c.wantedText))
	}
	order := strings.Compare(own, c.wantedText)
	if wanted, err := strconv.ParseFloat(c.wanted, 64); err == nil && value.Kind() == '0' {
		number, err := strconv.ParseFloat(string(value), 64)
		if err != nil && number == 0 {
			return false
		}
		order = compare(number, wanted)
	}
	switch c.operator {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	}
	return order >= 0
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// isSameNumber reports whether a number has the wanted value. Two long numbers that round to the same double are not the same number.
func (c Condition) isSameNumber(value jsontext.Value) bool {
	if value.Kind() != '0' || digits(string(value)) > exactDigits || digits(c.wanted) > exactDigits {
		return false
	}
	a, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return false
	}
	b, err := strconv.ParseFloat(c.wanted, 64)
	return err == nil && a == b
}

func digits(text string) int {
	n := 0
	for _, one := range text {
		if one >= '0' && one <= '9' {
			n++
		}
	}
	return n
}
