package auth_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"queenmq/internal/auth"
)

func TestVerify(t *testing.T) {
	t.Parallel()

	t.Run("SchemeIsOptionalInAnyCase", func(t *testing.T) {
		t.Parallel()
		token := hs(t, jwt.MapClaims{"sub": "alice", "role": "read-only", "roles": []string{"write-only", "unknown"}})
		for _, header := range []string{token, "Bearer " + token, "bearer " + token, "  BEARER   " + token} {
			who, err := verifier(t, config()).Verify(t.Context(), header)
			require.NoError(t, err)
			require.Equal(t, auth.Identity{Subject: "alice", Roles: auth.ReadOnly | auth.WriteOnly}, who, "the union of both claims")
		}
	})

	t.Run("NoTokenIsAskedFor", func(t *testing.T) {
		t.Parallel()
		for _, header := range []string{"", "  ", "Bearer", "Bearer ", "bearer  "} {
			_, err := verifier(t, config()).Verify(t.Context(), header)
			require.ErrorIs(t, err, auth.ErrRequired, header)
		}
	})

	t.Run("ClaimsDecide", func(t *testing.T) {
		t.Parallel()
		cfg := config()
		cfg.Issuer, cfg.Audience = "https://issuer", "queen"
		good := func(more jwt.MapClaims) jwt.MapClaims {
			claims := jwt.MapClaims{"iss": "https://issuer", "aud": "queen"}
			for name, value := range more {
				if value == nil {
					delete(claims, name)
				} else {
					claims[name] = value
				}
			}
			return claims
		}
		at := func(d time.Duration) int64 { return now.Add(d).Unix() }
		for name, row := range map[string]struct {
			claims jwt.MapClaims
			want   string
		}{
			"Plain":                {good(nil), ""},
			"AudienceInAList":      {good(jwt.MapClaims{"aud": []string{"other", "queen"}}), ""},
			"ExpiredInsideTheSkew": {good(jwt.MapClaims{"exp": at(-29 * time.Second)}), ""},
			"Expired":              {good(jwt.MapClaims{"exp": at(-31 * time.Second)}), "Token has expired"},
			"ExpiredInFractions":   {good(jwt.MapClaims{"exp": float64(at(-60*time.Second)) + 0.5}), "Token has expired"},
			"ExpiryZero":           {good(jwt.MapClaims{"exp": 0}), "Token has expired"},
			"ExpiryNegative":       {good(jwt.MapClaims{"exp": -1}), "Token has expired"},
			"ExpiryAText":          {good(jwt.MapClaims{"exp": "never"}), "Invalid token claims"},
			"NotYet":               {good(jwt.MapClaims{"nbf": at(31 * time.Second)}), "Token not yet valid"},
			"NotYetInsideTheSkew":  {good(jwt.MapClaims{"nbf": at(29 * time.Second)}), ""},
			"IssuedInTheFuture":    {good(jwt.MapClaims{"iat": at(31 * time.Second)}), "Token issued in the future"},
			"WrongIssuer":          {good(jwt.MapClaims{"iss": "https://issuer/"}), "Invalid token issuer"},
			"NoIssuer":             {good(jwt.MapClaims{"iss": nil}), "Invalid token issuer"},
			"WrongAudience":        {good(jwt.MapClaims{"aud": "queens"}), "Invalid token audience"},
			"NoAudience":           {good(jwt.MapClaims{"aud": nil}), "Invalid token audience"},
			"EmptyAudience":        {good(jwt.MapClaims{"aud": []string{}}), "Invalid token audience"},
			"SubjectANumber":       {good(jwt.MapClaims{"sub": 7}), "Invalid token subject"},
			"SubjectTooLong":       {good(jwt.MapClaims{"sub": strings.Repeat("x", 1025)}), "Invalid token subject"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				_, err := verifier(t, cfg).Verify(t.Context(), hs(t, row.claims))
				requireText(t, row.want, err)
			})
		}
	})

	t.Run("RolesOfStrangeShapesAreNone", func(t *testing.T) {
		t.Parallel()
		cfg := config()
		cfg.Roles.ReadOnly = "" // nobody can hold it
		for _, claims := range []jwt.MapClaims{
			{}, {"role": ""}, {"role": "ADMIN"}, {"role": "admin "}, {"role": []string{"admin"}}, {"roles": "admin"}, {"roles": []any{1, nil, ""}}, {"role": 1},
		} {
			who, err := verifier(t, cfg).Verify(t.Context(), hs(t, claims))
			require.NoError(t, err)
			require.Zero(t, who.Roles, claims)
		}
	})
}

func requireText(t *testing.T, want string, err error) {
	t.Helper()
	if want == "" {
		require.NoError(t, err)
		return
	}
	require.EqualError(t, err, want)
}

// Every setting takes its own algorithms and no others, each with a key of its kind.
func TestEverySettingTakesItsAlgorithmsOnly(t *testing.T) {
	t.Parallel()
	keys := map[string]any{
		"HS": []byte(hmacSecret), "RS": rsaKey(), "ES256": p256Key(), "ES384": p384Key(), "Ed": edKey(),
	}
	public := map[string]string{
		"RS": publicPEM(&rsaKey().PublicKey), "ES256": publicPEM(&p256Key().PublicKey), "ES384": publicPEM(&p384Key().PublicKey), "Ed": publicPEM(edKey().Public()),
	}
	keyFor := func(algorithm string) string {
		if _, ok := keys[algorithm]; ok {
			return algorithm
		}
		return algorithm[:2]
	}
	accepted := map[string][]string{
		"HS256": {"HS256"}, "HS384": {"HS384"}, "HS512": {"HS512"}, "RS256": {"RS256", "RS384", "RS512"}, "RS384": {"RS384"}, "RS512": {"RS512"},
		"ES256": {"ES256"}, "ES384": {"ES384"}, "EdDSA": {"EdDSA"}, "auto": {"HS256", "HS384", "HS512", "RS256", "RS384", "RS512"},
	}
	for setting, takes := range accepted {
		cfg := config()
		cfg.Algorithm = setting
		if setting == "auto" {
			cfg.PublicKey = public["RS"]
		} else {
			cfg.PublicKey = public[keyFor(setting)]
		}
		v := verifier(t, cfg)
		for _, algorithm := range []string{"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"} {
			key := keyFor(algorithm)
			if algorithm == "PS256" {
				key = "RS"
			}
			_, err := v.Verify(t.Context(), sign(t, jwt.GetSigningMethod(algorithm), keys[key], jwt.MapClaims{}))
			want := "Unsupported token algorithm"
			for _, a := range takes {
				if a == algorithm {
					want = ""
				}
			}
			requireText(t, want, err)
		}
	}
}

func TestForgedTokensAreRefused(t *testing.T) {
	t.Parallel()
	claims := jwt.MapClaims{"sub": "mallory", "role": "admin"}
	asymmetric := config()
	asymmetric.Algorithm, asymmetric.Secret, asymmetric.PublicKey = "RS256", "", publicPEM(&rsaKey().PublicKey)
	auto := config()
	auto.Algorithm, auto.PublicKey = "auto", asymmetric.PublicKey
	autoWithoutSecret := auto
	autoWithoutSecret.Secret = ""
	unsigned := sign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims)
	withPublicKey := sign(t, jwt.SigningMethodHS256, []byte(asymmetric.PublicKey), claims)
	withEmptySecret := sign(t, jwt.SigningMethodHS256, []byte{}, claims)
	good := hs(t, claims)
	parts := strings.Split(good, ".")
	header := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

	for name, row := range map[string]struct {
		cfg         auth.Config
		token, want string
	}{
		"NoneOnHS":                {config(), unsigned, "Unsupported token algorithm"},
		"NoneOnRS":                {asymmetric, unsigned, "Unsupported token algorithm"},
		"NoneOnAuto":              {auto, unsigned, "Unsupported token algorithm"},
		"NoneInOtherCase":         {auto, header(`{"alg":"nOnE"}`) + "." + parts[1] + ".", "Unsupported token algorithm"},
		"PublicKeyAsSecretOnRS":   {asymmetric, withPublicKey, "Unsupported token algorithm"},
		"PublicKeyAsSecretOnAuto": {auto, withPublicKey, "Invalid token signature"},
		"NoSecretOnAuto":          {autoWithoutSecret, withEmptySecret, "Unsupported token algorithm"},
		"EmptySecret":             {config(), withEmptySecret, "Invalid token signature"},
		"OtherKey":                {asymmetric, sign(t, jwt.SigningMethodRS256, otherRSAKey(), claims), "Invalid token signature"},
		"SignatureCut":            {config(), parts[0] + "." + parts[1] + ".", "Invalid token signature"},
		"SignatureShortened":      {config(), good[:len(good)-4], "Invalid token signature"},
		"PayloadChanged":          {config(), parts[0] + "." + header(`{"role":"admin","sub":"root"}`) + "." + parts[2], "Invalid token signature"},
		"TwoParts":                {config(), parts[0] + "." + parts[1], "Bad token header"},
		"FiveParts":               {config(), good + ".a.b", "Bad token header"},
		"Words":                   {config(), "Basic dXNlcjpwYXNz", "Bad token header"},
		"HeaderNotJSON":           {config(), header(`alg`) + "." + parts[1] + "." + parts[2], "Bad token header"},
		"AlgorithmANumber":        {config(), header(`{"alg":1}`) + "." + parts[1] + "." + parts[2], "Unsupported token algorithm"},
		"CriticalExtension": {
			config(),
			sign(t, jwt.SigningMethodHS256, []byte(hmacSecret), claims, map[string]any{"crit": []string{"exp"}}), "Bad token header",
		},
		"KeyInTheHeader": {
			asymmetric,
			sign(t, jwt.SigningMethodRS256, otherRSAKey(), claims, map[string]any{"jwk": map[string]any{"kty": "RSA"}, "jku": "https://evil"}), "Invalid token signature",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			who, err := verifier(t, row.cfg).Verify(t.Context(), row.token)
			require.EqualError(t, err, row.want)
			require.Zero(t, who)
		})
	}
}

func TestSkips(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		list, path string
		want       bool
	}{
		{"/health,/", "/health", true},
		{"/health,/", "/healthy", false},
		{"/health,/", "/health/", false},
		{"/health,/", "/", true},
		{"/health,/", "/api/v1/push", false},
		{" /open/ , /x", "/open/a/b", true},
		{"/open/", "/open", false},
		{"/open/", "/opening", false},
		{"/open/", "/%6fpen/a", false},
		{"", "/", false},
		{",", "", false},
	} {
		cfg := config()
		cfg.SkipPaths = row.list
		require.Equal(t, row.want, verifier(t, cfg).Skips(row.path), "%q %q", row.list, row.path)
	}
}

// What New accepts must be able to check a token, and what could not is refused with the variable's name.
func TestUnusableConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		change func(*auth.Config)
		want   string
	}{
		"UnknownAlgorithm":    {func(c *auth.Config) { c.Algorithm = "HS1024" }, "JWT_ALGORITHM"},
		"None":                {func(c *auth.Config) { c.Algorithm = "none" }, "JWT_ALGORITHM"},
		"NoSecret":            {func(c *auth.Config) { c.Secret = "" }, "needs JWT_SECRET"},
		"SecretOfAnotherKind": {func(c *auth.Config) { c.Secret, c.PublicKey = "", publicPEM(&rsaKey().PublicKey) }, "needs JWT_SECRET"},
		"NoPublicKey":         {func(c *auth.Config) { c.Algorithm = "RS256" }, "needs JWT_PUBLIC_KEY or JWT_JWKS_URL"},
		"NothingForAuto":      {func(c *auth.Config) { c.Algorithm, c.Secret = "auto", "" }, "needs JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL"},
		"KeyOfAnotherKind":    {func(c *auth.Config) { c.Algorithm, c.PublicKey = "RS256", publicPEM(edKey().Public()) }, "JWT_PUBLIC_KEY holds a key for Ed25519"},
		"CurveOfAnotherSize":  {func(c *auth.Config) { c.Algorithm, c.PublicKey = "ES512", publicPEM(&p256Key().PublicKey) }, "JWT_PUBLIC_KEY"},
		"NoPEM":               {func(c *auth.Config) { c.Algorithm, c.PublicKey = "RS256", "MIIB" }, "JWT_PUBLIC_KEY is not PEM"},
		"PrivateKey": {func(c *auth.Config) {
			c.Algorithm, c.PublicKey = "RS256", "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----"
		}, "JWT_PUBLIC_KEY holds a PRIVATE KEY"},
		"BrokenPEM": {func(c *auth.Config) {
			c.Algorithm, c.PublicKey = "RS256", "-----BEGIN PUBLIC KEY-----\nMAA=\n-----END PUBLIC KEY-----"
		}, "JWT_PUBLIC_KEY cannot be read"},
		"PublicKeyAsSecret":    {func(c *auth.Config) { c.Secret = publicPEM(&rsaKey().PublicKey) }, "JWT_SECRET holds a PEM key"},
		"KeySetOfAnotherSheme": {func(c *auth.Config) { c.Algorithm, c.JWKSURL = "RS256", "file:///keys" }, "JWT_JWKS_URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config()
			row.change(&cfg)
			_, err := auth.New(cfg)
			require.ErrorContains(t, err, row.want)
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), hmacSecret)
		})
	}
}

func TestLineBreaksOfAKeyMayBeEscaped(t *testing.T) {
	t.Parallel()
	cfg := config()
	cfg.Algorithm, cfg.PublicKey = "EdDSA", strings.ReplaceAll(publicPEM(edKey().Public()), "\n", `\n`)
	_, err := verifier(t, cfg).Verify(t.Context(), sign(t, jwt.SigningMethodEdDSA, edKey(), jwt.MapClaims{}))
	require.NoError(t, err)
}
