package auth

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Config is how tokens are checked. Every field but the durations means what the variable of the same sense means.
type Config struct {
	// Algorithm is one of Algorithms(): what tokens may be signed with.
	Algorithm string
	// Secret checks HS tokens. PublicKey (PEM) and JWKSURL check all others; the first wins.
	Secret    string
	PublicKey string
	JWKSURL   string
	// RefreshInterval is the age at which the key set is fetched again (default 1 h), FetchTimeout how long that may take
	// (default 5 s).
	RefreshInterval time.Duration
	FetchTimeout    time.Duration
	// Issuer and Audience must be those of the token; empty is not checked.
	Issuer   string
	Audience string
	// Leeway is how far clocks may differ; 0 to any.
	Leeway time.Duration
	// SkipPaths are paths, separated by commas, that need no token. One that ends in a slash stands for all below it.
	SkipPaths string
	// RoleClaim is the claim with one role, RolesClaim the one with a list; a token holds the union.
	RoleClaim, RolesClaim string
	Roles                 RoleNames
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Log takes failed fetches of the key set. Nil drops them.
	Log *slog.Logger
}

// algorithms says for each setting which algorithms tokens may name. The check at start and the verifier both go by it.
var algorithms = map[string][]string{
	"HS256": {"HS256"},
	"HS384": {"HS384"},
	"HS512": {"HS512"},
	"RS256": {"RS256", "RS384", "RS512"},
	"RS384": {"RS384"},
	"RS512": {"RS512"},
	"ES256": {"ES256"},
	"ES384": {"ES384"},
	"ES512": {"ES512"},
	"EdDSA": {"EdDSA"},
	"auto":  {"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "EdDSA"},
}

// Algorithms lists the values of Config.Algorithm, sorted.
func Algorithms() []string {
	names := make([]string, 0, len(algorithms))
	for name := range algorithms {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// kindOf is the kind of key an algorithm needs: the first two letters of its name.
func kindOf(algorithm string) string { return algorithm[:2] }

// keys are what a configuration can check tokens with.
type keys struct {
	secret []byte
	static any    // a public key, nil without one
	kind   string // of static
	url    string
}

// allowed returns the algorithms that tokens may name: those of the setting for which there is a key. It fails when there are
// none, or when a key was given that the setting cannot use.
func (c *Config) allowed() ([]string, keys, error) {
	var k keys
	named, known := algorithms[c.Algorithm]
	if !known {
		return nil, k, fmt.Errorf("JWT_ALGORITHM=%q is not one of %s", c.Algorithm, strings.Join(Algorithms(), ", "))
	}
	needs := func(kind string) bool {
		return slices.ContainsFunc(named, func(a string) bool { return kindOf(a) == kind })
	}
	if strings.Contains(c.Secret, "-----BEGIN") {
		// Whoever knows the public key could sign with it.
		return nil, k, errors.New("JWT_SECRET holds a PEM key, which is no secret: put it into JWT_PUBLIC_KEY and choose the JWT_ALGORITHM of its kind")
	}
	k.secret = []byte(c.Secret)
	var err error
	if text := strings.TrimSpace(c.PublicKey); text != "" {
		if k.static, k.kind, err = parsePublicKey(text); err != nil {
			return nil, k, fmt.Errorf("JWT_PUBLIC_KEY %w", err)
		}
		if c.Algorithm != "auto" && !needs("HS") && !needs(k.kind) {
			return nil, k, fmt.Errorf("JWT_PUBLIC_KEY holds a key for %s, which JWT_ALGORITHM=%s cannot use", kindNames[k.kind], c.Algorithm)
		}
	}
	if k.url = strings.TrimSpace(c.JWKSURL); k.url != "" {
		if u, err := url.Parse(k.url); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return nil, k, errors.New("JWT_JWKS_URL is not an http or https URL")
		}
	}
	var usable []string
	for _, algorithm := range named {
		kind := kindOf(algorithm)
		if kind == "HS" && c.Secret != "" || kind != "HS" && (fits(k.static, algorithm) || k.static == nil && k.url != "" || c.Algorithm == "auto" && k.url != "") {
			usable = append(usable, algorithm)
		}
	}
	if len(usable) > 0 {
		return usable, k, nil
	}
	need := "JWT_PUBLIC_KEY or JWT_JWKS_URL"
	switch {
	case c.Algorithm == "auto":
		need = "JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL"
	case needs("HS"):
		need = "JWT_SECRET"
	}
	return nil, k, fmt.Errorf("JWT_ENABLED is on and JWT_ALGORITHM=%s needs %s: set it, or no token could be checked", c.Algorithm, need)
}
