package api

import (
	"bytes"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"errors"
	"fmt"
	"net/http"
)

// decodeObject reads a JSON object. Of a repeated member the last one counts. Its errors are *syntaxError.
func decodeObject(body []byte) (map[string]jsontext.Value, error) {
	var s jsonScanner
	if err := s.reset(body); err != nil {
		return nil, err
	}
	if s.peek() != '{' {
		return nil, s.unexpected("an object")
	}
	if err := s.skip(); err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	var members map[string]jsontext.Value
	err := jsonv2.Unmarshal(body, &members, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return nil, &syntaxError{int(syntax.ByteOffset), syntax.Err.Error()}
	}
	return members, err
}

// readObject reads the body of a request, which must be an object.
func (s *Server) readObject(w http.ResponseWriter, r *http.Request) (map[string]jsontext.Value, error) {
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return nil, err
	}
	return requiredObject(body)
}

// requiredObject reads a body that must be an object.
func requiredObject(body []byte) (map[string]jsontext.Value, error) {
	members, err := decodeObject(body)
	if err != nil {
		return nil, badBody(body, err)
	}
	return members, nil
}

// optionalObject reads a body all of whose members are optional: no body at all is an empty object, and so is what isEmpty says.
func optionalObject(body []byte) (map[string]jsontext.Value, error) {
	if isEmpty(body) {
		return map[string]jsontext.Value{}, nil
	}
	return requiredObject(body)
}

// isEmpty reports whether a text stands for an object without members where all members are optional: nothing, null, and the empty
// array, which is how PHP writes an empty map.
func isEmpty(text []byte) bool {
	text = bytes.TrimSpace(text)
	if inner, ok := bytes.CutPrefix(text, []byte("[")); ok {
		return bytes.Equal(bytes.TrimSpace(inner), []byte("]"))
	}
	return len(text) == 0 || bytes.Equal(text, []byte("null"))
}

// present returns a member that is there and not null.
func present(members map[string]jsontext.Value, name string) (jsontext.Value, bool) {
	raw, ok := members[name]
	return raw, ok && !bytes.Equal(raw, []byte("null"))
}

// stringMember returns a string member; absent and null are empty.
func stringMember(members map[string]jsontext.Value, name string) (string, error) {
	raw, ok := present(members, name)
	if !ok {
		return "", nil
	}
	var text string
	if err := jsonv2.Unmarshal(raw, &text); err != nil {
		return "", newError(codeBadBody, fmt.Sprintf("bad body: %s must be a string", name))
	}
	return text, nil
}

// boolMember returns a boolean member and whether it is there; null is absent.
func boolMember(members map[string]jsontext.Value, name string) (value, given bool, err error) {
	raw, ok := present(members, name)
	if !ok {
		return false, false, nil
	}
	if err := jsonv2.Unmarshal(raw, &value); err != nil {
		return false, false, newError(codeBadBody, fmt.Sprintf("bad body: %s must be true or false", name))
	}
	return value, true, nil
}

// integerMember returns an integer member, nil when it is absent or null.
func integerMember(members map[string]jsontext.Value, name string) (*int64, error) {
	raw, ok := present(members, name)
	if !ok {
		return nil, nil //nolint:nilnil // absent is no error
	}
	var n int64
	if err := jsonv2.Unmarshal(raw, &n); err != nil {
		return nil, newError(codeBadBody, fmt.Sprintf("bad body: %s must be an integer", name))
	}
	return &n, nil
}
