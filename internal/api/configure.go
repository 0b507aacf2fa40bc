package api

import (
	"encoding/json/jsontext"
	jsonv2 "encoding/json/v2"
	"fmt"
	"net/http"
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
	if request.options, err = jsonv2.Marshal(options, jsonv2.Deterministic(true)); err != nil {
		return request, newError(codeBadBody, "bad body: the options hold a text that is not valid Unicode (a lone surrogate escape)")
	}
	return request, nil
}

// optionsOf returns the options object, or what stands in for it.
func optionsOf(members map[string]jsontext.Value) (map[string]jsontext.Value, error) {
	if raw, ok := present(members, "options"); ok {
		if isEmpty(raw) {
			return map[string]jsontext.Value{}, nil
		}
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
