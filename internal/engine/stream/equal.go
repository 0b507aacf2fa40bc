package stream

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// equal compares two values as the database would: members in any order, of members of one name the last, numbers by what they are worth.
func equal(a, b json.RawMessage) bool {
	left, errLeft := decode(a)
	right, errRight := decode(b)
	return errLeft == nil && errRight == nil && same(left, right)
}

func decode(text json.RawMessage) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err = decoder.Decode(&value)
	return value, err
}

func same(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, same)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, same)
	case json.Number:
		b, ok := b.(json.Number)
		return ok && plainNumber(a) == plainNumber(b)
	default:
		return a == b
	}
}

// A number is sign, digits without zeros at either end, and the power of ten of the last digit. Zero has no digits.
type number struct {
	negative bool
	digits   string
	exponent int64
}

func plainNumber(text json.Number) number {
	var n number
	mantissa, exponent, _ := strings.Cut(strings.ToLower(string(text)), "e")
	n.exponent, _ = strconv.ParseInt(strings.TrimPrefix(exponent, "+"), 10, 64) // "" is 0; beyond 64 bits is the largest
	mantissa, n.negative = strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	n.exponent -= int64(len(fraction))
	n.digits = strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(n.digits, "0")
	n.exponent += int64(len(n.digits) - len(short))
	n.digits = short
	if short == "" {
		return number{}
	}
	return n
}
