package api

import "fmt"

// A memberScanner reads the members that requests are made of. Its errors name the element they are in.
type memberScanner struct {
	jsonScanner
	// scratch holds un-escaped text until the next use.
	scratch []byte
	// noun and index name the element being read, as in "item 3"; noun is empty outside of arrays.
	noun  string
	index int
	// textAt is where the last text began, textEscaped whether it held escapes.
	textAt      int
	textEscaped bool
}

// object reads an object that comes next and calls member with the name of each member, whose value it must take. Names that
// no request uses are "".
func (m *memberScanner) object(want string, member func(name string) error) error {
	if m.peek() != '{' {
		return m.unexpected(want)
	}
	more, err := m.open()
	for ; more && err == nil; more, err = m.next() {
		name, err := m.member()
		if err != nil {
			return err
		}
		if err := member(name); err != nil {
			return err
		}
	}
	return err
}

// element is object for an element of an array.
func (m *memberScanner) element(member func(name string) error) error {
	if m.peek() != '{' {
		return m.unexpected(fmt.Sprintf("an object for %s %d", m.noun, m.index))
	}
	return m.object("", member)
}

// array reads an array that comes next and calls element before each of its elements. Null is absent.
func (m *memberScanner) array(name string, element func(index int) error) (present bool, err error) {
	switch m.peek() {
	case 'n':
		return false, m.literal('n')
	case '[':
	default:
		return false, m.unexpected("an array for `" + name + "`" + m.place())
	}
	more, err := m.open()
	for index := 0; more && err == nil; more, err = m.next() {
		if err := element(index); err != nil {
			return false, err
		}
		index++
	}
	return err == nil, err
}

// member takes a member name and its colon.
func (m *memberScanner) member() (string, error) {
	raw, escaped, err := m.key()
	if err != nil {
		return "", err
	}
	if escaped {
		m.scratch, _ = appendUnescaped(m.scratch[:0], raw)
		raw = m.scratch
	}
	return knownMember(raw), nil
}

// text takes a string. Null is absent. Lone surrogate escapes are refused: no name can hold them. The bytes are valid until
// the next call.
func (m *memberScanner) text(name string) (text []byte, present bool, err error) {
	text, present, lone, err := m.freeText(name)
	if err == nil && lone {
		err = &syntaxError{m.textAt, loneSurrogateText + " (`" + name + "`" + m.place() + ")"}
	}
	return text, present, err
}

// freeText is text for strings that are shown and never compared: lone surrogates become U+FFFD and are reported.
func (m *memberScanner) freeText(name string) (text []byte, present, lone bool, err error) {
	switch m.peek() {
	case 'n':
		return nil, false, false, m.literal('n')
	case '"':
	default:
		return nil, false, false, m.unexpected("a string for `" + name + "`" + m.place())
	}
	m.textAt = m.pos
	text, m.textEscaped, err = m.str()
	if err != nil || !m.textEscaped {
		return text, true, false, err
	}
	m.scratch, lone = appendUnescaped(m.scratch[:0], text)
	return m.scratch, true, lone, nil
}

// name is text for names that are stored, which must not hold control characters. Only escapes can bring them in.
func (m *memberScanner) name(member string) (text []byte, present bool, err error) {
	text, present, err = m.text(member)
	if err == nil && present && m.textEscaped && hasControl(text) {
		err = &syntaxError{m.textAt, controlCharactersText}
	}
	return text, present, err
}

// place names the element being read, for the end of an error text.
func (m *memberScanner) place() string {
	if m.noun == "" {
		return ""
	}
	return fmt.Sprintf(" of %s %d", m.noun, m.index)
}

// reused returns text as a string, the earlier one when it is the same: neighbours mostly share their names.
func reused(text []byte, earlier string) string {
	if string(text) == earlier {
		return earlier
	}
	return string(text)
}

// knownMember returns the member name as one of the constants that requests are made of, "" for any other.
func knownMember(name []byte) string {
	switch string(name) {
	case "items":
		return "items"
	case "queue":
		return "queue"
	case "partition":
		return "partition"
	case "payload":
		return "payload"
	case "data":
		return "data"
	case "transactionId":
		return "transactionId"
	case "traceId":
		return "traceId"
	case "traceparent":
		return "traceparent"
	case "partitionId":
		return "partitionId"
	case "status":
		return "status"
	case "consumerGroup":
		return "consumerGroup"
	case "leaseId":
		return "leaseId"
	case "error":
		return "error"
	case "delayMs":
		return "delayMs"
	case "acknowledgments":
		return "acknowledgments"
	case "operations":
		return "operations"
	case "requiredLeases":
		return "requiredLeases"
	case "type":
		return "type"
	}
	return ""
}
