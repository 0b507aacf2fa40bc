package testdb

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"queenmq/internal/pg"
	queensql "queenmq/sql"
)

// templateLock is the advisory lock of the maintenance database under which a template is built.
const templateLock = 778120011

// adminTimeout bounds each administrative act.
const adminTimeout = 60 * time.Second

// A Database is a database of its own for one test. It is dropped, with whoever is still connected, when the test ends.
type Database struct {
	// Name is the database's name on the server.
	Name string

	connString string
}

// ConnString returns a URL for the owner of the database.
func (d *Database) ConnString() string { return d.connString }

// Pool opens a pool on the database and closes it when the test ends.
func (d *Database) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), d.connString)
	if err != nil {
		t.Fatalf("testdb: open a pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// An Option changes a new database.
type Option func(*options)

type options struct {
	settings [][2]string
}

// Setting gives every session of the database a server setting, as ALTER DATABASE ... SET does.
func Setting(name, value string) Option {
	return func(o *options) { o.settings = append(o.settings, [2]string{name, value}) }
}

// TimeZone sets the zone that sessions of the database start with.
func TimeZone(zone string) Option { return Setting("TimeZone", zone) }

// New returns a fresh database with the embedded schema.
func New(t testing.TB, opts ...Option) *Database {
	t.Helper()
	return create(t, template(t), opts)
}

// NewEmpty returns a fresh database without the schema.
func NewEmpty(t testing.TB, opts ...Option) *Database {
	t.Helper()
	return create(t, "template0", opts)
}

func create(t testing.TB, template string, opts []Option) *Database {
	t.Helper()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	admin := serverURL(t)
	name := databaseName(t)
	statements := []string{"CREATE DATABASE " + quote(name) + " TEMPLATE " + quote(template)}
	for _, setting := range o.settings {
		statements = append(statements, "ALTER DATABASE "+quote(name)+" SET "+quote(setting[0])+" = "+literal(setting[1]))
	}
	if err := execAll(admin, statements...); err != nil {
		t.Fatalf("testdb: create a database: %v", err)
	}
	t.Cleanup(func() {
		if err := execAll(admin, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)"); err != nil {
			t.Errorf("testdb: drop the database: %v", err)
		}
	})
	url, err := withDatabase(admin, name)
	if err != nil {
		t.Fatalf("testdb: %v", err)
	}
	return &Database{Name: name, connString: url}
}

var (
	templateOnce sync.Once
	templateName string
	errTemplate  error
)

// template returns the name of a database that holds the embedded schema, building it when this schema text is new.
func template(t testing.TB) string {
	t.Helper()
	admin := serverURL(t)
	templateOnce.Do(func() { templateName, errTemplate = buildTemplate(admin) })
	if errTemplate != nil {
		t.Fatalf("testdb: build the template database: %v", errTemplate)
	}
	return templateName
}

func buildTemplate(admin string) (string, error) {
	files, err := queensql.Files()
	if err != nil {
		return "", err
	}
	digest := sha256.New()
	fmt.Fprintf(digest, "%d\x00", pg.SchemaVersion) // it is recorded in the template
	for _, file := range files {
		fmt.Fprintf(digest, "%s\x00%s\x00", file.Name, file.Text)
	}
	name := "queen_applied_" + hex.EncodeToString(digest.Sum(nil))[:16]

	ctx, cancel := context.WithTimeout(context.Background(), 3*adminTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// One process builds; the lock ends with the connection.
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", templateLock); err != nil {
		return "", err
	}
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&exists); err != nil || exists {
		return name, err
	}
	// The final name appears only when the template is complete.
	draft := name + "_draft"
	for _, statement := range []string{"DROP DATABASE IF EXISTS " + quote(draft) + " WITH (FORCE)", "CREATE DATABASE " + quote(draft) + " TEMPLATE template0"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return "", err
		}
	}
	url, err := withDatabase(admin, draft)
	if err != nil {
		return "", err
	}
	if err := applySchema(ctx, url); err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, "ALTER DATABASE "+quote(draft)+" RENAME TO "+quote(name))
	return name, err
}

// applySchema does what a broker does at its start.
func applySchema(ctx context.Context, url string) error {
	db, err := pg.Open(ctx, pg.Options{ConnString: url, MaxConns: 2, ApplicationName: "testdb template"})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.ApplySchema(ctx)
}

// execAll runs statements one by one on a connection of its own: a pool would leave goroutines behind in every test process.
func execAll(url string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statement := range statements {
		if _, err := conn.PgConn().Exec(ctx, statement).ReadAll(); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// databaseName is readable in pg_stat_activity and unique on the server.
func databaseName(t testing.TB) string {
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '_'
		}
	}, t.Name())
	if len(readable) > 40 {
		readable = readable[:40]
	}
	return "t_" + readable + "_" + strings.ToLower(rand.Text()[:10])
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
