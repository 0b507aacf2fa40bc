package pgtx

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"queenmq/internal/secret"
)

// A Client pushes and acknowledges in transactions of its caller's. Make it with [New]; it is safe for concurrent use, and holds no
// connection.
type Client struct {
	tenant uuid.UUID
	ring   *secret.Ring
	hints  bool
}

// A Database begins transactions: a *pgxpool.Pool, a *pgx.Conn, or a pgx.Tx, whose transactions are savepoints.
type Database interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// An Option changes what [New] makes.
type Option func(*Client) error

// WithTenant acts for a tenant, a UUID, instead of the default one.
func WithTenant(tenant string) Option {
	return func(c *Client) error {
		id, err := uuid.Parse(tenant)
		if err != nil {
			return fmt.Errorf("the tenant %q is not a UUID", tenant)
		}
		c.tenant = id
		return nil
	}
}

// WithEncryptionKeys gives the keys of the brokers (QUEEN_ENCRYPTION_KEY), 64 hexadecimal digits each: active encrypts, it and the
// older ones decrypt. Without them a push to a queue that demands encryption, and a pop of an encrypted message, is refused.
func WithEncryptionKeys(active string, older ...string) Option {
	return func(c *Client) (err error) {
		c.ring, err = secret.NewRing(active, strings.Join(older, ","))
		return err
	}
}

// WithoutHints leaves out the notification with which a commit wakes the pops that wait at brokers. Commits that notify take
// one lock for the whole server, one after the other; where that binds, turn hints off here, and waiting pops find the
// messages by looking, within about half a minute.
func WithoutHints() Option { return func(c *Client) error { c.hints = false; return nil } }

// What is missing in the database.
var (
	// ErrSchemaTooOld: the database has no Queen schema, or one that does not know the functions of this package yet.
	ErrSchemaTooOld = errors.New("the Queen schema of this database is missing or too old for pgtx: start a broker of this version, or run queen schema apply with one")
	// ErrNotGranted: the role may not call a function of this package. The package's documentation has the GRANT statements.
	ErrNotGranted = errors.New("this role may not use Queen inside its transactions: see the rights in the documentation of package pgtx")
)

// defaultTenant owns what is pushed without a tenant.
var defaultTenant = uuid.MustParse("00000000-0000-0000-0000-000000000001")

// New returns a client, after it has looked whether db has the schema that it needs. Errors: [ErrSchemaTooOld], [ErrNotGranted] when
// the role has no right on the schema, the option that makes no sense, or that of the database.
func New(ctx context.Context, db Database, options ...Option) (*Client, error) {
	c := &Client{tenant: defaultTenant, hints: true}
	for _, option := range options {
		if err := option(c); err != nil {
			return nil, fmt.Errorf("pgtx: %w", err)
		}
	}
	var schema, usable, present bool
	err := inTransaction(ctx, db, func(tx pgx.Tx) error {
		// The names are looked up in the catalogue, because resolving one needs a right that may be what is missing.
		return tx.QueryRow(ctx, `SELECT n.oid IS NOT NULL, COALESCE(has_schema_privilege(n.oid, 'USAGE'), FALSE),
			EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid AND p.proname = 'log_caller_push_v1')
			FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'queen'`).Scan(&schema, &usable, &present)
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("pgtx: look for the schema: %w", err)
	case !schema || !present:
		return nil, fmt.Errorf("pgtx: %w", ErrSchemaTooOld)
	case !usable:
		return nil, fmt.Errorf("pgtx: %w", ErrNotGranted)
	}
	return c, nil
}

// inTransaction runs f in a transaction and commits it.
func inTransaction(ctx context.Context, db Database, f func(pgx.Tx) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback(context.WithoutCancel(ctx)) // f's error says more
		return err
	}
	return tx.Commit(ctx)
}
