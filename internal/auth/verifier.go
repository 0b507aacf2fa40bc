package auth

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// maxSubjectBytes bounds the subject, which is stored with every message it pushes.
const maxSubjectBytes = 1024

// A Verifier checks tokens. Make one with [New].
type Verifier struct {
	cfg     Config
	allowed []string
	keys    keys
	set     *keySet // nil without a JWKS URL
	skip    []string
	parser  *jwt.Parser
}

// New returns a verifier, or one line that says which variable keeps it from checking tokens. It fetches nothing.
func New(cfg Config) (*Verifier, error) {
	allowed, keys, err := cfg.allowed()
	if err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.RefreshInterval <= 0 {
		cfg.RefreshInterval = time.Hour
	}
	if cfg.FetchTimeout <= 0 {
		cfg.FetchTimeout = 5 * time.Second
	}
	v := &Verifier{cfg: cfg, allowed: allowed, keys: keys}
	if keys.url != "" {
		v.set = newKeySet(keys.url, cfg.RefreshInterval, cfg.FetchTimeout, cfg.Log)
	}
	for path := range strings.SplitSeq(cfg.SkipPaths, ",") {
		if path = strings.TrimSpace(path); path != "" {
			v.skip = append(v.skip, path)
		}
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods(allowed), jwt.WithLeeway(cfg.Leeway), jwt.WithIssuedAt(), jwt.WithTimeFunc(cfg.Now), jwt.WithStrictDecoding(),
	}
	if cfg.Issuer != "" {
		options = append(options, jwt.WithIssuer(cfg.Issuer))
	}
	if cfg.Audience != "" {
		options = append(options, jwt.WithAudience(cfg.Audience))
	}
	v.parser = jwt.NewParser(options...)
	return v, nil
}

// Weaknesses lists what is allowed and should not be so in production, one sentence each.
func (v *Verifier) Weaknesses() []string {
	var found []string
	if slices.ContainsFunc(v.allowed, func(a string) bool { return kindOf(a) == "HS" }) && len(v.keys.secret) < 32 {
		found = append(found, "JWT_SECRET is shorter than 32 bytes, so that it may be guessed from a single token")
	}
	if strings.HasPrefix(v.keys.url, "http://") {
		found = append(found, "JWT_JWKS_URL is not https: whoever sits between can replace the keys")
	}
	return found
}

// Run keeps the key set fresh until ctx ends, and returns nil.
func (v *Verifier) Run(ctx context.Context) error {
	if v.set == nil {
		<-ctx.Done()
		return nil
	}
	return v.set.run(ctx)
}

// Skips reports whether a path, escaped as in the request, needs no token.
func (v *Verifier) Skips(path string) bool {
	for _, entry := range v.skip {
		if path == entry || len(entry) > 1 && strings.HasSuffix(entry, "/") && strings.HasPrefix(path, entry) {
			return true
		}
	}
	return false
}

// Verify checks the value of an Authorization header: a token, with or without "Bearer " before it. Errors are ErrRequired,
// ErrKeysUnavailable, a *TokenError, or ctx's.
func (v *Verifier) Verify(ctx context.Context, header string) (Identity, error) {
	const scheme = "bearer "
	text := strings.TrimSpace(header)
	if len(text) >= len(scheme) && strings.EqualFold(text[:len(scheme)], scheme) {
		text = strings.TrimSpace(text[len(scheme):])
	}
	if text == "" || strings.EqualFold(text, strings.TrimSpace(scheme)) {
		return Identity{}, ErrRequired
	}
	claims := jwt.MapClaims{}
	token, err := v.parser.ParseWithClaims(text, claims, func(token *jwt.Token) (any, error) { return v.key(ctx, token) })
	if err != nil {
		return Identity{}, v.refusal(ctx, token, err)
	}
	if number, ok := claims["exp"].(float64); ok && number == 0 { // the library takes it for an absent one
		return Identity{}, errExpired
	}
	return v.identity(claims)
}

// key chooses the key for a token whose algorithm is allowed.
func (v *Verifier) key(ctx context.Context, token *jwt.Token) (any, error) {
	if _, critical := token.Header["crit"]; critical {
		return nil, errHeader // it asks for something to be understood, and we understand nothing of the kind
	}
	algorithm := token.Method.Alg()
	if kindOf(algorithm) == "HS" {
		return v.keys.secret, nil
	}
	if fits(v.keys.static, algorithm) {
		return v.keys.static, nil
	}
	if v.set == nil {
		return nil, errAlgorithm
	}
	id, named := token.Header["kid"]
	text, isText := id.(string)
	if named && !isText {
		return nil, errHeader
	}
	return v.set.find(ctx, text, named, algorithm)
}

// refusal finds the word of the contract for an error of the library.
func (v *Verifier) refusal(ctx context.Context, token *jwt.Token, err error) error {
	if ours, ok := errors.AsType[*TokenError](err); ok {
		return ours
	}
	switch {
	case errors.Is(err, ErrKeysUnavailable):
		return ErrKeysUnavailable
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return ctx.Err()
	case token != nil && token.Header["alg"] != nil && !slices.Contains(v.allowed, algorithmOf(token)):
		return errAlgorithm
	case errors.Is(err, jwt.ErrTokenMalformed):
		return errHeader
	case errors.Is(err, jwt.ErrTokenSignatureInvalid), errors.Is(err, jwt.ErrTokenUnverifiable):
		return errSignature
	case errors.Is(err, jwt.ErrTokenExpired):
		return errExpired
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return errNotYet
	case errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return errFuture
	case errors.Is(err, jwt.ErrTokenInvalidIssuer):
		return errIssuer
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return errAudience
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing): // issuer or audience: nothing else is required
		if v.cfg.Issuer != "" && claimMissing(token, "iss") {
			return errIssuer
		}
		return errAudience
	}
	return errClaims
}

func algorithmOf(token *jwt.Token) string {
	name, _ := token.Header["alg"].(string)
	return name
}

func claimMissing(token *jwt.Token, name string) bool {
	claims, ok := token.Claims.(jwt.MapClaims)
	return ok && claims[name] == nil
}

// identity reads who a checked token speaks for.
func (v *Verifier) identity(claims jwt.MapClaims) (Identity, error) {
	subject, err := claims.GetSubject()
	if err != nil || len(subject) > maxSubjectBytes {
		return Identity{}, errSubject
	}
	who := Identity{Subject: subject}
	if word, ok := claims[v.cfg.RoleClaim].(string); ok {
		who.Roles |= v.cfg.Roles.of(word)
	}
	if words, ok := claims[v.cfg.RolesClaim].([]any); ok {
		for _, word := range words {
			if text, ok := word.(string); ok {
				who.Roles |= v.cfg.Roles.of(text)
			}
		}
	}
	return who, nil
}
