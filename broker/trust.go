package broker

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"

	"queenmq/internal/auth"
	"queenmq/internal/secret"
	"queenmq/internal/tenant"
)

// trust is what decides who may call and what is encrypted.
type trust struct {
	verifier *auth.Verifier // nil when no tokens are asked for
	ring     *secret.Ring   // nil without a key
}

// newTrust makes the parts from settings. It fails closed: a setting that cannot be honoured is an error that names its variable.
func newTrust(cfg *Config, log *slog.Logger) (trust, error) {
	var t trust
	var faults []error
	var err error
	if cfg.Auth.Enabled {
		if t.verifier, err = auth.New(authConfig(cfg, log)); err != nil {
			faults = append(faults, err)
		}
	}
	if t.ring, err = secret.NewRing(cfg.Secrets.Key.Reveal(), cfg.Secrets.OldKeys.Reveal()); err != nil {
		faults = append(faults, err)
	}
	if cfg.Auth.Required && !cfg.Auth.Enabled && cfg.TLS.ClientCA == "" {
		faults = append(faults, errors.New("QUEEN_REQUIRE_AUTH is on and callers are not authenticated: set JWT_ENABLED and its keys, or QUEEN_TLS_CLIENT_CA"))
	}
	return t, errors.Join(faults...)
}

func authConfig(cfg *Config, log *slog.Logger) auth.Config {
	a := cfg.Auth
	return auth.Config{
		Algorithm: a.Algorithm, Secret: a.Secret.Reveal(), PublicKey: a.PublicKey, JWKSURL: a.JWKSURL,
		RefreshInterval: a.RefreshInterval, FetchTimeout: a.FetchTimeout, Issuer: a.Issuer, Audience: a.Audience, Leeway: a.ClockSkew,
		SkipPaths: a.SkipPaths, RoleClaim: a.RoleClaim, RolesClaim: a.RolesClaim,
		Roles: auth.RoleNames{Admin: a.RoleAdmin, ReadWrite: a.RoleReadWrite, ReadOnly: a.RoleReadOnly, WriteOnly: a.RoleWriteOnly},
		Log:   log,
	}
}

// report says at the start what is open and how to close it.
func (t trust) report(ctx context.Context, cfg *Config, log *slog.Logger) {
	if t.ring != nil {
		log.InfoContext(ctx, "encryption service initialized (AES-256-GCM)", slog.String("key_id", t.ring.ActiveID().String()))
	}
	if t.verifier != nil {
		for _, weakness := range t.verifier.Weaknesses() {
			log.WarnContext(ctx, "tokens are weaker than they should be", slog.String("finding", weakness))
		}
	}
	switch authenticated := authenticates(cfg); {
	case !authenticated && cfg.Server.BindAddr == "":
		log.InfoContext(ctx, "callers are not authenticated, so this machine alone is listened to: set JWT_ENABLED=true with JWT_SECRET (or JWT_PUBLIC_KEY, "+
			"JWT_JWKS_URL), or QUEEN_TLS_CLIENT_CA, to be reached from others; QUEEN_BIND_ADDR=0.0.0.0 opens it to everybody")
	case !authenticated && !isLoopback(cfg.Server.BindAddr):
		log.WarnContext(ctx, "everybody who reaches this address may do everything: set JWT_ENABLED=true with JWT_SECRET (or JWT_PUBLIC_KEY, JWT_JWKS_URL), "+
			"or QUEEN_TLS_CLIENT_CA, or leave QUEEN_BIND_ADDR out; QUEEN_REQUIRE_AUTH=true refuses to start like this",
			slog.String("address", cfg.Server.BindAddr))
	}
	if t.verifier != nil && cfg.TLS.Cert == "" && !isLoopback(cfg.Server.BindAddr) {
		log.InfoContext(ctx, "tokens travel in plain text up to this broker: set QUEEN_TLS_CERT and QUEEN_TLS_KEY unless a proxy in front ends TLS")
	}
	if cfg.Tenancy.Header {
		log.InfoContext(ctx, "the tenant of a request is taken from a header that is not authenticated: let only a proxy that sets it reach this address",
			slog.String("header", tenant.Header))
	}
	if cfg.Database.SSLRootCert != "" && cfg.Database.Configured && !cfg.Database.URL.IsSet() && !cfg.Database.UseSSL {
		log.WarnContext(ctx, "PG_SSL_ROOT_CERT has no effect: PG_USE_SSL is off, so that PostgreSQL is spoken to in plain text")
	}
}

func isLoopback(address string) bool {
	ip := net.ParseIP(address)
	return strings.EqualFold(address, "localhost") || ip != nil && ip.IsLoopback()
}

// checkTrust finds at load time what would stop the start.
func checkTrust(cfg *Config) error {
	if _, err := newTrust(cfg, nil); err != nil {
		return err
	}
	if cfg.TLS.Cert != "" {
		if _, err := New(cfg).newCertificateSource(); err != nil {
			return err
		}
	}
	return nil
}
