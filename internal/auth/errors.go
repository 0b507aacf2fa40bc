package auth

import "errors"

var (
	// ErrRequired says that the request carries no token.
	//
	//lint:ignore ST1005 the text of the wire contract
	ErrRequired = errors.New("Authentication required") //nolint:staticcheck // as above
	// ErrForbidden says that the token is good and holds none of the roles that the route admits.
	//
	//lint:ignore ST1005 the text of the wire contract
	ErrForbidden = errors.New("Insufficient permissions") //nolint:staticcheck // as above
	// ErrKeysUnavailable says that the key set could not be fetched yet, so that no token can be checked. It passes.
	ErrKeysUnavailable = errors.New("the keys that tokens are checked with could not be fetched yet")
)

// A TokenError says why a token is refused. Text is for the client and holds nothing of the token or the keys.
type TokenError struct{ Text string }

// Error returns the text.
func (e *TokenError) Error() string { return e.Text }

// The texts of the wire contract, and the last two, which it has no word for.
var (
	errHeader    = &TokenError{"Bad token header"}
	errAlgorithm = &TokenError{"Unsupported token algorithm"}
	errSignature = &TokenError{"Invalid token signature"}
	errExpired   = &TokenError{"Token has expired"}
	errNotYet    = &TokenError{"Token not yet valid"}
	errFuture    = &TokenError{"Token issued in the future"}
	errIssuer    = &TokenError{"Invalid token issuer"}
	errAudience  = &TokenError{"Invalid token audience"}
	errKeyID     = &TokenError{"Unknown key ID"}
	errSubject   = &TokenError{"Invalid token subject"}
	errClaims    = &TokenError{"Invalid token claims"}
)
