package config

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// databaseVariables are the variables any of which, set and not blank, names an external database.
var databaseVariables = []string{"DATABASE_URL", "PG_HOST", "PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DATABASE", "PG_DB"}

func (d *Database) check(lookup Lookup) []error {
	for _, name := range databaseVariables {
		if text, _ := lookup(name); strings.TrimSpace(text) != "" {
			d.Configured = true
		}
	}
	url := strings.TrimSpace(d.URL.Reveal())
	d.URL = NewSecret(url)
	if url != "" && !strings.HasPrefix(url, "postgres://") && !strings.HasPrefix(url, "postgresql://") && !strings.Contains(url, "=") {
		// The text is not repeated: it may be a password put into the wrong variable.
		return []error{errors.New(`DATABASE_URL is not a PostgreSQL connection string (expected postgres://user:password@host:port/database, or key=value pairs)`)}
	}
	return nil
}

// ConnString is the connection string of the configured database: DATABASE_URL as given, else one made from the PG_
// variables. It holds the password. It is empty when no database is configured.
func (d Database) ConnString() string {
	switch {
	case !d.Configured:
		return ""
	case d.URL.IsSet():
		return d.URL.Reveal()
	}
	// Key and value pairs rather than a URL: a host may be a socket directory.
	pairs := []string{
		"host=" + quote(d.Host), fmt.Sprintf("port=%d", d.Port), "user=" + quote(d.User),
		"dbname=" + quote(d.Name), "sslmode=" + d.sslMode(),
	}
	if d.Password.IsSet() {
		pairs = append(pairs, "password="+quote(d.Password.Reveal()))
	}
	return strings.Join(pairs, " ")
}

// Target says where the database is without any secret: for logs and messages.
func (d Database) Target() string {
	if !d.URL.IsSet() {
		return fmt.Sprintf("%s:%d/%s", d.Host, d.Port, d.Name)
	}
	if u, err := url.Parse(d.URL.Reveal()); err == nil && u.Host != "" {
		return u.Host + u.Path
	}
	return "DATABASE_URL"
}

func (d Database) sslMode() string {
	switch {
	case !d.UseSSL:
		return "disable"
	case d.SSLRejectUnauthorized:
		return "verify-full"
	default:
		return "require"
	}
}

// quote writes a value of a key=value connection string; backslash and quote are the two characters that need escaping.
func quote(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}
