package auth_test

import (
	"errors"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"queenmq/internal/auth"
)

// FuzzVerify: nobody gets in by guessing. What is accepted was signed with the secret; everything else is refused as a token is, on one line.
func FuzzVerify(f *testing.F) {
	claims := jwt.MapClaims{"sub": "alice", "role": "admin", "exp": now.Unix() + 60}
	good, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(hmacSecret))
	if err != nil {
		f.Fatal(err)
	}
	unsigned, err := jwt.NewWithClaims(jwt.SigningMethodNone, claims).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		f.Fatal(err)
	}
	for _, header := range []string{"Bearer " + good, good, "Bearer " + unsigned, "Bearer", "", "a.b.c", "Basic YTpi", "Bearer " + good + "."} {
		f.Add(header)
	}
	v, err := auth.New(config())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, header string) {
		identity, err := v.Verify(t.Context(), header)
		if err != nil {
			var refused *auth.TokenError
			if !errors.As(err, &refused) && !errors.Is(err, auth.ErrRequired) {
				t.Fatalf("refused as %T: %v", err, err)
			}
			return
		}
		signed, parseErr := jwt.Parse(trimBearer(header), func(*jwt.Token) (any, error) { return []byte(hmacSecret), nil },
			jwt.WithValidMethods([]string{"HS256"}), jwt.WithoutClaimsValidation())
		if parseErr != nil || !signed.Valid {
			t.Fatalf("%+v was let in with %q", identity, header)
		}
	})
}

func trimBearer(header string) string {
	const scheme = "bearer "
	if len(header) >= len(scheme) && (header[0] == 'B' || header[0] == 'b') && header[len(scheme)-1] == ' ' {
		return header[len(scheme):]
	}
	return header
}
