package pg

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/google/uuid"
)

// ErrInvalidCursor says that a page cursor was not made by this build, or for another list. Nothing was read.
var ErrInvalidCursor = errors.New("invalid cursor")

// manage runs a management procedure that is one whole transaction and returns its JSON answer as it is; nil when it answered
// NULL. An "error" member inside the answer is the procedure's verdict, not an error of the call.
//
// Conflicts are repeated, lock timeouts are reported: an operator would rather know. Text or filters that PostgreSQL cannot
// read are ErrBadData.
func (db *DB) manage(ctx context.Context, act, query string, args ...any) (json.RawMessage, error) {
	return db.rawAnswer(ctx, act, repeatConflicts, query, args...)
}

// decoded is manage for a procedure whose JSON is read here. found is false when it answered NULL.
func (db *DB) decoded(ctx context.Context, into any, act, query string, args ...any) (found bool, err error) {
	raw, err := db.manage(ctx, act, query, args...)
	if err != nil || raw == nil {
		return false, err
	}
	if err := decodeJSON(raw, into); err != nil {
		return false, fmt.Errorf("%s: %w", act, err)
	}
	return true, nil
}

// A filter is the JSON object that a listing procedure takes. Empty strings filter nothing.
type filter map[string]any

func (f filter) text() (string, error) {
	text, err := json.Marshal(map[string]any(f))
	if err != nil {
		return "", fmt.Errorf("encode a filter: %w", err)
	}
	return string(text), nil
}

// filtered is manage for a procedure whose only argument is a filter.
func (db *DB) filtered(ctx context.Context, act, procedure string, f filter) (json.RawMessage, error) {
	text, err := f.text()
	if err != nil {
		return nil, err
	}
	return db.manage(ctx, act, `SELECT queen.`+procedure+`($1::jsonb)`, text)
}

// A position is what a page of a list ends at, as the procedure wrote it: parts separated by "|". Clients see it encoded.
type position string

// positionKind is the pattern of a position of one list.
type positionKind = *regexp.Regexp

const (
	timePattern = `\d{4,6}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z`
	uuidPattern = `[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`
)

var (
	messagePosition    positionKind = regexp.MustCompile(`^` + timePattern + `\|` + uuidPattern + `\|\d{1,18}$`)
	deadLetterPosition positionKind = regexp.MustCompile(`^` + timePattern + `\|` + uuidPattern + `$`)
	partitionPosition  positionKind = regexp.MustCompile(`(?s)^-?\d{1,20}\|.*$`)
	orderedPosition    positionKind = regexp.MustCompile(`(?s)^-?[a-z]+\|-?\d{1,20}\|\d{1,5}\|.*$`)
)

// encode returns the cursor of a position; "" when there is no next page.
func (p position) encode() string {
	if p == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(p))
}

// decodePosition reads a cursor; "" is the start. A cursor that was not made for this kind of list is ErrInvalidCursor.
func decodePosition(cursor string, kind positionKind) (position, error) {
	if cursor == "" {
		return "", nil
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || !kind.Match(text) {
		return "", ErrInvalidCursor
	}
	return position(text), nil
}

// inOrder sets the order of a list that can be paged through in any, and the position that a page of that order ended at. A cursor of
// another order is ErrInvalidCursor.
func (f filter) inOrder(sort, cursor string) error {
	after, err := decodePosition(cursor, orderedPosition)
	if err != nil {
		return err
	}
	if sort == "" {
		sort = "name"
	}
	if after != "" && !strings.HasPrefix(string(after), sort+"|") {
		return ErrInvalidCursor
	}
	f["sort"], f["after"] = sort, string(after)
	return nil
}

// paged calls a procedure that takes leading, a filter and the tenant, and ends its pages at a position.
func (db *DB) paged(ctx context.Context, act, procedure string, tenant uuid.UUID, f filter, leading ...string) (json.RawMessage, error) {
	text, err := f.text()
	if err != nil {
		return nil, err
	}
	parameters, arguments := "", []any{text, uuidArgument(tenant)}
	for i, one := range leading {
		parameters += fmt.Sprintf("$%d::text, ", i+3)
		arguments = append(arguments, one)
	}
	answer, err := db.manage(ctx, act, `SELECT queen.`+procedure+`(`+parameters+`$1::jsonb, $2::uuid)`, arguments...)
	if err != nil {
		return nil, err
	}
	return withCursor(answer)
}

// withCursor replaces the member "next" of an answer by "nextCursor", encoded, null when there is no next page.
func withCursor(answer json.RawMessage) (json.RawMessage, error) {
	var members map[string]json.RawMessage
	if err := decodeJSON(answer, &members); err != nil {
		return nil, err
	}
	next, ok := members["next"]
	if !ok {
		return answer, nil
	}
	var text *position
	if err := json.Unmarshal(next, &text); err != nil {
		return nil, fmt.Errorf("%w: next: %w", ErrMalformedAnswer, err)
	}
	delete(members, "next")
	members["nextCursor"] = json.RawMessage("null")
	if text != nil {
		members["nextCursor"] = json.RawMessage(`"` + text.encode() + `"`)
	}
	out, err := json.Marshal(members)
	if err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	return out, nil
}

// orEmpty reads an optional text.
func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// tenantFilter starts the filter of a tenant's list.
func tenantFilter(tenant uuid.UUID) filter { return filter{"_tenant": tenant} }

// limited sets a limit that the caller gave.
func (f filter) limited(limit, offset int) filter {
	if limit > 0 {
		f["limit"] = clampInt32(limit)
	}
	if offset > 0 {
		f["offset"] = clampInt32(offset)
	}
	return f
}
