package pgtx

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"queenmq/queen"
)

// refusals are the SQLSTATEs of our own, and what they are to a caller. The texts say the rest.
var refusals = map[string]struct {
	status int
	code   string
}{
	"QU002": {http.StatusServiceUnavailable, "vanished"},
	"QU003": {http.StatusBadRequest, "bad_body"},
	"QU004": {http.StatusNotFound, "not_found"},
	"QU005": {http.StatusBadRequest, "push_after_ack"},
	"QU006": {http.StatusServiceUnavailable, "encryption_key_missing"},
	"QU007": {http.StatusServiceUnavailable, "push_maintenance"},
	"QU008": {http.StatusBadRequest, "isolation_level"},
	"QU009": {http.StatusOK, "lease_lost"},
	"53400": {http.StatusOK, "QUEUE_FULL"},
}

// failed turns what the database says into the errors of package queen, and leaves what it says otherwise - a deadlock, a lost
// connection - to errors.As with *pgconn.PgError.
func failed(act string, err error) error {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return fmt.Errorf("pgtx: %s: %w", act, err)
	}
	if server.Code == "42501" {
		return fmt.Errorf("pgtx: %s: %w: %w", act, ErrNotGranted, err)
	}
	if server.Code == "42883" || server.Code == "3F000" {
		return fmt.Errorf("pgtx: %s: %w: %w", act, ErrSchemaTooOld, err)
	}
	known, ok := refusals[server.Code]
	if !ok || server.Code == "53400" && !strings.HasPrefix(server.Message, "QUEUE_FULL") {
		return fmt.Errorf("pgtx: %s: %w", act, err)
	}
	text := strings.TrimPrefix(strings.TrimPrefix(server.Message, "QCALL "), "QUEUE_FULL ")
	return &queen.Error{Status: known.status, Code: known.code, Message: "pgtx: " + act + ": " + text + "; roll the transaction back", Cause: err}
}

func invalid(act, format string, args ...any) error {
	return &queen.Error{Status: http.StatusBadRequest, Code: "bad_body", Message: "pgtx: " + act + ": " + fmt.Sprintf(format, args...)}
}
