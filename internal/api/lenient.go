package api

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Bounds of the paging parameters of management routes. Larger limits are cut to the bound, which the answer shows.
const (
	maxPageLimit  = 1000
	maxPageOffset = 1_000_000
)

// A lenientQuery reads the query of a management route: what does not parse counts as absent, and unknown parameters are
// ignored. Of a repeated parameter the first one counts.
type lenientQuery struct{ values url.Values }

func lenient(r *http.Request) lenientQuery {
	values, _ := url.ParseQuery(r.URL.RawQuery) // what could be read is there
	return lenientQuery{values}
}

// text returns a parameter; the empty text is absent.
func (q lenientQuery) text(name string) string { return q.values.Get(name) }

// time returns a parameter that is a time, as text.
func (q lenientQuery) time(name string) string { return zoneSign(q.text(name)) }

// integer returns a parameter between least and most, or absent.
func (q lenientQuery) integer(name string, absent, least, most int) int {
	n, err := strconv.Atoi(strings.TrimSpace(q.text(name)))
	if err != nil {
		return absent
	}
	return min(max(n, least), most)
}

// optionalInteger returns nil when the parameter is absent or no integer. Negative numbers count as 0.
func (q lenientQuery) optionalInteger(name string) *int {
	n, err := strconv.Atoi(strings.TrimSpace(q.text(name)))
	if err != nil {
		return nil
	}
	return new(max(n, 0))
}

// boolean returns a parameter, or absent for what is none of true, 1, yes, false, 0, no.
func (q lenientQuery) boolean(name string, absent bool) bool {
	switch q.text(name) {
	case "true", "1", "yes":
		return true
	case "false", "0", "no":
		return false
	}
	return absent
}

// page returns limit and offset.
func (q lenientQuery) page(limit int) (int, int) {
	return q.integer("limit", limit, 1, maxPageLimit), q.integer("offset", 0, 0, maxPageOffset)
}

// uuidParameter returns a parameter that must be a UUID when it is there.
func (q lenientQuery) uuidParameter(name string) (uuid.NullUUID, error) {
	text := q.text(name)
	if text == "" {
		return uuid.NullUUID{}, nil
	}
	id, ok := parseUUID(text)
	if !ok {
		return uuid.NullUUID{}, newError(codeInvalidParameter, name+" must be a UUID")
	}
	return uuid.NullUUID{UUID: id, Valid: true}, nil
}

// parseUUID reads the canonical form of 36 characters, in either case.
func parseUUID(text string) (uuid.UUID, bool) {
	if len(text) != 36 {
		return uuid.UUID{}, false
	}
	id, err := uuid.Parse(text)
	return id, err == nil
}
