package api

import (
	"bytes"
	"encoding/json"
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// configureRequest is a configure body taken apart.
type configureRequest struct {
	queue, namespace, task string
	// options is the JSON object for the procedure. The reserved keys __mode and __strict carry what is not an option.
	options []byte
}

// configure creates a queue or changes its options. Absent options keep their values; see docs/http.md for the modes.
func (s *Server) configure(w http.ResponseWriter, r *http.Request) error {
	body, err := s.readBody(w, r, nil)
	if err != nil {
		return err
	}
	request, err := decodeConfigure(body)
	if err != nil {
		return err
	}
	tenant := tenantOf(r)
	answer, err := s.deps.Store.Configure(r.Context(), tenant, request.queue, request.namespace, request.task, request.options)
	if err != nil {
		return err
	}
	s.deps.QueueChanged(tenant, request.queue)
	_ = writeJSON(w, http.StatusOK, answer) // done whether the client reads it or not
	return nil
}

// decodeConfigure reads a configure body: queue, namespace, task, mode, strict and options. Without an options object every
// other top-level member is an option.
func decodeConfigure(body []byte) (configureRequest, error) {
	var request configureRequest
	members, err := decodeObject(body)
	if err != nil {
		return request, badBody(body, err)
	}
	if request.queue, err = stringMember(members, "queue"); err != nil || request.queue == "" {
		return request, newError(codeQueueRequired, errorRows[codeQueueRequired].text)
	}
	mode, strict := "", false
	for _, member := range []struct {
		name string
		into *string
	}{{"namespace", &request.namespace}, {"task", &request.task}, {"mode", &mode}} {
		if *member.into, err = stringMember(members, member.name); err != nil {
			return request, err
		}
	}
	for _, named := range [...]struct{ name, value string }{{"queue", request.queue}, {"namespace", request.namespace}, {"task", request.task}} {
		if fault := nameFault(named.value); fault != "" {
			return request, newError(codeInvalidName, named.name+" "+fault)
		}
	}
	switch mode {
	case "", "merge", "replace":
	default:
		return request, newError(codeBadBody, fmt.Sprintf("bad body: mode must be \"merge\" or \"replace\", not %s", quoteShort(mode)))
	}
	if raw, ok := present(members, "strict"); ok {
		if err := jsonv2.Unmarshal(raw, &strict); err != nil {
			return request, newError(codeBadBody, "bad body: strict must be true or false")
		}
	}
	options, err := optionsOf(members)
	if err != nil {
		return request, err
	}
	delete(options, "__mode")
	delete(options, "__strict")
	if mode == "replace" {
		options["__mode"] = jsontext.Value(`"replace"`)
	}
	if strict {
		options["__strict"] = jsontext.Value("true")
	}
	request.options, err = jsonv2.Marshal(options, jsonv2.Deterministic(true))
	return request, err
}

// optionsOf returns the options object, or what stands in for it.
func optionsOf(members map[string]jsontext.Value) (map[string]jsontext.Value, error) {
	if raw, ok := present(members, "options"); ok {
		options, err := decodeObject(raw)
		if err != nil {
			return nil, newError(codeBadBody, "bad body: options must be an object")
		}
		return options, nil
	}
	for _, name := range [...]string{"queue", "namespace", "task", "mode", "strict", "options"} {
		delete(members, name)
	}
	return members, nil
}

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

// deleteQueue deletes a queue with all its partitions, messages, cursors and dead letters. A queue that is not there is no
// error: the answer says so.
func (s *Server) deleteQueue(w http.ResponseWriter, r *http.Request) error {
	tenant, queue := tenantOf(r), r.PathValue("queue")
	answer, err := s.deps.Store.DeleteQueue(r.Context(), tenant, queue)
	if err != nil {
		return err
	}
	s.deps.QueueChanged(tenant, queue)
	_ = writeJSON(w, procedureStatus(answer), answer) // done whether the client reads it or not
	return nil
}

// procedureStatus derives the status of an answer that is a procedure's own: an error text that says "not found" is 404, any
// other 500.
func procedureStatus(answer json.RawMessage) int {
	var failed struct {
		Error *string `json:"error"`
	}
	if err := json.Unmarshal(answer, &failed); err != nil || failed.Error == nil {
		return http.StatusOK
	}
	if strings.Contains(strings.ToLower(*failed.Error), "not found") {
		return http.StatusNotFound
	}
	return http.StatusInternalServerError
}
