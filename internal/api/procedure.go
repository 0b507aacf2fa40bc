package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
)

// writeProcedure sends what a stored procedure answered, byte for byte. An answer with an "error" is 404 or 500, see
// procedureStatus, and gains the code that every error of this API carries; any other has the status ok.
func writeProcedure(w http.ResponseWriter, ok int, answer json.RawMessage) error {
	status := procedureStatus(answer)
	if status == http.StatusOK {
		_ = writeJSON(w, ok, answer) // done whether the client reads it or not
		return nil
	}
	c := codeInternal
	if status == http.StatusNotFound {
		c = codeNotFound
	}
	_ = writeJSON(w, status, withMember(answer, "code", appendString(nil, string(c)))) // as above
	return nil
}

// relay returns the last step of a handler that only passes on what the store answered: relay(w)(store.Call(…)).
func relay(w http.ResponseWriter) func(json.RawMessage, error) error {
	return func(answer json.RawMessage, err error) error {
		if err != nil {
			return err
		}
		return writeProcedure(w, http.StatusOK, answer)
	}
}

// withMember adds a member to an object that lacks it. Everything that was there stays as it was written.
func withMember(object []byte, name string, value []byte) []byte {
	object = bytes.TrimSpace(object)
	if len(object) < 2 || object[len(object)-1] != '}' {
		return object
	}
	grown := make([]byte, 0, len(object)+len(name)+len(value)+4)
	grown = append(grown, object[:len(object)-1]...)
	if !bytes.Equal(bytes.TrimSpace(object[1:len(object)-1]), nil) {
		grown = append(grown, ',')
	}
	grown = appendString(grown, name)
	grown = append(grown, ':')
	grown = append(grown, value...)
	return append(grown, '}')
}

// procedureStatus derives the status of an answer that is a procedure's own: an error text that says "not found" is 404, any
// other 500.
func procedureStatus(answer json.RawMessage) int {
	var failed struct {
		Error *string `json:"error"`
	}
	// Lists answer with arrays, which cannot fail; and few answers hold the word at all.
	if !bytes.Contains(answer, []byte(`"error"`)) || json.Unmarshal(answer, &failed) != nil || failed.Error == nil {
		return http.StatusOK
	}
	if strings.Contains(strings.ToLower(*failed.Error), "not found") {
		return http.StatusNotFound
	}
	return http.StatusInternalServerError
}
