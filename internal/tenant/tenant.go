// Package tenant reads which tenant a request acts for, and bounds what one tenant may ask for. It is safe for concurrent use.
package tenant

import (
	"errors"
	"strings"

	"github.com/google/uuid"
)

// Header names the tenant of a request. It is honoured only when the tenancy header is switched on, and it is not
// authenticated: whoever can reach the port chooses the tenant, so that a proxy in front must set it.
const Header = "X-Queen-Tenant"

// ErrInvalid says that the header is there and is not one canonical UUID.
var ErrInvalid = errors.New("invalid x-queen-tenant header (must be a UUID)")

// Of returns the tenant that the values of the header name, fallback when there is none or only a blank one. Two values are
// refused: a proxy that adds its own must not be outvoted by one that the client sent.
func Of(values []string, fallback uuid.UUID) (uuid.UUID, error) {
	switch len(values) {
	case 0:
		return fallback, nil
	case 1:
	default:
		return uuid.Nil, ErrInvalid
	}
	text := strings.TrimSpace(values[0])
	if text == "" {
		return fallback, nil
	}
	const canonicalLength = 36 // the parser also takes braces, a urn prefix and 32 digits
	id, err := uuid.Parse(text)
	if err != nil || len(text) != canonicalLength {
		return uuid.Nil, ErrInvalid
	}
	return id, nil
}
